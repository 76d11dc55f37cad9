"""Columns for how a move's disks are copied into another cell, and for whether their images are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the disks of moves that are there already go directly, and no image of them is kept."""
    op.add_column("moves", sa.Column("transfer_asked", sa.String(16), nullable=False, server_default="auto"))
    op.add_column("moves", sa.Column("transfer", sa.String(16), nullable=True))
    op.add_column("moves", sa.Column("keep_image", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drop the three columns."""
    op.drop_column("moves", "keep_image")
    op.drop_column("moves", "transfer")
    op.drop_column("moves", "transfer_asked")
