"""Accepts moves: reads facts, checks the rules, looks for destinations, then files the move."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from droveway.engines.conductor import eligibility
from droveway.engines.operations import facts as server_facts
from droveway.engines.operations import sending
from droveway.engines.site.site import Site
from droveway.errors import Refused, StepError
from droveway.flows.graph import Graph
from droveway.persistence.database import database_time
from droveway.persistence.journal import daemons, debts, kinds, moves
from droveway.persistence.journal.policies import LONGEST
from droveway.persistence.journal.policy_names import DEADLINE, HEALTHY, MANUAL
from droveway.persistence.journal.tables import Move, Plan
from droveway.persistence.nova import catalog, objects, servers
from droveway.printable import SHORT
from droveway.scheduler import candidates, preconditions
from droveway.scheduler.facts import Facts
from droveway.scheduler.hosts import HostState, host_states
from droveway.scheduler.requests import MoveRequest, place, rules
from droveway.scheduler.select import MOST_STORED, Selection


@dataclass(frozen=True, kw_only=True)
class MoveSpec:
    """What an operator asks for; names or ids as they were typed."""

    server: str
    flavor: str | None = None
    host: str | None = None
    to_cell: str | None = None
    policy: str = DEADLINE
    confirm_seconds: int | None = None
    keep_seconds: int | None = None
    """For how long the source's disks are kept after confirm; None: as configured."""
    transfer: str | None = None
    """How the disks go into another cell; None: as configured."""
    keep_image: bool = False
    """Whether each disk is uploaded, and its image kept until the move's end."""
    reason: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Feasibility:
    """A move that is possible: its facts, and where the server would go."""

    facts: Facts
    selection: Selection
    graph: Graph
    """The graph by which the move would go."""

    @property
    def places(self) -> list[str]:
        """Name the destination and its alternates; hosts of another cell are named with that cell."""
        own = self.facts.server.cell
        return [place(own, chosen.cell, chosen.host) for chosen in self.selection.chosen]


def examine(site: Site, spec: MoveSpec) -> Feasibility:
    """Find out how the move would go now; raises `droveway.errors.Refused` with the rule that it breaks."""
    if spec.flavor is not None and spec.host is not None:
        raise Refused(
            "a resize takes no destination host and a migration no flavor: give --flavor or --to-host, not both"
        )
    facts = server_facts.of_move(site, spec.server, flavor=spec.flavor, host=spec.host, to_cell=spec.to_cell)
    preconditions.check(facts)
    graphs, barred = _graphs(site, facts)
    selection = _schedule(site, facts, graphs, barred)
    cell = selection.chosen[0].cell
    sending.check(site, graphs[cell], transfer=spec.transfer, keep_image=spec.keep_image)
    return Feasibility(dataclasses.replace(facts, chosen_cell=cell), selection, graphs[cell])


def choose(site: Site, facts: Facts, graph: Graph) -> Selection:
    """Find the destinations that could take the server by this graph now; raises `droveway.errors.Refused` for none."""
    require_able(site, facts.server.host, graph)
    return _schedule(site, facts, {facts.cell: graph}, {})


def _graphs(site: Site, facts: Facts) -> tuple[dict[str, Graph], dict[str, str]]:
    """Find the graph of a move into each cell that the server may go to, and why it may not go to the other cells.

    Raises Refused where the server's host cannot take part in a move within its cell, or into the one that was named.
    """
    graphs, barred = {}, {}
    for cell, why in facts.cells.items():
        if why:
            barred[cell] = why
            continue
        graph = eligibility.chosen(facts.kind_into(cell), site.conf.upgrade_levels.worker)
        try:
            require_able(site, facts.server.host, graph)
        except Refused as error:
            if cell in (facts.server.cell, facts.named_cell):
                raise
            barred[cell] = str(error)
        else:
            graphs[cell] = graph
    return graphs, barred


def _schedule(site: Site, facts: Facts, graphs: Mapping[str, Graph], barred: Mapping[str, str]) -> Selection:
    cells = {**dict.fromkeys(graphs, ""), **barred}
    try:
        return candidates.schedule(site.cloud.placement, _states(site, facts, graphs), _request(site, facts, cells))
    except StepError as error:
        raise Refused(str(error)) from None


