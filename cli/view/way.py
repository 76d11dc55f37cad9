"""Writes from where to where a move goes, for people."""

from __future__ import annotations

from typing import Final

from droveway.cli.view.columns import NONE
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import ENDED, State

_WITHOUT_DESTINATION: Final = frozenset({kinds.DELETE.name, kinds.SHELVE.name})


def way(kind: str, state: str, source: str | None, destination: str | None) -> str:
    """Return both hosts of a move, with a mark for a destination that is still to be chosen.

    A move that ended before the choice, a delete and a shelve have no destination, and only the source is named. A dash
    stands for the source of a server that was on no host.
    """
    source = source or NONE
    if not destination and (State(state) in ENDED or kind in _WITHOUT_DESTINATION):
        return source
    return f"{source} → {destination or '?'}"
