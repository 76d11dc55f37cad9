"""Checks a server, its ports and its hosts by the rules for a move, a confirm and a revert.

Each function is one rule. Its docstring says what the rule requires. It returns None when the rule holds, else one
sentence that names the thing, the rule and the mend.
"""

from __future__ import annotations

from typing import Final

from droveway.clients.network import BINDING_EXTENDED, NORMAL, RESOURCE_REQUEST
from droveway.clients.port_resources import ALLOCATION
from droveway.persistence.nova.vm_states import MOVABLE, RESIZING, MigrationStatus, TaskState, VmState
from droveway.scheduler.facts import EndFacts, Facts
from droveway.scheduler.features import ACCELERATORS, unhandled

_ACCELERATED = "accelerator-direct"
SETTLEABLE_VM_STATES: Final = frozenset({*MOVABLE, VmState.RESIZED, VmState.ERROR})
"""The states of a server from which `move settle` lets its move wait for confirm or revert again."""
SETTLEABLE_MIGRATIONS: Final = frozenset(
    {MigrationStatus.FINISHED, MigrationStatus.CONFIRMING, MigrationStatus.REVERTING, MigrationStatus.ERROR}
)
"""The states of a migration from which `move settle` lets its move wait for confirm or revert again."""
_OWN: Final = frozenset({*RESIZING, TaskState.RESIZE_REVERTING})
"""The tasks that the move itself gives the server.

A server whose move waits for confirm or revert has none. If it shows one, its cell's database was *put back*: an older
copy of the database has replaced it. RESIZE_REVERTING has another cause if the migration is reverting too: a revert
through Nova that died.
"""


def no_open_move(facts: Facts) -> str | None:
    """Require that no other move of the server is open."""
    if facts.open_move is None:
        return None
    return (
        f"server {facts.server.name} has move {facts.open_move} under way, and a server has one move at a time: "
        f"droveway move show {facts.open_move} tells how it ends"
    )


def no_shares(facts: Facts) -> str | None:
    """Require that no share is attached to the server."""
    if not facts.features.shares:
        return None
    return (
        f"server {facts.server.name} has {_count(facts.features.shares, 'share')} attached, and a server with shares "
        "cannot be moved: detach them first, and attach them again once the move is confirmed"
    )


def no_accelerated_port(facts: Facts) -> str | None:
    """Require that no port of the server is an accelerator's."""
    for port in facts.ports:
        if port.vnic_type.startswith(_ACCELERATED):
            return (
                f"port {port.id} of server {facts.server.name} is of vnic type {port.vnic_type}, and a server with an "
                "accelerator cannot be moved: detach the port first"
            )
    return None


def only_normal_ports(facts: Facts) -> str | None:
    """Require that every port of the server is of vnic type normal, so that it can be bound on any host."""
    for port in facts.ports:
        if port.vnic_type != NORMAL:
            return (
                f"port {port.id} of server {facts.server.name} is of vnic type {port.vnic_type}, and only {NORMAL} "
                "ports are moved, since others need a device of the destination: detach the port first"
            )
    return None


def binds_ports_twice(facts: Facts) -> str | None:
    """Require that Neutron has the extension binding-extended, which binds a server's ports to two hosts at once."""
    if facts.binds_twice:
        return None
    return (
        f"server {facts.server.name} has ports, and Neutron lacks the extension {BINDING_EXTENDED}, by which a port is "
        "bound to its new host before it leaves the old one: enable ml2 as Neutron's core plugin, or detach the ports "
        "first"
    )


def tells_what_ports_ask(facts: Facts) -> str | None:
    """Require that Neutron has the extension port-resource-request, where the server's ports ask for resources."""
    silent = [port for port in facts.ports if not port.tells_request]
    named = next((port.id for port in silent if port.profile.get(ALLOCATION)), None)
    if not silent or (named is None and not facts.holds_for_ports):
        return None
    has = (
        f"whose port {named} has an allocation of bandwidth or packet rates in its binding"
        if named is not None
        else f"which holds {', '.join(facts.holds_for_ports)} for its ports in Placement"
    )
    return (
        f"Neutron lacks the extension {RESOURCE_REQUEST}, so that nobody can tell what to claim for server "
        f"{facts.server.name}, {has}: enable qos among Neutron's service plugins"
    )


