"""A shelved server holds an image, reserved volumes and unbound ports; all else of it is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from support.rows.audit_books import (
    ENDED,
    MOVE,
    SERVER,
    SMALL,
    attachment,
    books,
    directory,
    findings,
    guest,
    store,
    view,
)

from droveway.audit import Finding, Snapshot, judge
from droveway.audit.records import BlockDevice, DebtRow, FlowRow, ImageView, MoveRow, Node, PortView
from droveway.persistence.journal.states import State

IMAGE = "44444444-4444-4444-8444-444444444444"
OTHER = "55555555-5555-4555-8555-555555555555"
WHOLE = ImageView(id=IMAGE, name="web-shelved", move="", server=SERVER)
EMPTY_HOSTS = (view("source"), view("dest"), view("third"))
EMPTY_STORES = (store("source"), store("dest"), store("third"))


def unused(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(
        replace(
            node,
            used=dict.fromkeys(node.used, 0) | {"free_ram_mb": node.memory_mb, "free_disk_gb": node.local_gb},
        )
        for node in nodes
    )


def shelved(row: dict[str, Any] | None = None, **changes: Any) -> Snapshot:
    """The books of a shelved server that no move holds, with these changes, those of its row apart."""
    found = books()
    columns: dict[str, Any] = {
        "host": None,
        "vm_state": "shelved_offloaded",
        "task_state": None,
        "power_state": 4,
        "fence": None,
        "volumes": (BlockDevice(volume="volume", attachment="a-empty", boot=False),),
        "shelved_image": IMAGE,
    }
    fields: dict[str, Any] = {
        "servers": (replace(found.servers[0], **columns | (row or {})),),
        "nodes": unused(found.nodes),
        "migrations": (),
        "moves": tuple(move for move in found.moves if move.ended),
        "flows": (),
        "begun": frozenset(),
        "allocations": {},
        "ports": (PortView(id="port", server=SERVER, bindings={}),),
        "attachments": (attachment("a-empty", None, "reserved"),),
        "images": (WHOLE,),
        "hosts": EMPTY_HOSTS,
        "stores": EMPTY_STORES,
    }
    return replace(found, **fields | changes)


def only(snapshot: Snapshot, kind: str) -> Finding:
    (found,) = judge(snapshot).findings
    assert found.kind == kind
    assert found.server == SERVER
    assert "None" not in found.detail + found.mend
    return found


def test_a_shelved_server_is_clean() -> None:
    assert judge(shelved()).findings == ()


def test_one_on_a_volume_is_clean_without_an_image() -> None:
    devices = (BlockDevice(volume="volume", attachment="a-empty", boot=True),)
    assert judge(shelved({"volumes": devices, "shelved_image": None}, images=())).findings == ()


def test_an_allocation_that_it_still_holds() -> None:
    found = only(shelved(allocations={SERVER: {"node-source": SMALL}}), "allocation")
    assert found.mend == f"openstack resource provider allocation delete {SERVER}"


@pytest.mark.parametrize("status", ["ACTIVE", "INACTIVE"])
def test_a_port_that_is_bound(status: str) -> None:
    found = only(shelved(ports=(PortView(id="port", server=SERVER, bindings={"source": status}),)), "binding")
    assert found.host == "source"
    assert found.mend.endswith("/v2.0/ports/port/bindings/source")


def test_every_binding_is_named() -> None:
    port = PortView(id="port", server=SERVER, bindings={"dest": "ACTIVE", "source": "INACTIVE"})
    assert [found.host for found in findings(shelved(ports=(port,)), "binding")] == ["dest", "source"]


def test_the_zone_that_it_was_in_is_none_of_its_ports_now() -> None:
    port = PortView(id="port", server=SERVER, bindings={}, owner="compute:az7")
    assert judge(shelved(ports=(port,))).findings == ()


@pytest.mark.parametrize(
    ("host", "status"), [("source", "attached"), (None, "attached"), ("source", "reserved"), (None, "attaching")]
)
def test_a_volume_that_is_more_than_reserved(host: str | None, status: str) -> None:
    found = only(shelved(attachments=(attachment("a-empty", host, status),)), "attachment")
    assert found.mend == (
        f"openstack volume attachment create --no-connect volume {SERVER}, then UPDATE block_device_mapping SET "
        f"attachment_id='ID-OF-THE-NEW-ONE' WHERE block_device_mapping.instance_uuid = '{SERVER}' AND "
        "block_device_mapping.volume_id = 'volume' AND block_device_mapping.deleted = 0 in cell cell1, then "
        "openstack volume attachment delete a-empty"
    )


def test_a_volume_that_nothing_keeps_for_it() -> None:
    found = only(shelved(attachments=()), "attachment")
    assert "does not exist" in found.detail
    assert found.mend.endswith("block_device_mapping.deleted = 0 in cell cell1")


def test_an_attachment_that_no_row_names() -> None:
    both = (attachment("a-empty", None, "reserved"), attachment("a-old", "source"))
    assert only(shelved(attachments=both), "attachment").mend == "openstack volume attachment delete a-old"


@pytest.mark.parametrize("running", [True, False])
def test_a_guest_on_some_host(running: bool) -> None:
    there = (view("source"), view("dest", guest(running=running)), view("third"))
    found = only(shelved(hosts=there), "guest")
    assert (found.host, found.subject) == ("dest", SERVER)
    assert "lives on no host" in found.detail
    assert found.mend.endswith(f"virsh undefine {SERVER}")


@pytest.mark.parametrize("suffix", ["", "_resize", f".part-{ENDED}"])
def test_a_directory_on_some_host(suffix: str) -> None:
    there = (store("source"), store("dest", directory(suffix)), store("third"))
    found = only(shelved(stores=there), "disk")
    assert (found.host, found.mend) == ("dest", f"rm -r /dest/instances/{SERVER}{suffix}")


@pytest.mark.parametrize(
    ("kind", "held"), [("connection", {"volumes": ("volume",)}), ("interface", {"ports": ("port",)})]
)
def test_what_is_connected_on_some_host(kind: str, held: dict[str, tuple[str, ...]]) -> None:
    """No reboot takes it away: Nova reboots no shelved server."""
    found = only(shelved(hosts=(view("source"), view("dest", **held), view("third"))), kind)
    assert found.mend.startswith("droveway host show dest, then take the ")


# Its image.


def test_an_image_that_does_not_exist() -> None:
    found = only(shelved(images=()), "image")
    assert (found.subject, "does not exist" in found.detail) == (IMAGE, True)
    assert found.mend == f"droveway server show {SERVER}, then bring the image back from a backup under its id"


@pytest.mark.parametrize("status", ["queued", "saving", "deactivated", "killed"])
def test_an_image_that_cannot_be_read(status: str) -> None:
    found = only(shelved(images=(replace(WHOLE, status=status),)), "image")
    assert (found.subject, found.mend) == (IMAGE, f"openstack image show {IMAGE}")
    assert f"is {status}, and only an active one can be read" in found.detail


def test_no_image_at_all() -> None:
    found = only(shelved({"shelved_image": None}, images=()), "image")
    assert found.subject == SERVER
    assert f"instance_uuid={SERVER}" in found.mend


def test_an_image_that_may_be_the_right_one_is_not_to_be_deleted() -> None:
    """Neither where the rows name none nor where they name one that is missing."""
    for named in (None, OTHER):
        assert "openstack image delete" not in only(shelved({"shelved_image": named}), "image").mend


def test_the_last_disks_are_not_to_be_deleted_while_the_image_is_missing() -> None:
    there = (store("source"), store("dest", directory()), store("third"))
    (found,) = findings(shelved(images=(), stores=there), "disk")
    assert found.mend == f"droveway server show {SERVER}, then make its image of what is here, and remove that"


def test_nothing_is_said_of_images_where_nobody_can_look() -> None:
    snapshot = shelved(images=None)
    assert judge(snapshot).findings == ()
    assert judge(snapshot).counted["images"] == 0


def test_an_image_under_another_name_is_its_own_too() -> None:
    """Whoever renames it breaks nothing: the row names it by its id."""
    assert judge(shelved(images=(replace(WHOLE, name="kept", server=""),))).findings == ()


def test_a_second_image_of_it() -> None:
    second = replace(WHOLE, id=OTHER)
    found = only(shelved(images=(WHOLE, second)), "image")
    assert (found.subject, found.mend) == (OTHER, f"openstack image delete {OTHER}")


# The image of a server that is not shelved.


def at_home(**changes: Any) -> Snapshot:
    """The running server, which no move holds, beside an image that a shelve once made."""
    found = books()
    fields: dict[str, Any] = {
        "servers": (replace(found.servers[0], task_state=None, fence=None),),
        "migrations": (),
        "moves": tuple(move for move in found.moves if move.ended),
        "flows": (),
        "begun": frozenset(),
        "images": (WHOLE,),
    }
    return replace(found, **fields | changes)


def test_the_image_of_a_server_that_is_not_shelved() -> None:
    found = only(at_home(), "image")
    assert (found.subject, found.mend) == (IMAGE, f"openstack image delete {IMAGE}")
    assert judge(at_home(images=())).findings == ()


def test_it_is_not_to_be_deleted_where_the_server_lacks_its_disks() -> None:
    lost = (store("source"), store("dest"), store("third"))
    (found,) = findings(at_home(stores=lost), "image")
    assert found.mend == f"droveway server show {SERVER}, then restore its root disk from the image {IMAGE}"


def test_it_is_not_to_be_deleted_where_nobody_could_look() -> None:
    (found,) = findings(at_home(hosts=EMPTY_HOSTS[1:], stores=EMPTY_STORES[1:]), "image")
    assert found.mend == "droveway host show source"


# The image that a move of the server made, and kept.

OF_THE_MOVE: Final = replace(WHOLE, server="", move=ENDED)
WAITS: Final = DebtRow(id=1, host="dest", move=ENDED, action="discard_destination", after="third")


def test_the_image_of_a_move_is_no_finding_while_a_copy_waits_for_proof() -> None:
    (found,) = findings(at_home(images=(OF_THE_MOVE,)), "image")
    assert found.mend == f"openstack image delete {IMAGE}"
    assert findings(at_home(images=(OF_THE_MOVE,), debts=(WAITS,)), "image") == []
    for other in (replace(WAITS, after=""), replace(WAITS, written_off=True)):
        assert len(findings(at_home(images=(OF_THE_MOVE,), debts=(other,)), "image")) == 1


def test_the_image_of_a_move_is_not_to_be_deleted_where_its_server_lacks_its_disks() -> None:
    lost = (store("source"), store("dest"), store("third"))
    (found,) = findings(at_home(images=(OF_THE_MOVE,), stores=lost), "image")
    assert found.mend == f"droveway server show {SERVER}, then restore its root disk from the image {IMAGE}"
    assert found.detail.endswith("but it may hold the last disks of web: its disks are missing")


def test_the_image_of_a_server_that_does_not_exist() -> None:
    stray = replace(WHOLE, server=OTHER)
    (found,) = findings(at_home(images=(stray,)), "image")
    assert (found.server, found.mend) == (OTHER, f"openstack image delete {IMAGE}")


@pytest.mark.parametrize(
    ("columns", "clean"),
    [
        ({"vm_state": "shelved", "shelved_image": IMAGE}, True),
        ({"vm_state": "active", "task_state": "shelving_image_uploading"}, True),
        ({"vm_state": "error", "shelved_image": IMAGE}, True),
        ({"vm_state": "active", "shelved_image": IMAGE}, False),
    ],
)
def test_whose_image_is_in_use(columns: dict[str, Any], clean: bool) -> None:
    """That of a server that Nova is shelving, has shelved, or has broken while it unshelved it."""
    snapshot = at_home()
    row = replace(snapshot.servers[0], **columns)
    assert (findings(replace(snapshot, servers=(row,)), "image") == []) == clean


# Rows that contradict themselves.


def test_a_row_that_names_a_host() -> None:
    found = only(shelved({"host": "source"}), "row")
    assert found.mend == (
        "UPDATE instances SET host=NULL, node=NULL, compute_id=NULL, launched_on=NULL, availability_zone=NULL WHERE "
        f"instances.uuid = '{SERVER}';"
    )


def test_a_row_that_names_the_host_of_a_guest_is_looked_at_first() -> None:
    there = (view("source", guest(running=True)), view("dest"), view("third"))
    (found,) = findings(shelved({"host": "source"}, hosts=there), "row")
    assert found.mend.startswith(f"droveway server show {SERVER}, then look on source")


@pytest.mark.parametrize("host", [None, "dest"])
def test_nova_may_be_bringing_it_back(host: str | None) -> None:
    """With a task of Nova's nothing is said of what comes and goes meanwhile."""
    snapshot = shelved({"task_state": "spawning", "host": host}, attachments=(attachment("a-empty", "dest"),))
    assert findings(snapshot, "attachment") == findings(snapshot, "row") == findings(snapshot, "image") == []


