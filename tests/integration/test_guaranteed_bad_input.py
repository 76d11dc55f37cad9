"""Servers with guaranteed ports, and clouds and ports that are not as they should be: judged from the tables alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.labs.guaranteed import EGRESS, INGRESS, PACKETS
from support.labs.operations import Stage, changes, photograph, stage

from droveway.clients.image import Images
from droveway.clients.network import BINDING_EXTENDED, RESOURCE_REQUEST
from droveway.clients.placement import Placement
from droveway.errors import StepError

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
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}, big: {{egress_kbps: 2500}}}}
servers:
  fast: {{flavor: small, host: host1, image: base, ports: [{{network: a, qos: gold}}, {{network: a}}]}}
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
    """By the profile that names somebody, or by what the server holds; all others are moved as ever."""
    network = lab.lab.cloud.network
    (gold,) = [port for port in network.listed_ports(lab.id_of("fast")) if port.resources is not None]
    lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=True)
    said = refused(lab, *words(move, "fast"))
    assert "Neutron lacks the extension port-resource-request" in said
    assert f"server fast, whose port {gold.id} names in its binding who guarantees it" in said
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
