"""Defines the steps by which another host takes the place of a dead source: it is chosen, and claimed."""

from __future__ import annotations

from typing import Any

from droveway.clients.placement import MIGRATION, resources_of
from droveway.errors import DestinationFault, StepError
from droveway.flows.before import before, held_by_ports
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.flows.steps import attached, scheduling
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import compute_node
from droveway.persistence.journal import attempts
from droveway.persistence.nova import objects
from droveway.scheduler.candidates import schedule
from droveway.scheduler.requests import MoveRequest, amounts
from droveway.scheduler.select import Destination, Selection


class ChooseSourceHost(Step):
    """Chooses a host of the source's cell and its alternates, best first, at most `max_attempts`; never the source."""

    does = "choose the host that takes the source's place, and its alternates"
    no_undo = "it only reads"
    gives = "candidates"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Choose hosts for the flavor that the server had before the move; raises StepError (``no-valid-host``).

        The result also has how many hosts earlier reverts of the move tried (``before``), and what the migration holds
        on the source (``held``), which an undo gives back.
        """
        if ctx.run.is_behind() and ctx.returning is not None:
            return self.passed_by(ctx)
        request = _request(ctx)
        found = schedule(ctx.run.cloud.placement, scheduling.states(ctx, request), request).as_dict()
        held = ctx.run.cloud.placement.allocations(ctx.move.id).allocations
        with ctx.run.journal.read() as session:
            tried = len(attempts.returns(session, ctx.move.id))
        return {**found, "first": 1, "before": tried, "held": {each: dict(held[each]) for each in held}}

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Keep to the host that the flow was on before its journal was put back."""
        chosen, record = ctx.returning, before(ctx.move)
        if chosen is None:
            return {}
        kept = Destination(chosen.cell, chosen.host, chosen.node, chosen.provider, chosen.request)
        held: Any = ctx.run.cloud.placement.allocations(ctx.move.id).allocations
        if held == resources_of(chosen.request):
            # The migration holds this host already.  What it held on the source is told by the record.
            with ctx.run.cells.database(ctx.move.source_cell).read() as session:
                source = str(compute_node(session, ctx.move.source_host).uuid)
            of_flavor = amounts(objects.flavor_data(record.old_flavor), boot_from_volume=record.boot_from_volume)
            held = {source: of_flavor, **held_by_ports(record)}
        # The journal numbers these hosts -1, -2 and so on.  ``before`` is how many of them come before this one.
        number = {"first": 1, "before": -chosen.attempt - 1, "held": {each: dict(held[each]) for each in held}}
        return {**Selection([kept], {}).as_dict(), **number}


def _request(ctx: Context) -> MoveRequest:
    move, record = ctx.move, before(ctx.move)
    return MoveRequest(
        server=move.server,
        name=move.server_name,
        kind=move.kind,
        flavor=objects.flavor_data(record.old_flavor),
        request_spec=objects.decode(record.request_spec),
        source_cell=move.source_cell,
        cells={move.source_cell: ""},
        source_host=move.source_host,
        boot_from_volume=record.boot_from_volume,
        ports=[port.asks for port in attached.ports(ctx) if port.asks is not None],
        max_attempts=ctx.run.options.max_attempts,
        rules=ctx.run.options.rules,
    )


class Claim(Step):
    """Lets the migration hold the host in the source's place instead of the source.

    It never holds both hosts.  The server's own allocation on the destination stays.
    """

    does = "move what the migration holds from the source to that host, in one Placement call"
    undoes = "move it back to the source, in one Placement call"
    needs = ("candidates",)
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the migration's allocation in one POST; raises DestinationFault for a host without room."""
        if ctx.returning is None:
            raise StepError(f"step {ctx.step} needs a host that was chosen", code="internal")
        try:
            self._shift(ctx, ctx.inputs["candidates"]["held"], ctx.returning.request, full=DestinationFault)
        except DestinationFault as error:
            host = ctx.returning.host
            raise DestinationFault(
                f"host {host} has no room for {ctx.move.server_name}: {error}", code=error.error_code, host=host
            ) from None
        return {}

    def undo(self, ctx: Context) -> None:
        """Give the migration its allocation on the source back in one POST.

        What was held of a provider that Placement no longer has is left out.
        """
        if ctx.returning is None:
            return
        held = {
            provider: resources
            for provider, resources in ctx.inputs["candidates"]["held"].items()
            if ctx.run.cloud.placement.has_provider(provider)
        }
        request = {"allocations": {provider: {"resources": amounts} for provider, amounts in held.items()}}
        self._shift(ctx, resources_of(ctx.returning.request), request, full=StepError)

    def _shift(self, ctx: Context, old: Any, wanted: Any, *, full: type[StepError]) -> None:
        """Let the migration hold what is ``wanted`` in place of ``old``; change nothing if it holds that already.

        If the migration holds neither of the two, a step raises StepError (``allocation-conflict``), and an undo
        changes nothing.
        """
        placement, record = ctx.run.cloud.placement, before(ctx.move)
        found = placement.allocations(ctx.move.id)
        starting.require_not_evacuated(ctx)
        becomes = resources_of(wanted)
        if found.allocations == becomes or (ctx.direction == "revert" and found.allocations != old):
            return
        if found.allocations != old:
            raise StepError(
                f"the migration {ctx.move.id} of {ctx.move.server_name} no longer holds what it held on "
                f"{ctx.move.source_host}: run droveway audit",
                code="allocation-conflict",
            )
        host = ctx.return_host if ctx.direction == "execute" else ctx.move.source_host
        with ctx.run.intent("placement", f"hold {host}"):
            placement.rewrite(
                {ctx.move.id: (found, wanted, MIGRATION)},
                project_id=found.project_id or record.project_id,
                user_id=found.user_id or record.user_id,
                full=full,
            )