# While our own moves run.


def moving(kind: str, *, row: dict[str, Any], **changes: Any) -> Snapshot:
    """The same in the middle of a shelve from source or an unshelve to dest."""
    (move,) = [move for move in books().moves if move.id == MOVE]
    ends = {"shelve": ("source", None), "unshelve": ("", "dest")}[kind]
    running: MoveRow = replace(
        move, kind=kind, source_host=ends[0], dest_host=ends[1], dest_cell=None, new_flavor=None, state=State.RUNNING
    )
    fields: dict[str, Any] = {
        "moves": (running,),
        "flows": (FlowRow(uuid="flow", move=MOVE, kind=kind, ended=False),),
        "begun": frozenset({"flow"}),
    }
    return shelved(row, **fields | changes)


SHELVING = {"host": "source", "vm_state": "active", "task_state": "shelving", "shelved_image": None}
OFFLOADING = {"host": "source", "vm_state": "shelved", "task_state": "shelving_offloading"}
UNSHELVING = {"task_state": "unshelving"}
ARRIVED = {"task_state": "unshelving", "host": "dest"}
AT_SOURCE = {SERVER: {"node-source": SMALL}}
AT_DEST = {SERVER: {"node-dest": SMALL}}
ON_SOURCE = {"hosts": (view("source", guest(running=False)), *EMPTY_HOSTS[1:]), "allocations": AT_SOURCE}
DISKS_ON_SOURCE = (store("source", directory()), *EMPTY_STORES[1:])
DISKS_ON_DEST = (EMPTY_STORES[0], store("dest", directory()), EMPTY_STORES[2])
USED = books().nodes


