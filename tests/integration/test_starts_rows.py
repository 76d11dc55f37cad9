"""A guest is started only where its server's rows say that it is still this move's: Nova's evacuation wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import StepError
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import Instance, Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""

Change = Callable[[Stage, str], None]


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 0\n")
        yield made


def change(lab: Stage, **columns: str | None) -> None:
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == lab.id_of("web")).values(**columns))


def evacuate(lab: Stage, status: str) -> None:
    """What Nova writes of an evacuation to host3: its migration, and for one that is done the server's new host."""
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(
            Migration(
                uuid="4f6f1f2e-0000-4000-8000-000000000001",
                instance_uuid=lab.id_of("web"),
                migration_type="evacuation",
                status=status,
                source_compute="host1",
                dest_compute="host3",
                deleted=0,
            )
        )
    if status == "done":
        change(lab, host="host3", node="host3", task_state=None, vm_state="active")


def accepted(lab: Stage, _move: str) -> None:
    evacuate(lab, "accepted")


def done(lab: Stage, _move: str) -> None:
    evacuate(lab, "done")


def rebuilding(lab: Stage, _move: str) -> None:
    change(lab, task_state="rebuild_spawning")


def elsewhere(lab: Stage, _move: str) -> None:
    change(lab, host="host3", node="host3")


def reset(lab: Stage, _move: str) -> None:
    change(lab, task_state=None)


def carry(lab: Stage, move: str, step: str, direction: str, does: Change, *, fails: str = "") -> Move:
    """Carry the move on with ``does`` before that step; the step ``fails``, for an undo."""
    done: list[str] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, direction, "before") and not done:
            done.append(at)
            does(lab, move)
        if fails and (at, way, phase) == (fails, "execute", "before"):
            raise StepError("it fails", code="test")

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    assert done
    return move_requests.read_move(lab.lab, move)


CHANGES = [
    (accepted, "evacuated"),
    (done, "evacuated"),
    (rebuilding, "evacuated"),
    (elsewhere, "not-this-moves"),
    (reset, "not-this-moves"),
]

RESTS = {"evacuated": "cancelled", "not-this-moves": "needs-operator"}
"""What the move comes to: one whose server Nova has evacuated ends by itself."""


@pytest.mark.parametrize(("does", "code"), CHANGES)
def test_a_forward_move_starts_no_server_that_is_not_its_own_any_more(lab: Stage, does: Change, code: str) -> None:
    before = lab.starts("web")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    ended = carry(lab, move, "start_guest", "execute", does)
    assert (ended.state, ended.error_code) == (RESTS[code], code)
    assert lab.starts("web") == before


@pytest.mark.parametrize(("does", "code"), CHANGES)
def test_an_undo_starts_no_server_that_is_not_its_own_any_more(lab: Stage, does: Change, code: str) -> None:
    before = lab.starts("web")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    ended = carry(lab, move, "stop_guest", "revert", does, fails="define_guest")
    assert (ended.state, ended.error_code) == (RESTS[code], code)
    assert lab.starts("web") == before


@pytest.mark.parametrize(("step", "direction"), [("start_guest", "execute"), ("stop_guest", "revert")])
def test_a_revert_starts_no_server_that_is_not_its_own_any_more(lab: Stage, step: str, direction: str) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    before = lab.starts("web")
    move_requests.file_request(lab.lab, move, move_requests.revert)
    fails = "prepare_source_guest" if direction == "revert" else ""
    ended = carry(lab, move, step, direction, accepted, fails=fails)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert lab.starts("web") == before


def test_a_server_that_is_being_deleted_is_not_started_any_more(lab: Stage) -> None:
    before = lab.starts("web")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    carry(lab, move, "start_guest", "execute", lambda lab, _: change(lab, task_state="deleting"))
    assert lab.starts("web") == before
