"""Servers that somebody else deletes in the middle of a move, as nova-compute does it: nothing of them is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.labs.operations import Stage, stage
from support.rows import remains

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import deletion
from droveway.persistence.nova.cell import Instance, InstanceSystemMetadata
from droveway.workers.hypervisors import guests_log

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 2}
images: {base: {size_mb: 1}}
"""
WORDS = ("--flavor", "small", "--host", "host1", "--image", "base", "--volume", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("elsewhere") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 1\n")
        yield made


class Server:
    """A server that is about to be deleted by somebody else."""

    def __init__(self, lab: Stage, name: str) -> None:
        self.lab = lab
        self.name = name
        self.uuid = lab.cli("lab", "server", "create", name, *WORDS).strip()
        self.started: list[str] | None = None

    def starts(self) -> list[str]:
        """The hosts on which it was started."""
        log = guests_log.events(self.lab.lab.layout.guests_log)
        return [event.host for event in log if event.server == self.uuid and event.event == "start"]

    def delete(self, *, allocations: bool) -> None:
        """Soft-delete every row, the fence among them; ``allocations``: what it holds goes too, as Nova does last."""
        self.started = self.starts()
        with self.lab.lab.cell_databases["cell1"].write() as session:
            deletion.remove_from_cell(session, self.uuid)
            session.execute(
                sa.update(InstanceSystemMetadata)
                .where(InstanceSystemMetadata.instance_uuid == self.uuid, InstanceSystemMetadata.deleted == 0)
                .values(deleted=InstanceSystemMetadata.id)
            )
        if allocations:
            self.lab.lab.cloud.placement.release(self.uuid)

    def deleted_at(self, move: str, step: str, direction: str, *, allocations: bool) -> None:
        """Carry the move on, and delete the server before that step; for an undo its start fails."""

        def meet(_move: str, at: str, way: str, phase: str) -> None:
            if direction == "revert" and (at, way, phase) == ("start_guest", "execute", "before"):
                raise DestinationFault("the guest cannot start", code="start-failed", host="host2")
            if self.started is None and (at, way, phase) == (step, direction, "before"):
                self.delete(allocations=allocations)

        with self.lab.running(meet):
            move_requests.carry(self.lab.lab, move)
        assert self.started is not None

    def assert_cancelled(self, move: str) -> None:
        """The move has ended for that reason, and nothing is left of the server."""
        ended = move_requests.read_move(self.lab.lab, move)
        assert (ended.state, ended.error_code, ended.error) == ("cancelled", "deleted", "the server was deleted")
        assert leftovers.of(self.lab.lab, self.uuid) == []
        assert remains.of(self.lab.root, self.uuid) == []
        with self.lab.lab.cell_databases["cell1"].read() as session:
            assert session.scalars(sa.select(Instance.deleted).where(Instance.uuid == self.uuid)).one() != 0
        self.lab.assert_balanced()


@pytest.fixture
def server(lab: Stage, request: pytest.FixtureRequest) -> Server:
    return Server(lab, f"s{abs(hash(request.node.name)) % 10**8}")


@pytest.mark.parametrize(
    ("step", "allocations"),
    [("claim", True), ("copy_disks", False), ("switch_records", True), ("start_guest", False)],
)
def test_in_the_middle_of_a_move(lab: Stage, server: Server, step: str, allocations: bool) -> None:
    """R1-32: undone, or past the point of no return confirmed, and then everything is released."""
    move = submit(lab.lab, MoveSpec(server=server.name, flavor="large")).id
    server.deleted_at(move, step, "execute", allocations=allocations)
    server.assert_cancelled(move)
    assert server.started == server.starts() or step == "start_guest"


@pytest.mark.parametrize(("step", "allocations"), [("switch_records", False), ("copy_disks", True)])
def test_in_the_middle_of_its_undo(lab: Stage, server: Server, step: str, allocations: bool) -> None:
    """The reason is the delete, though it was something else that the move was undone for."""
    move = submit(lab.lab, MoveSpec(server=server.name, flavor="large")).id
    server.deleted_at(move, step, "revert", allocations=allocations)
    server.assert_cancelled(move)
    assert server.started == server.starts()


@pytest.mark.parametrize(
    ("kind", "step", "allocations"),
    [
        ("confirm", "mark_confirming", True),
        ("revert", "mark_reverting", False),
        ("revert", "restore_disks", True),
        ("revert", "settle_records", True),
    ],
)
def test_while_it_waits_or_its_move_ends(lab: Stage, server: Server, kind: str, step: str, allocations: bool) -> None:
    lab.cli("server", "resize", server.name, "--flavor", "large")
    move = lab.move(server.name).id
    move_requests.file_request(lab.lab, move, getattr(move_requests, kind))
    server.deleted_at(move, step, "execute", allocations=allocations)
    server.assert_cancelled(move)
    assert server.started == server.starts()


def test_a_delete_that_waits_names_the_command_that_ends_it(lab: Stage, server: Server) -> None:
    """Nobody runs the lab meanwhile: while the server is known it is deleted again, and then its move is confirmed."""
    move = submit(lab.lab, MoveSpec(server=server.name, flavor="large")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    with lab.lab.journal.write() as session:
        requests.delete(session, session.get_one(Move, move))
    assert lab.json("move", "show", move)["next"].endswith(f"then: droveway lab server delete {server.name}")
    server.delete(allocations=True)
    command = f"droveway move confirm {move[:8]}"
    assert lab.json("move", "show", move)["next"].endswith(f"then: {command}")
    lab.cli(*command.split()[1:], code=3)
    server.assert_cancelled(move)