@pytest.mark.parametrize(
    ("kind", "row", "changes"),
    [
        ("shelve", SHELVING, {**ON_SOURCE, "stores": DISKS_ON_SOURCE, "nodes": USED, "images": ()}),
        ("shelve", SHELVING, {**ON_SOURCE, "stores": DISKS_ON_SOURCE, "nodes": USED}),
        ("shelve", OFFLOADING, {"allocations": AT_SOURCE, "nodes": USED}),
        ("shelve", OFFLOADING, {"nodes": USED}),
        ("unshelve", UNSHELVING, {}),
        ("unshelve", UNSHELVING, {"allocations": AT_DEST}),
        ("unshelve", UNSHELVING, {"allocations": AT_DEST, "stores": DISKS_ON_DEST}),
        (
            "unshelve",
            UNSHELVING,
            {"allocations": AT_DEST, "ports": (PortView(id="port", server=SERVER, bindings={"dest": "ACTIVE"}),)},
        ),
    ],
)
def test_what_some_step_explains_is_no_finding(kind: str, row: dict[str, Any], changes: dict[str, Any]) -> None:
    assert judge(moving(kind, row=row, **changes)).findings == ()


@pytest.mark.parametrize(
    ("kind", "row", "changes", "found"),
    [
        ("shelve", SHELVING, {"allocations": AT_DEST, "stores": DISKS_ON_SOURCE, "nodes": USED}, "allocation"),
        ("unshelve", UNSHELVING, {"allocations": {SERVER: {"node-third": SMALL}}}, "allocation"),
        ("unshelve", UNSHELVING, {"allocations": AT_DEST | {MOVE: {"node-dest": SMALL}}}, "allocation"),
        ("unshelve", UNSHELVING, {"stores": DISKS_ON_DEST}, "allocation"),
        ("unshelve", UNSHELVING, {"stores": (*EMPTY_STORES[:2], store("third", directory()))}, "disk"),
        ("unshelve", UNSHELVING, {"hosts": (*EMPTY_HOSTS[:2], view("third", guest(running=False)))}, "guest"),
        (
            "unshelve",
            UNSHELVING,
            {"ports": (PortView(id="port", server=SERVER, bindings={"third": "ACTIVE"}),)},
            "binding",
        ),
        ("shelve", OFFLOADING, {"images": (), "nodes": USED}, "disk"),
        ("shelve", OFFLOADING, {"images": (replace(WHOLE, status="saving"),), "nodes": USED}, "disk"),
    ],
)
def test_what_no_step_explains_is_a_finding(
    kind: str, row: dict[str, Any], changes: dict[str, Any], found: str
) -> None:
    kinds = {finding.kind for finding in judge(moving(kind, row=row, **changes)).findings}
    assert found in kinds


