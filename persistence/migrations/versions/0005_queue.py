"""Indexes for what the keeper looks at, so that a long queue costs it nothing."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The queue's index serves every look for a state, too."""
    op.create_index("ix_moves_queue", "moves", ["state", "created_at", "id"])
    op.drop_index("ix_moves_state", "moves")
    op.create_index("ix_moves_flow_uuid", "moves", ["flow_uuid"])
    op.create_index("ix_move_flows_created_at", "move_flows", ["created_at"])
    op.create_index("ix_claims_released_at", "claims", ["released_at"])


def downgrade() -> None:
    """As it was."""
    op.drop_index("ix_claims_released_at", "claims")
    op.drop_index("ix_move_flows_created_at", "move_flows")
    op.drop_index("ix_moves_flow_uuid", "moves")
    op.create_index("ix_moves_state", "moves", ["state"])
    op.drop_index("ix_moves_queue", "moves")
