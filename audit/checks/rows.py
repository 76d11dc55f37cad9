"""Checks a server's rows: one visible copy in the mapped cell, no trace of an ended move, flavors that agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.checks import behind
from droveway.audit.findings import Finding, Kind, delete, update, update_json
from droveway.audit.records import FLAVOR_COLUMNS, ServerRow
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.persistence.nova.vm_states import MOVABLE, RESIZING, TaskState, VmState
from droveway.printable import SHORT

_OURS: Final = RESIZING | {TaskState.RESIZE_REVERTING, TaskState.DELETING}
"""The task_states that need a move or a delete under way."""
_REQUESTED: Final = '$."nova_object.data".flavor."nova_object.data"'
"""The JSON path of the flavor's fields in a RequestSpec."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find hidden and doubled rows, wrong mappings, stuck task_states, and flavors, contexts and fences left behind."""
    yield from _copies(snapshot)
    yield from _mappings(snapshot)
    for standing in snapshot.standings.values():
        row = standing.row
        if row is None:
            continue
        if row.broken:
            text = f"the rows of {standing.name} cannot be read: {row.broken}"
            yield _finding(Kind.FLAVOR, standing, "instance_extra", text, _restore(standing, "instance_extra"))
            continue
        yield from _copied_columns(standing, row)
        yield from _request(snapshot, standing, row)
        if row.vm_state == VmState.ERROR and not standing.is_being_deleted:
            yield _in_error(snapshot, standing, row)
        if standing.offloaded and row.host:
            yield _offloaded(snapshot, standing, row)
        if standing.phase is Phase.REST:
            yield from _at_rest(standing, row, is_behind=behind.of(snapshot, standing.server) is not None)
        elif standing.phase is Phase.VERIFYING:
            yield from _verifying(snapshot, standing, row)
        if row.fence is not None and standing.phase is not Phase.MOVING and not _claimed(snapshot, standing):
            yield from _fence(standing, row)


def _copies(snapshot: Snapshot) -> Iterator[Finding]:
    for server, rows in snapshot.rows_of.items():
        standing = snapshot.standings[server]
        move = standing.move
        both = {move.source_cell, move.dest_cell} if move is not None and move.between_cells else set()
        for row in rows:
            excused = row.cell in both
            main = row is standing.row
            if excused and standing.phase is Phase.VERIFYING and bool(row.hidden) == main:
                text = f"{row.name or server} is mapped to cell {row.cell}, where its row is hidden"
                if not main:
                    text = f"{row.name or server} has a visible row in cell {row.cell}, to which it is not mapped"
            elif row.hidden and not excused:
                text = f"{row.name or server} has a hidden row in cell {row.cell}, and no move between cells owns it"
            elif not main and not excused:
                text = f"{row.name or server} has a second row in cell {row.cell}"
            else:
                continue
            shown = update("instances", {"uuid": server}, {"hidden": 0})
            # The right row, in another cell's database, has the same uuid. So the statement also names columns of this
            # row.
            copy: dict[str, str | int] = (
                {"uuid": server, "hidden": 1} if row.hidden else {"uuid": server, "host": row.host or ""}
            )
            mend = shown if row.hidden and (main or len(rows) == 1) else delete("instances", copy)
            if excused:
                mend = update("instances", {"uuid": server}, {"hidden": 0 if main else 1})
            yield Finding(Kind.ROW, server, text, mend, row.host or "", server, standing.move_id)


def _mappings(snapshot: Snapshot) -> Iterator[Finding]:
    mapped = {mapping.server: mapping for mapping in snapshot.mappings}
    for server, rows in snapshot.rows_of.items():
        cells = {row.cell for row in rows}
        mapping = mapped.get(server)
        name = rows[0].name or server
        standing = snapshot.standings[server]
        where = " and ".join(sorted(cells))
        if mapping is None:
            text = f"{name} has a row in cell {where} and no instance mapping"
        elif mapping.cell is not None and mapping.cell not in cells:
            text = f"{name} is mapped to cell {mapping.cell}, but its row is in cell {where}"
        elif mapping.deleted and not standing.is_being_deleted:
            text = f"{name} is mapped as queued for delete, but its row in cell {where} is alive"
        else:
            continue
        yield Finding(
            Kind.MAPPING,
            server,
            text,
            f"nova-manage cell_v2 map_instances --cell_uuid UUID-OF-{min(cells)} --reset",
            server=server,
            move=standing.move_id,
        )
    for server in sorted(mapped.keys() - snapshot.rows_of.keys()):
        mapping = mapped[server]
        if mapping.cell in snapshot.cells and not mapping.deleted and server not in snapshot.standings:
            yield Finding(
                Kind.MAPPING,
                server,
                f"server {server} is mapped to cell {mapping.cell}, which has no live row of it",
                update("instance_mappings", {"instance_uuid": server}, {"queued_for_delete": 1}),
                server=server,
            )


