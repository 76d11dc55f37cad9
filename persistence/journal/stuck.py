"""Tells which moves do not go on by themselves, and why, from their rows alone."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from droveway.persistence.journal.policy_names import MANUAL
from droveway.persistence.journal.states import ENDED, State

BOUND: Final = 900
"""Seconds without progress after which a move counts as stuck by default.

No step takes that long, except a copy of disks, which reports its progress.
"""


def reason(move: Any, now: dt.datetime, bound: int = BOUND) -> str:
    """Return why the move is stuck, in a few words for a column; empty when it is not.

    ``now`` is the time by the database's clock, ``bound`` is in seconds.
    """
    state, limit = State(move.state), dt.timedelta(seconds=bound)
    if state in ENDED or move.hold:
        return ""
    if state is State.NEEDS_OPERATOR:
        return f"needs an operator ({move.error_code})"
    if move.waits_for:
        return str(move.waits_for)
    if state is State.VERIFYING:
        if move.deadline is None and move.policy != MANUAL:
            code = f" ({move.error_code})" if move.error_code else ""
            return f"its revert was undone{code}, and it waits for a person"
        if move.error_code:
            return f"its confirm or revert was undone ({move.error_code})"
        late = move.deadline is not None and now - move.deadline > limit
        return f"its deadline passed {_minutes(now - move.deadline)} min ago" if late else ""
    last = max(moment for moment in (move.updated_at, move.progress_at) if moment is not None)
    return f"no progress for {_minutes(now - last)} min" if now - last > limit else ""


def _minutes(span: dt.timedelta) -> int:
    return int(span.total_seconds() // 60)
