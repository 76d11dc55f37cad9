"""Adds columns for a cell's debts and for the time since when a move waits for a cell, and the table `cells_down`.

The table has the cells that a person declared down.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table; the new column `cell` is NULL in the debts that are there, which hosts owe."""
    op.add_column("moves", sa.Column("waits_since", Moment(), nullable=True))
    op.add_column("debts", sa.Column("cell", sa.String(255), nullable=True))
    op.create_index(op.f("ix_debts_cell"), "debts", ["cell"])
    op.create_table(
        "cells_down",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Drop the table and both columns."""
    op.drop_table("cells_down")
    op.drop_index(op.f("ix_debts_cell"), "debts")
    op.drop_column("debts", "cell")
    op.drop_column("moves", "waits_since")
