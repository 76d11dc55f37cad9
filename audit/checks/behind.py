"""Finds servers whose rows are older than the end of their last move, since a database was put back from a copy.

What hosts and services have of such a server is right, and its rows are wrong. So no mend may follow the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from droveway.audit.records import MigrationRow, MoveRow, ServerRow
from droveway.audit.snapshot import Snapshot, Standing
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import UNDONE, State
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, RESIZING, MigrationStatus, TaskState, VmState

PUT_BACK: Final = "cell-put-back"
"""The error code of a move whose step found that its rows were put back from a copy."""

_AT_DESTINATION: Final = (State.VERIFYING, State.DONE)
_KNOWN: Final = (*_AT_DESTINATION, State.REVERTED, *UNDONE)
"""The states of a move in which the journal knows what the rows should be."""
_NOT_OURS: Final = frozenset({"evacuated", "left-as-is", "deleted", "server-deleted"})
"""The error codes of moves that ended halfway, so that the journal does not know how their server was left."""
_TASKS: Final = RESIZING | {TaskState.RESIZE_REVERTING}
SHELVING: Final = frozenset({None, TaskState.SHELVING, TaskState.SHELVING_OFFLOADING, TaskState.UNSHELVING})
"""The task_states that a server may have in the middle of a shelve or an unshelve; None is one of them."""
_FORWARD: Final = frozenset({MigrationStatus.PRE_MIGRATING, MigrationStatus.MIGRATING, MigrationStatus.POST_MIGRATING})


API: Final = "api"
"""The name of Nova's API database for `move settle`."""


class Behind(NamedTuple):
    """The last move of a server, and the database that was put back to a time before its end."""

    move: MoveRow
    where: str
    """A cell or `API`: of several databases, the one that `move settle` has to write first.

    Of a server without rows it is the cell that has lost them. Empty when the error that `move show` prints names the
    database.
    """
    is_lost: bool = False
    """Whether the server has no rows at all any more."""

    @property
    def what(self) -> str:
        """Return the database in words."""
        if not self.where:
            return "a database"
        return "the API database" if self.where == API else f"cell {self.where}"

    @property
    def mend(self) -> str:
        """Return the command that writes what the move left, or only shows it if rows are lost or ``where`` is ''."""
        if self.is_lost:
            return f"droveway move show {self.move.short}, then put back a newer copy of the cell's database"
        if not self.where:
            return f"droveway move show {self.move.short}"
        return f"droveway move settle {self.move.short} --cell {self.where} --reason TEXT"


def of(snapshot: Snapshot, server: str) -> Behind | None:
    """Return the server's last move when its rows are older than the end of that move; None for any other server."""
    standing = snapshot.standings.get(server)
    move = snapshot.last_moves.get(server)
    if move is None or move.delete_requested or kinds.of(move.kind).deletes:
        return None
    if standing is None or standing.row is None:
        cell = _lost_in(snapshot, server)
        return Behind(move, cell, is_lost=True) if cell else None
    if not kinds.of(move.kind).leaves_known_rows:
        return None
    kind = kinds.of(move.kind)
    if move.state is State.NEEDS_OPERATOR:
        alone = kind.has_migration and not kind.crosses_cells
        return Behind(move, move.source_cell if alone else "") if move.error_code == PUT_BACK else None
    if move.state not in _KNOWN or move.error_code in _NOT_OURS or standing.is_being_deleted:
        return None
    if not kind.has_migration:
        return _of_shelving(snapshot, standing, standing.row, move)
    rows = {row.cell: row for row in snapshot.rows_of[server]} if kind.crosses_cells else {"": standing.row}
    if any(row.broken or not _fits(row, move) for row in rows.values()):
        return None
    migrations = {row.cell: row for row in snapshot.migrations if row.uuid == move.id}
    if any(_moved_since(snapshot, server, migration) for migration in migrations.values()):
        return None
    if kind.crosses_cells:
        where = _of_two(snapshot, move, rows, migrations)
        return Behind(move, where) if where else None
    is_behind = _is_behind(standing.row, move, snapshot.migration_of.get(move.id))
    return Behind(move, move.source_cell) if is_behind else None


def _lost_in(snapshot: Snapshot, server: str) -> str:
    """Return the cell that a server without rows is mapped to; empty if it is deleted, or mapped to no known cell."""
    mapped = next((mapping for mapping in snapshot.mappings if mapping.server == server), None)
    if server in snapshot.rows_of or mapped is None or mapped.deleted or mapped.cell not in snapshot.cells:
        return ""
    return mapped.cell or ""


