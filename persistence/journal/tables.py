"""The tables of the journal database: moves, their flows, steps, attempts, claims, intents and debts, and others.

Alembic migrations make them.  The same database has TaskFlow's own tables: logbooks, flowdetails and atomdetails.
Times are UTC, naive.  Most columns that an operator filters on have an index.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.journal.column_types import Moment

Json = sa.JSON(none_as_null=True)


class JournalBase(orm.DeclarativeBase):
    """The base class of the journal's tables."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as a class attribute
        dict[str, Any]: Json,
        list[Any]: Json,
    }


class Move(JournalBase):
    """One move: one operation on one server, from its request to its end.

    ``id`` is also the uuid of Nova's migration, and the consumer of the source's allocation in Placement.
    """

    __tablename__ = "moves"
    __table_args__ = (sa.Index("ix_moves_queue", "state", "created_at", "id"),)

    id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32), index=True)
    server: orm.Mapped[str] = orm.mapped_column(sa.String(36), index=True)
    server_name: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    active_server: orm.Mapped[str | None] = orm.mapped_column(sa.String(36), unique=True)
    """The server's uuid while the move has not ended, else NULL; being unique, it admits one move per server."""
    state: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    parked_from: orm.Mapped[str | None] = orm.mapped_column(sa.String(32))
    """The state before needs-operator, to which `move retry` takes the move back."""
    flow_uuid: orm.Mapped[str | None] = orm.mapped_column(sa.String(36), index=True)
    """The flow that runs or is to run now; NULL while the move waits, or has ended."""
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
    """Seconds after confirm for which the source's disks are kept; 0: they are not kept."""
    deadline: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)
    """When the confirm policy acts, by the database's clock; set when the move becomes `verifying`.

    None while only a person confirms or reverts: under the policy `manual`, and after a revert that was undone.
    """
    health: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """What the destination last reported of the guest, for the policy `healthy`; NULL before its first report."""
    health_reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    health_asked: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When the keeper asked the destination for the report in ``health``, by the database's clock."""
    waits_for: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    """What the confirm policy waits for, and how to mend it; NULL when it waits for nothing but its deadline.

    While a flow runs, it names the database that the flow waits for: see `droveway.persistence.journal.cell_waits`.
    """
    waits_since: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """Since when a flow waits for a database, by the database's clock; it means nothing while `waits_for` is NULL."""
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    """Why the operator asked for the move."""
    asked_by: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    project: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    request_id: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    hold: orm.Mapped[bool] = orm.mapped_column(default=False)
    cancel_requested: orm.Mapped[bool] = orm.mapped_column(default=False)
    delete_requested: orm.Mapped[bool] = orm.mapped_column(default=False)
    error_code: orm.Mapped[str | None] = orm.mapped_column(sa.String(64))
    error: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    storage: orm.Mapped[str | None] = orm.mapped_column(sa.String(32))
    """How the disks get to the destination: copy, shared, same-host or volume."""
    transfer_asked: orm.Mapped[str] = orm.mapped_column(sa.String(16), default="auto")
    """How the operator wants the disks to go into another cell: see `droveway.persistence.journal.transfers`."""
    transfer: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """How the disks do go there, direct or image; NULL within a cell, and when no disks are copied.

    It is also NULL in the moves of releases that did not have this column.  Their disks went directly.
    """
    keep_image: orm.Mapped[bool] = orm.mapped_column(default=False)
    """Whether each disk is uploaded as an image, which is kept until the end of the move."""
    before: orm.Mapped[dict[str, Any] | None] = orm.mapped_column(Json, deferred=True)
    """What the step `record_before` wrote down for a revert.  It is large, so it is read only when it is used."""
    progress_done: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    """Bytes that the running step has done, as its host last reported; NULL when the host reported nothing."""
    progress_total: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    """Bytes that the running step has to do in all."""
    progress_kept: orm.Mapped[int | None] = orm.mapped_column(sa.BigInteger)
    """Bytes of `progress_done` that an earlier, interrupted run of the step had done."""
    progress_seconds: orm.Mapped[float | None] = orm.mapped_column(sa.Double)
    """Seconds, by the host's clock, that the present run took for its own part, `progress_done` - `progress_kept`."""
    progress_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment, index=True)
    updated_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    ended_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)


class MoveFlow(JournalBase):
    """One TaskFlow graph that is to run, runs or ran for a move; TaskFlow's flow detail has the same uuid."""

    __tablename__ = "move_flows"

    uuid: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    kind: orm.Mapped[str] = orm.mapped_column(sa.String(32))
    """The name of a kind (`droveway.persistence.journal.kinds`); with ``version`` it is the graph's registry key."""
    version: orm.Mapped[int]
    digest: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment, index=True)
    ended_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    outcome: orm.Mapped[str | None] = orm.mapped_column(sa.String(16))
    """done or undone; NULL until the flow has ended."""


