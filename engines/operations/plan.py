"""Finds out what a move would do, without changing a server, a service or a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from droveway.engines.operations import downtime, sending
from droveway.engines.operations.submit import Feasibility, MoveSpec, examine, store_plan
from droveway.engines.site.site import Site
from droveway.flows.graph import NO_RETURN, Graph
from droveway.flows.step import Where
from droveway.printable import SHORT
from droveway.scheduler.requests import listed


def plan(site: Site, spec: MoveSpec) -> dict[str, Any]:
    """Make the plan as the JSON object that `move plan` prints, and store it for `move create --from-plan`.

    Raises `droveway.errors.Refused` with the rule that forbids the move.
    """
    feasibility = examine(site, spec)
    facts = feasibility.facts
    destination = feasibility.selection.chosen[0].host
    storage, reason, moved = site.storage(facts.server.id, str(facts.server.host), destination)
    wanted = sending.asked(site, spec.transfer)
    graph = feasibility.graph
    transfer, why = sending.way(site, graph, storage, str(facts.server.host), destination, wanted=wanted)
    body: dict[str, Any] = {
        "server": facts.server.name,
        "kind": facts.kind,
        "source": facts.server.host,
        "cell": facts.cell,
        "destination": destination,
        "alternates": feasibility.places[1:],
        "old_flavor": facts.current.name,
        "new_flavor": (facts.new or facts.current).name,
        "checks": _checks(site, feasibility, destination),
        "storage": storage,
        "storage_reason": reason,
        "transfer": transfer,
        "transfer_asked": wanted if graph.kind_record.crosses_cells else None,
        "transfer_reason": why,
        "keep_image": spec.keep_image,
        "bytes": moved,
        "downtime": downtime.estimate(
            site, facts, graph, storage=storage, moved=moved, transfer=transfer, destination=destination
        ),
        "steps": _steps(graph, str(facts.server.host), destination),
    }
    return {"id": store_plan(site, feasibility, body)[:SHORT]} | body


def _checks(site: Site, feasibility: Feasibility, destination: str) -> list[dict[str, Any]]:
    facts = feasibility.facts
    volumes = len(site.cloud.volumes.for_server(facts.server.id))
    flavor = facts.new or facts.current
    left = site.cloud.placement.room(feasibility.selection.chosen[0].provider)
    free = f"{left.get('VCPU', 0)} vCPU, {left.get('MEMORY_MB', 0)} MB free, allocation ratios counted"
    found = [
        ("server", True, f"{facts.server.status} on {facts.server.host}, no move under way"),
        ("room", True, f"{destination} has room for {flavor.vcpus} vCPU, {flavor.memory_mb} MB ({free})"),
        ("disks", True, f"no disk shrinks from {facts.current.name} to {flavor.name}"),
        ("ports", True, f"{_counted(len(facts.ports), 'port')} to bind on {destination}"),
        *_guaranteed(site, feasibility),
        ("volumes", True, f"{_counted(volumes, 'volume')} to attach to {destination}"),
    ]
    checks = [{"check": name, "ok": ok, "detail": detail} for name, ok, detail in found]
    return checks + [
        {"check": why.filter, "ok": False, "host": name, "detail": f"{name} is left out: {why.reason}"}
        for name, why in feasibility.selection.rejected.items()
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _guaranteed(site: Site, feasibility: Feasibility) -> Iterator[tuple[str, bool, str]]:
    """Say of each port that asks for resources what it asks for, and who gives that on the destination."""
    mappings = feasibility.selection.chosen[0].request.get("mappings") or {}
    for port in feasibility.facts.ports:
        for group in port.resources.groups if port.resources is not None else ():
            given = " and ".join(map(site.cloud.placement.provider_name, mappings.get(group.id, ())))
            yield "guaranteed", True, f"port {port.id} asks for {listed(group.resources)}, which {given} gives"


def _steps(graph: Graph, source: str, destination: str) -> list[dict[str, Any]]:
    places = {Where.SOURCE: source, Where.DESTINATION: destination}
    return [
        {
            "step": step.step_name(),
            "where": places.get(step.where, Where.CONDUCTOR.value),
            "does": step.does,
            "undo": step.undoes if not step.no_undo else f"none: {step.no_undo}",
            "no_return": NO_RETURN if step is graph.no_return else "",
        }
        for step in graph.walk()
    ]
