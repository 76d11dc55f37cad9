"""Columns for how a move's disks are copied into another cell, and for whether their images are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, with values that suit the moves which the journal has already.

    ``transfer_asked`` becomes `auto`.  ``transfer`` becomes NULL, which means that the disks went directly from host to
    host: the older release knew no other way.  ``keep_image`` becomes false, because the older release kept no images.
    """
    op.add_column("moves", sa.Column("transfer_asked", sa.String(16), nullable=False, server_default="auto"))
    op.add_column("moves", sa.Column("transfer", sa.String(16), nullable=True))
    op.add_column("moves", sa.Column("keep_image", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drop the three columns."""
    op.drop_column("moves", "keep_image")
    op.drop_column("moves", "transfer")
    op.drop_column("moves", "transfer_asked")
