"""Moves give up what ports held that were deleted in the middle: judged from Placement's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.labs.beside_nova import Nova, Once
from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS, Held, holding
from support.labs.operations import Stage, stage

from droveway.clients.network import RESOURCE_REQUEST, Network
from droveway.clients.placement import Placement
from droveway.errors import StepError
from droveway.lab import stopped
from droveway.persistence.nova.cell import Migration

BRIDGE = "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
CLOUD = f"""
options: {{cross_cell: true, allow_resize_to_same_host: true}}
cells:
  cell1: {{hosts: {{host1: {{{BRIDGE}}}, host2: {{{BRIDGE}}}}}}}
  cell2: {{hosts: {{host3: {{{BRIDGE}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}}}
qos:
  gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}
  thin: {{egress_kbps: 100}}
  fat: {{egress_kbps: 300}}
servers:
  fast: {{flavor: small, host: host1, image: base, ports: [{{network: a, qos: gold}}, {{network: a, qos: thin}}]}}
"""
SURE = ("--i-made-sure", "power is off")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\n")
        yield made


def gold_of(lab: Stage) -> str:
    """Return the port of the policy ``gold``."""
    ports = lab.lab.cloud.network.listed_ports(lab.id_of("fast"))
    return next(port.id for port in ports if port.resources is not None and len(port.resources.groups) > 1)


def both(host: str) -> Held:
    """Return what a server holds there for both ports."""
    return {f"{host}:{AGENT}:br-a": {EGRESS: 1100, INGRESS: 1500}, f"{host}:{AGENT}": {PACKETS: 10}}


def rest(host: str) -> Held:
    """Return what a server holds there for the port of the policy ``thin`` alone."""
    return {f"{host}:{AGENT}:br-a": {EGRESS: 100}}


def assert_holds(lab: Stage, held: Held, host: str, move: str) -> None:
    """Assert that the server holds that, and its flavor, on the host; nothing is held or found besides."""
    found, besides, _ = holding(lab, lab.id_of("fast"))
    assert (found, [*besides]) == (held, [host])
    assert holding(lab, move)[:2] == ({}, {})
    lab.assert_balanced()


OPERATIONS = {
    "migrate": (["server", "migrate", "fast", "--host", "host2"], "host2"),
    "cross-cell": (["server", "migrate", "fast", "--to-cell", "cell2"], "host3"),
    "same host": (["server", "resize", "fast", "--flavor", "large"], "host1"),
}
"""Name → the command, and where the server is then."""


def asked_for(lab: Stage, operation: str) -> list[str]:
    """Return the command; a resize finds no other host than its own."""
    if operation == "same host":
        for host in ("host2", "host3"):
            lab.cli("host", "disable", host, "--reason", "nobody comes here")
    return OPERATIONS[operation][0]


STEPS = ["claim", "reserve_ports", "move_ports", "switch"]


def step_of(operation: str, step: str) -> str:
    """Return the step's name in the operation's graph."""
    if step == "switch":
        return "switch_mapping" if operation == "cross-cell" else "switch_records"
    return step


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("step", STEPS)
def test_an_undo_gives_up_what_a_port_held_that_is_gone(lab: Stage, operation: str, step: str) -> None:
    """The server has again what it had, for the ports that it has now."""
    command = asked_for(lab, operation)
    nova = Nova(lab, "fast")
    at = step_of(operation, step)
    acted = Once(at, "execute", "after", lambda: nova.delete_port(gold), fails="start_guest")
    gold = gold_of(lab)
    with lab.running(acted):
        lab.cli(*command, "--wait", code=3)
    assert acted.done
    assert lab.server("fast").host == "host1"
    assert_holds(lab, rest("host1"), "host1", lab.move("fast").id)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", ["confirm", "revert"])
@pytest.mark.parametrize("step", [*STEPS, "verifying", "mark"])
def test_a_move_that_ends_gives_up_what_a_port_held_that_is_gone(
    lab: Stage, operation: str, how: str, step: str
) -> None:
    command, there = asked_for(lab, operation), OPERATIONS[operation][1]
    nova, gold = Nova(lab, "fast"), gold_of(lab)
    at = {"confirm": "mark_confirming", "revert": "mark_reverting"}[how] if step == "mark" else step_of(operation, step)
    acted = Once(at, "execute", "after", lambda: nova.delete_port(gold))
    with lab.running(acted):
        lab.cli(*command, "--wait")
        if step == "verifying":
            nova.delete_port(gold)
        lab.cli("server", how, "fast")
    assert acted.done == (step != "verifying")
    host = {"confirm": there, "revert": "host1"}[how]
    assert_holds(lab, rest(host), host, lab.move("fast").id)


@pytest.mark.parametrize("to_cell", [[], ["--to-cell", "cell2"]], ids=["here", "cross-cell"])
@pytest.mark.parametrize("step", ["claim", "bind_ports", "start_guest"])
def test_an_unshelve_gives_up_what_a_port_held_that_is_gone(lab: Stage, step: str, to_cell: list[str]) -> None:
    host = "host3" if to_cell else "host2"
    nova, gold = Nova(lab, "fast"), gold_of(lab)
    lab.cli("server", "shelve", "fast")
    # Nova takes it from the guest too, once there is one.
    delete = nova.delete_port if step == "start_guest" else nova.delete_port_alone
    acted = Once(step, "execute", "after", lambda: delete(gold))
    with lab.running(acted):
        lab.cli("server", "unshelve", "fast", *(to_cell or ["--host", "host2"]), "--wait")
    assert acted.done
    assert_holds(lab, rest(host), host, lab.move("fast").id)


def test_a_revert_to_another_host_gives_up_what_a_port_held_that_is_gone(lab: Stage) -> None:
    """By the providers of the host that takes the place of the dead source."""
    lab.cli("server", "migrate", "fast", "--to-cell", "cell2", "--keep-image")
    stopped.stop(lab.lab.layout, "host1")
    lab.cli("host", "down", "host1", *SURE)
    nova, gold = Nova(lab, "fast"), gold_of(lab)
    acted = Once("move_ports", "execute", "after", lambda: nova.delete_port(gold))
    with lab.running(acted):
        lab.cli("server", "revert", "fast")
    assert acted.done
    assert_holds(lab, rest("host2"), "host2", lab.move("fast").id)


@pytest.mark.parametrize("how", ["confirm", "revert"])
def test_a_repeat_gives_up_nothing_more(lab: Stage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Whoever wrote is killed before anybody knows: the step is done again, and what others ask for stays."""
    nova, gold, fast = Nova(lab, "fast"), gold_of(lab), lab.id_of("fast")
    lab.cli("server", "migrate", "fast", "--host", "host2")
    nova.delete_port(gold)
    lost = []
    rewrite = Placement.rewrite

    def loses(placement: Placement, consumers: Any, **given: Any) -> None:
        rewrite(placement, consumers, **given)
        if fast in consumers and len(lost) < 2:
            lost.append(holding(lab, fast)[0])
            raise StepError("the answer was lost", code="placement-failed")

    monkeypatch.setattr(Placement, "rewrite", loses)
    lab.cli("server", how, "fast")
    host = {"confirm": "host2", "revert": "host1"}[how]
    # Of two lost answers the second never came to be: there was nothing to write.
    assert lost == [rest(host)]
    assert_holds(lab, rest(host), host, lab.move("fast").id)


def test_a_consumer_that_somebody_writes_in_between_is_looked_at_again(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neutron does, where the policy of the port that stays is changed; what it holds then is its own."""
    nova, gold, fast = Nova(lab, "fast"), gold_of(lab), lab.id_of("fast")
    lab.cli("server", "migrate", "fast", "--host", "host2")
    nova.delete_port(gold)
    (thin,) = lab.lab.cloud.network.listed_ports(fast)
    policy = lab.lab.cloud.network.named("/qos/policies", "fat")
    changed = []
    rewrite = Placement.rewrite

    def late(placement: Placement, consumers: Any, **given: Any) -> None:
        # Neutron writes to Placement by the same verb.
        monkeypatch.setattr(Placement, "rewrite", rewrite)
        body = {"port": {"qos_policy_id": policy}}
        changed.append(lab.lab.cloud.network_root.request(f"/ports/{thin.id}", "PUT", json=body).status_code)
        rewrite(placement, consumers, **given)

    monkeypatch.setattr(Placement, "rewrite", late)
    lab.cli("server", "confirm", "fast")
    assert changed == [HTTPStatus.OK]
    assert_holds(lab, {f"host2:{AGENT}:br-a": {EGRESS: 300}}, "host2", lab.move("fast").id)


def unnamed(network: Network, thin: str) -> None:
    """Let the port that stays name nobody."""
    network.set_profile(thin, {})


@pytest.mark.parametrize("spoil", [unnamed, None], ids=["unnamed", "hidden"])
def test_what_nobody_can_tell_is_left_to_the_audit(lab: Stage, spoil: Callable[[Network, str], None] | None) -> None:
    """The other port does not say who gives it what it asks for, or Neutron does not say what it asks for."""
    nova, gold, network = Nova(lab, "fast"), gold_of(lab), lab.lab.cloud.network
    lab.cli("server", "migrate", "fast", "--host", "host2")
    nova.delete_port(gold)
    (thin,) = network.listed_ports(lab.id_of("fast"))
    if spoil is None:
        lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=True)
    else:
        spoil(network, thin.id)
    lab.cli("server", "confirm", "fast")
    assert holding(lab, lab.id_of("fast"))[0] == both("host2")
    lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=False)
    lab.cli("audit", "--heal", "--yes")
    assert_holds(lab, rest("host2"), "host2", lab.move("fast").id)


def evacuate(lab: Stage) -> None:
    """Let Nova have begun to rebuild the server on another host, as its rows tell."""
    nova = Nova(lab, "fast")
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(
            Migration(
                uuid="4f6f1f2e-0000-4000-8000-000000000001",
                instance_uuid=nova.server,
                migration_type="evacuation",
                status="accepted",
                source_compute="host2",
                dest_compute="host1",
                deleted=0,
            )
        )


def test_what_a_server_holds_is_left_to_an_evacuation_that_begins_in_between(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what it holds and the write: Nova reads the same consumer then."""
    nova, gold, fast = Nova(lab, "fast"), gold_of(lab), lab.id_of("fast")
    lab.cli("server", "migrate", "fast", "--host", "host2")
    nova.delete_port(gold)
    allocations, rewrite, written = Placement.allocations, Placement.rewrite, []

    def late(placement: Placement, consumer: str) -> Any:
        found = allocations(placement, consumer)
        if consumer == fast:
            monkeypatch.setattr(Placement, "allocations", allocations)
            evacuate(lab)
        return found

    def noted(placement: Placement, consumers: Any, **given: Any) -> None:
        written.extend(consumers)
        rewrite(placement, consumers, **given)

    begins = Once("keep_copy", "execute", "after", lambda: monkeypatch.setattr(Placement, "allocations", late))
    with lab.running(begins):
        monkeypatch.setattr(Placement, "rewrite", noted)
        lab.cli("server", "confirm", "fast", code=3)
    assert fast not in written
    assert holding(lab, fast)[0] == both("host2")
    assert lab.move("fast").error_code == "evacuated"
