"""Servers whose cell does not know how their last move ended: its database was put back from an older copy.

What hosts and services hold of such a server is right, and its rows are not.  So no mend may go by the rows.
"""

from __future__ import annotations

from typing import Final

from droveway.audit.records import MigrationRow, MoveRow, ServerRow
from droveway.audit.snapshot import Snapshot
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import UNDONE, State
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, RESIZING, MigrationStatus, TaskState, VmState

PUT_BACK: Final = "cell-put-back"
"""The code with which a move rests whose step found its rows put back."""

_AT_DESTINATION: Final = (State.VERIFYING, State.DONE)
_KNOWN: Final = (*_AT_DESTINATION, State.REVERTED, *UNDONE)
"""Where the journal knows what the rows should be."""
_NOT_OURS: Final = frozenset({"evacuated", "left-as-is", "deleted", "server-deleted"})
"""Codes of moves that ended where they stood, so that the journal does not know what their server is."""
_TASKS: Final = RESIZING | {TaskState.RESIZE_REVERTING}
_FORWARD: Final = frozenset({MigrationStatus.PRE_MIGRATING, MigrationStatus.MIGRATING, MigrationStatus.POST_MIGRATING})


def of(snapshot: Snapshot, server: str) -> MoveRow | None:
    """Return the server's last move where the cell's rows are of a time before its end; None for any other server."""
    standing = snapshot.standings.get(server)
    move = snapshot.last_moves.get(server)
    if standing is None or standing.row is None or move is None or move.delete_requested:
        return None
    if not kinds.of(move.kind).leaves_known_rows:
        return None
    if move.state is State.NEEDS_OPERATOR:
        return move if move.error_code == PUT_BACK else None
    if not _is_within_a_cell(move):
        return None
    row, migration = standing.row, snapshot.migration_of.get(move.id)
    if move.state not in _KNOWN or row.broken:
        return None
    if move.error_code in _NOT_OURS or standing.going or not _is_where_it_was(row, move):
        return None
    if _moved_since(snapshot, server, migration):
        return None
    return move if _is_behind(row, move, migration) else None


def mend(move: MoveRow) -> str:
    """Return the command that writes into the cell what the move left there, or shows it where it may be another's."""
    if not _is_within_a_cell(move):
        return f"droveway move show {move.short}"
    return f"droveway move settle {move.short} --cell {move.source_cell} --reason TEXT"


def _is_within_a_cell(move: MoveRow) -> bool:
    """Tell whether all that the move left is in one cell, with a migration that says how far it came."""
    kind = kinds.of(move.kind)
    return kind.has_migration and not kind.crosses_cells


def _is_where_it_was(row: ServerRow, move: MoveRow) -> bool:
    """Tell whether the row names a host of the move, and nobody but the move is at work on the server."""
    return row.host in (move.source_host, move.dest_host) and (row.task_state is None or row.task_state in _TASKS)


def _moved_since(snapshot: Snapshot, server: str, migration: MigrationRow | None) -> bool:
    """Tell whether Nova has moved the server since, as far as the cell's own numbers say."""
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
        # A move that was undone before it inserted one has none.
        return move.recorded or move.state not in UNDONE
    return migration.status not in ENDED_MIGRATIONS and not _is_as_left(row, move)


def _is_as_left(row: ServerRow, move: MoveRow) -> bool:
    """Tell whether the server's own rows are those that the end of the move wrote, whatever its migration says."""
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
