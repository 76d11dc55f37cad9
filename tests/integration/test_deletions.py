"""Servers that are deleted at rest, while their move waits and in its middle: nothing of them is left."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.labs.operations import Stage, faults_cleared, stage
from support.rows import remains
from support.two_faults.nova_acts import Acts

from droveway.engines.operations import move_requests
from droveway.lab import operations
from droveway.persistence.nova import usage
from droveway.persistence.nova.cell import (
    Instance,
    InstanceAction,
    InstanceActionEvent,
    InstanceFault,
    InstanceMetadata,
    Migration,
    SecurityGroupInstanceAssociation,
    Tag,
)
from droveway.persistence.nova.vm_states import TaskState

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 2}
images: {base: {size_mb: 1}}
servers:
  mixed:
    flavor: small
    host: host1
    volumes:
      - {size_gb: 1, boot: true, delete_on_termination: true}
      - {size_gb: 1, delete_on_termination: true}
      - {size_gb: 1}
"""
WORDS = ("--flavor", "small", "--host", "host1", "--image", "base", "--volume", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("deletions") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 1\n")
        yield made


@pytest.fixture
def server(lab: Stage, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server's name; whatever a test does to it, nothing of it may be left."""
    name = request.node.name.removeprefix("test_")[:20].replace("_", "-")
    uuid = lab.cli("lab", "server", "create", name, *WORDS).strip()
    yield name
    assert leftovers.of(lab.lab, uuid) == []
    assert remains.of(lab.root, uuid) == []
    assert name not in {row["name"] for row in lab.json("server", "list")}
    lab.assert_balanced()


def last_move(lab: Stage) -> dict[str, object]:
    shown: dict[str, object] = lab.json("move", "show", lab.json("move", "list")[0]["id"])
    return shown


def test_a_server_at_rest_is_deleted_as_nova_does_it(lab: Stage, server: str) -> None:
    """R1-32: soft-deleted rows, one action that succeeded; a repeat finds no server."""
    uuid = lab.id_of(server)
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(Tag(resource_id=uuid, tag="blue"))
        session.add(InstanceMetadata(instance_uuid=uuid, key="of", value="the user"))
        session.add(SecurityGroupInstanceAssociation(instance_uuid=uuid, security_group_id=None))
        session.add(InstanceFault(instance_uuid=uuid, code=500, message="broke once"))
    lab.cli("lab", "server", "delete", server)
    with lab.lab.cell_databases["cell1"].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.uuid == uuid)).one()
        assert (row.vm_state, row.task_state, row.deleted) == ("deleted", None, row.id)
        events = session.execute(
            sa.select(InstanceAction.action, InstanceActionEvent.event, InstanceActionEvent.result)
            .join(InstanceActionEvent, InstanceActionEvent.action_id == InstanceAction.id)
            .where(InstanceAction.instance_uuid == uuid, InstanceAction.action == "delete")
        ).all()
    assert [tuple(event) for event in events] == [("delete", "compute_terminate_instance", "Success")]
    shown = last_move(lab)
    assert (shown["kind"], shown["state"], shown["server_name"]) == ("delete", "done", server)
    assert "is unknown" in lab.refused("lab", "server", "delete", server)


def test_volumes_that_go_with_their_server_are_deleted_and_others_stay(lab: Stage) -> None:
    """Nova's delete_on_termination, after a move too; with their bytes."""
    lab.cli("server", "migrate", "mixed", "--confirm", "auto")
    server = lab.id_of("mixed")
    held = {each.volume for each in lab.lab.cloud.volumes.for_server(server)}
    lab.cli("lab", "server", "delete", "mixed")
    with contextlib.closing(sqlite3.connect(lab.lab.layout.services)) as services:
        left = {
            volume: status for volume, status in services.execute("SELECT id, status FROM volumes") if volume in held
        }
    assert list(left.values()) == ["available"]
    assert {path.name for path in lab.lab.layout.volumes.iterdir()} & held == set(left)
    assert leftovers.of(lab.lab, server) == []
    assert remains.of(lab.root, server) == []
    lab.assert_balanced()


def test_deleted_while_it_waits_it_is_confirmed_first(lab: Stage, server: str) -> None:
    """R0-24: the move was confirmed, so it is done."""
    lab.cli("server", "resize", server, "--flavor", "large")
    move = lab.move(server).id
    lab.cli("lab", "server", "delete", server)
    assert move_requests.read_move(lab.lab, move).state == "done"
    with lab.lab.cell_databases["cell1"].read() as session:
        status = session.scalar(sa.select(Migration.status).where(Migration.uuid == move))
    assert status == "confirmed"
    flows = [step.flow for step in lab.history(move)]
    assert list(dict.fromkeys(flows)) == ["resize", "confirm", "delete"]