class MoveStep(JournalBase):
    """One run of one step in one direction; these rows are a move's history.

    ``seq`` is also a part of the key of each command that the run sends to a host, so that every run has keys of its
    own.
    """

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
    """One alternate of a move: a host that was tried as its destination, the first destination included.

    A row with a number below 0 is no alternate, but a host that a revert tried in the place of a dead source.

    Undos take the destination from here, never from what TaskFlow stores of a retry.
    """

    __tablename__ = "move_attempts"

    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), primary_key=True)
    attempt: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    """The alternate's number, from 1; below 0 for a host that a revert tried in the place of a dead source."""
    cell: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    node: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    provider: orm.Mapped[str] = orm.mapped_column(sa.String(36))
    request: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    """Placement's allocation request for this host: ``{provider: {"resources": {...}}}``."""
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


COLLECTOR: Final = "debts"
"""The owner of a claim under which the keeper's collector settles debts; no conductor has that name."""

OPERATOR: Final = "operator "
"""The prefix of a claim's owner when a person's command has the claim; no conductor's name begins with it."""


class Claim(JournalBase):
    """The last claim of a move: who may write for it.  A write under a lower epoch is refused."""

    __tablename__ = "claims"

    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), primary_key=True)
    epoch: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)
    owner: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    claimed_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    released_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)
    """When the owner gave it back; NULL while it is held, and after an owner that died."""
    unclean: orm.Mapped[int] = orm.mapped_column(default=0)
    """How many claims in a row, right before this one, were never given back and made no progress."""


class Counter(JournalBase):
    """A number of the journal's own, by its name: ``epoch``, the last one that a claim got, or ``incarnation``."""

    __tablename__ = "counters"

    name: orm.Mapped[str] = orm.mapped_column(sa.String(32), primary_key=True)
    value: orm.Mapped[int] = orm.mapped_column(sa.BigInteger)


class Intent(JournalBase):
    """A write to a cloud service, recorded before it is sent.

    The state is open, then done.  It is late when the conductor lost its claim before the write was done.
    """

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
    """Something that a host or a cell still has to do for a move: see `droveway.persistence.journal.debts`."""

    __tablename__ = "debts"

    id: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255), index=True)
    """The host that owes it; empty where a cell does."""
    cell: orm.Mapped[str | None] = orm.mapped_column(sa.String(255), index=True)
    """The cell that owes it, in whose rows something is to be done; NULL where a host owes it."""
    move_id: orm.Mapped[str] = orm.mapped_column(sa.ForeignKey("moves.id"), index=True)
    action: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    details: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    not_before: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When it falls due, by the database's clock; NULL: at once.

    A debt without a date keeps its move from ending and keeps its host from taking servers.  A debt with a date does
    neither.
    """
    settled_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment, index=True)


class CellDown(JournalBase):
    """A cell that a person declared down, having made sure that its hosts and its database are gone."""

    __tablename__ = "cells_down"

    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    reason: orm.Mapped[str] = orm.mapped_column(sa.Text)
    who: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


class Plan(JournalBase):
    """What `move plan` found for a server.  A plan changes nothing; `--from-plan` refuses one that no longer holds."""

    __tablename__ = "plans"

    id: orm.Mapped[str] = orm.mapped_column(sa.String(36), primary_key=True)
    server: orm.Mapped[str] = orm.mapped_column(sa.String(36), index=True)
    body: orm.Mapped[dict[str, Any]] = orm.mapped_column(Json)
    created_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)


class Daemon(JournalBase):
    """A conductor or a worker, as it reported itself; times are by the database's clock."""

    __tablename__ = "daemons"

    kind: orm.Mapped[str] = orm.mapped_column(sa.String(16), primary_key=True)
    """conductor or worker."""
    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True)
    """A worker has its host's name; each process of a conductor has a new one."""
    host: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    pid: orm.Mapped[int]
    version: orm.Mapped[str] = orm.mapped_column(sa.String(64))
    knows: orm.Mapped[list[Any]] = orm.mapped_column(Json)
    """A worker's actions or a conductor's graphs: see `droveway.persistence.journal.daemons.DaemonStatus`."""
    address: orm.Mapped[str] = orm.mapped_column(sa.String(255), default="")
    """The address at which other workers reach a worker to copy disks."""
    started_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    """When a conductor wrote its first row; when a worker's present registration was first seen."""
    seen_at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
    """When a conductor last wrote its row; when a worker's registration last changed."""
    gone_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When a worker's registration was found to be gone, or a conductor ended; NULL before."""
    drained_at: orm.Mapped[dt.datetime | None] = orm.mapped_column(Moment)
    """When the worker was drained; NULL when it is not drained.  No new move goes to the host of a drained worker."""
    drain_reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)


class Freeze(JournalBase):
    """A freeze: while the row is there, no move in its scope is claimed, and none deletes what cannot be restored."""

    __tablename__ = "freezes"

    scope: orm.Mapped[str] = orm.mapped_column(sa.String(8), primary_key=True)
    """all, cell or host."""
    name: orm.Mapped[str] = orm.mapped_column(sa.String(255), primary_key=True, default="")
    """The cell or the host; empty for all."""
    reason: orm.Mapped[str | None] = orm.mapped_column(sa.Text)
    who: orm.Mapped[str] = orm.mapped_column(sa.String(255))
    at: orm.Mapped[dt.datetime] = orm.mapped_column(Moment)
