"""A user deletes a server so that it can be restored (`reclaim_instance_interval`): a move takes nothing away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.persistence.nova.cell import Instance

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
"""
KEPT = b"what the user may want back"


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nretry_for = 0\n")
        with (made.directory("host1", "web") / "disk").open("r+b") as disk:
            disk.seek(1 << 20)
            disk.write(KEPT)
        yield made


def disks(lab: Stage) -> list[Path]:
    """The disks, on whatever host and below whatever name, that hold what the user wrote."""
    found = []
    for path in (lab.root / "hosts").glob(f"*/instances/{lab.id_of('web')}*/disk"):
        with path.open("rb") as disk:
            disk.seek(1 << 20)
            found += [path] if disk.read(len(KEPT)) == KEPT else []
    return found


def become(lab: Stage, vm_state: str) -> None:
    """Nova's delete that can be taken back, or a reset of the state, leaves the server so and without a task."""
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).values(vm_state=vm_state, task_state=None))


def deletes(lab: Stage, step: str) -> Callable[[str, str, str, str], None]:
    """The user deletes the server right after this step of its move."""

    def meet(_move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == (step, "execute", "after"):
            become(lab, "soft-delete")

    return meet


@pytest.mark.parametrize(
    ("step", "end", "code"),
    [
        ("claim", False, 4),
        ("set_aside", False, 4),
        ("copy_disks", False, 4),
        ("switch_records", False, 4),
        ("start_guest", False, 4),
        ("check_destination_copy", True, 0),
        ("discard_source", True, 0),
    ],
)
def test_a_server_that_can_be_restored_keeps_its_disk_and_its_rows(
    lab: Stage, step: str, *, end: bool, code: int
) -> None:
    server = lab.id_of("web")
    if end:
        lab.cli("server", "migrate", "web", "--host", "host2")
    with lab.running(deletes(lab, step)):
        asked = ("confirm", "web") if end else ("migrate", "web", "--host", "host2")
        lab.cli("server", *asked, code=code)
    with lab.lab.cell_databases["cell1"].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.uuid == server)).one()
    assert (row.vm_state, row.deleted) == ("soft-delete", 0)
    assert disks(lab)
    assert len(lab.standing("web").runs) <= 1
    move = lab.move("web")
    assert move.state in ("needs-operator", "failed", "done"), move.error
    assert lab.json("move", "show", move.id)["next"]


@pytest.mark.parametrize(
    ("step", "state", "host"),
    [
        ("claim", "failed", "host1"),
        ("set_aside", "failed", "host1"),
        ("copy_disks", "failed", "host1"),
        ("switch_records", "verifying", "host2"),
        ("start_guest", "verifying", "host2"),
        ("save_request_spec", "verifying", "host2"),
    ],
)
def test_once_the_servers_state_is_reset_one_command_lets_its_move_go_on(
    lab: Stage, step: str, state: str, host: str
) -> None:
    """The move is undone where it had begun to be undone; past that the server waits on its new host.

    The server's state is reset: Nova's own restore would start the guest, which it cannot without its disks.
    """
    with lab.running(deletes(lab, step)):
        lab.cli("server", "migrate", "web", "--host", "host2", code=4)
    move = lab.move("web").id
    assert f"droveway move retry {move[:8]}" in lab.json("move", "show", move)["next"]
    become(lab, "active")
    lab.cli("move", "retry", move, code=3 if state == "failed" else 0)
    assert (lab.move("web").state, lab.server("web").host) == (state, host)
    assert lab.standing("web").runs == [host]
    assert [path for path in disks(lab) if path.is_relative_to(lab.root / "hosts" / host)]
    lab.assert_balanced()
