"""Indexes for the keeper's queries, so that they stay fast when the queue is long."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes, and drop that of ``state`` alone: the queue's index begins with ``state`` and replaces it."""
    op.create_index("ix_moves_queue", "moves", ["state", "created_at", "id"])
    op.drop_index("ix_moves_state", "moves")
    op.create_index("ix_moves_flow_uuid", "moves", ["flow_uuid"])
    op.create_index("ix_move_flows_created_at", "move_flows", ["created_at"])
    op.create_index("ix_claims_released_at", "claims", ["released_at"])


def downgrade() -> None:
    """Drop the new indexes and create that of ``state`` alone again."""
    op.drop_index("ix_claims_released_at", "claims")
    op.drop_index("ix_move_flows_created_at", "move_flows")
    op.drop_index("ix_moves_flow_uuid", "moves")
    op.create_index("ix_moves_state", "moves", ["state"])
    op.drop_index("ix_moves_queue", "moves")
