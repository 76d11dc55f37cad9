"""A lab's hosts and rows over a real Placement and a real Neutron, and what those two have in their own tables."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.servers.openstack_services import AGENT_TYPE, OpenStack

from droveway.clients.configured import Services
from droveway.clients.embedded import cloud as embedded
from droveway.conf import settings
from droveway.lab import topology
from droveway.lab.cloud import Host

USER: Final = "droveway"

_BRIDGES: Final = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000},"
    " br-b: {physical_network: net-b, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
)
CLOUD: Final = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {{{_BRIDGES}}}, host2: {{{_BRIDGES}}}}}}}
  cell2: {{hosts: {{host3: {{{_BRIDGES}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}, b: {{physical_network: net-b}}}}
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}, old: {{egress_kbps: 500, ingress_kbps: 600}}}}
servers:
  fast:
    flavor: small
    host: host1
    image: base
    ports: [{{network: a, qos: gold}}, {{network: b, qos: old}}, {{network: a}}]
"""
"""One server, with two ports that ask for something and one that does not."""
SERVER: Final = "fast"
FLAVORS: Final = {
    "small": {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1},
    "large": {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 1},
}
"""What a server of each flavor holds of its host."""
OTHER: Final = {"small": "large", "large": "small"}

Held = dict[str, dict[str, int]]
"""Provider's name → class → amount."""

_ALLOCATIONS: Final = sa.text(
    "SELECT consumers.uuid AS consumer, resource_providers.name AS provider, resource_classes.name AS resource, used"
    " FROM allocations JOIN consumers ON consumers.uuid = consumer_id"
    " JOIN resource_providers ON resource_providers.id = resource_provider_id"
    " JOIN resource_classes ON resource_classes.id = resource_class_id"
)
_GENERATION: Final = sa.text("SELECT generation FROM consumers WHERE uuid = :consumer")
_PORTS: Final = sa.text("SELECT id FROM ports WHERE device_id = :server ORDER BY id")
_PROVIDERS: Final = sa.text("SELECT uuid, name FROM resource_providers")
_BINDINGS: Final = sa.text(
    "SELECT ports.id, host, profile, ml2_port_bindings.status FROM ports"
    " JOIN ml2_port_bindings ON port_id = ports.id WHERE device_id = :server ORDER BY ports.id"
)


def configuration(services: OpenStack, path: Path, *, user: str = USER) -> Path:
    """Write a configuration by which the user asks Placement and Neutron."""
    path.write_text(services.keystone.section("placement", user) + services.keystone.section("neutron", user))
    return path


@contextlib.contextmanager
def reached(path: Path) -> Iterator[None]:
    """Let the labs of this process ask the Placement and the Neutron that the configuration at ``path`` names."""
    made = embedded.embedded_cloud
    real = Services(settings.load_deployment(path))

    def over_both(**parts: Any) -> embedded.EmbeddedCloud:
        return dataclasses.replace(made(**parts), placement=real.placement, network=real.network)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "embedded_cloud", over_both)
        yield


@contextlib.contextmanager
def over(services: OpenStack, path: Path) -> Iterator[None]:
    """Let labs have Placement and Neutron of these services, as the configuration at ``path`` says.

    What the agent of a host tells of its bridges is what the cloud file says of the host.
    """

    def report(_placement: object, host: str, _node: str, spec: Host) -> None:
        bridges = {name: bridge.physical_network for name, bridge in spec.bandwidth.items()}
        bandwidths = {
            name: {"egress": bridge.egress_kbps, "ingress": bridge.ingress_kbps}
            for name, bridge in spec.bandwidth.items()
        }
        services.neutron.add_agent(host, bridges, bandwidths, kpps=spec.kpps)
        services.neutron.report(host)

    with reached(path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "add_network_providers", report)
        yield


def held(services: OpenStack) -> dict[str, Held]:
    """Return consumer → what it holds, from Placement's tables."""
    found: dict[str, Held] = {}
    for row in services.placement.rows(_ALLOCATIONS):
        found.setdefault(row.consumer, {}).setdefault(row.provider, {})[row.resource] = row.used
    return found


def generation(services: OpenStack, consumer: str) -> int:
    """Return how often the consumer was written, from Placement's tables."""
    (row,) = services.placement.rows(_GENERATION, consumer=consumer)
    return int(row.generation)


def ports(services: OpenStack, server: str) -> list[str]:
    """Return the ids of the server's ports, from Neutron's tables."""
    return [row.id for row in services.neutron.rows(_PORTS, server=server)]


def bindings(services: OpenStack, server: str) -> list[tuple[str, str, list[str]]]:
    """Return host, status and the providers' names of each binding of the server's ports, from Neutron's tables."""
    names = {row.uuid: row.name for row in services.placement.rows(_PROVIDERS)}
    found = []
    for row in services.neutron.rows(_BINDINGS, server=server):
        given = json.loads(row.profile or "{}").get("allocation") or {}
        found.append((row.host, row.status, sorted(names[each] for each in given.values())))
    return sorted(found)


def on(host: str, flavor: str = "small") -> Held:
    """Return what the server of that flavor and its ports hold of a host."""
    agent = f"{host}:{AGENT_TYPE}"
    return {
        host: FLAVORS[flavor],
        f"{agent}:br-a": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 1500},
        f"{agent}:br-b": {"NET_BW_EGR_KILOBIT_PER_SEC": 500, "NET_BW_IGR_KILOBIT_PER_SEC": 600},
        agent: {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 10},
    }


def bound_on(host: str) -> list[tuple[str, str, list[str]]]:
    """Return the bindings of the server's ports when they are bound on the host alone, and name who gives."""
    agent = f"{host}:{AGENT_TYPE}"
    return sorted(
        [(host, "ACTIVE", []), (host, "ACTIVE", [agent, f"{agent}:br-a"]), (host, "ACTIVE", [f"{agent}:br-b"])]
    )
