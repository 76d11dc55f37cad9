"""How far TaskFlow has a flow that nobody runs, and what an operator's word changes of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm
from taskflow import states

from droveway.engines.conductor.taskflow import details
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
    uuid: str
    """TaskFlow's, of its atom."""


def begun(session: orm.Session, flow_uuid: str | None) -> list[Begun]:
    """Find the steps at which a flow rests."""
    columns = details.ATOMS.c
    query = sa.select(columns.name, columns.state, columns.uuid, columns.atom_type).where(
        columns.parent_uuid == flow_uuid, columns.state.in_(list(_BEGUN))
    )
    rows = [row for row in session.execute(query) if row.atom_type == "TASK_DETAIL"]
    return [Begun(row.name, _BEGUN[row.state], row.uuid) for row in rows]


def call_done(session: orm.Session, step: Begun) -> None:
    """Let the flow go on from the step as from one that is done, or undone; it has given nothing."""
    done = details.ATOMS.update().where(details.ATOMS.c.uuid == step.uuid)
    session.execute(done.values(**_DONE[step.direction]))


def turned_back(session: orm.Session, flow_uuid: str) -> bool:
    """Whether a flow is being undone."""
    columns = details.ATOMS.c
    query = sa.select(sa.func.count()).where(columns.parent_uuid == flow_uuid, columns.state.in_(_TURNED_BACK))
    return bool(session.scalar(query))


def call_unrun(session: orm.Session, flow_uuid: str, steps: Collection[str]) -> None:
    """Let a flow run these steps once more."""
    columns = details.ATOMS.c
    session.execute(details.ATOMS.delete().where(columns.parent_uuid == flow_uuid, columns.name.in_(steps)))