def _of_shelving(snapshot: Snapshot, standing: Standing, row: ServerRow, move: MoveRow) -> Behind | None:
    """Return the last move, a shelve or an unshelve, when the rows are older than its end; None when they are not.

    Such a move has no migration. Once it has ended, only one cell has rows of the server.
    """
    if row.broken or move.id in snapshot.claimed:
        return None
    if _is_shelving_behind(snapshot, standing, move):
        return Behind(move, row.cell)
    if any(
        each.server == row.uuid and each.uuid not in snapshot.move_by_id and each.status not in ENDED_MIGRATIONS
        for each in snapshot.migrations
    ):
        # Nova moves the server between cells, and the second copy is Nova's.
        return None
    ends = (move.source_cell, move.dest_cell)
    copies = [each for each in snapshot.rows_of[row.uuid] if each is not row and each.cell in ends]
    return Behind(move, copies[0].cell) if kinds.of(move.kind).crosses_cells and copies else None


def _is_shelving_behind(snapshot: Snapshot, standing: Standing, move: MoveRow) -> bool:
    """Say whether the rows are from the middle of a shelve or an unshelve that has ended.

    A task_state alone proves nothing, since a shelve of Nova's sets the same ones. Each of these proves it:

    * the rows have the fence of a flow that no conductor runs;
    * Nova's instance action for the move is missing, which Nova only deletes together with the server;
    * the server has a task_state, and the move was undone, but its instance action is not marked as failed;
    * the shelved server has no task_state, and Cinder has a newer attachment of a volume than the rows name.
    """
    row = standing.row
    if row is None or row.task_state not in SHELVING or row.cell not in (move.source_cell, move.dest_cell):
        return False
    if row.fence is not None or move.id in snapshot.without_action:
        return True
    if row.task_state is not None:
        return move.id in snapshot.without_failed_action
    if not standing.offloaded:
        return False
    # The server is on no host. So an attachment with a host shows that Cinder was put back, not the cell.
    held = {each.id: each.volume for each in snapshot.attachments if each.server == row.uuid and each.host is None}
    # The volume has a newer attachment, which the rows should name.
    return any(
        device.attachment is not None and device.attachment not in held and device.volume in held.values()
        for device in row.volumes
    )


def _of_two(
    snapshot: Snapshot, move: MoveRow, rows: Mapping[str, ServerRow], migrations: Mapping[str, MigrationRow]
) -> str:
    """Return which database of a move between cells is older than its end; empty for none, and when it is not known."""
    home, beside = move.source_cell, move.dest_cell or ""
    if move.state in _AT_DESTINATION:
        home, beside = beside, home
    mapped = next((mapping.cell for mapping in snapshot.mappings if mapping.server == move.server), None)
    if not {home, beside} <= set(snapshot.cells) or {mapped or "", *rows} - {home, beside}:
        return ""
    waits = move.state is State.VERIFYING
    row, copy = rows.get(home), rows.get(beside)
    if row is None:
        # Lost rows can be made anew from the other cell's copy, which exists only while the move waits.
        return home if waits else ""
    if row.hidden or _is_behind(row, move, migrations.get(home)):
        return home
    if mapped != home:
        return API
    if waits:
        return "" if copy is not None and _is_left_behind(copy, migrations.get(beside)) else beside
    return beside if copy is not None else ""


def _is_left_behind(copy: ServerRow, migration: MigrationRow | None) -> bool:
    """Say whether a row is the hidden copy in the cell that the server left, while the server waits in another cell."""
    return bool(copy.hidden) and migration is not None and migration.status == MigrationStatus.POST_MIGRATING


def _fits(row: ServerRow, move: MoveRow) -> bool:
    """Say whether the row names the move's source or destination, and no task_state but one that the move sets."""
    return row.host in (move.source_host, move.dest_host) and (row.task_state is None or row.task_state in _TASKS)


def _moved_since(snapshot: Snapshot, server: str, migration: MigrationRow | None) -> bool:
    """Say whether Nova has moved the server since, as far as the ids of the cell's migrations say."""
    return migration is not None and any(
        row.id > migration.id and row.uuid not in snapshot.move_by_id
        for row in snapshot.migrations
        if (row.cell, row.server) == (migration.cell, server)
    )


def _is_behind(row: ServerRow, move: MoveRow, migration: MigrationRow | None) -> bool:
    if move.state is State.VERIFYING:
        return migration is None or migration.status in _FORWARD
    if move.state in UNDONE and row.task_state in _TASKS:
        return True
    if migration is None:
        # A move that was undone early has inserted no migration.
        return move.recorded or move.state not in UNDONE
    return migration.status not in ENDED_MIGRATIONS and not _is_as_left(row, move)


def _is_as_left(row: ServerRow, move: MoveRow) -> bool:
    """Say whether the server's own rows are those that the end of the move wrote, whatever the migration's row says."""
    arrived = move.state in _AT_DESTINATION
    traces = (row.flavors.get("old"), row.flavors.get("new"), row.context, row.old_vm_state)
    present = row.flavors.get("cur") or {}
    wanted = move.to_flavor if arrived else move.from_flavor
    return (
        row.host == (move.dest_host if arrived else move.source_host)
        and row.task_state is None
        and row.vm_state != VmState.RESIZED
        and all(trace is None for trace in traces)
        and (not kinds.of(move.kind).changes_flavor or wanted in (present.get("name"), present.get("flavorid")))
    )
