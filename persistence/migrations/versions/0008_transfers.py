"""By which way the disks of a move go into another cell, and whether their images are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Moves that stand go directly, and keep no images."""
    op.add_column("moves", sa.Column("transfer_asked", sa.String(16), nullable=False, server_default="auto"))
    op.add_column("moves", sa.Column("transfer", sa.String(16), nullable=True))
    op.add_column("moves", sa.Column("keep_image", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drop all three."""
    op.drop_column("moves", "keep_image")
    op.drop_column("moves", "transfer")
    op.drop_column("moves", "transfer_asked")
