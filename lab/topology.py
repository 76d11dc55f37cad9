"""Writes a new lab's cells, hosts, flavors, zones and groups, and a provider of Placement for each host."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import orm

from droveway.clients.embedded import guaranteed
from droveway.clients.placement import SAME_HOST_TRAIT, Placement
from droveway.lab.cloud import AMOUNTS, Cell, Cloud, Flavor, Group, Host, Quotas
from droveway.persistence.nova import api, cell, quotas
from droveway.persistence.times import utcnow
from droveway.scheduler.requests import DISABLED_TRAIT

SERVICE_VERSION: Final = 70
"""The version that the lab's nova-compute services say they have: that of Nova 34."""

_HYPERVISORS: Final = {"sandbox": ("sandbox", 1), "libvirt": ("QEMU", 7002000)}


@dataclass(frozen=True)
class Owner:
    """The project and the user that own everything in the lab, by ids as Keystone writes them."""

    project: str
    user: str


def zones(cloud: Cloud) -> dict[str, list[str]]:
    """Return the hosts of each availability zone."""
    found: dict[str, list[str]] = {}
    for _, name, host in cloud.hosts():
        if host.az:
            found.setdefault(host.az, []).append(name)
    return found


def aggregates(cloud: Cloud) -> dict[str, list[str]]:
    """Return the hosts of each aggregate; a zone is an aggregate too."""
    found = zones(cloud)
    for _, name, host in cloud.hosts():
        for aggregate in host.aggregates:
            if name not in found.setdefault(aggregate, []):
                found[aggregate].append(name)
    return found


def add_cells(session: orm.Session, cells: Mapping[str, Cell]) -> None:
    """Map the cells and their hosts; a database has a path within the lab, so that the lab may be moved."""
    for name, spec in cells.items():
        mapping = api.CellMapping(
            uuid=str(uuid.uuid4()),
            name=name,
            transport_url="none:///",
            database_connection=f"sqlite:///cells/{name}.sqlite",
            disabled=False,
        )
        session.add(mapping)
        session.flush()
        session.add_all(api.HostMapping(cell_id=mapping.id, host=host) for host in spec.hosts)


def add_flavors(session: orm.Session, flavors: Mapping[str, Flavor]) -> None:
    """Make the flavors, which every project may use."""
    for name, spec in flavors.items():
        row = api.Flavor(
            name=name,
            flavorid=str(uuid.uuid4()),
            memory_mb=spec.memory_mb,
            vcpus=spec.vcpus,
            root_gb=spec.root_gb,
            ephemeral_gb=spec.ephemeral_gb,
            swap=spec.swap_mb,
            rxtx_factor=1.0,
            vcpu_weight=0,
            disabled=False,
            is_public=True,
        )
        session.add(row)
        session.flush()
        session.add_all(
            api.FlavorExtraSpec(flavor_id=row.id, key=key, value=str(value)) for key, value in spec.extra_specs.items()
        )


def add_groups(session: orm.Session, groups: Mapping[str, Group], owner: Owner) -> None:
    """Make the server groups, without members."""
    for name, spec in groups.items():
        group = api.InstanceGroup(user_id=owner.user, project_id=owner.project, uuid=str(uuid.uuid4()), name=name)
        session.add(group)
        session.flush()
        strict = spec.policy == "anti-affinity"
        rules = {"max_server_per_host": str(spec.max_server_per_host)} if strict else {}
        session.add(api.InstanceGroupPolicy(policy=spec.policy, group_id=group.id, rules=json.dumps(rules)))


def add_quotas(session: orm.Session, spec: Quotas, owner: Owner) -> None:
    """Set the default quotas and those of the lab's project."""
    for quota, model, whose in (
        (spec.default, api.QuotaClass, {"class_name": "default"}),
        (spec.lab, api.Quota, {"project_id": owner.project}),
    ):
        for resource, limit in ((quotas.CORES, quota.cores), (quotas.RAM, quota.ram_mb)):
            if limit is not None:
                session.add(model(resource=resource, hard_limit=limit, **whose))


def add_aggregates(session: orm.Session, cloud: Cloud) -> dict[str, str]:
    """Make the aggregates and zones and return their uuids by name."""
    names_of_zones = zones(cloud)
    uuids = {}
    for name, hosts in aggregates(cloud).items():
        uuids[name] = str(uuid.uuid4())
        aggregate = api.Aggregate(uuid=uuids[name], name=name)
        session.add(aggregate)
        session.flush()
        session.add_all(api.AggregateHost(host=host, aggregate_id=aggregate.id) for host in hosts)
        if name in names_of_zones:
            session.add(api.AggregateMetadata(aggregate_id=aggregate.id, key="availability_zone", value=name))
        metadata = cloud.aggregates[name].metadata if name in cloud.aggregates else {}
        session.add_all(
            api.AggregateMetadata(aggregate_id=aggregate.id, key=key, value=str(value))
            for key, value in metadata.items()
        )
    return uuids