def no_accelerator(facts: Facts) -> str | None:
    """Require that the server's flavor asks for no accelerator."""
    profile = facts.current.extra_specs.get(ACCELERATORS)
    if profile is None:
        return None
    return (
        f"server {facts.server.name} has the accelerators of device profile {profile} by its flavor "
        f"{facts.current.name}, and a server with accelerators cannot be moved: make a new one from its image instead"
    )


def no_bound_devices(facts: Facts) -> str | None:
    """Require that the server has no host device: pinned CPUs, NUMA cells, large pages, PCI, vGPU, vTPM, pmem."""
    features = facts.features
    held = (
        (features.numa, "CPUs and memory placed in NUMA cells of its host"),
        (features.pci, "PCI devices"),
        (features.resources, "persistent memory or another resource of its host"),
    )
    found = next((what for has, what in held if has), None)
    found = found or unhandled(f"its flavor {facts.current.name}", facts.current.extra_specs)
    found = found or unhandled("its image", facts.features.image_properties)
    if found is None:
        return None
    return (
        f"server {facts.server.name} has {found}, and a server to which single devices of its host are given cannot be "
        "moved yet: leave it where it is, or make a new one of another flavor"
    )


def in_a_movable_state(facts: Facts) -> str | None:
    """Require that the server is active or stopped."""
    server = facts.server
    if server.vm_state in MOVABLE:
        return None
    task = f", task {server.task_state}" if server.task_state else ""
    return (
        f"server {server.name} is {server.status} (state {server.vm_state}{task}), and only one that is ACTIVE or "
        "SHUTOFF without a task can be moved: wait for its task or bring it into one of these states, then try again"
    )


def without_a_task(facts: Facts) -> str | None:
    """Require that the server has no task: nothing else is being done to it."""
    server = facts.server
    if server.task_state is None:
        return None
    verb = {TaskState.POWERING_ON: "start", TaskState.POWERING_OFF: "stop"}.get(server.task_state)
    # In a lab, a command that was killed leaves its task, and nobody is there who would end it.
    lab = f" (in a lab: droveway lab server {verb} {server.name})" if verb else ""
    return (
        f"server {server.name} is {server.status} (state {server.vm_state}, task {server.task_state}), and only one "
        f"without a task can be moved: wait for its task or end it{lab}, then try again"
    )


def was_launched(facts: Facts) -> str | None:
    """Require that the server was started at least once."""
    if facts.server.launched:
        return None
    return f"server {facts.server.name} was never started, so there is nothing to move: build it first"


def is_on_a_host(facts: Facts) -> str | None:
    """Require that the server is on a host."""
    if facts.server.host is not None:
        return None
    return (
        f"server {facts.server.name} is on no host, and only what is on one can be moved: droveway audit says what "
        "became of it"
    )


def hosts_are_of_one_cell(facts: Facts) -> str | None:
    """Require that the name of the server's host, and of a host that is named, stands in one cell only."""
    named = (facts.server.host or "", facts.target.name if facts.target is not None else "")
    return next((facts.namesakes[name] for name in named if name in facts.namesakes), None)


def source_is_up(facts: Facts) -> str | None:
    """Require that the worker of the server's host is up; the host may be disabled."""
    server = facts.server
    forced = facts.source is not None and facts.source.forced_down
    if server.host in facts.up and not forced:
        return None
    return (
        f"host {server.host}, which server {server.name} is on, is {'forced down' if forced else 'down'}, and a server "
        f"is only moved from a host whose worker is up: "
        + (
            f"either let Nova evacuate the server, or start the host again, since it has the server's disks, and then "
            f"say droveway host enable {server.host}"
            if forced
            else f"start it, then droveway host show {server.host}"
        )
    )


def target_is_another_host(facts: Facts) -> str | None:
    """Require that a named host is not the server's own, unless its hypervisor can migrate a server to its own host."""
    server, target = facts.server, facts.target
    if target is None or target.name != server.host or facts.same_host_cold_migrate:
        return None
    return (
        f"server {server.name} is on host {target.name} already, and its hypervisor cannot migrate a server to "
        "its own host: name another host"
    )


