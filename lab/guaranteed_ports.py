"""Claims what the ports of a new server ask for, and binds the ports, as Nova does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from droveway.clients.network import COMPUTE_OWNER, Port
from droveway.clients.placement import SERVER, Allocations
from droveway.clients.port_resources import ALLOCATION
from droveway.errors import Refused, StepError
from droveway.lab import cloud
from droveway.lab.server_rows import NewServer
from droveway.lab.session import Lab
from droveway.scheduler.requests import listed, of_ports


def network_and_policy(lab: Lab, wanted: cloud.Port) -> tuple[str, str | None]:
    """Return the ids of a port's network and QoS policy; raises `droveway.errors.Refused` for an unknown name."""
    if wanted.network is None:
        return lab.identity.network, None
    network = lab.cloud.network.named("/networks", wanted.network)
    policy = lab.cloud.network.named("/qos/policies", wanted.qos) if wanted.qos is not None else None
    if network is None or (policy is None and wanted.qos is not None):
        unknown = f"network {wanted.network}" if network is None else f"qos {wanted.qos}"
        raise Refused(f"{unknown} is unknown: the lab's cloud file names those that there are")
    return network, policy


def asking(lab: Lab, server: str) -> list[Port]:
    """Return the server's ports that ask for resources."""
    return [port for port in lab.cloud.network.listed_ports(server) if port.resources is not None]


def claim_and_bind(lab: Lab, new: NewServer, node: str, needs: Mapping[str, int], ports: list[Port]) -> NewServer:
    """Claim resources for the server and its ports on the server's host, and bind the ports there.

    Returns the server with the new profiles of its ports.

    Raises `droveway.errors.StepError` ``no-capacity`` when the host has not enough.
    """
    asked = [port.resources for port in ports if port.resources is not None]
    query = [("resources", listed(needs)), ("in_tree", node), *of_ports(asked), ("group_policy", "none")]
    found = lab.cloud.placement.candidates(query)
    if not found:
        raise StepError(f"host {new.host} has no room for the ports of server {new.name}", code="no-capacity")
    request = found[0].allocation_request
    lab.cloud.placement.rewrite(
        {new.uuid: (Allocations({}), request, SERVER)}, project_id=new.owner.project, user_id=new.owner.user
    )
    profiles = {}
    for port in ports:
        profiles[port.id] = {ALLOCATION: port.resources.allocation(request["mappings"])} if port.resources else {}
        lab.cloud.network.bind(port.id, new.host, profile=profiles[port.id], device_owner=f"{COMPUTE_OWNER}{new.zone}")
    bound = [dataclasses.replace(port, profile=profiles.get(port.id, port.profile)) for port in new.ports]
    return dataclasses.replace(new, ports=bound)
