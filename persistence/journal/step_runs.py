"""The runs of a move's steps, as plain objects.

A flow reads them once when it is claimed.  Afterwards it keeps them in memory, together with those that it adds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import Executor, database_time
from droveway.persistence.journal.tables import Move, MoveStep

ADOPTED: Final = "adopt"
"""The name that stands in the place of a step in a row of the history that `note_adopted` writes.

Each unfinished move gets such a row when ``droveway db adopt`` accepts a journal that was restored from a backup.
"""

DISKS_UNREACHABLE: Final = "disks-unreachable"
"""The code of the error of a destination that cannot reach the server's disks.

The source is declared down.  Its directory cannot be read from the destination, and there is no image of the disks.
"""


@dataclasses.dataclass
class StepRun:
    """Holds one row of a move's history."""

    seq: int
    flow_uuid: str
    flow: str
    """The flow's kind."""
    step: str
    direction: str
    attempt: int
    """The alternate that the move was on; 0 before the first."""
    epoch: int
    """The epoch of the claim that began the run; once the run has ended, the epoch of the claim that ended it."""
    ended_at: dt.datetime | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


_COLUMNS: Final = [getattr(MoveStep, field.name) for field in dataclasses.fields(StepRun)]
_OF_MOVE: Final = sa.select(*_COLUMNS).where(MoveStep.move_id == sa.bindparam("move")).order_by(MoveStep.seq)


def read(transaction: Executor, move_id: str) -> list[StepRun]:
    """Read all runs of all flows of the move, oldest first."""
    return [StepRun(*row) for row in transaction.execute(_OF_MOVE, {"move": move_id})]


def note_adopted(session: orm.Session, move: Move, **told: Any) -> None:
    """Write into the history that the move's flow may have gone further than the journal knows.

    ``told`` are further columns of the row.
    """
    now = database_time(session)
    session.add(
        MoveStep(
            move_id=move.id,
            flow_uuid=move.flow_uuid or "",
            flow="",
            step=ADOPTED,
            direction="execute",
            attempt=move.attempt,
            started_at=now,
            ended_at=now,
            **told,
        )
    )
