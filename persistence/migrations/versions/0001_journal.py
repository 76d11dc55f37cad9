"""The journal's first schema: the tables of moves, and TaskFlow's own tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from droveway.persistence.journal.column_types import Moment

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# TaskFlow keeps JSON as text, except on PostgreSQL.  MySQL's plain TEXT is too short for a failure with its traceback.
_DETAIL = (
    sa.UnicodeText().with_variant(sa.UnicodeText(16777215), "mysql", "mariadb").with_variant(sa.JSON(), "postgresql")
)
_ATOM_TYPES = ("TASK_DETAIL", "RETRY_DETAIL")
_INTENTIONS = ("EXECUTE", "IGNORE", "REVERT", "RETRY")


def upgrade() -> None:
    """Create every table."""
    _moves()
    _taskflow()


def downgrade() -> None:
    """Drop every table."""
    for table in (
        "atomdetails",
        "flowdetails",
        "logbooks",
        "move_steps",
        "move_flows",
        "move_attempts",
        "intents",
        "debts",
        "claims",
        "plans",
        "moves",
        "counters",
    ):
        op.drop_table(table)


def _moves() -> None:
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "moves",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("server", sa.String(length=36), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("active_server", sa.String(length=36), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("parked_from", sa.String(length=32), nullable=True),
        sa.Column("flow_uuid", sa.String(length=36), nullable=True),
        sa.Column("step", sa.String(length=64), nullable=True),
        sa.Column("step_number", sa.Integer(), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("source_cell", sa.String(length=255), nullable=False),
        sa.Column("source_host", sa.String(length=255), nullable=False),
        sa.Column("dest_cell", sa.String(length=255), nullable=True),
        sa.Column("dest_host", sa.String(length=255), nullable=True),
        sa.Column("target_host", sa.String(length=255), nullable=True),
        sa.Column("old_flavor", sa.String(length=255), nullable=False),
        sa.Column("new_flavor", sa.String(length=255), nullable=False),
        sa.Column("policy", sa.String(length=16), nullable=False),
        sa.Column("confirm_seconds", sa.Integer(), nullable=False),
        sa.Column("deadline", Moment(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("asked_by", sa.String(length=255), nullable=False),
        sa.Column("project", sa.String(length=255), nullable=False),
        sa.Column("request_id", sa.String(length=255), nullable=False),
        sa.Column("hold", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("delete_requested", sa.Boolean(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("storage", sa.String(length=32), nullable=True),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("active_server"),
    )
    op.create_index(op.f("ix_moves_created_at"), "moves", ["created_at"], unique=False)
    op.create_index(op.f("ix_moves_deadline"), "moves", ["deadline"], unique=False)
    op.create_index(op.f("ix_moves_dest_host"), "moves", ["dest_host"], unique=False)
    op.create_index(op.f("ix_moves_ended_at"), "moves", ["ended_at"], unique=False)
    op.create_index(op.f("ix_moves_kind"), "moves", ["kind"], unique=False)
    op.create_index(op.f("ix_moves_server"), "moves", ["server"], unique=False)
    op.create_index(op.f("ix_moves_source_cell"), "moves", ["source_cell"], unique=False)
    op.create_index(op.f("ix_moves_source_host"), "moves", ["source_host"], unique=False)
    op.create_index(op.f("ix_moves_state"), "moves", ["state"], unique=False)
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("server", sa.String(length=36), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_plans_server"), "plans", ["server"], unique=False)
    op.create_table(
        "claims",
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("claimed_at", Moment(), nullable=False),
        sa.Column("released_at", Moment(), nullable=True),
        sa.Column("unclean", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("move_id"),
    )
    op.create_table(
        "debts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("settled_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_debts_host"), "debts", ["host"], unique=False)
    op.create_index(op.f("ix_debts_move_id"), "debts", ["move_id"], unique=False)
    op.create_index(op.f("ix_debts_settled_at"), "debts", ["settled_at"], unique=False)
    op.create_table(
        "intents",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("service", sa.String(length=32), nullable=False),
        sa.Column("call", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_intents_move_id"), "intents", ["move_id"], unique=False)
    op.create_index(op.f("ix_intents_state"), "intents", ["state"], unique=False)
    op.create_table(
        "move_attempts",
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cell", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("provider", sa.String(length=36), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("move_id", "attempt"),
    )
    op.create_table(
        "move_flows",
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_index(op.f("ix_move_flows_move_id"), "move_flows", ["move_id"], unique=False)
    op.create_table(
        "move_steps",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("move_id", sa.String(length=36), nullable=False),
        sa.Column("flow_uuid", sa.String(length=36), nullable=False),
        sa.Column("flow", sa.String(length=32), nullable=False),
        sa.Column("step", sa.String(length=64), nullable=False),
        sa.Column("direction", sa.String(length=8), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("started_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["move_id"],
            ["moves.id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index(op.f("ix_move_steps_flow_uuid"), "move_steps", ["flow_uuid"], unique=False)
    op.create_index(op.f("ix_move_steps_move_id"), "move_steps", ["move_id"], unique=False)


def _taskflow() -> None:
    op.create_table(
        "logbooks",
        sa.Column("created_at", sa.DateTime()),
        sa.Column("updated_at", sa.DateTime()),
        sa.Column("meta", _DETAIL),
        sa.Column("name", sa.String(255)),
        sa.Column("uuid", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("uuid"),
        sa.UniqueConstraint("uuid"),
    )
    op.create_table(
        "flowdetails",
        sa.Column("created_at", sa.DateTime()),
        sa.Column("updated_at", sa.DateTime()),
        sa.Column("parent_uuid", sa.String(64)),
        sa.Column("meta", _DETAIL),
        sa.Column("name", sa.String(255)),
        sa.Column("state", sa.String(255)),
        sa.Column("uuid", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["parent_uuid"], ["logbooks.uuid"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uuid"),
        sa.UniqueConstraint("uuid"),
    )
    op.create_table(
        "atomdetails",
        sa.Column("created_at", sa.DateTime()),
        sa.Column("updated_at", sa.DateTime()),
        sa.Column("meta", _DETAIL),
        sa.Column("parent_uuid", sa.String(64)),
        sa.Column("name", sa.String(255)),
        sa.Column("version", sa.String(64)),
        sa.Column("state", sa.String(255)),
        sa.Column("uuid", sa.String(64), nullable=False),
        sa.Column("failure", _DETAIL),
        sa.Column("results", _DETAIL),
        sa.Column("revert_results", _DETAIL),
        sa.Column("revert_failure", _DETAIL),
        sa.Column("atom_type", sa.Enum(*_ATOM_TYPES, name="atom_types")),
        sa.Column("intention", sa.Enum(*_INTENTIONS, name="intentions")),
        sa.ForeignKeyConstraint(["parent_uuid"], ["flowdetails.uuid"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uuid"),
        sa.UniqueConstraint("uuid"),
    )
