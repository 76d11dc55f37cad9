"""Servers with guaranteed ports, and clouds and ports that are not as they should be: judged from the tables alone."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.labs.beside_nova import Nova, Once
from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS, Held, holding, named, tables
from support.labs.operations import Stage, changes, photograph, stage

from droveway.clients.image import Images
from droveway.clients.network import BINDING_EXTENDED, RESOURCE_REQUEST, Network, Port
from droveway.clients.placement import Placement
from droveway.errors import DestinationFault, StepError

BRIDGE = "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
CLOUD = f"""
options: {{cross_cell: true}}
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
  big: {{egress_kbps: 2500, kpps: 10}}
  thin: {{egress_kbps: 100}}
servers:
  fast: {{flavor: small, host: host1, image: base, ports: [{{network: a, qos: gold}}, {{network: a}}]}}
  fellow: {{flavor: small, host: host1, image: base, ports: [{{network: a, qos: thin}}]}}
  plain: {{flavor: small, host: host1, image: base, ports: [{{}}]}}
  bare: {{flavor: small, host: host1, image: base, ports: []}}
"""
MOVES = {
    "resize": ["server", "resize", "NAME", "--flavor", "large"],
    "migrate": ["server", "migrate", "NAME"],
    "plan": ["move", "plan", "NAME"],
    "cross-cell": ["server", "migrate", "NAME", "--to-cell", "cell2"],
}


def words(move: str, name: str) -> list[str]:
    return [name if word == "NAME" else word for word in MOVES[move]]


@pytest.fixture(scope="module", name="made")
def fixture_made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("bad") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(made: Stage) -> Iterator[Stage]:
    """The lab with whole services and its servers at rest where they were."""
    yield made
    for name in (BINDING_EXTENDED, RESOURCE_REQUEST):
        made.lab.cloud.set_extension(name, missing=False)
    made.bring_back()
    made.assert_balanced()


def refused(lab: Stage, *given: str) -> str:
    """The one sentence with which the command is refused; nothing was written anywhere."""
    before = photograph(lab.root)
    said = lab.refused(*given)
    assert changes(before, photograph(lab.root)) == []
    return said


@pytest.mark.parametrize("name", ["fast", "plain"])
@pytest.mark.parametrize("move", MOVES)
def test_without_binding_extended_no_server_with_ports_is_moved(lab: Stage, move: str, name: str) -> None:
    """Nor planned; one without ports is."""
    lab.lab.cloud.set_extension(BINDING_EXTENDED, missing=True)
    said = refused(lab, *words(move, name))
    assert f"server {name} has ports, and Neutron lacks the extension binding-extended" in said
    assert "enable ml2 as Neutron's core plugin" in said
    if move == "migrate":
        lab.cli(*words(move, "bare"))
        lab.cli("server", "revert", "bare")


@pytest.mark.parametrize("move", MOVES)
def test_without_port_resource_request_only_guaranteed_ports_are_refused(lab: Stage, move: str) -> None:
    """R4-13: by the profile that names somebody, or by what the server holds; all others are moved as ever."""
    network = lab.lab.cloud.network
    (gold,) = [port for port in network.listed_ports(lab.id_of("fast")) if port.resources is not None]
    lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=True)
    said = refused(lab, *words(move, "fast"))
    assert "Neutron lacks the extension port-resource-request" in said
    assert f"server fast, whose port {gold.id} has an allocation of bandwidth or packet rates in its binding" in said
    network.set_profile(gold.id, {})
    said = refused(lab, *words(move, "fast"))
    assert f"server fast, which holds {EGRESS}, {INGRESS}, {PACKETS} for its ports in Placement" in said
    network.set_profile(gold.id, gold.profile)
    lab.cli(*words(move, "plain"))
    if move != "plan":
        assert lab.server("plain").host != "host1"
        lab.cli("server", "revert", "plain")


def test_a_shelve_makes_no_second_binding(lab: Stage) -> None:
    lab.lab.cloud.set_extension(BINDING_EXTENDED, missing=True)
    lab.cli("server", "shelve", "plain")
    lab.cli("server", "unshelve", "plain", "--host", "host1")
    lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=True)
    assert "lacks the extension port-resource-request" in refused(lab, "server", "shelve", "fast")


ASKED = [*MOVES.values(), ["server", "shelve", "NAME"]]


@pytest.mark.parametrize("given", ASKED, ids=" ".join)
def test_a_placement_that_is_down_refuses_the_request(
    lab: Stage, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """With 2, since nothing was begun."""
    with monkeypatch.context() as patched:
        patched.setattr(Placement, "allocations", away)
        assert "it is away" in refused(lab, *(word.replace("NAME", "fast") for word in given))


@pytest.mark.parametrize(("service", "verb"), [(Placement, "allocations"), (Images, "find")])
def test_a_service_that_is_down_refuses_an_unshelve(
    lab: Stage, monkeypatch: pytest.MonkeyPatch, service: type, verb: str
) -> None:
    lab.cli("server", "shelve", "plain")
    with monkeypatch.context() as patched:
        patched.setattr(service, verb, away)
        assert "it is away" in refused(lab, "server", "unshelve", "plain")
    lab.cli("server", "unshelve", "plain", "--host", "host1")


def away(*_args: Any, **_named: Any) -> Any:
    raise StepError("it is away", code="service-unavailable")


# Ports that are not as they should be.


@pytest.fixture(name="own")
def fixture_own(tmp_path: Path) -> Iterator[Stage]:
    """A lab of the test's own, whose books balance afterwards."""
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made
        made.assert_balanced()


