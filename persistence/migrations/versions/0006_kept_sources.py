"""Columns for how long a move's source is kept after confirm, and for when a debt falls due."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; moves that are there already keep nothing, and debts that are there are due at once."""
    op.add_column("moves", sa.Column("keep_seconds", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("debts", sa.Column("not_before", Moment(), nullable=True))


def downgrade() -> None:
    """Drop both columns."""
    op.drop_column("debts", "not_before")
    op.drop_column("moves", "keep_seconds")
