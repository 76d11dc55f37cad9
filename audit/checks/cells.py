"""Reports cells that could not be read, and tells which findings are certain all the same.

An audit with such a gap is clean only when a person has declared the cell down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Snapshot

_NOT_OF_SERVERS: Final = frozenset({Kind.HOST, Kind.CELL, Kind.COMMAND, Kind.JOURNAL, Kind.USAGE})
"""The kinds of findings that rest on no rows of servers, or only on those of one cell that was read."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each cell that could not be read, unless it is declared down."""
    for gap in snapshot.unread_cells:
        if not gap.down:
            yield _gap(gap.name, f"cell {gap.name} could not be read", gap.why)


def declared_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each cell that is declared down and could not be read; this is noted only."""
    for gap in snapshot.unread_cells:
        if gap.down:
            yield _gap(gap.name, f"cell {gap.name} is {gap.down}, and could not be read", gap.why)


def is_certain(snapshot: Snapshot, finding: Finding) -> bool:
    """Say whether no row of a cell that could not be read can explain the finding.

    What belongs to a server without rows may belong to a server of such a cell. A guest that runs twice is certain,
    wherever its server lives.
    """
    if not snapshot.unread_cells or finding.kind in _NOT_OF_SERVERS:
        return True
    runs_twice = finding.kind is Kind.GUEST and "," in finding.host
    return runs_twice or finding.server in snapshot.known_servers


def _gap(cell: str, what: str, why: str) -> Finding:
    detail = f"{what}, so what its servers have was not compared: {why}"
    return Finding(Kind.CELL, cell, detail, f"droveway cell show {cell}")