def submit(site: Site, spec: MoveSpec) -> Move:
    """Accept the move; raises `droveway.errors.Refused` and changes nothing when a rule forbids it."""
    seconds = _confirm_seconds(site, spec)
    if spec.plan is not None:
        spec = _planned(site, spec)
    feasibility = examine(site, spec)
    facts = feasibility.facts
    request = moves.Request(
        kind=facts.kind,
        server=facts.server.id,
        server_name=facts.server.name,
        cell=facts.server.cell,
        host=str(facts.server.host),
        old_flavor=facts.current.name,
        new_flavor=(facts.new or facts.current).name,
        target_host=facts.target.name if facts.target else None,
        to_cell=facts.named_cell,
        policy=spec.policy,
        confirm_seconds=seconds,
        keep_seconds=_keep_seconds(site, spec, str(facts.server.host)),
        transfer=sending.asked(site, spec.transfer),
        keep_image=spec.keep_image,
        reason=spec.reason,
        asked_by=getpass.getuser(),
        project=facts.server.project,
    )
    with site.journal.write() as session:
        return moves.submit(session, request, feasibility.graph.reference())


def _confirm_seconds(site: Site, spec: MoveSpec) -> int:
    """Return the seconds until the policy's deadline.

    Raises Refused in three cases: a deadline is given with the policy `manual`; a deadline is too short for the policy
    `healthy`; no host may be asked whether a guest is healthy.
    """
    conf = site.conf.confirm
    if spec.policy == MANUAL:
        if spec.confirm_seconds is not None:
            raise Refused(
                "the policy manual waits for a person and has no deadline: leave --deadline out, or give "
                "--confirm deadline"
            )
        return LONGEST
    if spec.policy != HEALTHY:
        return int(spec.confirm_seconds or conf.deadline)
    if why := eligibility.unsupported(None, eligibility.QUESTION, site.conf.upgrade_levels.worker):
        raise Refused(f"no host can be asked whether a guest is healthy: {why}, or move it under another policy")
    seconds = int(spec.confirm_seconds or conf.healthy_deadline)
    if seconds <= conf.healthy_after:
        raise Refused(
            f"a guest is healthy once it has run for {conf.healthy_after:g} s ([confirm] healthy_after), which a "
            f"deadline of {seconds} s does not leave: give a longer --deadline"
        )
    return seconds


def _keep_seconds(site: Site, spec: MoveSpec, source: str) -> int:
    """Return for how many seconds the source keeps its disks after confirm; raises Refused if it cannot purge them."""
    seconds = int(site.conf.confirm.keep_source if spec.keep_seconds is None else spec.keep_seconds)
    if not seconds:
        return seconds
    with site.journal.read() as session:
        worker = daemons.known_workers(session).workers.get(source)
    if why := eligibility.unsupported(worker, debts.PURGE, site.conf.upgrade_levels.worker):
        raise Refused(f"host {source} cannot keep the server's disks: {why}, or move it with --keep-source 0")
    return seconds


def store_plan(site: Site, feasibility: Feasibility, body: dict[str, Any]) -> str:
    """Store a plan so that `--from-plan` can name it, and return its id.

    Of its checks, the last of which say of each host why it is left out, the first `MOST_STORED` are stored.
    """
    plan = str(uuid.uuid4())
    facts = feasibility.facts
    inputs = {
        "flavor": facts.new.id if facts.new else None,
        "host": facts.target.name if facts.target else None,
        "to_cell": facts.named_cell,
        "transfer": body["transfer_asked"],
        "keep_image": body["keep_image"],
        "source": facts.server.host,
        "destinations": feasibility.places,
    }
    kept = body | {"inputs": inputs, "checks": body["checks"][:MOST_STORED]}
    with site.journal.write() as session:
        session.add(Plan(id=plan, server=facts.server.id, body=kept, created_at=database_time(session)))
    return plan


