"""Computes what the servers on a host use, as Nova's resource tracker does (`_update_usage`).

The sums are always computed anew from the rows.  These rules hold:

* A server counts on the host where it lives, with its current flavor.
* A server whose migration has not ended also counts on the other host: on the destination with its new flavor, on the
  source with its old one.  When both are one host, it counts there with both flavors.
* A root disk that is a volume uses no disk of the host.
* Of a swap disk only whole GiB count.
* What the host keeps for itself counts as used (`reserved_host_cpus`, `reserved_host_memory_mb`,
  `reserved_host_disk_mb`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova import objects
from droveway.persistence.nova.cell import BlockDeviceMapping, Instance, InstanceExtra, Migration
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS

_HOST: Final[sa.BindParameter[str]] = sa.bindparam("host")
USAGE_COLUMNS: Final = ("vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb", "free_disk_gb", "running_vms")
_NODE: Final = (
    sa.select(
        ComputeNode.id,
        ComputeNode.memory_mb,
        ComputeNode.local_gb,
        *(getattr(ComputeNode, column) for column in USAGE_COLUMNS),
    )
    .where(ComputeNode.host == _HOST, ComputeNode.deleted == 0)
    .with_for_update()
)
_STORE: Final = (
    sa.update(ComputeNode)
    .where(ComputeNode.id == sa.bindparam("node"))
    .values({column: sa.bindparam(f"new_{column}") for column in USAGE_COLUMNS})
)
_FROM_VOLUME: Final = (
    sa.exists()
    .where(
        BlockDeviceMapping.instance_uuid == Instance.uuid,
        BlockDeviceMapping.deleted == 0,
        BlockDeviceMapping.boot_index == 0,
        BlockDeviceMapping.destination_type == "volume",
    )
    .correlate(Instance)
)
_HELD: Final = (
    sa.select(Instance.host, InstanceExtra.flavor, Migration.source_compute, Migration.dest_compute, _FROM_VOLUME)
    .join(InstanceExtra, sa.and_(InstanceExtra.instance_uuid == Instance.uuid, InstanceExtra.deleted == 0))
    .outerjoin(
        Migration,
        sa.and_(
            Migration.instance_uuid == Instance.uuid,
            Migration.deleted == 0,
            # One comparison for each status: SQLAlchemy would render the list of an `in_` anew at each execution.
            *(Migration.status != status for status in sorted(ENDED_MIGRATIONS)),
            sa.or_(Migration.migration_type == "resize", Migration.migration_type == "migration"),
        ),
    )
    .where(
        Instance.deleted == 0,
        sa.or_(Instance.host == _HOST, Migration.source_compute == _HOST, Migration.dest_compute == _HOST),
    )
)


@dataclasses.dataclass(frozen=True)
class Usage:
    """Holds a sum of vCPUs, memory in MiB and disk in GiB, and the number of servers that live on the host."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    servers: int = 0

    def plus(self, flavor: dict[str, Any], *, servers: int, from_volume: bool = False) -> Usage:
        """Return this usage with a flavor (the fields of Nova's Flavor object) and that many servers added."""
        root = 0 if from_volume else flavor["root_gb"]
        # Nova adds a fraction of a GiB to an integer column, which drops the fraction of each server.
        swap = int(flavor.get("swap") or 0) // objects.MIB_PER_GIB
        return Usage(
            self.vcpus + flavor["vcpus"],
            self.memory_mb + flavor["memory_mb"],
            self.disk_gb + root + flavor["ephemeral_gb"] + swap,
            self.servers + servers,
        )


NOTHING: Final = Usage()


@dataclasses.dataclass(frozen=True)
class Held:
    """Holds what one server adds to the sums: where it lives, its flavors, and its open migration if it has one."""

    host: str | None
    flavors: Mapping[str, dict[str, Any] | None]
    """``cur``, ``old`` and ``new`` → the fields of that Flavor object, or None."""
    source: str | None = None
    destination: str | None = None
    from_volume: bool = False
    """Whether its root disk is a volume."""


def usage_of(host: str, servers: Iterable[Held], reserved: Usage = NOTHING) -> Usage:
    """Return the usage of the host by these servers, with what the host keeps for itself (``reserved``) added."""
    total = reserved
    for held in servers:
        current = held.flavors["cur"]
        if held.host == host and current is not None:
            total = total.plus(current, servers=1, from_volume=held.from_volume)
        other = _of_migration(host, held)
        if other is not None:
            total = total.plus(other, servers=0, from_volume=held.from_volume)
    return total


def _of_migration(host: str, held: Held) -> dict[str, Any] | None:
    """Return the flavor that the server's open migration adds on the host; None when it adds nothing there.

    A server counts on its own host with its current flavor.  When source and destination are both this host, the
    migration adds the other flavor: the old one when the current flavor is the new one, and else the new one.
    """
    if held.source is None or host not in (held.source, held.destination):
        return None
    if held.source == held.destination:
        is_resized = held.flavors["cur"] == held.flavors["new"]
        return held.flavors["old"] if is_resized else held.flavors["new"]
    if host == held.host:
        return None
    return held.flavors["old"] if host == held.source else held.flavors["new"]


def recompute(session: orm.Session, *hosts: str | None, reserved: Mapping[str, Usage] | None = None) -> None:
    """Compute the usage of these hosts of the cell, and write it into their rows of `compute_nodes`.

    None and empty names are skipped.  ``reserved`` is what each host keeps for itself, by its name.
    """
    session.flush()
    connection = session.connection()
    for host in sorted({host for host in hosts if host}):
        node = connection.execute(_NODE, {"host": host}).first()
        if node is not None:
            _store(connection, node, usage_of(host, _held(connection, host), (reserved or {}).get(host, NOTHING)))


def reserved_of(inventories: Mapping[str, Mapping[str, Any]]) -> Usage:
    """Return what a host keeps for itself: the ``reserved`` in the inventories that its nova-compute gave Placement."""
    vcpus, memory_mb, disk_gb = (
        int(inventories.get(name, {}).get("reserved") or 0) for name in ("VCPU", "MEMORY_MB", "DISK_GB")
    )
    return Usage(vcpus, memory_mb, disk_gb)


def _store(connection: sa.Connection, node: sa.Row[Any], usage: Usage) -> None:
    wanted = {
        "vcpus_used": usage.vcpus,
        "memory_mb_used": usage.memory_mb,
        "local_gb_used": usage.disk_gb,
        "free_ram_mb": node.memory_mb - usage.memory_mb,
        "free_disk_gb": node.local_gb - usage.disk_gb,
        "running_vms": usage.servers,
    }
    if any(getattr(node, column) != value for column, value in wanted.items()):
        connection.execute(_STORE, {"node": node.id, **{f"new_{column}": value for column, value in wanted.items()}})


def _held(connection: sa.Connection, host: str) -> list[Held]:
    """Read all servers that live on the host, or have an open migration from or to it."""
    return [
        Held(home, _flavor_fields(flavor), source, destination, bool(from_volume))
        for home, flavor, source, destination, from_volume in connection.execute(_HELD, {"host": host})
    ]


@functools.lru_cache(maxsize=512)
def _flavor_fields(text: str | None) -> Mapping[str, dict[str, Any] | None]:
    # Cached: most servers of a host have one of a few flavors, and each sum needs those of all its servers.
    stored = objects.decode(text or "{}")
    return {slot: objects.flavor_data(stored[slot]) if stored.get(slot) else None for slot in ("cur", "old", "new")}