def target_is_in_its_cell(facts: Facts) -> str | None:
    """Require that a named host is in the named cell, and the server stays in its cell unless servers may leave it."""
    server, target = facts.server, facts.target
    if target is not None and facts.to_cell not in (None, target.cell):
        return (
            f"host {target.name} is in cell {target.cell} and not in cell {facts.to_cell}: name one of the two, or a "
            "host of that cell"
        )
    if not facts.leaves_cell or facts.may_leave_cell:
        return None
    if target is not None:
        return (
            f"host {target.name} is in cell {target.cell} and server {server.name} in cell {server.cell}: a move stays "
            f"in its cell, so name a host of {server.cell}"
        )
    return (
        f"server {server.name} is in cell {server.cell} and may not leave it: set [cross_cell] allowed = true on every "
        "conductor's machine, or leave --to-cell out"
    )


def target_cell_takes_servers(facts: Facts) -> str | None:
    """Require that the cell which the server goes to is enabled."""
    if not facts.leaves_cell or not facts.cell_disabled:
        return None
    return (
        f"server {facts.server.name} cannot go to cell {facts.cell}, which is disabled and takes no new servers: "
        "nova-manage cell_v2 update_cell --enable, or name another cell"
    )


def target_cell_answers(facts: Facts) -> str | None:
    """Require that the database of the cell which the server goes to answers."""
    if facts.cell not in facts.cells_away:
        return None
    return (
        f"server {facts.server.name} cannot go to cell {facts.cell}, whose database does not answer: start it, or name "
        "another cell"
    )


def crosses_whole(facts: Facts) -> str | None:
    """Require that the server can leave its cell with all that it has, if the move goes to another cell."""
    return facts.bound_to_cell or None


def target_cell_has_no_copy(facts: Facts) -> str | None:
    """Require that the target cell has no rows of the server yet, and no super conductor of Nova is up.

    A super conductor ends the move when a user confirms, reverts or deletes the server through Nova. It then removes
    disks and attachments that the move still needs.
    """
    why = facts.other_cells.get(facts.cell) if facts.leaves_cell else None
    return f"server {facts.server.name} cannot go to cell {facts.cell}: {why}" if why else None


def target_takes_servers(facts: Facts) -> str | None:
    """Require that a named host is enabled and up."""
    target = facts.target
    if target is None:
        return None
    if not target.enabled:
        return (
            f"host {target.name} is disabled ({target.disabled_reason or 'no reason given'}) and takes no servers: "
            f"droveway host enable {target.name}, or name another host"
        )
    if target.name not in facts.up or target.forced_down:
        return f"host {target.name} is down and takes no servers: start its worker, or name another host"
    return None


def holds_its_allocation(facts: Facts) -> str | None:
    """Require that the server has an allocation in Placement for what it uses on its host."""
    if facts.holds_allocation:
        return None
    return (
        f"server {facts.server.name} holds no allocation on host {facts.server.host} in Placement, and a move "
        "needs the right allocation to begin with: droveway audit says what is wrong"
    )


def waits_to_be_ended(facts: EndFacts) -> str | None:
    """Require that the server is resized, was launched and has no task but a delete that waits for the confirm."""
    server = facts.server
    task_ok = server.task_state is None or (facts.deleting and server.task_state == TaskState.DELETING)
    if server.vm_state == VmState.RESIZED and task_ok and server.launched:
        return None
    if server.vm_state == VmState.RESIZED and task_ok:
        return (
            f"server {server.name} has no launched_at in cell {server.cell}, and no move of a server that was never "
            "launched is confirmed or reverted: write there when its guest was started, and ask again"
        )
    task = f", task {server.task_state}" if server.task_state else ""
    return (
        f"server {server.name} is {server.status} (state {server.vm_state}{task}), and move {facts.move} is only "
        f"confirmed or reverted while it is VERIFY_RESIZE without a task: {_way_out(facts)}"
    )


