"""Splits the confirm policy `manual` into `deadline` and `manual`.

Up to revision 0006 a move with the policy `manual` was confirmed at its deadline.  From 0007 on that policy is called
`deadline`, and `manual` means that the move has no deadline and waits for a person.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MOVES = sa.table("moves", *map(sa.column, ("policy", "state", "deadline", "confirm_seconds")))

# The most seconds that a release for revision 0006 accepts as the deadline of a move: one year.
_LONGEST = 31536000


def upgrade() -> None:
    """Rename the policy `manual` to `deadline`.

    One sort of move keeps `manual`: the moves that wait with no deadline and have the longest possible
    ``confirm_seconds``.  Such a move had the policy `manual` under revision 0007, and waited for a person.  Then the
    database was taken back to 0006, and `downgrade` wrote the longest possible ``confirm_seconds``.
    """
    for_a_person = sa.and_(
        _MOVES.c.state == "verifying", _MOVES.c.deadline.is_(None), _MOVES.c.confirm_seconds == _LONGEST
    )
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "manual", ~for_a_person).values(policy="deadline"))


def downgrade() -> None:
    """Call both policies `manual` again, and set the longest possible ``confirm_seconds`` in moves that were `manual`.

    The older release reads ``confirm_seconds`` when a move begins to wait, and confirms the move at that deadline.  So
    a move of the policy `manual` that begins to wait under the older release is confirmed after a year.  A move that
    waits already has no deadline, so the older release leaves it waiting.
    """
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "manual").values(confirm_seconds=_LONGEST))
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "deadline").values(policy="manual"))
