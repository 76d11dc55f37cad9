"""compute_nodes as Nova's resource tracker would write it: volumes' roots, whole GiB of swap, what hosts keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.two_faults.world import Watch

from droveway.persistence.nova.cell_hosts import ComputeNode

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 8, swap_mb: 512}
  large: {vcpus: 2, memory_mb: 512, root_gb: 16, swap_mb: 1536}
images: {base: {size_mb: 1}}
servers: {db: {flavor: small, host: host1, volumes: [{size_gb: 1, boot: true}], state: stopped}}
"""

KEPT = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 2}
"""What nova-compute of each host tells Placement of reserved_host_cpus, _memory_mb and _disk_mb."""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("usage") / "lab", CLOUD) as made:
        for host, node in nodes(made).items():
            inventories = made.lab.cloud.placement.provider_inventories(str(node.uuid))
            for name, kept in KEPT.items():
                inventories[name]["reserved"] = kept
            made.lab.cloud.placement.ensure_provider(str(node.uuid), host, inventories)
        with made.lab.cells.database("cell1").write() as session:
            for row in session.scalars(sa.select(ComputeNode)):
                row.vcpus_used += 1
                row.memory_mb_used += 512
                row.local_gb_used += 2
                row.free_ram_mb = row.memory_mb - row.memory_mb_used
                row.free_disk_gb = row.local_gb - row.local_gb_used
        yield made


def nodes(made: Stage) -> dict[str, ComputeNode]:
    with made.lab.cells.database("cell1").read() as session:
        return {str(row.host): row for row in session.scalars(sa.select(ComputeNode))}


def used(made: Stage) -> list[tuple[int, int, int, int]]:
    found = nodes(made)
    return [
        (row.vcpus_used, row.memory_mb_used, row.local_gb_used, row.local_gb - int(row.free_disk_gb or 0))
        for row in (found["host1"], found["host2"])
    ]


def test_a_move_there_and_back_writes_what_the_tracker_would(lab: Stage) -> None:
    """D4: at each rest; the audit, which adds up by itself, finds nothing, and tells of each wrong sum."""
    alone, one, grown = (1, 512, 2, 2), (2, 768, 2, 2), (3, 1024, 3, 3)
    assert used(lab) == [one, alone]
    lab.cli("audit")
    lab.cli("server", "resize", "db", "--flavor", "large")
    assert used(lab) == [one, grown]
    lab.cli("audit")
    lab.cli("server", "revert", "db")
    assert used(lab) == [one, alone]
    lab.cli("audit")
    lab.cli("server", "resize", "db", "--flavor", "large")
    lab.cli("server", "confirm", "db")
    assert used(lab) == [alone, grown]
    lab.cli("audit")
    with lab.lab.cells.database("cell1").write() as session:
        row = session.scalars(sa.select(ComputeNode).where(ComputeNode.host == "host2")).one()
        row.local_gb_used, row.free_disk_gb = 18, row.local_gb - 18
    assert "local_gb_used is 18, not 3" in lab.cli("audit", "-f", "json", code=3)
    lab.cli("lab", "server", "delete", "db")
    assert used(lab) == [alone, alone]
    lab.cli("audit")


@pytest.mark.parametrize("column", ["vcpus_used", "memory_mb_used", "local_gb_used", "free_ram_mb", "free_disk_gb"])
def test_the_judge_of_two_faults_adds_up_the_same_at_each_rest(lab: Stage, column: str) -> None:
    """Also what waits to come back, on the source; and it tells of each wrong sum there."""
    watch, server = Watch(lab.root), lab.id_of("db")
    assert watch.trouble(server, ended=True) == ""
    lab.cli("server", "resize", "db", "--flavor", "large")
    assert watch.trouble(server, ended=False, verifying=True) == ""
    with lab.lab.cells.database("cell1").write() as session:
        row = session.scalars(sa.select(ComputeNode).where(ComputeNode.host == "host1")).one()
        setattr(row, column, getattr(row, column) - 1)
    assert f"host1 counts {getattr(nodes(lab)['host1'], column)} as {column}" in watch.trouble(
        server, ended=False, verifying=True
    )
    with lab.lab.cells.database("cell1").write() as session:
        row = session.scalars(sa.select(ComputeNode).where(ComputeNode.host == "host1")).one()
        setattr(row, column, getattr(row, column) + 1)
    lab.cli("server", "revert", "db")
    assert watch.trouble(server, ended=True) == ""
