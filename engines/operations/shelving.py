"""Accepts shelves and unshelves: reads facts, checks the rules, looks for a destination, then files the move."""

from __future__ import annotations

import getpass

from droveway.engines.conductor import eligibility
from droveway.engines.operations import facts as server_facts
from droveway.engines.operations import submit
from droveway.engines.site.site import Site
from droveway.flows.graph import Graph
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import Move
from droveway.scheduler import preconditions
from droveway.scheduler.facts import Facts


def shelve(site: Site, server: str, *, discard_ephemeral: bool = False, reason: str | None = None) -> Move:
    """Accept the shelve; raises `droveway.errors.Refused` and changes nothing when a rule forbids it.

    With ``discard_ephemeral`` what the server's ephemeral disk holds is given up.
    """
    facts = server_facts.of_shelve(site, server, discard_ephemeral=discard_ephemeral)
    graph = _permitted(site, facts)
    submit.require_able(site, facts.server.host, graph)
    return _accept(site, facts, graph, reason)


def unshelve(
    site: Site, server: str, *, host: str | None = None, to_cell: str | None = None, reason: str | None = None
) -> Move:
    """Accept the unshelve, on this host or on one of the scheduler's choice, in its own cell or in the one named.

    Raises `droveway.errors.Refused` and changes nothing when a rule forbids it, or when no host could take the server
    now.
    """
    facts = server_facts.of_unshelve(site, server, host=host, to_cell=to_cell)
    graph = _permitted(site, facts)
    submit.choose(site, facts, graph)
    return _accept(site, facts, graph, reason)


def _permitted(site: Site, facts: Facts) -> Graph:
    """Return the graph by which the move would go; raises Refused when a rule forbids the move."""
    preconditions.check(facts)
    return eligibility.chosen(facts.kind, site.conf.upgrade_levels.worker)


def _accept(site: Site, facts: Facts, graph: Graph, reason: str | None) -> Move:
    request = moves.Request(
        kind=facts.kind,
        server=facts.server.id,
        server_name=facts.server.name,
        cell=facts.server.cell,
        host=facts.server.host or "",
        old_flavor=facts.current.name,
        new_flavor=facts.current.name,
        target_host=facts.target.name if facts.target else None,
        to_cell=facts.cell if facts.leaves_cell else None,
        reason=reason,
        asked_by=getpass.getuser(),
        project=facts.server.project,
    )
    with site.journal.write() as session:
        return moves.submit(session, request, graph.reference())
