"""D1: a confirm deletes nothing of a server whose state changed after it was decided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.engines.operations import move_requests
from droveway.persistence.nova.cell import Instance

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("changed") / "lab", CLOUD) as made:
        yield made


@pytest.mark.parametrize(
    ("vm_state", "task_state"), [("error", None), ("active", "rebooting"), ("resized", "powering-off")]
)
def test_the_source_keeps_its_disks(lab: Stage, vm_state: str, task_state: str | None) -> None:
    lab.cli("server", "migrate", "web")
    move, uuid = lab.move("web").id, lab.id_of("web")
    move_requests.file_request(lab.lab, move, move_requests.confirm)
    with lab.lab.cell_databases["cell1"].write() as session:
        values = {"vm_state": vm_state, "task_state": task_state}
        session.execute(sa.update(Instance).where(Instance.uuid == uuid).values(values))
    with lab.running():
        move_requests.carry(lab.lab, move)
    assert move_requests.read_move(lab.lab, move).state == "verifying"
    assert (lab.lab.layout.host("host1") / "instances" / f"{uuid}_resize").is_dir()
