"""Which moves do not get on by themselves, and why: pure functions over rows."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from droveway.persistence.journal.states import ENDED, State

BOUND: Final = 900
"""Seconds without progress after which a move counts as stuck, unless said otherwise: longer than any one step but a
copy, which tells how far it is."""


def reason(move: Any, now: dt.datetime, bound: int = BOUND) -> str:
    """Why the move is stuck, in words for a column; empty for one that is not.  ``now``: the database's clock."""
    state, limit = State(move.state), dt.timedelta(seconds=bound)
    if state in ENDED or move.hold:
        return ""
    if state is State.NEEDS_OPERATOR:
        return f"needs an operator ({move.error_code})"
    if move.waits_for:
        return str(move.waits_for)
    if state is State.VERIFYING:
        late = move.deadline is not None and now - move.deadline > limit
        return f"its deadline passed {_minutes(now - move.deadline)} min ago" if late else ""
    last = max(moment for moment in (move.updated_at, move.progress_at) if moment is not None)
    return f"no progress for {_minutes(now - last)} min" if now - last > limit else ""


def _minutes(span: dt.timedelta) -> int:
    return int(span.total_seconds() // 60)