def _planned(site: Site, spec: MoveSpec) -> MoveSpec:
    """Return the request that the plan was made for; raises Refused when the plan no longer holds."""
    with site.journal.read() as session:
        found = list(
            session.scalars(sa.select(Plan).where(Plan.id.startswith(str(spec.plan), autoescape=True)).limit(2))
        )
    if len(found) != 1:
        raise Refused(
            f"{'no' if not found else 'more than one'} plan begins with {spec.plan}: make it anew with move plan"
        )
    plan = found[0]
    inputs = plan.body["inputs"]
    server = catalog.find_server(site.api, site.known_cells, spec.server)
    same = MoveSpec(
        server=server.id,
        flavor=inputs["flavor"],
        host=inputs["host"],
        to_cell=inputs.get("to_cell"),
        policy=spec.policy,
        confirm_seconds=spec.confirm_seconds,
        keep_seconds=spec.keep_seconds,
        transfer=inputs.get("transfer"),
        keep_image=inputs.get("keep_image", False),
        reason=spec.reason,
    )
    given = (spec.flavor and catalog.find_flavor(site.api, spec.flavor).id, spec.host)
    to_cell = catalog.find_cell(site.api, spec.to_cell).name if spec.to_cell else None
    other_cell = to_cell not in (None, inputs.get("to_cell"))
    other_way = spec.transfer not in (None, same.transfer) or (spec.keep_image and not same.keep_image)
    differs = plan.server != server.id or other_cell or other_way
    if differs or given not in ((None, None), (inputs["flavor"], inputs["host"])):
        raise Refused(f"plan {plan.id[:SHORT]} was made for another request: make a plan for this one")
    now = examine(site, same)
    if (server.host, now.facts.kind, now.places) != (inputs["source"], plan.body["kind"], inputs["destinations"]):
        raise Refused(
            f"plan {plan.id[:SHORT]} no longer holds: it went from {inputs['source']} to "
            f"{', '.join(inputs['destinations'])} and would now go from {server.host} to {', '.join(now.places)}; plan "
            "it anew"
        )
    return same


def require_able(site: Site, source: str | None, graph: Graph) -> frozenset[str]:
    """Return the actions that workers have to know for a move by the graph.

    Raises Refused when the source's worker, if there is a source, does not know one, or a pinned level forbids one.
    """
    pinned = site.conf.upgrade_levels.worker
    wanted = eligibility.needed(pinned, graph)
    if why := eligibility.pinned_below(pinned, graph):
        raise Refused(f"no move can be made now: {why}")
    with site.journal.read() as session:
        worker = daemons.known_workers(session).workers.get(source or "")
    why = eligibility.lacking(worker, wanted) if worker is not None else ""
    if why:
        raise Refused(f"the server's host {source} cannot take part in a move: {why}")
    return wanted


def _states(site: Site, facts: Facts, graphs: Mapping[str, Graph]) -> list[HostState]:
    pinned = site.conf.upgrade_levels.worker
    with site.journal.read() as session:
        # Read once for each kind of graph: the answer does not depend on the cell.
        of_kind = {
            graph.kind: eligibility.ineligible(session, eligibility.needed(pinned, graph)) for graph in graphs.values()
        }
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(site.api.read())
        cells = {name: stack.enter_context(database.read()) for name, database in site.known_cells.items()}
        ineligible = {cell: of_kind[graph.kind] for cell, graph in graphs.items()}
        return host_states(api, cells, facts.up, ineligible, home=facts.server.cell)


def _request(site: Site, facts: Facts, cells: Mapping[str, str]) -> MoveRequest:
    with site.api.read() as api, site.known_cells[facts.server.cell].read() as cell:
        spec = servers.request_spec(api, facts.server.id).spec
        # A migration keeps the server's own flavor, which may be on offer no more.
        own = servers.flavors(servers.extra_row(cell, facts.server.id))["cur"]
        flavor = objects.flavor_data(servers.flavor(api, facts.new.id) if facts.new is not None else own)
    resizing = kinds.of(facts.kind).changes_flavor
    allowed = site.conf.scheduler.allow_resize_to_same_host if resizing else facts.same_host_cold_migrate
    return MoveRequest(
        server=facts.server.id,
        name=facts.server.name,
        kind=facts.kind,
        flavor=flavor,
        request_spec=objects.decode(spec),
        source_cell=facts.server.cell,
        cells=cells,
        source_host=facts.server.host or "",
        boot_from_volume=facts.server.boots_from_volume,
        ports=[port.resources for port in facts.ports if port.resources is not None],
        target_host=facts.target.name if facts.target else None,
        allow_same_host=allowed,
        max_attempts=1 if facts.target else site.conf.scheduler.max_attempts,
        rules=rules(site.conf.scheduler),
    )
