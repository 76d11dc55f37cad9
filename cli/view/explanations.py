"""Explains each stable error code: what it means, what Droveway did, and what an operator does.

`droveway explain` and the error reference of the documents are made of this table.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Explanation(NamedTuple):
    """One code, in sentences for operators."""

    means: str
    did: str
    mend: str


_REFUSED: Final = "It changed nothing; the command ended with 2."
_LATER: Final = (
    "In an undo, or past the point of no return, the step was tried again for [conductor] retry_for seconds; then the "
    "move rests as needs-operator."
)
_UNDONE: Final = (
    f"Before its point of no return the move was undone and ended as failed; the server is as it was. {_LATER}"
)
_ALTERNATE: Final = (
    "The attempt on that host was undone and the next alternate tried. With none left the move ended as failed and the "
    f"server is as it was. {_LATER}"
)
_LEFT: Final = "The step was left as it is, without a result. Whoever claims the move next enters it again."
_RETRY: Final = "If the move rests: droveway move retry MOVE. If it failed: ask for it again."
_CINDER_PUT_BACK: Final = (
    "If the move rests and Cinder's database was put back, make the attachment anew: droveway move settle MOVE --cell "
    "cinder --reason TEXT. Then: droveway move retry MOVE. If the move failed, ask for it again."
)
_SERVICES: Final = ("Placement", "network", "volume", "image")
"""The services by the names that their clients use in errors."""

EXPLANATIONS: Final[dict[str, Explanation]] = {
    # Refusals and other ends of a command.
    "restored": Explanation(
        "A database was restored from an older copy or swapped with another one. Either an operator has adopted that "
        "database, or Droveway noticed the change, because ZooKeeper or a host has seen steps of a move that the "
        "journal lacks.",
        "The moves that rest with this code do not go on: Droveway does not know how far they really came.",
        "Put the newest copy back, or say droveway db adopt. Look at what droveway audit finds of the move, mend it, "
        "then: droveway move retry MOVE.",
    ),
    "refused": Explanation(
        "The request breaks a rule: a precondition of Nova's, a state, an option.",
        _REFUSED,
        "The sentence names the thing, the rule and the mend. Do that, then ask again.",
    ),
    "not-begun": Explanation(
        "A step was not begun. Either a last check failed before a step that cannot be undone, or the worker could not "
        "write the begin of the step into its own journal.",
        "The move was undone, as if the step had failed before its point of no return.",
        "The sentence says why it could not begin. Mend that, then ask again.",
    ),
    "not-found": Explanation(
        "No server, host, cell, flavor, move, fault or kind of flow has this name or id.",
        _REFUSED,
        "List what there is: droveway server list, host list, flavor list, move list.",
    ),
    "cell-away": Explanation(
        "A step needed the database of a cell that did not answer, or that somebody declared down.",
        "If the guest had not been stopped yet, the next alternate was tried. If it had been stopped, the step waited "
        "for [conductor] step_deadline seconds. If Nova's API database still mapped the server to its old cell at the "
        "end of that time, the move was undone; if not, the move rests as needs-operator. If the cell is declared "
        "down, no step waits for it: the move ends with the rows of the other cell alone, or rests if it cannot.",
        "Start the database that the sentence names; one that was declared down needs droveway cell up besides. If the "
        "move rests: droveway move retry MOVE. If it failed: ask for it again.",
    ),
    "cell-owes": Explanation(
        "The cell still owes a clean-up for the server: its database was away when an earlier move, or an earlier "
        "alternate of this move, left rows there.",
        _ALTERNATE,
        "droveway debt list shows what is owed. It is paid by itself once the cell's database answers.",
    ),
    "conflict": Explanation(
        "Somebody else changed the same row first: a compare-and-swap found other values than it expected.",
        "The change was not made. A command ended with 2; a step was undone or tried again.",
        "Look again with droveway move show MOVE, then ask again if it is still wanted. If vm_state is soft-delete, a "
        "user has deleted the server so that it can be restored: openstack server set --state active SERVER, then "
        "droveway move retry MOVE.",
    ),
    "illegal-transition": Explanation(
        "A state change was asked for that the table of legal transitions does not hold.",
        "The change was not made.",
        "Look at droveway move show MOVE. A row that was edited by hand may be the cause: droveway audit.",
    ),
    "bad-object": Explanation(
        "A column of Nova's does not hold the object that Nova keeps there: a flavor, a request spec, a context.",
        _UNDONE,
        "Restore the row that the message names from a backup, then ask again.",
    ),
    "database-unusable": Explanation(
        "A database file is missing, corrupt, read-only or of another schema.",
        "Nothing was run and the file was left as it is; the command ended with 2.",
        "Restore the file or give yourself access to it. For an older schema of the journal: droveway db sync.",
    ),
    "output-lost": Explanation(
        "What a command had to say could not be written: the disk behind its output is full, or its output is closed.",
        "What was asked for was done, or goes on. The command ended with 1. If it made or changed a move, its error "
        "names the id of that move.",
        "Do not ask again: droveway move show MOVE tells how it stands. Give the output room.",
    ),
    "still-moving": Explanation(
        "The server is to be deleted, but its move cannot end by itself.",
        "The wish to delete is kept with the move; the server is not deleted yet. The command ended with 4.",
        "Mend what the message names, then droveway lab server delete SERVER once more.",
    ),
    "internal": Explanation(
        "Droveway met an error that it does not know: a defect.",
        _UNDONE,
        "Read the traceback in the log of the conductor that ran the move, or of the host's worker (journalctl -u "
        "droveway-conductor, -u droveway-worker), or in a lab's droveway.log. Then droveway move retry MOVE if the "
        "move rests. Please report it.",
    ),
    # How a move ends or rests.
    "cancelled": Explanation(
        "Somebody asked for the move to be cancelled, and it had not passed its point of no return.",
        "The move was undone and ended as cancelled; the server is as it was.",
        "Nothing.",
    ),
    "deleted": Explanation(
        "The server was deleted in the middle of its move.",
        "The move was undone, and what it held was released instead of given back. It ended as cancelled.",
        "Nothing. droveway audit proves that nothing of the server is left.",
    ),
    "parked": Explanation(
        "A step was left without a result on purpose: the move is held, its conductor stops, or it needs an operator.",
        _LEFT,
        "droveway move show MOVE says which, and what can be done.",
    ),
    "quarantined": Explanation(
        "Several conductors in a row ended in the middle of this move and none saved any progress. The move may be "
        "what ends them.",
        "The move rests as needs-operator, so that it takes no more conductors with it.",
        "Look at the conductors' logs and mend the cause, then droveway move retry MOVE.",
    ),
    "flow-stopped": Explanation(
        "A flow stopped without an end, and no failure of a step is the reason: the message says what is.",
        "The move rests as needs-operator where it stopped. What was done stays done, what was undone undone.",
        "Look at the conductor's log, mend what the message names, then droveway move retry MOVE: it goes on from "
        "what was stored.",
    ),
    "retried": Explanation(
        "This run of a step was ended by droveway move retry, which entered the step again.",
        "The step's next run stands below it in droveway move history MOVE.",
        "Nothing.",
    ),
    "settled": Explanation(
        "This run of a step was ended by droveway move settle: a person said what had become of the step.",
        "As done: the move went on behind it. As not done: the step was entered again.",
        "Nothing. Who said so, and why, stands below it in droveway move history MOVE.",
    ),
    "left-as-is": Explanation(
        "A person ended a move that rested, with droveway move settle MOVE STEP --as left.",
        "Nothing of the server was started, brought back or deleted. Droveway ended the move in the journal, in "
        "Placement and in the server's rows. The server's vm_state became ERROR, unless its rows had changed since the "
        "move's last step.",
        "Look where the server runs and where its disks are: droveway audit names what was left. Then set its state.",
    ),
    "fenced": Explanation(
        "A conductor or worker lost its claim on the move to another one.",
        "It wrote nothing more and took no further effect. The new claimant goes on from what was stored.",
        "Nothing. If it happens often, look at the conductor's connection to ZooKeeper.",
    ),
    "coordination-lost": Explanation(
        "ZooKeeper did not answer, or the session with it ended. Whether the last call took effect is unknown.",
        _LEFT,
        "Nothing, once ZooKeeper answers. Look at ZooKeeper if it does not.",
    ),
    "step-failed": Explanation(
        "A step failed for a reason that has no code of its own; the message says which.",
        _UNDONE,
        f"Mend what the message names. {_RETRY}",
    ),
    "destination-fault": Explanation(
        "A step failed through the destination's fault, for a reason that has no code of its own.",
        _ALTERNATE,
        "Look at that host: droveway host show HOST. Disable it if it stays broken: droveway host disable HOST.",
    ),
    "fault": Explanation(
        "A fault that was armed in the lab fired.",
        "The same as for a real failure of that step; --class says whether the next alternate is tried.",
        "droveway lab fault list shows what is armed, droveway lab fault clear disarms it.",
    ),
    # The choice and the claim of a destination.
    "no-valid-host": Explanation(
        "No host can take the server. The message says why. It names at most eight hosts, each with the filter at "
        "which it fell out.",
        "If the move was refused at submit, nothing was changed. If no host was left later on, the move was undone and "
        "ended as failed; the server is as it was.",
        "Free or enable a host, start its worker, or choose another flavor. droveway move plan SERVER --flavor FLAVOR "
        "tells whether a host can take the server with that flavor.",
    ),
    "next-graph": Explanation(
        "The next alternate needs another kind of flow: it is in another cell, or it is back in the server's own one.",
        "This flow ended, and the move went on to that alternate by another flow. The move keeps its id, its migration "
        "and its history.",
        "Nothing: droveway move history MOVE shows the steps of both flows.",
    ),
    "no-capacity": Explanation(
        "Placement refused the claim: the destination has no room for the flavor any more. Somebody was quicker.",
        _ALTERNATE,
        "Nothing, if an alternate was found. Else droveway host list shows what is used.",
    ),
    "group-policy": Explanation(
        "By the time the host was claimed, the policy of the server's group forbade it: another server of the group "
        "had come there, was on its way from or to it, or may still be reverted to it.",
        _ALTERNATE,
        "Nothing, if an alternate was found. Else end the other server's move first: droveway move list shows it.",
    ),
    "no-allocation": Explanation(
        "The server has no allocation in Placement, which a move needs to begin with.",
        _UNDONE,
        "droveway audit names what is missing and the command that mends it. Then ask again.",
    ),
    "allocation-conflict": Explanation(
        "Another writer changed the allocations of the server or of its migration, or they are not those of this move.",
        f"Placement refused the conductor's call, which carried an old generation of the allocations. {_UNDONE}",
        "droveway audit tells whose allocation it is. Mend it, then droveway move retry MOVE or ask again.",
    ),
    "no-compute-node": Explanation(
        "The host that was chosen has no compute node in the cell's database.",
        _ALTERNATE,
        "Let the host register with the cell again, or disable it: droveway host disable HOST.",
    ),
    # Cloud services.
    **{
        f"{service.lower()}-unavailable": Explanation(
            f"The {service} service did not answer, or failed several times in a row to carry out a request.",
            _UNDONE,
            f"Look at the service and its log. {_RETRY}",
        )
        for service in _SERVICES
    },
    **{
        f"{service.lower()}-overdue": Explanation(
            f"The step's deadline passed while it asked the {service} service, which was silent or too slow.",
            f"{_UNDONE} The service may still carry out the last request. So each try first reads what is there.",
            f"Look at the service and its log; [conductor] step_deadline says how long a step may take. {_RETRY}",
        )
        for service in _SERVICES
    },
    **{
        f"{service.lower()}-failed": Explanation(
            f"The {service} service refused a request that should have been right; the message holds its answer.",
            _UNDONE,
            f"Mend what the answer names. {_RETRY}",
        )
        for service in _SERVICES
    },
    "binding-refused": Explanation(
        "Neutron cannot bind the port on that host: no agent there, or no network of that kind.",
        _ALTERNATE,
        "Look at the host's network agent; droveway host disable HOST keeps other moves away from it.",
    ),
    "binding-missing": Explanation(
        "A port has no binding on the host that is to be made active. Somebody removed it.",
        _UNDONE,
        f"droveway audit shows the port. {_RETRY}",
    ),
    "by-nova": Explanation(
        "A user confirmed or reverted the server through Nova, or nova-compute did so by itself, as its move waited.",
        "The move has ended as Nova ended it; what it still held was cleared, or is owed.",
        "Nothing is to be done. droveway audit names what is left, if anything is.",
    ),
    "changed": Explanation(
        "A volume or a port of the server was changed while its move began, before the move could mark the server.",
        "The move ended; nothing of the server was touched.",
        "Ask for the move again.",
    ),
    "last-copy": Explanation(
        "One host does not show the server's disks whole, so the copy on the other host may be the only one.",
        "That copy was kept, and the move rests.",
        "Look at the server's directories on both hosts. If the disks that the message names as missing are back: "
        "droveway move retry MOVE. If the copy is the server's only one, keep it and end the move: droveway move "
        "settle MOVE STEP --as left.",
    ),
    "second-copy": Explanation(
        "The other cell has rows of the server already, which this move did not make.",
        _UNDONE,
        f"droveway audit says what these rows are and how to remove them. {_RETRY}",
    ),
    "connect-refused": Explanation(
        "The destination cannot reach the volume's storage.",
        _ALTERNATE,
        "Look at the host's way to that storage; droveway host disable HOST keeps other moves away from it.",
    ),
    "volume-connected-elsewhere": Explanation(
        "The volume is connected through another attachment than those of this move.",
        _UNDONE,
        f"droveway audit shows the attachments. Remove the one that nobody owns. {_RETRY}",
    ),
    "volume-unconnected": Explanation(
        "An attachment that a guest needs is not connected to its host.",
        _UNDONE,
        f"droveway audit shows the attachment. {_CINDER_PUT_BACK}",
    ),
    "attachment-gone": Explanation(
        "Cinder has no attachment of the id that the server's row names for one of its volumes: somebody deleted it, "
        "or Cinder's database was put back from an older copy.",
        _UNDONE,
        f"droveway audit shows what differs. {_CINDER_PUT_BACK}",
    ),
    # Hosts and their workers.
    "host-unreachable": Explanation(
        "The worker of a host was away for longer than [conductor] host_away seconds.",
        f"If it is a destination before the point of no return: {_ALTERNATE[0].lower()}{_ALTERNATE[1:]}",
        "Start the worker or mend the host: droveway host show HOST. Then droveway move retry MOVE if the move rests. "
        "If the host is off for good, make sure of it and say so first: droveway host down HOST --i-made-sure TEXT.",
    ),
    "declared-down": Explanation(
        "A host that a step needs was declared down, and its worker is away.",
        "No step waited for the host. If the flow could go on without the host, it did, and the host owes its part. If "
        "not, the flow was undone, and the host owes the undo of its steps.",
        "droveway move show MOVE names what ends the move, droveway debt list --host HOST what is owed. If the host is "
        "back, start its worker, then: droveway host enable HOST.",
    ),
    "bad-answer": Explanation(
        "The answer of a host's worker is not valid: a part has a wrong type or value, is missing, or is one too many.",
        "As for any failure of that host: before the point of no return the next alternate is tried, or the move is "
        "undone. Nothing of the answer was used.",
        "Upgrade or restart the host's worker and see its log. One that keeps at it may be in strange hands: droveway "
        "worker drain HOST, and a new certificate. Then droveway move retry MOVE if the move rests.",
    ),
    "overdue": Explanation(
        "A host's worker was there, but did not finish a command in time.",
        "As for a host that is away; the worker may still be at it, and a later run finds what it did.",
        "Look at the host and its worker's log. Then droveway move retry MOVE if the move rests.",
    ),
    "deadline": Explanation(
        "An action on a host took longer than its step allows.",
        _UNDONE,
        f"Look at why the host is slow: its disks, its hypervisor. {_RETRY}",
    ),
    "hypervisor-away": Explanation(
        "The libvirt daemon of a host does not answer.",
        _UNDONE,
        f"Start it again on that host. {_RETRY}",
    ),
    "disk-full": Explanation(
        "A host has no room for the server's disks.",
        f"If it is the destination: {_ALTERNATE[0].lower()}{_ALTERNATE[1:]}",
        "Make room on the host, or disable it: droveway host disable HOST.",
    ),
    "disk-format": Explanation(
        "A disk is not raw or qcow2, its format was recorded nowhere, or it keeps its data in another file.",
        f"No tool was let at it. {_UNDONE}",
        "Convert the disk while the server is off, with qemu-img convert -f FORMAT -O qcow2, and record its format in "
        f"disk.info beside it. {_RETRY}",
    ),
    "definition": Explanation(
        "The guest has a part that no host takes over from another one: a file or a device of its host, a network of "
        "its host, or an argument for QEMU.",
        f"It was refused before the guest was touched. {_UNDONE}",
        f"Take the part that is named out of the guest, with virsh edit or by its flavor, and start it anew. {_RETRY}",
    ),
    "storage-away": Explanation(
        "A host's directory of servers is not there, or not the one that the move worked in: its mount went away.",
        f"Nothing was written in its place. {_UNDONE}",
        f"Mount it again on that host. {_RETRY}",
    ),
    "io": Explanation(
        "A file operation failed on a host; the message holds the system's word for it.",
        _UNDONE,
        f"Look at the host's file system and its log. {_RETRY}",
    ),
    "in-the-way": Explanation(
        "A directory that the move needs to make is there already, left by another move or by nobody.",
        f"It was left alone. If it is on the destination: {_ALTERNATE[0].lower()}{_ALTERNATE[1:]}",
        "droveway audit says whose it is. Remove it when it is nobody's.",
    ),
    "foreign": Explanation(
        "A guest, a directory or a set-aside copy on the host belongs to another move.",
        f"It was left alone: neither stopped, nor started, nor removed. {_UNDONE}",
        f"droveway audit says whose it is; see what it is before you remove it. {_RETRY}",
    ),
    "missing": Explanation(
        "A disk or directory that should be on the host is not there.",
        _UNDONE,
        f"droveway audit names it. Bring it back, from a backup if need be. {_RETRY}",
    ),
    "damaged": Explanation(
        "What the move left on a host is not whole: a disk, a file that describes them, or the guest's definition.",
        _UNDONE,
        "A confirm goes no further, so the source's copy is still there: droveway move revert MOVE goes back to it. "
        "In a revert: droveway audit names what is damaged.",
    ),
    "link": Explanation(
        "A name in the instances directory is a link or no plain file. Links are never followed.",
        _UNDONE,
        "See who made it. Put the plain file or directory back, then ask again.",
    ),
    "backing-file": Explanation(
        "A disk rests on a backing file that its copy would not hold.",
        _UNDONE,
        "Flatten the disk while the server is stopped (qemu-img rebase), then ask again.",
    ),
    "no-image-service": Explanation(
        "A server's disks go through the image service, and nobody says how Glance is reached.",
        _UNDONE,
        "Fill the group [glance] of the configuration on the conductors and on the host, as [cinder] is filled.",
    ),
    "image-gone": Explanation(
        "The image that holds a server's disk, or is to hold it, is not in the image service any more.",
        _UNDONE,
        f"See who deleted it, in the log of Glance. {_RETRY}",
    ),
    # Copying disks.
    "checksum": Explanation(
        "A disk's copy, or its image, gave back other data than its source had sent.",
        f"The copy was thrown away; the source's disk was left as it is. {_ALTERNATE}",
        "Check the disks of the host that the message names, and the memory of both hosts. If the copy went through an "
        "image, check Glance's storage and memory too.",
    ),
    "source-changed": Explanation(
        "A disk that was set aside on the source was written to, cut or replaced, or its rights changed in mid-copy.",
        f"The copy was thrown away. {_UNDONE}",
        "Find who writes to the source's directory (a backup, a person) and let it stop. Then ask again.",
    ),
    "source-unreachable": Explanation(
        "The destination cannot fetch disks from the source's worker.",
        _UNDONE,
        "See that the source's worker is up and that the hosts reach each other, or ask, between cells, for --transfer "
        f"image. {_RETRY}",
    ),
    "disks-unreachable": Explanation(
        "The source is declared down, so the revert tried another host of its cell. That host can get the server's "
        "disks neither from a directory that it shares with the source nor from images.",
        _UNDONE,
        "Bring the source back and revert again, or keep the server where it is with droveway move confirm.",
    ),
    "not-offered": Explanation(
        "A host asked for disks that the other host does not offer to it for this move.",
        f"Nothing was served. {_UNDONE}",
        f"{_RETRY} If it comes again, please report it.",
    ),
    "protocol": Explanation(
        "Two workers did not understand each other, or something else spoke at a worker's transfer address.",
        f"Nothing was served or kept. {_UNDONE}",
        f"See that both workers have the same version. {_RETRY}",
    ),
    "address": Explanation(
        "A worker's transfer address has a form that this version does not know.",
        _UNDONE,
        "Correct the address in that worker's configuration.",
    ),
    "certificate": Explanation(
        "A worker could not prove by a certificate that it is the worker of the expected host.",
        _UNDONE,
        "See [tls] of both hosts: certificates of one authority, each with its host's name among its DNS names.",
    ),
    # Guests.
    "start-failed": Explanation(
        "The guest could not start on that host, and it is proved that it never did.",
        _ALTERNATE,
        "Look at what the hypervisor says in the message; droveway host disable HOST keeps other moves away.",
    ),
    "start-unknown": Explanation(
        "Nobody can say whether the guest started on that host.",
        "The move rests as needs-operator at once. It is not undone: the guest may run, and no guest ever runs twice.",
        "Bring the host back, or make sure what became of the guest there. Then droveway move retry MOVE: it finds a "
        "guest that runs, or starts it.",
    ),
    "went-off": Explanation(
        "The guest was started on its new host, and was off again when its worker looked right after that.",
        "The move rests as needs-operator at once. It is not undone: the guest may have written to its disks.",
        "Look at the guest's console and the hypervisor's log. Then droveway move retry MOVE starts it again. Where it "
        "is to be off: droveway move settle MOVE STEP --as done.",
    ),
    "permission-void": Explanation(
        "A conductor proves that the guest runs nowhere else, and then permits the worker to start it. The permission "
        "ended, because the conductor or the worker stood still for half of [zookeeper] session_timeout.",
        "The guest was not started. The conductor repeats proof and permission up to forty times. Then the next "
        "alternate is tried. An undo is tried again for [conductor] retry_for seconds.",
        "See why that machine stands still or is slow: a VM that is paused, a disk that hangs, [zookeeper] "
        "session_timeout that is too short for it.",
    ),
    "runs-elsewhere": Explanation(
        "A step would start the guest on one host, and it runs on the other.",
        "It was not started a second time. The step is tried again for [conductor] retry_for seconds; then the move "
        "rests as needs-operator.",
        "See who started it there. Stop it on the host that the message names, then droveway move retry MOVE.",
    ),
    "evacuated": Explanation(
        "Nova evacuated the server to another host while this move was under way.",
        "Nova's evacuation wins: the move started no guest, gave nothing back and ended as cancelled. The "
        "move's own allocations, bindings and attachments were removed, or are owed. The disks that the source set "
        "aside are kept. The destination's copy is kept too, unless the source has shown that its own disks are whole.",
        "See that the server runs where its rows name it. droveway audit names what was kept: look whether anybody "
        "needs it before you remove it.",
    ),
    "being-evacuated": Explanation(
        "Nova evacuates a server that is to be deleted, or took it elsewhere right before its rows were to go.",
        "Nothing more of the server is deleted while Nova builds it anew. The step is tried again for [conductor] "
        "retry_for seconds. If the evacuation ends in that time, the step deletes the server on its new host. If it "
        "does not, the move rests as needs-operator.",
        "Wait until openstack server show tells no task any more, then droveway move retry MOVE: the server is deleted "
        "where it is by then. If the evacuation hangs, say droveway move retry MOVE without waiting: it deletes the "
        "server in the middle of the evacuation, as Nova's own delete would.",
    ),
    "overtaken": Explanation(
        "The journal was put back from an older copy and adopted, and the move had come further than that copy knows.",
        "The step that the message names was neither done nor undone. In a forward flow the step fails, and the flow "
        "is undone, including the steps that the old journal does not know. An undo is tried again for [conductor] "
        "retry_for seconds; then the move rests as needs-operator.",
        "See with droveway server show SERVER where the server lives and runs. Stop a guest that is not to stay, and "
        "see that the rows name the host that the journal has; then droveway move retry MOVE. Or say that the undo "
        "needs nothing: droveway move settle MOVE STEP --as done. Or end the move there, with --as left.",
    ),
    "cell-put-back": Explanation(
        "The rows of the server in a cell, or its mapping, stand where an earlier step of the same move had left them: "
        "that database was put back from an older copy in the middle of the move.",
        "The step that would have been next did nothing. Hosts, volumes, ports and the journal are as they were.",
        "If the database was put back, write there again what the move had left: droveway move settle MOVE --cell CELL "
        "--reason TEXT (or --cell api, as the message says). Then: droveway move retry MOVE. If it was not put back, "
        "somebody has changed the rows and has to change them back: droveway move history MOVE tells what was done, "
        "and droveway server show SERVER what the rows say.",
    ),
    "record-lost": Explanation(
        "The journal was put back from an older copy and adopted. Neither it nor ZooKeeper knows any more what the "
        "move began with: the server as it was before, or the destination that was chosen.",
        "Nothing was done since. The move can be neither finished nor undone from this journal.",
        "Put a newer copy of the journal back. When there is none, see with droveway server show SERVER where the "
        "server lives and runs, and end the move there: droveway move settle MOVE STEP --as left --reason TEXT. Then "
        "droveway audit names what is left over.",
    ),
    "not-this-moves": Explanation(
        "The server's rows name another host, or a task or a status of the migration that this move did not leave.",
        "Its guest was not started. The step is tried again for [conductor] retry_for seconds; then the move rests as "
        "needs-operator.",
        "See who changed the rows, and whether the server runs anywhere. Once they are as the move left them: droveway "
        "move retry MOVE. If only the server's state was reset, that command also writes the move's "
        "task_state into the row again.",
    ),
    "guest-runs": Explanation(
        "A guest runs whose disks were to be moved, copied or removed.",
        f"Its disks were left alone. {_UNDONE}",
        f"See who started it and stop it. {_RETRY}",
    ),
}
"""The explanation of each code, in the order of the error reference."""
