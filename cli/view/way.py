"""From where to where a move goes, as people read it."""

from __future__ import annotations

from typing import Final

from droveway.cli.view.columns import NONE
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import ENDED, State

_WITHOUT_DESTINATION: Final = frozenset({kinds.DELETE.name, kinds.SHELVE.name})


def way(kind: str, state: str, source: str | None, destination: str | None) -> str:
    """Name both hosts, with a mark for a destination that is still to be chosen; a move that gets none has one host.

    It gets none where it ended before the choice, and where it deletes or shelves its server.  A dash stands for the
    source of a server that was on no host.
    """
    source = source or NONE
    if not destination and (State(state) in ENDED or kind in _WITHOUT_DESTINATION):
        return source
    return f"{source} → {destination or '?'}"
