"""Reads from TaskFlow's tables at which step a flow rests, and changes the step as an operator decides.

No conductor runs the flow meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm
from taskflow import states
from taskflow.persistence import models

from droveway.engines.conductor.taskflow import details
from droveway.flows.alternates import Alternates
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import MoveStep
from droveway.wire.values import Direction

_BEGUN: Final[dict[str, Direction]] = {
    states.RUNNING: "execute",
    states.REVERTING: "revert",
    states.REVERT_FAILURE: "revert",
}
_DONE: Final[dict[Direction, dict[str, Any]]] = {
    "execute": {"state": states.SUCCESS, "results": {}},
    "revert": {"state": states.REVERTED, "revert_results": None, "revert_failure": None},
}
_TURNED_BACK: Final = (states.FAILURE, states.REVERTING, states.REVERTED, states.REVERT_FAILURE)
"""The states of atoms of a flow that is being undone."""


class Begun(msgspec.Struct, frozen=True):
    """A step that began, or began to be undone, and has not ended."""

    step: str
    direction: Direction
    uuid: str = ""
    """The uuid of its atom; empty while the atom has no row, because the step runs for the first time."""


def begun(session: orm.Session, flow_uuid: str | None) -> list[Begun]:
    """Find the steps at which a flow rests."""
    columns = details.ATOMS.c
    atoms = sa.select(columns.name, columns.state, columns.uuid, columns.atom_type)
    rows = session.execute(atoms.where(columns.parent_uuid == flow_uuid)).all()
    found = [
        Begun(row.name, _BEGUN[row.state], row.uuid)
        for row in rows
        if row.state in _BEGUN and row.atom_type == "TASK_DETAIL"
    ]
    first = _entered_first(session, flow_uuid, {row.name for row in rows})
    return found if first is None else [*found, Begun(first, "execute")]


def _entered_first(session: orm.Session, flow_uuid: str | None, ended: Collection[str]) -> str | None:
    """Find the step that runs for the first time: its run was left open, or ended when the move was parked.

    ``ended`` are the steps whose atoms have a row.  Commands of operators write rows into the history too.  Such a row
    has ended without an error, so it is not looked at.  Only the row `ADOPTED` has an error, and so is looked at: it
    says that an older copy of the journal was adopted.

    Returns None in three cases: there is no such step, the last row is `ADOPTED`, or the last row is the choice of an
    alternate.  After `ADOPTED` the flow runs its steps anew.
    """
    runs = sa.select(MoveStep.step).where(
        MoveStep.flow_uuid == flow_uuid,
        MoveStep.direction == "execute",
        sa.or_(MoveStep.ended_at.is_(None), MoveStep.error.is_not(None)),
        MoveStep.step.not_in(ended),
    )
    last = session.scalar(runs.order_by(MoveStep.seq.desc()).limit(1))
    return None if last in (ADOPTED, Alternates.title) else last


def declare_done(session: orm.Session, flow_uuid: str, step: Begun) -> None:
    """Let the flow go on as if the step was done, or undone, and had returned an empty result."""
    columns = details.ATOMS.c
    if not step.uuid:
        atom = models.TaskDetail(step.step, str(uuid.uuid4()))
        session.execute(details.ATOMS.insert(), details.atom_row(atom, flow_uuid))
        step = msgspec.structs.replace(step, uuid=atom.uuid)
    session.execute(details.ATOMS.update().where(columns.uuid == step.uuid).values(**_DONE[step.direction]))


def turned_back(session: orm.Session, flow_uuid: str) -> bool:
    """Tell whether a flow is being undone."""
    columns = details.ATOMS.c
    query = sa.select(sa.func.count()).where(columns.parent_uuid == flow_uuid, columns.state.in_(_TURNED_BACK))
    return bool(session.scalar(query))


def let_run_again(session: orm.Session, flow_uuid: str, steps: Collection[str]) -> None:
    """Let a flow run these steps once more."""
    columns = details.ATOMS.c
    session.execute(details.ATOMS.delete().where(columns.parent_uuid == flow_uuid, columns.name.in_(steps)))
