"""Replaces the mends of findings that an operator must not follow blindly.

A difference may be right when Nova itself moves the server, or has ended Droveway's move of it. When a cell was put
back to a time before the end of a move, hosts and services are right and the rows are wrong. In each case the mend
becomes a command that only shows the server or the move, or it becomes `droveway move settle --cell`, which writes the
rows anew.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from droveway.audit.checks import behind
from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, RESIZING, VmState

_OF_NO_SERVER: Final = frozenset({Kind.HOST, Kind.CELL, Kind.COMMAND, Kind.USAGE})
"""The kinds of findings that concern no server."""
_NOT_OF_ROWS: Final = _OF_NO_SERVER | {Kind.JOURNAL}
"""The kinds of findings that do not rest on a server's rows."""
_SAFE: Final = ("droveway move show ", "droveway move list ", "droveway move retry ", "droveway debt ")
"""The beginnings of commands that an operator may follow in any case.

`droveway move retry` runs a flow. The flow changes a row only if the row is still as the move left it. The other
commands change no row.
"""


def gently(snapshot: Snapshot, finding: Finding) -> Finding:
    """Return the finding, with a safe mend when its own rests on rows that may be wrong or that Nova may change."""
    if finding.kind not in _NOT_OF_ROWS and (found := behind.of(snapshot, finding.server)) is not None:
        return dataclasses.replace(finding, mend=found.mend)
    standing = snapshot.standings.get(finding.server)
    if standing is None or finding.kind in _OF_NO_SERVER or finding.mend.startswith(_SAFE):
        return finding
    if (move := standing.move) is not None:
        row = snapshot.migration_of.get(move.id)
        if standing.phase is Phase.VERIFYING and (row is None or row.status in ENDED_MIGRATIONS):
            return dataclasses.replace(finding, mend=f"droveway move show {move.short}")
        return finding
    if moved_by_nova(snapshot, standing):
        return dataclasses.replace(finding, mend=f"openstack server show {standing.server}, and let Nova end its move")
    return finding


def moved_by_nova(snapshot: Snapshot, standing: Standing) -> bool:
    """Say whether Nova is moving the server: a migration of no move is under way, and the server's row says so too."""
    row = standing.row
    if row is None or standing.move is not None:
        return False
    own = [each for each in snapshot.migrations if each.server == standing.server]
    under_way = any(each.status not in ENDED_MIGRATIONS and each.uuid not in snapshot.move_by_id for each in own)
    return under_way and (row.vm_state == VmState.RESIZED or row.task_state in RESIZING)
