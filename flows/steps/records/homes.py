"""Finds where a server is that is being deleted: Nova may evacuate it meanwhile, whatever its task_state.

The user asked to delete the server, wherever it is.  So the delete waits until an evacuation is over, writes its
task_state again, and then also removes what Nova has built on the other host.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from droveway.errors import ServerDeleted, StepError
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.journal import moves
from droveway.persistence.nova import evacuations
from droveway.persistence.nova.cell import Instance, Migration
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState
from droveway.printable import SHORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import orm

    from droveway.flows.run import Context
    from droveway.persistence.journal.tables import Move
    from droveway.persistence.nova.cells import Cells

UNDER_WAY: Final = "being-evacuated"
"""The code of the StepError for a server that Nova evacuates while it is to be deleted."""

HOSTS: Final = "hosts"
"""In the result of `remove_guest`: the hosts on which nothing of the server is left."""

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_LIVE: Final = sa.select(Instance).where(Instance.uuid == _SERVER, Instance.deleted == 0)
_HOST: Final = sa.select(Instance.host).where(Instance.uuid == _SERVER)
_EVACUATIONS: Final = sa.select(Migration.dest_compute).where(
    Migration.instance_uuid == _SERVER, Migration.migration_type == "evacuation", Migration.dest_compute.is_not(None)
)
_BEGUN: Final = _EVACUATIONS.where(
    Migration.status.in_(("accepted", MigrationStatus.PRE_MIGRATING)), Migration.deleted == 0
)
"""The hosts on which an evacuation that did not end may have built a guest."""


@dataclasses.dataclass(frozen=True)
class Homes:
    """Holds the hosts that may have something of the server."""

    now: str
    """The host that the server's rows name, which must be cleared.

    If the rows are gone, it is the host that the server was on when the delete began.
    """
    others: tuple[str, ...] = ()
    """The other hosts that may have something of the server.

    The server has left some of them.  On the others Nova may have built a guest in an evacuation that did not end, and
    the server's rows never named these hosts.  If one of all these hosts is away, it owes the command.
    """

    @property
    def every(self) -> list[str]:
        """Return all hosts, those that the server has left first."""
        return [*self.others, *([self.now] if self.now else [])]


def first_host(ctx: Context) -> str:
    """Name the host that the server was on when the delete began, by its row, or by the journal if that was gone."""
    noted = ctx.inputs.get("home") or next(_results(ctx, "mark_deleting"), {})
    if (host := noted.get("host")) is not None:
        return str(host)
    with ctx.run.journal.read() as session:
        return moves.home(session, ctx.move)


def hold(ctx: Context) -> Homes:
    """Return the server's homes by its present rows, and write task_state `deleting` again if it was replaced.

    Raises StepError (``being-evacuated``) while Nova evacuates the server.  If a person retries the move after that
    error, the server is deleted all the same, as by Nova's own delete: the evacuation ends once it sees the task_state.
    """
    was, move = first_host(ctx), ctx.move
    with ctx.run.journal.read() as session:
        known = moves.home(session, move)
    with ctx.run.cells.database(ctx.cell).read() as session:
        row = session.scalar(_LIVE, {"server": move.server})
        if row is None:
            return Homes(was)
        now, task = row.host or "", row.task_state
        begun = session.scalars(_BEGUN, {"server": move.server}).all()
    if task != TaskState.DELETING:
        now = _mark(ctx)
    others = dict.fromkeys(host for host in (known, was, *begun) if host and host != now)
    return Homes(now, tuple(others))


def require_no_evacuation(ctx: Context, row: Instance) -> None:
    """Raise StepError (``being-evacuated``) while Nova evacuates the server, unless this step raised it before."""
    if evacuations.is_under_way(row.task_state) and not _was_reported(ctx):
        name = ctx.move.server_name
        raise StepError(
            f"Nova evacuates server {name} from {row.host or 'no host'} (task {row.task_state}), so it is not deleted "
            "yet: when the evacuation is over, or to delete the server all the same, run "
            f"droveway move retry {ctx.move.id[:SHORT]}",
            code=UNDER_WAY,
        )


def require_cleared(row: Instance, homes: Homes) -> None:
    """Raise StepError (``being-evacuated``) when the server has been taken elsewhere since its homes were cleared."""
    if (row.host or "") != homes.now or row.task_state != TaskState.DELETING:
        raise StepError(
            f"the rows of server {row.display_name} changed while it was deleted: they name {row.host or 'no host'} in "
            f"task {row.task_state or 'none'}",
            code=UNDER_WAY,
        )


def cleared(ctx: Context) -> set[str]:
    """Return the hosts on which nothing of the server is left since `remove_guest` ran.

    An older release recorded none: then it is the host that the server was on when the delete began.
    """
    return {first_host(ctx), *(host for result in _results(ctx, "remove_guest") for host in result.get(HOSTS, ()))}


def commanded_hosts(cells: Cells, move: Move) -> set[str]:
    """Return every host that a command of the server's delete may have gone to, by rows that may be deleted by now."""
    of, found = {"server": move.server}, set[str | None]()
    for cell in {move.source_cell, move.dest_cell or move.source_cell}:
        with cells.database(cell).read() as session:
            found |= {*session.scalars(_HOST, of), *session.scalars(_EVACUATIONS, of)}
    return {host for host in found if host}


def _results(ctx: Context, step: str) -> Iterator[dict[str, Any]]:
    for run in ctx.run.step_runs():
        if (run.flow_uuid, run.step) == (ctx.run.flow_uuid, step) and run.result is not None:
            yield run.result


def _mark(ctx: Context) -> str:
    """Write task_state `deleting` again, whatever it is now; return the host that the row names."""
    move, run = ctx.move, ctx.run
    try:
        with run.cells.transaction(ctx.cell, move.server, run.epoch) as session:
            row = _locked(session, move.server)
            if row is None:
                return first_host(ctx)
            require_no_evacuation(ctx, row)
            compare_and_swap(session, row, task_state=(OneOf((row.task_state,)), TaskState.DELETING))
            return row.host or ""
    except ServerDeleted:
        return first_host(ctx)


def _locked(session: orm.Session, server: str) -> Instance | None:
    return session.scalar(_LIVE.with_for_update(), {"server": server})


def _was_reported(ctx: Context) -> bool:
    """Tell whether an earlier claim's run of this step failed because Nova evacuates the server.

    If so, a person has retried the step and knows of the evacuation.
    """
    return any(
        run.error is not None and run.error.get("code") == UNDER_WAY
        for run in ctx.run.step_runs()
        if (run.flow_uuid, run.step) == (ctx.run.flow_uuid, ctx.step) and run.epoch != ctx.run.epoch
    )
