"""The journal database: moves, their flows, steps, attempts, claims, intents and debts.

Ours, with alembic migrations; TaskFlow's own tables (logbooks, flowdetails, atomdetails) lie beside these.  Times are
UTC, naive.  Everything that an operator filters on is an indexed column.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.journal.column_types import Moment

Json = sa.JSON(none_as_null=True)


class JournalBase(orm.DeclarativeBase):
    """Base of the journal's tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as a class attribute
        dict[str, Any]: Json,
        list[Any]: Json,
    }


class Move(JournalBase):
    """One operation's whole life on one server; ``id`` is the migration's uuid and its Placement consumer."""

    __tablename__ = "moves"
    __table_args__ = (sa.Index("ix_moves_queue", "state", "created_at", "id"),)

    id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32), index=True)
    server: orm.Mapped[str] = orm.mapped_column(sa.String(36), index=True)
    server_name: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    active_server: orm.Mapped[str | None] = orm.mapped_column(sa.String(36), unique=True)
    """The server while the move has not ended, else NULL: admits one move per server."""
    state: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    parked_from: orm.Mapped[str | None] = orm.mapped_column(sa.String(32))
    """The state that `move retry` goes back to from needs-operator."""
    flow_uuid: orm.Mapped[str | None] = orm.mapped_column(sa.String(36), index=True)
    """The flow that is to run now; NULL at rest."""
    step: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    step_number: orm.Mapped[int] = orm.mapped_column(default=0)
    step_count: orm.Mapped[int] = orm.mapped_column(default=0)
    attempt: orm.Mapped[int] = orm.mapped_column(default=0)
    source_cell: orm.Mapped[str] = orm.mapped_column(sa.String(255), index=True)
    source_host: orm.Mapped[str] = orm.mapped_column(sa.String(255), index=True)
    dest_cell: orm.Mapped[str | None] = orm.mapped_column(sa.String(255))
    dest_host: orm.Mapped[str | None] = orm.mapped_column(sa.String(255), index=True)
    target_host: orm.Mapped[str | None] = orm.mapped_column(sa.String(255))
    """The destination that was asked for by name; NULL when the scheduler chooses."""
    old_flavor: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    new_flavor: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    policy: orm.Mapped[str] = orm.mapped_column(sa.String(16))
    confirm_seconds: orm.Mapped[int] = orm.mapped_column(default=86400)
    keep_seconds: orm.Mapped[int] = orm.mapped_column(default=0)
    """For how long after confirm the source's disks are kept; 0: not at all."""
    deadline: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)
    """When the confirm policy acts, by the database's clock; set on entering verifying."""
    health: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """What the destination last said of the guest under the policy healthy; NULL before its first answer."""
    health_reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    health_asked: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When that was asked for, by the database's clock."""
    waits_for: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    """What the confirm policy waits for, and how to mend it; NULL when it waits for nothing but time."""
    waits_since: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """Since when a flow that has begun waits for a cell, by the database's clock; heeded beside `waits_for` alone."""
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    """Why it was asked for."""
    asked_by: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    project: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    request_id: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    hold: orm.Mapped[bool] = orm.mapped_column(default=False)
    cancel_requested: orm.Mapped[bool] = orm.mapped_column(default=False)
    delete_requested: orm.Mapped[bool] = orm.mapped_column(default=False)
    error_code: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    error: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    storage: orm.Mapped[str | None] = orm.mapped_column(sa.String(32))
    """The variant found: copy, shared, same-host or volume."""
    transfer_asked: orm.Mapped[str] = orm.mapped_column(sa.String(16), default="auto")
    """By which way the disks are to go into another cell: see `droveway.persistence.journal.transfers`."""
    transfer: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """The way that was found for them, direct or image; NULL where none go, and within a cell."""
    keep_image: orm.Mapped[bool] = orm.mapped_column(default=False)
    """Whether each disk is uploaded, and its image kept until the end of the move."""
    before: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json, deferred=True)
    """What revert needs, written by `record_before`; large, so that it is read only where it is looked at."""
    progress_done: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    """Bytes that the running step has done, as its host last told; NULL when it told nothing."""
    progress_total: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    progress_kept: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    """Bytes of those done that an earlier, interrupted run of the step had left."""
    progress_seconds: orm.Mapped[float | None] = orm.mapped_column(sa.Double)
    """For how long the host had worked on the rest when it told so, by the host's clock."""
    progress_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment, index=True)
    updated_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    ended_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)


