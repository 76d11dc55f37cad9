"""Tables for the known conductors and workers, and for freezes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables; the conductors fill the first one while they run."""
    op.create_table(
        "daemons",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("knows", sa.JSON(), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("started_at", Moment(), nullable=False),
        sa.Column("seen_at", Moment(), nullable=False),
        sa.Column("gone_at", Moment(), nullable=True),
        sa.Column("drained_at", Moment(), nullable=True),
        sa.Column("drain_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("kind", "name"),
    )
    op.create_table(
        "freezes",
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("who", sa.String(length=255), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "name"),
    )


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("freezes")
    op.drop_table("daemons")
