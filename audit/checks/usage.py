"""Compares the usage in compute_nodes with the sum over the servers' and migrations' rows.

The sum is made as Nova's resource tracker makes it, and without the code that writes the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from droveway.audit.findings import Finding, Kind, update
from droveway.audit.records import MigrationRow, Node, ServerRow
from droveway.audit.snapshot import Snapshot
from droveway.persistence.nova.objects import MIB_PER_GIB
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS

_CLASSES: Final = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
"""The resource classes of which a host may reserve an amount for itself."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find wrong sums; a cell with an unreadable row has a finding about that row instead."""
    unreadable = {row.cell for row in snapshot.servers if row.broken}
    carried: dict[tuple[str, str], Counter[str]] = {}
    for row in snapshot.servers:
        if snapshot.standings[row.uuid].offloaded:
            # Nova does not count a shelved server, even if its row names a host.
            continue
        for host, amounts in _carried(row, _open_migration(snapshot, row)):
            carried.setdefault((row.cell, host), Counter()).update(amounts)
    for node in snapshot.nodes:
        if node.cell not in unreadable:
            total = Counter(carried.get((node.cell, node.host), Counter()))
            total.update({_CLASSES[name]: kept for name, kept in node.reserved.items() if name in _CLASSES})
            yield from _compare(node, total)


def _open_migration(snapshot: Snapshot, row: ServerRow) -> MigrationRow | None:
    found = [each for each in snapshot.migrations if (each.cell, each.server) == (row.cell, row.uuid)]
    return next((each for each in reversed(found) if each.status not in ENDED_MIGRATIONS), None)


def _carried(row: ServerRow, migration: MigrationRow | None) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield what the server counts for on its own host, and on the other host of a migration under way."""
    current, old, new = (row.flavors.get(slot) for slot in ("cur", "old", "new"))
    if row.host and current is not None:
        yield row.host, {**_tracked(current, row), "servers": 1}
    if migration is None:
        return
    if migration.source == migration.destination:
        # Source and destination are one host, where both flavors count. The server's row has one, the migration the
        # other.
        other = old if current == new else new
        if migration.source and other is not None:
            yield migration.source, _tracked(other, row)
        return
    for host, flavor in ((migration.source, old), (migration.destination, new)):
        if host and host != row.host and flavor is not None:
            yield host, _tracked(flavor, row)


def _tracked(flavor: Mapping[str, Any], row: ServerRow) -> dict[str, int]:
    """Return the usage as Nova's `_get_usage_dict` and `_update_usage` do.

    A root disk on a volume counts nothing. Swap is in MiB, of which whole GiB count.
    """
    disk = flavor["ephemeral_gb"] + int(flavor.get("swap") or 0) // MIB_PER_GIB
    disk += 0 if row.from_volume else flavor["root_gb"]
    return {"vcpus": flavor["vcpus"], "memory_mb": flavor["memory_mb"], "disk_gb": disk}


def _compare(node: Node, total: Mapping[str, int]) -> Iterator[Finding]:
    wanted = {
        "vcpus_used": total["vcpus"],
        "memory_mb_used": total["memory_mb"],
        "local_gb_used": total["disk_gb"],
        "free_ram_mb": node.memory_mb - total["memory_mb"],
        "free_disk_gb": node.local_gb - total["disk_gb"],
        "running_vms": total["servers"],
    }
    wrong = {column: value for column, value in wanted.items() if node.used[column] != value}
    if wrong:
        told = ", ".join(f"{column} is {node.used[column]}, not {value}" for column, value in wrong.items())
        yield Finding(
            Kind.USAGE,
            node.uuid,
            f"compute_nodes of {node.host} disagrees with the rows of its servers: {told}",
            update("compute_nodes", {"uuid": node.uuid}, wrong),
            node.host,
        )
