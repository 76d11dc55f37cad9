"""Daemons caught in the middle of a step: stopped in their tracks, looked at in the journal, then killed or let go."""

from __future__ import annotations

import dataclasses
import signal
from typing import Final

import sqlalchemy as sa
from support.daemons.daemons import Daemon, Installation

from droveway.clients.zookeeper import command_path, result_path
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.persistence.journal.tables import Claim, Move, MoveStep

KINDS: Final = ("resize", "migrate", "confirm", "revert", "delete")

_OPEN: Final = (
    sa.select(MoveStep.move_id, MoveStep.flow, MoveStep.step, MoveStep.direction, MoveStep.host, Claim.owner)
    .join(Claim, sa.and_(Claim.move_id == MoveStep.move_id, Claim.epoch == MoveStep.epoch))
    .join(Move, sa.and_(Move.id == MoveStep.move_id, Move.flow_uuid == MoveStep.flow_uuid))
    .where(MoveStep.ended_at.is_(None), Claim.released_at.is_(None))
)
"""The steps that have begun and whose end is not stored, each with who runs it."""

_HELD: Final = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
)
"""How many transactions are open on a PostgreSQL server."""


@dataclasses.dataclass(frozen=True, order=True)
class Spot:
    """One kind of step of one operation, and who is caught in it."""

    victim: str
    """conductor or worker."""
    flow: str
    what: str
    """Of a conductor the subject of the step, of a worker the step."""


def wanted() -> set[Spot]:
    """Every kind of step of every operation: of conductors by subject, of workers each one."""
    spots = set()
    for flow in KINDS:
        for step in registry.latest(flow).walk():
            spots.add(Spot("conductor", flow, subject(flow, step.step_name())))
            if step.where is not Where.CONDUCTOR:
                spots.add(Spot("worker", flow, step.step_name()))
    return spots


def subject(flow: str, name: str) -> str:
    """The subject of a step: the file that it is written in; a retry's is its name."""
    steps = {step.step_name(): step for step in registry.latest(flow).walk()}
    return steps[name].__module__.rpartition(".")[2] if name in steps else name


def stopped_in(site: Installation, daemon: Daemon, host: str = "") -> set[Spot]:
    """Stop a daemon in its tracks, a worker by its ``host``; the steps that it is in the middle of."""
    daemon.process.send_signal(signal.SIGSTOP)
    with site.lab.journal.engine.connect() as connection:
        rows = connection.execute(_OPEN).all()
    if not host:
        ours = [row for row in rows if f"-{daemon.process.pid}-" in row.owner and row.direction == "execute"]
        return {Spot("conductor", row.flow, subject(row.flow, row.step)) for row in ours}
    given = [key.split(".") for key in unanswered(site, host)]
    return {
        Spot("worker", row.flow, row.step) for row in rows if [row.step, row.direction] in (key[1:3] for key in given)
    }


def go_on(daemon: Daemon) -> None:
    """Let a stopped daemon go on."""
    daemon.process.send_signal(signal.SIGCONT)


def unanswered(site: Installation, host: str) -> list[str]:
    """The keys of the host's commands that have no answer yet."""
    keys = site.session.children(command_path(host))
    return [key for key in keys if site.session.get(result_path(host, key)) is None]


def has_open_transactions(site: Installation) -> bool:
    """Whether somebody holds rows that others need."""
    with site.lab.journal.engine.connect() as connection:
        return bool(connection.scalar(_HELD))
