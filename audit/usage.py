"""What compute_nodes says that hosts use, against what the servers' and migrations' rows add up to."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.audit.findings import Finding, Kind, update
from droveway.audit.records import Node
from droveway.audit.snapshot import Snapshot
from droveway.persistence.usage import Held, Usage, usage_of
from droveway.persistence.vm_states import ENDED_MIGRATIONS


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Wrong sums; a cell with an unreadable row is left to the finding about that row."""
    for cell in snapshot.cells:
        if any(row.broken for row in snapshot.servers if row.cell == cell):
            continue
        held = _held(snapshot, cell)
        for node in snapshot.nodes:
            if node.cell == cell:
                yield from _compare(node, usage_of(node.host, held))


def _held(snapshot: Snapshot, cell: str) -> list[Held]:
    in_progress = {
        row.server: row for row in snapshot.migrations if row.cell == cell and row.status not in ENDED_MIGRATIONS
    }
    found = []
    for row in snapshot.servers:
        if row.cell != cell:
            continue
        migration = in_progress.get(row.uuid)
        flavors = {
            slot: dict(flavor) if flavor is not None else None
            for slot, flavor in ((slot, row.flavors.get(slot)) for slot in ("cur", "old", "new"))
        }
        source = migration.source if migration is not None else None
        found.append(Held(row.host, flavors, source, migration.destination if migration is not None else None))
    return found


def _compare(node: Node, usage: Usage) -> Iterator[Finding]:
    wanted = {
        "vcpus_used": usage.vcpus,
        "memory_mb_used": usage.memory_mb,
        "local_gb_used": usage.disk_gb,
        "free_ram_mb": node.memory_mb - usage.memory_mb,
        "free_disk_gb": node.local_gb - usage.disk_gb,
        "running_vms": usage.servers,
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