# Where its cell was put back.


def after(kind: str, state: State, **changes: Any) -> Snapshot:
    """The books of a shelved server whose last move was of the kind and ended so."""
    found = books(state)
    (move,) = (each for each in found.moves if each.id == MOVE)
    told = {
        "kind": kind,
        "state": state,
        "flow_uuid": None,
        "marked": True,
        "dest_cell": None,
        "delete_requested": False,
    }
    return shelved(moves=(replace(move, **told),), **changes)


SETTLE = f"droveway move settle {MOVE[:8]} --cell cell1 --reason TEXT"


@pytest.mark.parametrize(("kind", "state"), [("unshelve", State.FAILED), ("shelve", State.DONE)])
def test_rows_that_name_an_attachment_of_the_middle_of_a_move_are_written_by_its_settling(
    kind: str, state: State
) -> None:
    found = judge(after(kind, state, attachments=(attachment("a-newer", None, "reserved"),))).findings
    assert {(each.kind, each.mend) for each in found} == {("attachment", SETTLE)}
    assert len(found) == 2
    assert SETTLE not in only(after(kind, state, attachments=()), "attachment").mend


def test_a_fence_of_the_middle_of_a_shelve_goes_by_its_settling() -> None:
    row = books().servers[0]
    fenced = replace(after("shelve", State.DONE).servers[0], fence="3")
    assert row.fence is not None
    assert only(replace(after("shelve", State.DONE), servers=(fenced,)), "fence").mend == SETTLE


