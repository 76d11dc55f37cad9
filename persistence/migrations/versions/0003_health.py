"""Columns for the health of a move's guest, as its host reports it, and for what its confirm policy waits for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, which are NULL until the destination is asked."""
    op.add_column("moves", sa.Column("health", sa.String(length=16), nullable=True))
    op.add_column("moves", sa.Column("health_reason", sa.Text(), nullable=True))
    op.add_column("moves", sa.Column("health_asked", Moment(), nullable=True))
    op.add_column("moves", sa.Column("waits_for", sa.Text(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in ("health", "health_reason", "health_asked", "waits_for"):
        op.drop_column("moves", name)
