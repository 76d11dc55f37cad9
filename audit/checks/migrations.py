"""Compares Nova's migration rows with the journal's moves: both say whether a move is under way and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from droveway.audit.findings import Finding, Kind, update
from droveway.audit.records import MigrationRow, MoveRow
from droveway.audit.snapshot import Phase, Snapshot
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, ENDING_MIGRATIONS, MigrationStatus
from droveway.printable import SHORT

_FAILED: Final = frozenset({MigrationStatus.ERROR, MigrationStatus.FAILED})
_EXPECTED: Final = {
    State.DONE: frozenset({MigrationStatus.CONFIRMED}),
    State.REVERTED: frozenset({MigrationStatus.REVERTED}),
    State.FAILED: _FAILED,
    State.CANCELLED: ENDED_MIGRATIONS,
    State.VERIFYING: frozenset({MigrationStatus.FINISHED}),
    State.CONFIRMING: frozenset({MigrationStatus.FINISHED, MigrationStatus.CONFIRMING, MigrationStatus.CONFIRMED}),
    State.REVERTING: frozenset({MigrationStatus.FINISHED, MigrationStatus.REVERTING, MigrationStatus.REVERTED}),
}
"""Maps a move's state to the statuses that its migration may have.

A state that is missing here belongs to a forward flow. In it the migration may have every status but those that a
confirm or revert writes (`ENDING_MIGRATIONS`).
"""
_ARRIVED: Final = frozenset({MigrationStatus.POST_MIGRATING})
_EXPECTED_OF_COPY: Final = {
    State.VERIFYING: _ARRIVED,
    State.CONFIRMING: _ARRIVED,
    State.REVERTING: _ARRIVED | {MigrationStatus.REVERTING},
}
"""The statuses that a move's state allows for the migration's copy in the cell that the server is not mapped to."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find migrations in progress that no move owns, and statuses that contradict the move's state."""
    for row in snapshot.migrations:
        move = snapshot.move_by_id.get(row.uuid)
        if move is None:
            if row.status not in ENDED_MIGRATIONS:
                yield _finding(row, f"is {row.status}, and no move in the journal owns it", MigrationStatus.ERROR)
        elif not _agrees(move, row.status, expected := _expected(snapshot, move, row)):
            wanted = " or ".join(sorted(expected.get(move.stage, {MigrationStatus.MIGRATING})))
            text = f"is {row.status}, but the move is {move.state}, so it should be {wanted}"
            yield _finding(row, text, None if not move.ended else min(_EXPECTED[move.stage]))
    for standing in snapshot.standings.values():
        move = standing.move
        if move is None or standing.phase is not Phase.VERIFYING or move.id in snapshot.migration_of:
            continue
        yield Finding(
            Kind.MIGRATION,
            move.id,
            f"the move of {standing.name} waits for confirm or revert, but its cell has no migration of this uuid",
            f"droveway move show {move.short}",
            move.source_host,
            move.server,
            move.id,
        )


def _expected(snapshot: Snapshot, move: MoveRow, row: MigrationRow) -> Mapping[State, frozenset[str]]:
    standing = snapshot.standings.get(move.server)
    main = standing.row if standing is not None else None
    is_copy = move.between_cells and not move.ended and main is not None and main.cell != row.cell
    return _EXPECTED_OF_COPY if is_copy else _EXPECTED


def _agrees(move: MoveRow, status: str, expected: Mapping[State, frozenset[str]]) -> bool:
    if move.delete_requested or kinds.of(move.kind).deletes:
        return True
    wanted = expected.get(move.stage)
    return status in wanted if wanted is not None else status not in ENDING_MIGRATIONS


def _finding(row: MigrationRow, text: str, status: str | None) -> Finding:
    """Return the finding.

    Its mend sets the row's status to ``status``. For a move under way ``status`` is None: the move sets it itself, and
    the mend only shows the move.
    """
    return Finding(
        Kind.MIGRATION,
        row.uuid,
        f"migration {row.id} ({row.uuid}) in cell {row.cell} {text}",
        update("migrations", {"uuid": row.uuid}, {"status": status})
        if status
        else f"droveway move show {row.uuid[:SHORT]}",
        row.source or "",
        row.server,
        row.uuid,
    )