def has_a_finished_migration(facts: EndFacts) -> str | None:
    """Require that the migration of the move is finished."""
    if facts.migration == MigrationStatus.FINISHED:
        return None
    return (
        f"the migration of move {facts.move} is {facts.migration or 'gone'} in cell {facts.server.cell}, and only one "
        f"that is finished can be confirmed or reverted: {_way_out(facts)}"
    )


def _way_out(facts: EndFacts) -> str:
    """Return what the operator can do so that the server waits for its confirm or revert again."""
    server, reverting = facts.server, facts.migration == MigrationStatus.REVERTING
    if server.task_state == TaskState.DELETING:
        return "it is being deleted"
    own = server.task_state in _OWN and not (reverting and server.task_state == TaskState.RESIZE_REVERTING)
    settled = server.vm_state in SETTLEABLE_VM_STATES and facts.migration in SETTLEABLE_MIGRATIONS
    if server.task_state not in (None, *_OWN):
        return "wait for its task, or end that with  openstack server set --state active SERVER"
    if facts.home not in ("", server.cell):
        return (
            f"if Nova's API database was put back from a copy, droveway move settle {facts.move} --cell api --reason "
            f"TEXT maps the server to cell {facts.home} again; droveway audit says what else is wrong"
        )
    if own or server.host != facts.destination or not settled:
        return (
            f"if the database of cell {server.cell} was put back from a copy, droveway move settle {facts.move} --cell "
            f"{server.cell} --reason TEXT writes what the move left there; droveway audit says what else is wrong"
        )
    return (
        "if nobody is at work on it, let it wait again with  "
        f"droveway move settle {facts.move} finish_records --as done --reason TEXT"
    )


def source_can_clean_up(facts: EndFacts) -> str | None:
    """Require that the source's worker is up, or the source is declared down; the source has the other copy."""
    if facts.source_up or facts.source_gone:
        return None
    return (
        f"host {facts.source}, the source of move {facts.move}, is down and holds the other copy: "
        f"{_back_or_declared(facts.source)}"
    )


def destination_shows_its_copy(facts: EndFacts) -> str | None:
    """Require that the server's host is not declared down, unless the source is too, or the server is to be deleted."""
    if facts.destination_up or facts.deleting or not facts.destination_gone or facts.source_gone:
        return None
    return (
        f"host {facts.destination}, which server {facts.server.name} is on, is declared down, and the copy on "
        f"{facts.source} is only removed once {facts.destination} shows its own: "
        + (
            f"droveway move revert {facts.move} brings the server back from the disks on {facts.source}"
            if facts.source_up
            else f"start the worker of {facts.source}, then droveway move revert {facts.move}"
        )
    )


def source_can_take_back(facts: EndFacts) -> str | None:
    """Require that the source, which has the old disks, is not declared down, or another host can get them."""
    if not facts.source_gone or facts.elsewhere is None:
        return None
    if facts.destination_gone:
        return (
            f"host {facts.source}, the source of move {facts.move}, is declared down, and so is {facts.destination}, "
            f"and no other host can get the server's disks ({facts.elsewhere}): to revert, wait until one of the two "
            "hosts is back, start its worker, say droveway host enable for it, and ask again; or leave the server "
            f"where it is with  droveway move confirm {facts.move}, and each host keeps its copy until both are back"
        )
    return (
        f"host {facts.source}, the source of move {facts.move}, is declared down, so nothing can be brought back "
        f"there, nor to another host ({facts.elsewhere}): droveway move confirm {facts.move} keeps the server where "
        "it is"
    )


def destination_can_be_asked(facts: EndFacts) -> str | None:
    """Require that the worker of the server's host is up, or the host is declared down.

    A confirm first checks the copy there, and a revert stops the guest there.
    """
    if facts.destination_up or facts.destination_gone:
        return None
    return (
        f"host {facts.destination}, which server {facts.server.name} is on, is down; a confirm checks its copy there "
        "first, and a revert stops its guest there: "
        f"{_back_or_declared(str(facts.destination))}"
    )


def _back_or_declared(host: str) -> str:
    return (
        f"start its worker and ask again; when the host is off for good: droveway host down {host} "
        '--i-made-sure "how you know"'
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
