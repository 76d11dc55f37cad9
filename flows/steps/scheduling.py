"""Chooses where a server goes, and checks its server group again once a destination is claimed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import DestinationFault
from droveway.flows.before import before
from droveway.flows.other_graph import across, offered
from droveway.flows.run import Context, OtherGraph
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import overtaken
from droveway.flows.steps.rows import compute_node
from droveway.persistence.database import absence
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.nova import copies, objects
from droveway.scheduler.candidates import schedule
from droveway.scheduler.filters import rejection
from droveway.scheduler.hosts import HostState, host_states
from droveway.scheduler.requests import MoveRequest
from droveway.scheduler.select import Destination, Selection


class ChooseDestinations(Step):
    """Chooses the destination and its alternates, best first, at most `max_attempts`."""

    does = "choose the destination and its alternates"
    no_undo = "it only reads"
    gives = "candidates"
    finds = True
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Query the allocation candidates once, then filter and weigh them; raises StepError (``no-valid-host``).

        The result has the hosts that were left out, with the filter and the reason against each.  A flow that had
        chosen before its journal was put back keeps to the destination that it was on.  A flow that continues an
        earlier flow of the move chooses nothing: it takes the alternates that the earlier flow has not tried.
        """
        if ctx.run.is_behind():
            if ctx.attempt is not None:
                return self.passed_by(ctx)
            if ctx.run.cloud.placement.allocations(ctx.move.id).allocations:
                overtaken.require_record(ctx, lost="the destination that it had chosen")
        if (left := self._left(ctx)) is not None:
            return left
        others = _other_graph(ctx)
        request = _request(ctx, _cells(ctx, others))
        found = schedule(ctx.run.cloud.placement, states(ctx, request, others), request).as_dict()
        return found | _offered(ctx, found["chosen"], first=1)

    def _left(self, ctx: Context) -> dict[str, Any] | None:
        """Return the alternates that an earlier flow of the move chose and did not try; None for the first flow."""
        made = (
            run.result
            for run in reversed(ctx.run.step_runs())
            if (run.step, run.direction) == (ctx.step, ctx.direction) and run.flow_uuid != ctx.run.flow_uuid
        )
        found = next((result for result in made if result), None)
        if found is None:
            return None
        return found | _offered(ctx, [*found["chosen"], *found.get("later", ())], first=ctx.move.attempt + 1)

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Return the destinations that were tried, the present one last.

        ``first`` is the number of the present one: the flow begins with it and tries none of the earlier ones again.
        """
        with ctx.run.journal.read() as session:
            tried = [
                Destination(cell=row.cell, host=row.host, node=row.node, provider=row.provider, request=row.request)
                for row in attempts.tried(session, ctx.move.id)
            ]
        return {**Selection(tried, {}).as_dict(), "first": ctx.move.attempt}


def _offered(ctx: Context, ranked: list[dict[str, Any]], *, first: int) -> dict[str, Any]:
    crosses = kinds.of(ctx.run.kind).crosses_cells
    return offered(ranked, first, own=ctx.move.source_cell, crosses=crosses)


def check_group(ctx: Context, session: orm.Session) -> None:
    """Raise DestinationFault when by now the server's group forbids the destination.

    ``session`` is the cell transaction that will name the destination in the server's rows.  It locks the host's
    compute node, so that moves to one host pass one after the other.  After the lock it reads what the earlier ones
    have committed.
    """
    place = (ctx.destination.cell, host := ctx.destination.host)
    request = _request(ctx, {ctx.destination.cell: ""})
    if request.group is None:
        return
    compute_node(session, host, lock=True)
    hosts = states(ctx, request)
    why = next((rejection(request, each, hosts, late=True) for each in hosts if (each.cell, each.host) == place), None)
    if why is not None:
        raise DestinationFault(
            f"host {host} cannot take {ctx.move.server_name} any more: {why.reason} ({why.filter})",
            code="group-policy",
            host=host,
        )


def _request(ctx: Context, cells: Mapping[str, str]) -> MoveRequest:
    run, record = ctx.run, before(ctx.move)
    return MoveRequest(
        server=ctx.move.server,
        name=ctx.move.server_name,
        kind=ctx.move.kind,
        flavor=objects.flavor_data(record.new_flavor),
        request_spec=objects.decode(record.request_spec),
        source_cell=ctx.move.source_cell,
        cells=cells,
        source_host=ctx.move.source_host,
        boot_from_volume=record.boot_from_volume,
        ports=[port.resources for port in record.ports if port.resources is not None],
        target_host=ctx.move.target_host,
        allow_same_host=_allow_same_host(ctx),
        max_attempts=1 if ctx.move.target_host else run.options.max_attempts,
        rules=run.options.rules,
    )


def _other_graph(ctx: Context) -> OtherGraph | None:
    """Look up the graph for the alternates that the flow's graph cannot take; None if the move may use no other graph.

    A move may use no other graph if its request names a cell or a host, or if servers may not leave their cell.
    """
    kind = across(ctx.run.kind)
    if kind is None or not ctx.run.options.cross_cell or ctx.move.dest_cell or ctx.move.target_host:
        return None
    return ctx.run.graph_of(kind)


def _cells(ctx: Context, others: OtherGraph | None) -> dict[str, str]:
    """Return the cells that the move may lead to: cell → the reason against it, empty where there is none.

    A move that has a second graph (``others``) may lead to every cell.  A move within a cell leads to the server's own.
    A move into another cell leads to the cell that was asked for, or to every cell but the server's own.
    """
    cells, source = ctx.run.cells, ctx.move.source_cell
    crosses = kinds.of(ctx.run.kind).crosses_cells
    found = {source: others.source_refusal if others is not None and crosses else ""}
    if not crosses and others is None:
        return found
    with cells.database(source).read() as session:
        bound = copies.barred(session, ctx.move.server)
    if not crosses and others is not None:
        bound = others.source_refusal or bound
    named = [ctx.move.dest_cell] if ctx.move.dest_cell else [name for name in cells.names() if name != source]
    owing = ctx.run.owing_cells()
    across_cells = {name: bound or owing.get(name) or _standing(ctx, name) for name in named}
    return found | across_cells if others is not None else across_cells


def _standing(ctx: Context, cell: str) -> str:
    """Return what speaks against another cell since it has rows of the server; empty for a cell that is away.

    The hosts of a cell that is away are left out anyway.
    """
    try:
        with ctx.run.cells.database(cell).read() as session:
            return copies.standing(session, ctx.move.server)
    except sa.exc.DBAPIError as error:
        if absence(error) is None:
            raise
        return ""


def _allow_same_host(ctx: Context) -> bool:
    """Tell whether the server may stay on its host.

    As in Nova the option `allow_resize_to_same_host` decides for a resize, and the host's driver for a cold migrate.
    """
    if kinds.of(ctx.move.kind).changes_flavor:
        return ctx.run.options.allow_resize_to_same_host
    worker = ctx.run.workers().get(ctx.move.source_host)
    return worker is not None and worker.same_host_cold_migrate


def states(ctx: Context, request: MoveRequest, others: OtherGraph | None = None) -> list[HostState]:
    """Read what the databases say of the hosts now.

    Only the server's own server group is read: a cloud may have thousands of groups.
    """
    run, groups = ctx.run, [request.group.uuid] if request.group is not None else []
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(run.api.read())
        cells = {name: stack.enter_context(run.cells.database(name).read()) for name in run.cells.names()}
        ineligible = dict.fromkeys(cells, run.ineligible())
        if others is not None:
            crosses = kinds.of(run.kind).crosses_cells
            ineligible |= {name: others.ineligible for name in cells if (name == ctx.move.source_cell) == crosses}
        return host_states(api, cells, set(run.workers()), ineligible, groups, home=ctx.move.source_cell)