def test_the_image_of_a_server_whose_host_is_declared_down_is_not_to_be_deleted() -> None:
    """It may be all that is left, whatever the host showed when somebody could look."""
    found = replace(books(), images=(WHOLE,), moves=(), flows=(), begun=frozenset(), migrations=())
    at_rest = replace(found, servers=(replace(found.servers[0], task_state=None, host="dest"),))
    stores = (store("source"), store("dest", directory()), store("third"))
    for down, mend in (
        (frozenset(), f"openstack image delete {IMAGE}"),
        (frozenset({"dest"}), "droveway host show dest"),
    ):
        (told,) = findings(replace(at_rest, stores=stores, down=down), "image")
        assert told.mend == mend


@pytest.mark.parametrize("task", ["shelving", "shelving_offloading", "unshelving", "spawning", "deleting"])
@pytest.mark.parametrize("fence", ["3", None])
def test_a_task_of_the_middle_goes_by_its_settling_where_the_fence_stands(task: str, fence: str | None) -> None:
    """Nova's own shelve has the same task, and no fence."""
    row = replace(after("shelve", State.DONE).servers[0], task_state=task, fence=fence)
    found = judge(replace(after("shelve", State.DONE), servers=(row,))).findings
    settled = [each.kind for each in found if each.mend == SETTLE]
    assert bool(settled) == (fence is not None and task not in ("spawning", "deleting"))
    wrong = [each.mend for each in found if "allocation" in each.mend]
    assert not (settled and wrong)