def _copied_columns(standing: Standing, row: ServerRow) -> Iterator[Finding]:
    """Find instances columns that differ from the current flavor; both always change in one transaction."""
    flavor = row.flavors.get("cur")
    if flavor is None:
        text = f"{standing.name} has no current flavor in instance_extra"
        yield _finding(Kind.FLAVOR, standing, "instance_extra.flavor", text, _restore(standing, "instance_extra"))
        return
    for column, field in FLAVOR_COLUMNS.items():
        if row.columns[column] != flavor[field]:
            text = (
                f"instances.{column} of {standing.name} is {row.columns[column]}, but its flavor {flavor['name']} "
                f"says {flavor[field]}"
            )
            mend = update("instances", {"uuid": row.uuid}, {column: flavor[field]})
            yield _finding(Kind.FLAVOR, standing, f"instances.{column}", text, mend)


def _request(snapshot: Snapshot, standing: Standing, row: ServerRow) -> Iterator[Finding]:
    flavors = [row.flavors.get("cur")]
    if standing.phase is Phase.MOVING and standing.move is not None:
        flavors += [row.flavors.get("old"), standing.move.old_flavor, standing.move.new_flavor]
    known = {str(flavor["flavorid"]) for flavor in flavors if flavor is not None}
    requested = snapshot.requests.get(standing.server)
    if not known or requested in known:
        return
    wanted = row.flavors.get("cur") or {}
    found = f"names the flavor {requested}" if requested else "is missing or names no flavor"
    text = (
        f"the request spec of {standing.name} {found}, but the server has {wanted.get('name')}: its next move would be "
        f"scheduled wrongly"
    )
    mend = _restore(standing, "request_specs")
    if requested:
        spec = {_REQUESTED: dict(wanted)}
        mend = update_json("request_specs", {"instance_uuid": row.uuid}, "spec", spec)
    yield _finding(Kind.REQUEST, standing, "request_specs", text, mend)


def _at_rest(standing: Standing, row: ServerRow, *, is_behind: bool) -> Iterator[Finding]:
    reset = f"openstack server set --state {'active' if row.power_state == 1 else 'error'} {standing.server}"
    ours = row.task_state in _OURS or (is_behind and row.task_state in behind.SHELVING)
    if row.task_state is not None and ours and not standing.is_being_deleted:
        text = f"{standing.name} has the task_state {row.task_state}, and no move is under way"
        yield _finding(Kind.TASK, standing, "task_state", text, reset)
    if row.vm_state == VmState.RESIZED:
        text = f"{standing.name} has the vm_state resized, and no move of it waits for confirm or revert"
        yield _finding(Kind.TASK, standing, "vm_state", text, reset)
    left = [slot for slot in ("old", "new") if row.flavors.get(slot) is not None]
    if left:
        text = f"instance_extra.flavor of {standing.name} still has the {' and '.join(left)} flavor of an ended move"
        nothing = {f"$.{slot}": None for slot in left}
        mend = update_json("instance_extra", {"instance_uuid": row.uuid}, "flavor", nothing)
        yield _finding(Kind.FLAVOR, standing, "instance_extra.flavor", text, mend)
    if row.context is not None:
        text = f"{standing.name} still has the context of migration {row.context}, which no move under way owns"
        mend = update("instance_extra", {"instance_uuid": row.uuid}, {"migration_context": None})
        yield _finding(Kind.FLAVOR, standing, "instance_extra.migration_context", text, mend)
    if row.old_vm_state is not None:
        text = f"{standing.name} still has old_vm_state {row.old_vm_state} of an ended move"
        yield _finding(Kind.FLAVOR, standing, "old_vm_state", text, _delete_metadata(row, "old_vm_state"))


def _offloaded(snapshot: Snapshot, standing: Standing, row: ServerRow) -> Finding:
    """Return the finding of a shelved server whose row names a host: wrong, unless that host has something of it."""
    text = f"{standing.name} is shelved and on no host, but its row names {row.host}"
    columns = ("host", "node", "compute_id", "launched_on", "availability_zone")
    mend = update("instances", {"uuid": row.uuid}, dict.fromkeys(columns))
    guests = {(view.host, guest.server) for view in snapshot.hosts for guest in view.guests}
    entries = {(host, entry.name) for store, entry in snapshot.entries() for host in store.hosts}
    if (row.host, row.uuid) in guests | entries or row.host not in snapshot.seen_hosts:
        mend = f"droveway server show {row.uuid}, then look on {row.host} for what it has of the server"
    return _finding(Kind.ROW, standing, "instances.host", text, mend)


