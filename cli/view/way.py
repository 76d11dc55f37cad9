"""From where to where a move goes, as people read it."""

from __future__ import annotations

from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import ENDED, State


def way(kind: str, state: str, source: str, destination: str | None) -> str:
    """Name both hosts, with a mark for a destination that is still to be chosen; a move that gets none has one host.

    It gets none where it ended before the choice, and where it deletes its server.
    """
    if not destination and (State(state) in ENDED or kinds.of(kind).deletes):
        return source
    return f"{source} → {destination or '?'}"
