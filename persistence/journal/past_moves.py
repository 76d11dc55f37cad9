"""What past moves tell about the next one: in which way their disks were transferred, and how long steps took."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from droveway.persistence.database import Database
from droveway.persistence.journal import transfers
from droveway.persistence.journal.tables import Move, MoveStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which moves are looked at; what is None narrows nothing."""

    kinds: Sequence[str]
    hosts: tuple[str, str] | None = None
    """The source and the destination."""
    storage: str | None = None
    """How the disks got to the destination: copy, shared, same-host or volume."""
    by_image: bool | None = None
    """Whether the disks went through the image service."""


@dataclasses.dataclass(kw_only=True)
class PastMove:
    """A move with the runs of its steps that the caller asked for."""

    storage: str | None
    runs: list[Run] = dataclasses.field(default_factory=list)

    def only(self, step: str) -> Run | None:
        """Return the run of the step, if the step ran exactly once and ended without an error; else None."""
        found = [run for run in self.runs if run.step == step]
        return found[0] if len(found) == 1 and found[0].well else None


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one step; times are naive, UTC, by the database's clock."""

    step: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def well(self) -> bool:
        """Whether it has ended without an error."""
        return self.ended_at is not None and self.error is None

    @property
    def seconds(self) -> float:
        """For how long it ran; 0 while it runs."""
        return 0.0 if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()


def newest(journal: Database, wanted: Wanted, *, steps: Sequence[str], limit: int) -> list[PastMove]:
    """Read the newest ``limit`` moves of those wanted, each with the runs of these steps on its way forward."""
    conditions: list[sa.ColumnElement[bool]] = [Move.kind.in_(wanted.kinds)]
    if wanted.hosts is not None:
        source, destination = wanted.hosts
        conditions += [Move.source_host == source, Move.dest_host == destination]
    if wanted.storage is not None:
        conditions.append(Move.storage == wanted.storage)
    if wanted.by_image is not None:
        image = Move.transfer == transfers.IMAGE
        conditions.append(image if wanted.by_image else sa.or_(Move.transfer.is_(None), sa.not_(image)))
    # A table of its own, since MariaDB takes no LIMIT within IN.
    chosen = (
        sa.select(Move.id, Move.kind, Move.storage, Move.created_at)
        .where(*conditions)
        .order_by(Move.created_at.desc(), Move.id.desc())
        .limit(limit)
        .subquery()
    )
    runs = sa.and_(
        MoveStep.move_id == chosen.c.id,
        MoveStep.flow == chosen.c.kind,
        MoveStep.direction == "execute",
        MoveStep.step.in_(steps),
    )
    columns = (getattr(MoveStep, field.name) for field in dataclasses.fields(Run))
    query = (
        sa.select(chosen.c.id, chosen.c.storage, *columns)
        .select_from(chosen)
        .outerjoin(MoveStep, runs)
        .order_by(chosen.c.created_at.desc(), chosen.c.id.desc(), MoveStep.seq)
    )
    found: dict[str, PastMove] = {}
    with journal.read() as session:
        for move, storage, step, *rest in session.execute(query):
            past = found.setdefault(move, PastMove(storage=storage))
            if step is not None:
                past.runs.append(Run(step, *rest))
    return list(found.values())