def test_rows_of_a_time_before_a_shelve_go_by_its_settling() -> None:
    """Its action is not in the cell any more; Nova removes an action with its server alone."""
    row = replace(after("shelve", State.DONE).servers[0], vm_state="active", host="source")
    back = replace(after("shelve", State.DONE), servers=(row,))
    assert SETTLE not in {each.mend for each in judge(back).findings}
    found = judge(replace(back, without_action=frozenset({MOVE}))).findings
    assert {each.mend for each in found if each.kind != "usage"} == {SETTLE}
    claimed = replace(back, without_action=frozenset({MOVE}), claimed=frozenset({MOVE}))
    assert SETTLE not in {each.mend for each in judge(claimed).findings}


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize(("kind", "settled"), [("cross_cell_unshelve", True), ("unshelve", False)])
def test_a_copy_that_an_unshelve_has_removed_goes_by_its_settling(kind: str, *, hidden: bool, settled: bool) -> None:
    """A cell that was put back has it again."""
    found = after(kind, State.FAILED)
    move = replace(found.moves[0], dest_cell="cell2")
    copy = replace(found.servers[0], cell="cell2", hidden=hidden)
    found = replace(found, servers=(*found.servers, copy), moves=(move,), cells=("cell1", "cell2"))
    told = only(found, "row")
    assert (told.mend == SETTLE.replace("cell1", "cell2")) == settled


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_task_that_an_undone_shelve_has_not_cleared_is_a_finding(unfinished: bool) -> None:
    """The move has failed and its action has not: the cell was put back.  Else Nova shelves the server."""
    found = after("shelve", State.FAILED, without_failed_action=frozenset({MOVE}) if unfinished else frozenset())
    row = replace(found.servers[0], task_state="shelving")
    told = [each for each in judge(replace(found, servers=(row,))).findings if each.kind == "task"]
    assert [each.mend for each in told] == ([SETTLE] if unfinished else [])


def test_a_server_that_its_move_left_in_a_cell_without_its_rows_is_not_to_be_deleted() -> None:
    """Its cell was put back to a time before the move."""
    found = replace(after("unshelve", State.DONE), servers=())
    told = {each.mend for each in judge(found).findings if each.server}
    assert told == {f"droveway move show {MOVE[:8]}, then put back a newer copy of the cell's database"}
    deleted = replace(found, moves=(replace(found.moves[0], delete_requested=True),))
    for gone in (deleted, replace(found, moves=())):
        (told,) = findings(gone, "mapping")
        assert "queued_for_delete=1" in told.mend


def test_a_copy_that_novas_own_move_between_cells_made_is_none_of_an_unshelve() -> None:
    found = after("cross_cell_unshelve", State.DONE)
    move = replace(found.moves[0], dest_cell="cell2")
    copy = replace(found.servers[0], cell="cell2", hidden=True)
    both = replace(found, servers=(*found.servers, copy), moves=(move,), cells=("cell1", "cell2"))
    settled = [each.mend for each in judge(both).findings if each.mend == SETTLE.replace("cell1", "cell2")]
    assert settled
    for status, again in (("finished", False), ("post-migrating", False), ("confirmed", True)):
        own = replace(books().migrations[0], uuid="its-own", status=status)
        told = [each.mend for each in judge(replace(both, migrations=(own,))).findings]
        assert (settled[0] in told) == again
