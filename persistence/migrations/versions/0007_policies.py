"""The policy that confirms at its deadline is `deadline`; `manual` waits for a person, and has none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MOVES = sa.table("moves", *map(sa.column, ("policy", "state", "deadline", "confirm_seconds")))

# The most that a release takes which lets every `manual` wait for its deadline only.
_LONGEST = 31536000


def upgrade() -> None:
    """What was `manual` had a deadline, or was to get one: but for what was brought down from this schema."""
    for_a_person = sa.and_(
        _MOVES.c.state == "verifying", _MOVES.c.deadline.is_(None), _MOVES.c.confirm_seconds == _LONGEST
    )
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "manual", ~for_a_person).values(policy="deadline"))


def downgrade() -> None:
    """Both are `manual` again; what waits for a person goes on waiting, or does so for a year."""
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "manual").values(confirm_seconds=_LONGEST))
    op.execute(sa.update(_MOVES).where(_MOVES.c.policy == "deadline").values(policy="manual"))
