"""What the servers on a host use, recomputed from rows, never incremented, as Nova's resource tracker does.

Follows semantics of Nova's `update_available_resource`: a server counts where it lives with the flavor it has; a move
that has not ended counts besides: its new flavor on the destination, its old one on the source, wherever the server
itself is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence import objects
from droveway.persistence.cell import Instance, InstanceExtra, Migration
from droveway.persistence.cell_hosts import ComputeNode
from droveway.persistence.vm_states import ENDED_MIGRATIONS

_HOST: Final[sa.BindParameter[str]] = sa.bindparam("host")
_USED: Final = ("vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb", "free_disk_gb", "running_vms")
_NODE: Final = (
    sa.select(
        ComputeNode.id,
        ComputeNode.memory_mb,
        ComputeNode.local_gb,
        *(getattr(ComputeNode, column) for column in _USED),
    )
    .where(ComputeNode.host == _HOST, ComputeNode.deleted == 0)
    .with_for_update()
)
_STORE: Final = (
    sa.update(ComputeNode)
    .where(ComputeNode.id == sa.bindparam("node"))
    .values({column: sa.bindparam(f"new_{column}") for column in _USED})
)
_HELD: Final = (
    sa.select(Instance.host, InstanceExtra.flavor, Migration.source_compute, Migration.dest_compute)
    .join(InstanceExtra, sa.and_(InstanceExtra.instance_uuid == Instance.uuid, InstanceExtra.deleted == 0))
    .outerjoin(
        Migration,
        sa.and_(
            Migration.instance_uuid == Instance.uuid,
            Migration.deleted == 0,
            Migration.status.not_in(ENDED_MIGRATIONS),
            Migration.migration_type.in_(("resize", "migration")),
        ),
    )
    .where(
        Instance.deleted == 0,
        sa.or_(Instance.host == _HOST, Migration.source_compute == _HOST, Migration.dest_compute == _HOST),
    )
)


@dataclasses.dataclass(frozen=True)
class Usage:
    """vCPUs, memory in MiB and disk in GiB, with the number of servers that live there."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    servers: int = 0

    def plus(self, flavor: dict[str, Any], *, servers: int) -> Usage:
        """This and one flavor (fields of Nova's Flavor object) more."""
        swap = -(-int(flavor.get("swap") or 0) // 1024)
        return Usage(
            self.vcpus + flavor["vcpus"],
            self.memory_mb + flavor["memory_mb"],
            self.disk_gb + flavor["root_gb"] + flavor["ephemeral_gb"] + swap,
            self.servers + servers,
        )


@dataclasses.dataclass(frozen=True)
class Held:
    """One server's part in the sum: where it lives, its flavors and its open move, if any."""

    host: str | None
    flavors: dict[str, dict[str, Any] | None]
    """cur, old and new as fields of Nova's Flavor object."""
    source: str | None = None
    destination: str | None = None


def usage_of(host: str, servers: Iterable[Held]) -> Usage:
    """What the host carries."""
    total = Usage()
    for held in servers:
        current = held.flavors["cur"]
        if held.host == host and current is not None:
            total = total.plus(current, servers=1)
        other = _besides(host, held)
        if other is not None:
            total = total.plus(other, servers=0)
    return total


def _besides(host: str, held: Held) -> dict[str, Any] | None:
    """The flavor that an open move holds on the host besides the one the server itself counts with."""
    if held.source is None or host not in (held.source, held.destination):
        return None
    if held.source == held.destination:
        grown = held.flavors["cur"] == held.flavors["new"]
        return held.flavors["old"] if grown else held.flavors["new"]
    if host == held.host:
        return None
    return held.flavors["old"] if host == held.source else held.flavors["new"]


def recompute(session: orm.Session, *hosts: str | None) -> None:
    """Write what these hosts of the cell use into their compute_nodes rows; others' rows are left alone."""
    session.flush()
    connection = session.connection()
    for host in sorted({host for host in hosts if host}):
        node = connection.execute(_NODE, {"host": host}).first()
        if node is not None:
            _store(connection, node, usage_of(host, _held(connection, host)))


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
    """Every server that lives on the host or has an open move from or to it."""
    return [
        Held(home, _flavor_fields(flavor), source, destination)
        for home, flavor, source, destination in connection.execute(_HELD, {"host": host})
    ]


def _flavor_fields(text: str | None) -> dict[str, dict[str, Any] | None]:
    stored = objects.decode(text or "{}")
    return {slot: objects.flavor_data(stored[slot]) if stored.get(slot) else None for slot in ("cur", "old", "new")}