ROOT = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}
"""What ``fast`` holds of its host besides."""


def asked_of(host: str) -> Held:
    """What the port ``gold`` asks of a host's providers."""
    return {f"{host}:{AGENT}:br-a": {EGRESS: 1000, INGRESS: 1500}, f"{host}:{AGENT}": {PACKETS: 10}}


def gold_of(lab: Stage) -> Port:
    (gold,) = [port for port in lab.lab.cloud.network.listed_ports(lab.id_of("fast")) if port.resources is not None]
    return gold


def stored(lab: Stage, port: str) -> dict[str, str]:
    """Host → the profile of the port's binding there, to the byte, from Neutron's tables."""
    with tables(lab, "services.sqlite") as rows:
        found = rows.execute("SELECT host, profile FROM port_bindings WHERE port = ?", (port,))
        return {row["host"]: row["profile"] for row in found}


def assert_right(lab: Stage, host: str) -> None:
    """The server holds what its port asks for on the host and nowhere else, and the binding names who gives it."""
    assert holding(lab, lab.id_of("fast"))[:2] == (asked_of(host), {host: ROOT})
    gold = gold_of(lab)
    assert gold.resources is not None
    givers = {EGRESS: f"{host}:{AGENT}:br-a", PACKETS: f"{host}:{AGENT}"}
    gives = {group.id: givers[min(group.resources)] for group in gold.resources.groups}
    assert named(lab, lab.id_of("fast"))[gold.id] == {host: gives}


def test_ports_that_together_ask_for_more_than_any_host_has(own: Stage) -> None:
    """Each alone could be given it; every host is named with that reason."""
    network, gold = own.lab.cloud.network, gold_of(own)
    (other,) = [port for port in network.listed_ports(own.id_of("fast")) if port.id != gold.id]

    def follow(port: Port, policy: str | None) -> None:
        body = {"port": {"qos_policy_id": network.named("/qos/policies", policy) if policy else None}}
        answer = own.lab.cloud.network_root.request(f"/ports/{port.id}", "PUT", json=body)
        assert answer.status_code == HTTPStatus.OK

    follow(gold, "big")
    for words_ in (["move", "plan", "fast"], ["server", "migrate", "fast", "--host", "host2"]):
        own.cli(*words_)
    own.cli("server", "revert", "fast")
    follow(other, "big")
    for given in MOVES.values():
        said = refused(own, *(word.replace("NAME", "fast") for word in given))
        assert "no host can take the server fast" in said
        hosts = {"host3"} if "--to-cell" in given else {"host2", "cell2/host3"}
        assert all(f"{host}: it cannot give all that the ports ask for together" in said for host in hosts)
    follow(other, None)
    follow(gold, "gold")
    assert_right(own, "host1")


OTHERS = {"capabilities": ["switchdev", "b", "a"], "zebra": {"é": [1, 2.5, None]}, "trusted": "true"}
"""What others keep in a profile."""


def test_what_others_keep_in_a_profile_stays_to_the_byte(own: Stage) -> None:
    """Whoever gives what the port asks for is named beside it; after a revert the whole profile is what it was."""
    gold = gold_of(own)
    own.lab.cloud.network.set_profile(gold.id, {**OTHERS, **gold.profile, "last": ""})
    was = stored(own, gold.id)

    def others(host: str) -> str:
        assert_right(own, host)
        told = json.loads(stored(own, gold.id)[host])
        return json.dumps({name: value for name, value in told.items() if name != "allocation"})

    kept = others("host1")
    assert kept == json.dumps({**OTHERS, "last": ""})
    own.cli("server", "migrate", "fast", "--host", "host2")
    own.cli("server", "revert", "fast")
    assert stored(own, gold.id) == was
    own.cli("server", "migrate", "fast", "--host", "host2")
    own.cli("server", "confirm", "fast")
    assert others("host2") == kept
    own.cli("server", "shelve", "fast")
    assert json.loads(stored(own, gold.id)[""]) == {**OTHERS, "last": ""}
    own.cli("server", "unshelve", "fast", "--host", "host1")
    assert others("host1") == kept
    own.lab.cloud.network.set_profile(gold.id, gold.profile)


