"""Columns for the progress of a move's running step, as its host last reported it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BYTES = ("progress_done", "progress_total", "progress_kept")


def upgrade() -> None:
    """Add the columns, which are NULL until a host reports progress."""
    for name in _BYTES:
        op.add_column("moves", sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column("moves", sa.Column("progress_seconds", sa.Double(), nullable=True))
    op.add_column("moves", sa.Column("progress_at", Moment(), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in (*_BYTES, "progress_seconds", "progress_at"):
        op.drop_column("moves", name)