def _in_error(snapshot: Snapshot, standing: Standing, row: ServerRow) -> Finding:
    """Return the finding of a server in ERROR, whose mend depends on what the hosts have of it."""
    runs = any(
        guest.running
        for view in snapshot.hosts
        if view.host == row.host
        for guest in view.guests
        if guest.server == standing.server
    )
    if standing.phase is not Phase.REST:
        mend = f"droveway server show {standing.server}, then droveway move show {standing.move_id[:SHORT]}"
    elif not standing.placed:
        mend = f"openstack server show {standing.server}"
    elif runs:
        mend = f"openstack server set --state active {standing.server}"
    else:
        mend = f"openstack server reboot --hard {standing.server}"
    return _finding(Kind.TASK, standing, "vm_state", f"{standing.name} is in ERROR on {row.host or 'no host'}", mend)


def _verifying(snapshot: Snapshot, standing: Standing, row: ServerRow) -> Iterator[Finding]:
    """Compare the rows of a server that waits for its confirm or revert with those of Nova's VERIFY_RESIZE."""
    if standing.is_being_deleted or standing.move is None:
        return
    show = f"droveway move show {standing.move.short}"
    if row.vm_state not in (VmState.RESIZED, VmState.ERROR) or row.task_state is not None:
        text = f"{standing.name} waits for confirm or revert, but is {row.vm_state}/{row.task_state or 'NULL'}"
        yield _finding(Kind.TASK, standing, "vm_state", text, show)
    for slot in ("old", "new"):
        if row.flavors.get(slot) is None:
            text = f"{standing.name} waits for confirm or revert, but has no {slot} flavor in instance_extra"
            yield _finding(Kind.FLAVOR, standing, "instance_extra.flavor", text, show)
    new, cur = row.flavors.get("new"), row.flavors.get("cur")
    if new is not None and cur is not None and new["flavorid"] != cur["flavorid"]:
        text = f"{standing.name} has the flavor {cur['name']}, but its move gave it {new['name']}"
        yield _finding(Kind.FLAVOR, standing, "instance_extra.flavor", text, show)
    migration = snapshot.migration_of.get(standing.move.id)
    if row.context is None or (migration is not None and row.context != migration.id):
        text = f"the migration context of {standing.name} is not that of its move"
        yield _finding(Kind.FLAVOR, standing, "instance_extra.migration_context", text, show)
    if row.old_vm_state not in MOVABLE:
        text = f"{standing.name} waits for confirm or revert, but its old_vm_state is {row.old_vm_state or 'missing'}"
        yield _finding(Kind.FLAVOR, standing, "old_vm_state", text, show)
    if row.host != standing.move.dest_host:
        text = f"{standing.name} lives on {row.host or 'no host'}, but its move went to {standing.move.dest_host}"
        yield _finding(Kind.ROW, standing, "instances.host", text, show)


def _fence(standing: Standing, row: ServerRow) -> Iterator[Finding]:
    """Report a fence that is left in the server's rows.

    The fence holds an epoch, which is the number of a conductor's claim. A conductor with an older claim sees the fence
    and writes nothing.
    """
    text = f"the fence of epoch {row.fence} of {standing.name} is left in cell {row.cell}, and no flow of it runs"
    yield _finding(Kind.FENCE, standing, "droveway_epoch", text, _delete_metadata(row, "droveway_epoch"))


def _claimed(snapshot: Snapshot, standing: Standing) -> bool:
    """Say whether a conductor may be running a move of the server, which explains a fence in its rows.

    A conductor sets the fence first and removes it last. A move that waits for its first step may be claimed at any
    moment. A move that has ended keeps its claim until a conductor has removed the fence.
    """
    waits = standing.move is not None and standing.phase is Phase.REST
    return waits or any(move.id in snapshot.claimed and move.server == standing.server for move in snapshot.moves)


def _restore(standing: Standing, table: str) -> str:
    return f"droveway server show {standing.server}, then restore its row of {table} from a backup"


def _delete_metadata(row: ServerRow, key: str) -> str:
    return delete("instance_system_metadata", {"instance_uuid": row.uuid, "key": key})


def _finding(kind: Kind, standing: Standing, subject: str, detail: str, mend: str) -> Finding:
    return Finding(kind, subject, detail, mend, standing.host or "", standing.server, standing.move_id)