@pytest.mark.parametrize("how", ["confirm", "revert", "stop_guest", "define_guest"])
def test_a_provider_that_is_gone_is_named_no_more_where_the_server_moved(own: Stage, how: str) -> None:
    """The audit finds it before, and so it does after a revert, or an undo from a step that fails.

    Neutron makes no binding that names it: one that it had to make anew on the way back names nobody.
    """
    gold, gone = gold_of(own), str(uuid.UUID(int=5))
    wrong = {"zebra": "1", "allocation": dict.fromkeys(gold.profile["allocation"], gone)}
    # Neutron keeps what it could not bind.
    with contextlib.suppress(DestinationFault):
        own.lab.cloud.network.set_profile(gold.id, wrong)
    was = stored(own, gold.id)

    def found(what: str) -> bool:
        return any(what in row["detail"] for row in json.loads(own.cli("audit", "-f", "json", code=3)))

    assert found(f"names the provider {gone}")
    words = ["server", "migrate", "fast", "--host", "host2"]
    if how in {"confirm", "revert"}:
        own.cli(*words)
        assert_right(own, "host2")
        own.cli("server", how, "fast")
    else:
        own.arm(how, "fail", host="host2" if how == "define_guest" else None)
        own.cli(*words, code=3)
    if how == "confirm":
        assert_right(own, "host2")
        return
    assert holding(own, own.id_of("fast"))[:2] == (asked_of("host1"), {"host1": ROOT})
    if how != "define_guest":
        assert stored(own, gold.id) == was
        assert found(f"names the provider {gone}")
    else:
        assert {host: json.loads(told) for host, told in stored(own, gold.id).items()} == {"host1": {"zebra": "1"}}
        assert found("names nobody who gives it")
    own.cli("audit", "--heal", "--yes")
    assert_right(own, "host1")


@pytest.mark.parametrize("how", ["confirm", "revert"])
@pytest.mark.parametrize(
    ("step", "phase"),
    [("reserve_ports", "before"), ("reserve_ports", "after"), ("move_ports", "before"), ("", "")],
    ids=["before reserve_ports", "after reserve_ports", "before move_ports", "verifying"],
)
def test_a_guaranteed_port_that_is_deleted_in_mid_move(own: Stage, step: str, phase: str, how: str) -> None:
    """The move ends, and nothing of the port is left in Neutron or in Placement."""
    nova, gold, host = Nova(own, "fast"), gold_of(own).id, "host2" if how == "confirm" else "host1"
    acted = Once(step, "execute", phase, lambda: nova.delete_port(gold))
    with own.running(acted):
        own.cli("server", "migrate", "fast", "--host", "host2", "--wait")
        if not step:
            nova.delete_port(gold)
        assert acted.done == bool(step)
        move = own.move("fast").id
        own.cli("server", how, "fast")
    assert own.move("fast").state == {"confirm": "done", "revert": "reverted"}[how]
    with tables(own, "services.sqlite") as rows:
        left = rows.execute(
            "SELECT host, status FROM port_bindings JOIN ports ON ports.id = port WHERE server = ?", (nova.server,)
        ).fetchall()
        assert [(row["host"], row["status"]) for row in left] == [(host, "ACTIVE")]
        assert rows.execute("SELECT count(*) FROM port_bindings WHERE port = ?", (gold,)).fetchone()[0] == 0
    assert holding(own, move)[:2] == ({}, {})
    assert holding(own, nova.server)[:2] == ({}, {host: ROOT})
    own.assert_balanced()


@pytest.mark.parametrize("verb", ["ensure_binding", "bring"])
def test_a_guaranteed_port_that_is_deleted_between_a_look_and_a_write(
    own: Stage, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What `reserve_ports` and `move_ports` write then fails, and they go on without the port."""
    nova, gold, write = Nova(own, "fast"), gold_of(own).id, getattr(Network, verb)
    deleted = []

    def late(network: Network, port: str, *args: Any, **named_args: Any) -> None:
        if port == gold and not deleted:
            deleted.append(port)
            nova.delete_port(gold)
        write(network, port, *args, **named_args)

    with monkeypatch.context() as patched:
        patched.setattr(Network, verb, late)
        own.cli("server", "migrate", "fast", "--host", "host2", "--confirm", "auto")
    assert deleted == [gold]
    assert own.move("fast").state == "done"
    assert list(named(own, nova.server).values()) == [{"host2": ""}]
    assert stored(own, gold) == {}
    assert holding(own, nova.server)[:2] == ({}, {"host2": ROOT})
