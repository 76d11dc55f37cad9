"""What a move would do, found out without changing a server, a service or a host."""

from __future__ import annotations

from typing import Any

from droveway.engines.submit import Answer, Wish, examine, store_plan
from droveway.flows import registry
from droveway.flows.graph import NO_RETURN
from droveway.flows.step import Where
from droveway.lab.session import Lab
from droveway.persistence.moves import SHORT
from droveway.scheduler.facts import Facts
from droveway.workers.directories import Directories

_SWAP = "disk.swap"


def plan(lab: Lab, wish: Wish) -> dict[str, Any]:
    """The plan under the keys of `move plan`; it is kept, so that `move create --from-plan` can hold to it.

    Raises `droveway.errors.Refused` with the rule that forbids the move.
    """
    answer = examine(lab, wish)
    facts, chosen = answer.facts, answer.selection.chosen
    destination = chosen[0].host
    storage, reason, moved = _storage(lab, facts, destination)
    body: dict[str, Any] = {
        "server": facts.server.name,
        "kind": facts.kind,
        "source": facts.server.host,
        "destination": destination,
        "alternates": [each.host for each in chosen[1:]],
        "old_flavor": facts.current.name,
        "new_flavor": (facts.new or facts.current).name,
        "checks": _checks(lab, answer, destination),
        "storage": storage,
        "storage_reason": reason,
        "bytes": moved,
        "steps": _steps(facts.kind, str(facts.server.host), destination),
    }
    return {"id": store_plan(lab, answer, body)[:SHORT]} | body


def _checks(lab: Lab, answer: Answer, destination: str) -> list[dict[str, Any]]:
    facts = answer.facts
    ports = len(lab.cloud.network.ports(facts.server.id))
    volumes = len(lab.cloud.volumes.for_server(facts.server.id))
    flavor = facts.new or facts.current
    left = lab.placement.room(answer.selection.chosen[0].provider)
    free = f"{left.get('VCPU', 0)} vCPU, {left.get('MEMORY_MB', 0)} MB to give away"
    found = [
        ("server", True, f"{facts.server.status} on {facts.server.host}, no move under way"),
        ("room", True, f"{destination} has room for {flavor.vcpus} vCPU, {flavor.memory_mb} MB ({free})"),
        ("disks", True, f"no disk shrinks from {facts.current.name} to {flavor.name}"),
        ("ports", True, f"{ports} to bind on {destination}"),
        ("volumes", True, f"{volumes} to attach to {destination}"),
    ]
    checks = [{"check": name, "ok": ok, "detail": detail} for name, ok, detail in found]
    return checks + [
        {"check": why.filter, "ok": False, "host": name, "detail": f"{name} is left out: {why.reason}"}
        for name, why in answer.selection.rejected.items()
    ]


def _storage(lab: Lab, facts: Facts, destination: str) -> tuple[str, str, int]:
    """The storage variant, why it is that, and the bytes that would cross the wire: what the disks have allocated."""
    source = str(facts.server.host)
    hypervisor = lab.hypervisor(source)
    directories = Directories(hypervisor.instances)
    formats = directories.formats(facts.server.id)
    if destination == source:
        return "same-host", f"the server stays on {source}: the copy is made there", 0
    shared = lab.host(source).shared
    if shared is not None and shared == lab.host(destination).shared:
        return "shared", f"{source} and {destination} keep their servers in one directory, {shared}", 0
    copied = [disk for disk in directories.disks(facts.server.id) if disk != _SWAP]
    if not copied:
        return "volume", "the server has no local disks", 0
    paths = [(directories.path(facts.server.id, disk), formats[disk]) for disk in copied]
    why = f"{source} and {destination} share no directory: {destination} pulls the disks"
    return "copy", why, sum(hypervisor.disk_info(path, disk_format).allocated for path, disk_format in paths)


def _steps(kind: str, source: str, destination: str) -> list[dict[str, Any]]:
    graph = registry.latest(kind)
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