def add_hosts(session: orm.Session, hosts: Mapping[str, Host], hypervisor: str) -> dict[str, str]:
    """Give each host of a cell its service and its compute node; return the nodes' uuids by host."""
    uuids = {}
    for name, spec in hosts.items():
        uuids[name] = str(uuid.uuid4())
        session.add(
            cell.Service(
                uuid=str(uuid.uuid4()),
                host=name,
                binary="nova-compute",
                topic="compute",
                report_count=1,
                disabled=not spec.enabled,
                disabled_reason=None if spec.enabled else "disabled in the cloud file",
                last_seen_up=utcnow(),
                forced_down=False,
                version=SERVICE_VERSION,
            )
        )
        session.add(_compute_node(name, uuids[name], spec, hypervisor))
    return uuids


def add_provider(placement: Placement, host_name: str, node: str, spec: Host, aggregate_uuids: list[str]) -> None:
    """Make the host's provider, whose uuid is its compute node's; MEMORY_MB in MiB, DISK_GB in GiB."""
    inventories = _all({resource: spec.total(resource) for resource in AMOUNTS})
    for resource, inventory in inventories.items():
        inventory["allocation_ratio"] = spec.ratio(resource)
    placement.ensure_provider(node, host_name, inventories, _traits(spec), aggregate_uuids)


def add_network_providers(placement: Placement, host_name: str, node: str, spec: Host) -> None:
    """Make the providers that Neutron's agent on the host would report.

    The agent's own provider is a child of the host's provider, and each bridge's provider is a child of the agent's.
    """
    if not devices(spec):
        return
    agent, name = guaranteed.provider_of(host_name), f"{host_name}:{guaranteed.AGENT_TYPE}"
    traits = [guaranteed.NORMAL_TRAIT]
    placement.ensure_provider(agent, name, _all({guaranteed.PACKET_RATE: spec.kpps}), traits, parent=node)
    for bridge, given in spec.bandwidth.items():
        placement.ensure_provider(
            guaranteed.provider_of(host_name, bridge),
            f"{name}:{bridge}",
            _all({guaranteed.EGRESS: given.egress_kbps, guaranteed.INGRESS: given.ingress_kbps}),
            [*traits, guaranteed.physical_trait(given.physical_network)],
            parent=agent,
        )


def devices(spec: Host) -> dict[str, dict[str, Any]]:
    """Return what the host's agent reports to Neutron of its bridges and, under an empty name, of itself."""
    found: dict[str, dict[str, Any]] = {
        name: {
            "physical_network": bridge.physical_network,
            "reported": bool(bridge.egress_kbps or bridge.ingress_kbps),
        }
        for name, bridge in spec.bandwidth.items()
    }
    return found | ({"": {"physical_network": "", "reported": True}} if spec.kpps else {})


def _all(totals: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return inventories with an allocation ratio of 1 and nothing reserved."""
    return {
        resource: {
            "total": total,
            "reserved": 0,
            "min_unit": 1,
            "max_unit": total,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
        for resource, total in totals.items()
        if total
    }


def _traits(spec: Host) -> Iterator[str]:
    yield from spec.traits
    if spec.same_host_cold_migrate:
        yield SAME_HOST_TRAIT
    if not spec.enabled:
        yield DISABLED_TRAIT


def _compute_node(name: str, node: str, spec: Host, hypervisor: str) -> cell.ComputeNode:
    kind, version = _HYPERVISORS[hypervisor]
    return cell.ComputeNode(
        uuid=node,
        host=name,
        hypervisor_hostname=name,
        host_ip="127.0.0.1",
        vcpus=spec.vcpus,
        memory_mb=spec.memory_mb,
        local_gb=spec.disk_gb,
        vcpus_used=0,
        memory_mb_used=0,
        local_gb_used=0,
        free_ram_mb=spec.memory_mb,
        free_disk_gb=spec.disk_gb,
        running_vms=0,
        current_workload=0,
        hypervisor_type=kind,
        hypervisor_version=version,
        cpu_info="{}",
        supported_instances='[["x86_64", "qemu", "hvm"]]',
        stats="{}",
        cpu_allocation_ratio=spec.ratio("VCPU"),
        ram_allocation_ratio=spec.ratio("MEMORY_MB"),
        disk_allocation_ratio=spec.ratio("DISK_GB"),
        mapped=1,
    )