class MoveFlow(JournalBase):
    """One TaskFlow graph that runs, or ran, for a move; the uuid is TaskFlow's flow detail's."""

    __tablename__ = "move_flows"

    uuid: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    """resize, migrate, confirm, revert or delete: with ``version`` the key of the registry."""
    version: orm.Mapped[int]
    digest: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment, index=True)
    ended_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    outcome: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """done or undone, once ended."""


class MoveStep(JournalBase):
    """One run of one step in one direction: the history, and (by ``seq``) the attempt in a host command's key."""

    __tablename__ = "move_steps"

    seq: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    flow_uuid: orm.Mapped[str] = orm.mapped_column(sa.String(36), index=True)
    flow: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    """The flow's kind."""
    step: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    direction: orm.Mapped[str] = orm.mapped_column(sa.String(8))
    attempt: orm.Mapped[int] = orm.mapped_column(default=0)
    """The alternate that the move was on; 0 before the first."""
    epoch: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, default=0)
    host: orm.Mapped[str | None] = orm.mapped_column(sa.String(255))
    started_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    ended_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    result: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json)
    error: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json)


class MoveAttempt(JournalBase):
    """One alternate of a move: undos take the destination from here, never from a retry's value."""

    __tablename__ = "move_attempts"

    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), primary_key=True)
    attempt: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    """Below 0: one of the hosts that reverts have tried in the place of a dead source."""
    cell: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    node: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    provider: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    request: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    """Placement's allocation request for this host: ``{provider: {"resources": {...}}}``."""
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


COLLECTOR: Final = "debts"
"""The owner of a claim under which debts are settled; no conductor has that name."""

OPERATOR: Final = "operator "
"""How the owner of a claim is called under which a person's command writes; no conductor's name begins so."""


class Claim(JournalBase):
    """Who may write for a move: the highest epoch alone."""

    __tablename__ = "claims"

    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), primary_key=True)
    epoch: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    owner: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    claimed_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    released_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)
    """When the owner gave it back; NULL after an unclean end."""
    unclean: orm.Mapped[int] = orm.mapped_column(default=0)
    """Claims in a row that ended unclean and saved no progress."""


class Counter(JournalBase):
    """The journal's own facts: ``epoch``, the high-water mark of its one sequence, and ``incarnation``."""

    __tablename__ = "counters"

    name: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    value: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)


class Intent(JournalBase):
    """A cloud write, recorded before it is sent: open, done, or late when its conductor was fenced meanwhile."""

    __tablename__ = "intents"

    id: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    epoch: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    service: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    call: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    state: orm.Mapped[str] = orm.mapped_column(sa.String(8), index=True)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


class Debt(JournalBase):
    """A clean-up that a host still owes: it could not be reached, or the time has not come."""

    __tablename__ = "debts"

    id: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), index=True)
    """Empty where a cell owes it."""
    cell: orm.Mapped[str | None] = orm.mapped_column(sa.String(255), index=True)
    """The cell whose rows are owed; NULL where a host owes it."""
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    action: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    details: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    not_before: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When it falls due, by the database's clock: such a debt keeps nothing waiting.  NULL: at once."""
    settled_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)


class CellDown(JournalBase):
    """While the row is there, a person has made sure that the cell is gone, its hosts and its database."""

    __tablename__ = "cells_down"

    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    reason: orm.Mapped[str] = orm.mapped_column(sa.Text)
    who: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


class Plan(JournalBase):
    """What `move plan` found for a server; it changes nothing, and `--from-plan` is refused once it no longer holds."""

    __tablename__ = "plans"

    id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    server: orm.Mapped[str] = orm.mapped_column(sa.String(36), index=True)
    body: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


class Daemon(JournalBase):
    """A conductor or a worker, as it told of itself; times by the database's clock."""

    __tablename__ = "daemons"

    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16), primary_key=True)
    """conductor or worker."""
    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    """A worker's is its host's, a conductor's is new for each process."""
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    pid: orm.Mapped[int]
    version: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    knows: orm.Mapped[list[Any]] = orm.mapped_column(Json)
    """A worker's actions, a conductor's flows, each with ``@version``."""
    address: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    """Where other workers reach a worker's disks."""
    started_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    """When it was first seen."""
    seen_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    """When a conductor last wrote its row; when a worker's registration last changed."""
    gone_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When a worker's registration was found to be gone, or a conductor ended; NULL while it is there."""
    drained_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """Since when a worker is no destination of new moves."""
    drain_reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)


class Freeze(JournalBase):
    """While the row is there, no move in its scope is claimed and none deletes what cannot be brought back."""

    __tablename__ = "freezes"

    scope: orm.Mapped[str] = orm.mapped_column(sa.String(8), primary_key=True)
    """all, cell or host."""
    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True, default="")
    """The cell or the host; empty for all."""
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    who: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