def test_its_source_is_away_so_the_delete_waits(lab: Stage, server: str) -> None:
    """R0-24: not lost, shown as waiting, the source's copy untouched; at last nothing is left."""
    lab.cli("server", "resize", server, "--flavor", "large")
    move = lab.move(server).id
    lab.cli("lab", "worker", "stop", "host1")
    try:
        lab.cli("lab", "server", "delete", server, code=4)
        assert "host1" in lab.error
        assert f"droveway lab server delete {server}" in lab.error
        waiting = lab.json("move", "show", move)
        assert (waiting["state"], waiting["error"]) == ("verifying", None)
        assert "the worker of host host1 is away" in waiting["waits_for"]
        assert [row for row in lab.history(move) if row.flow == "confirm"] == []
        assert "is to be deleted" in waiting["next"]
        assert waiting["next"].endswith(f"then: droveway lab server delete {server}")
        # Nothing goes on by itself in a lab, so that each command says what to do.
        told = lab.cli("move", "resume", move)
        assert told.endswith(f"then: droveway lab server delete {server}\n")
        assert lab.server(server).task_state == TaskState.DELETING
        assert lab.directory("host1", server, "_resize").exists()
        assert "is being deleted" in lab.refused("server", "revert", server)
        lab.assert_balanced()
    finally:
        lab.cli("lab", "worker", "start", "host1")
    lab.cli("move", "resume")
    assert move_requests.read_move(lab.lab, move).state == "done"


def test_a_delete_that_was_parked_goes_on_when_asked_again(lab: Stage, server: str) -> None:
    with faults_cleared(lab) as arm:
        arm("remove_guest", "fail", count=99)
        lab.cli("lab", "server", "delete", server, code=4)
        parked = lab.move(server)
        assert (parked.kind, parked.state, parked.step) == ("delete", "needs-operator", "remove_guest")
        assert "is being deleted" in lab.refused("move", "cancel", parked.id)
        assert lab.held(lab.id_of(server)) != {}
        lab.assert_balanced()
    lab.cli("lab", "server", "delete", server)
    assert move_requests.read_move(lab.lab, parked.id).state == "done"


def test_a_move_that_was_undone_for_the_delete_is_cancelled(lab: Stage, server: str) -> None:
    """R1-32: nothing is given back to its server, the reason is kept, and the migration stays as evidence."""
    with faults_cleared(lab) as arm:
        arm("copy_disks", "fail", direction="revert", count=99)
        arm("fit_disks", "fail")
        lab.cli("server", "resize", server, "--flavor", "large", code=4)
        assert lab.move(server).state == "needs-operator"
    move, started = lab.move(server).id, lab.starts(server)
    lab.cli("lab", "server", "delete", server, code=4)
    assert lab.json("move", "show", move)["state"] == "needs-operator"
    with faults_cleared(lab) as arm:
        arm("disconnect_guest", "fail", count=99)
        lab.cli("lab", "server", "delete", server, code=4)
        undone = lab.standing(server)
        assert (undone.host, undone.directories, undone.defined) == ("host1", ["host1/ID"], ["host1"])
        assert (undone.held, lab.held(move)) == ({}, {})
        assert (undone.runs, undone.connected, lab.starts(server)) == ([], [], started)
        assert lab.server(server).task_state == TaskState.DELETING
        lab.assert_balanced()
    lab.cli("lab", "server", "delete", server)
    shown = lab.json("move", "show", move)
    assert (shown["state"], shown["error_code"], shown["error"]) == ("cancelled", "deleted", "the server was deleted")
    with lab.lab.cell_databases["cell1"].read() as session:
        status = session.scalar(sa.select(Migration.status).where(Migration.uuid == move))
    assert status == "error"


def test_a_server_that_nova_deletes_first_is_cleared_off_its_host(lab: Stage, server: str) -> None:
    """Its rows went before the flow had read where it is: the journal knows."""
    nova = Acts(lab, server)
    met: list[str] = []

    def meet(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("mark_deleting", "before") and not met:
            met.append(step)
            nova.delete_without_host()

    move = operations.request_delete(lab.lab, server)
    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error) == ("done", None)
    with lab.lab.cell_databases["cell1"].write() as session:
        # The host's tracker counts anew.
        usage.recompute(session, "host1")
