"""What only a lab's Neutron does for ports that are guaranteed something: `network_contract` has all else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from droveway.clients.embedded.cloud import EmbeddedCloud, embedded_cloud
from droveway.clients.embedded.guaranteed import provider_of
from droveway.clients.network import Network, Port
from droveway.clients.port_resources import PortResources
from droveway.errors import DestinationFault

EGRESS, INGRESS, PACKETS = (
    "NET_BW_EGR_KILOBIT_PER_SEC",
    "NET_BW_IGR_KILOBIT_PER_SEC",
    "NET_PACKET_RATE_KILOPACKET_PER_SEC",
)
BRIDGE = {"physical_network": "physnet1", "reported": True}
SERVER = str(uuid.UUID(int=1))


@dataclass
class Made:
    """A port of a network over physnet1, unbound, whose policy guarantees bandwidth and a packet rate."""

    cloud: EmbeddedCloud
    port: str

    @property
    def network(self) -> Network:
        return self.cloud.network

    def found(self) -> Port:
        (port,) = self.network.listed_ports(SERVER)
        return port

    def asked(self) -> PortResources:
        resources = self.found().resources
        assert resources is not None
        return resources

    def profile(self, host: str) -> dict[str, object]:
        bandwidth, packets = self.asked().groups
        return {"allocation": {bandwidth.id: provider_of(host, "br-a"), packets.id: provider_of(host)}}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    cloud = embedded_cloud(
        placement=tmp_path / "placement.sqlite",
        database=tmp_path / "services.sqlite",
        volumes=tmp_path,
        images=tmp_path,
    )
    agent = {"physical_network": "", "reported": True}
    for host in ("host1", "host2"):
        cloud.add_network_host(host, {"br-a": BRIDGE, "": agent})
    cloud.add_network_host("elsewhere", {"br-a": {"physical_network": "physnet2", "reported": True}, "": agent})
    cloud.add_network_host("silent", {"br-a": {**BRIDGE, "reported": False}, "": agent})
    network, policy = cloud.network.create_network("net1", "physnet1"), cloud.network.create_policy("gold")
    cloud.network.guarantee(policy, egress_kbps=1000, ingress_kbps=2000, kpps=3)
    port = cloud.network.create_port(SERVER, mac="fa:16:3e:00:00:01", network_id=network, host="", policy=policy)
    yield Made(cloud, port)
    cloud.close()


def test_the_ids_of_providers_are_neutrons() -> None:
    """As neutron-lib's own functions make them for the openvswitch driver."""
    assert provider_of("host1") == "4d87e232-417a-5919-b34b-eb83699e2d3c"
    assert provider_of("host1", "br-a") == "19681e8d-f4be-5623-90c7-4a047973acca"


def test_a_neutron_without_groups_tells_the_bandwidth_alone(made: Made) -> None:
    made.cloud.tell_legacy(made.port)
    (group,) = made.asked().groups
    assert (group.id, group.resources, made.asked().legacy) == (made.port, {EGRESS: 1000, INGRESS: 2000}, True)


def test_a_binding_that_names_others_is_given_the_right_ones(made: Made) -> None:
    """A repeat with another claim writes what that names; the same again writes nothing."""
    made.network.bind(made.port, "host1", profile=made.profile("host1"), device_owner="compute:nova")
    (bandwidth, _) = made.asked().groups
    made.network.ensure_binding(made.port, "host2", {"allocation": {bandwidth.id: provider_of("host2", "br-a")}})
    profile = made.profile("host2")
    asked: list[str] = []
    made.network._rest._on_request = lambda method, _path: asked.append(method)
    for _ in range(2):
        made.network.ensure_binding(made.port, "host2", profile)
    assert asked == ["POST", "GET", "PUT", "POST", "GET"]
    made.network.activate(made.port, "host2", device_owner="compute:nova")
    assert made.found().profile == profile


def test_a_refused_binding_is_refused_again(made: Made) -> None:
    """Neutron keeps what it could not bind: a repeat does not take that for done."""
    made.network.bind(made.port, "host1", profile=made.profile("host1"), device_owner="compute:nova")
    for _ in range(2):
        with pytest.raises(DestinationFault):
            made.network.ensure_binding(made.port, "host1", made.profile("host2"))
    made.network.ensure_binding(made.port, "host1", made.profile("host1"))
    assert made.found().profile == made.profile("host1")
