"""The step that chooses where a server goes, and the second look at its group once a destination is claimed."""

from __future__ import annotations

import contextlib
from typing import Any

from sqlalchemy import orm

from droveway.errors import DestinationFault
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import overtaken
from droveway.flows.steps.rows import compute_node
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.nova import objects
from droveway.scheduler.candidates import schedule
from droveway.scheduler.filters import rejection
from droveway.scheduler.hosts import HostState, host_states
from droveway.scheduler.requests import MoveRequest
from droveway.scheduler.select import Destination, Selection


class ChooseDestinations(Step):
    """The destination and its alternates, best first, at most `max_attempts`."""

    does = "choose the destination and its alternates"
    no_undo = "it only reads"
    gives = "candidates"
    finds = True
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """One allocation candidates query, then filters and weighers; raises StepError `no-valid-host`.

        The result has the hosts that were left out with the filter and the reason against each.  A flow that had
        chosen before its journal was put back keeps to the destination that it was on.
        """
        if ctx.run.is_behind():
            if ctx.attempt is not None:
                return self.passed_by(ctx)
            if ctx.run.cloud.placement.allocations(ctx.move.id).allocations:
                overtaken.require_record(ctx, lost="the destination that it had chosen")
        request = _request(ctx)
        return schedule(ctx.run.cloud.placement, _states(ctx, request), request).as_dict()

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Name the destinations that were tried, of which the last is the ``first`` to be tried now."""
        with ctx.run.journal.read() as session:
            tried = [
                Destination(cell=row.cell, host=row.host, node=row.node, provider=row.provider, request=row.request)
                for row in attempts.tried(session, ctx.move.id)
            ]
        return {**Selection(tried, {}).as_dict(), "first": ctx.move.attempt}


def check_group(ctx: Context, session: orm.Session) -> None:
    """Raise DestinationFault when by now the server's group forbids the destination.

    ``session`` is the cell transaction that will name the destination in the server's rows: its lock lets moves to one
    host pass one after the other, and behind it is read what the earlier ones have committed.
    """
    request, host = _request(ctx), ctx.destination.host
    if request.group is None:
        return
    compute_node(session, host, lock=True)
    states = _states(ctx, request)
    why = next((rejection(request, each, states, late=True) for each in states if each.host == host), None)
    if why is not None:
        raise DestinationFault(
            f"host {host} cannot take {ctx.move.server_name} any more: {why.reason} ({why.filter})",
            code="group-policy",
            host=host,
        )


def _request(ctx: Context) -> MoveRequest:
    run, record = ctx.run, before(ctx.move)
    return MoveRequest(
        server=ctx.move.server,
        name=ctx.move.server_name,
        kind=ctx.move.kind,
        flavor=objects.flavor_data(record.new_flavor),
        request_spec=objects.decode(record.request_spec),
        source_cell=ctx.move.source_cell,
        target_cell=_target_cell(ctx),
        source_host=ctx.move.source_host,
        boot_from_volume=record.boot_from_volume,
        target_host=ctx.move.target_host,
        allow_same_host=_allow_same_host(ctx),
        max_attempts=1 if ctx.move.target_host else run.options.max_attempts,
        rules=run.options.rules,
    )


def _target_cell(ctx: Context) -> str:
    """Name the cell that the move was asked to lead to."""
    crosses = kinds.of(ctx.move.kind).crosses_cells
    return (ctx.move.dest_cell if crosses else None) or ctx.move.source_cell


def _allow_same_host(ctx: Context) -> bool:
    """Nova: `allow_resize_to_same_host` for a resize, the driver's own word for a cold migrate."""
    if kinds.of(ctx.move.kind).changes_flavor:
        return ctx.run.options.allow_resize_to_same_host
    worker = ctx.run.workers().get(ctx.move.source_host)
    return worker is not None and worker.same_host_cold_migrate


def _states(ctx: Context, request: MoveRequest) -> list[HostState]:
    """What the databases say of the hosts by now, and of the server's own group on them: there may be thousands."""
    run, groups = ctx.run, [request.group.uuid] if request.group is not None else []
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(run.api.read())
        cells = {name: stack.enter_context(run.cells.database(name).read()) for name in run.cells.names()}
        return host_states(api, cells, set(run.workers()), run.ineligible(), groups)
