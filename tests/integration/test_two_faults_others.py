"""What Nova and its users do in the middle of a move: a fixed sample of the points, and a judge that can say no."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.two_faults import command, other_points, others, world
from support.two_faults.other_points import Point
from support.two_faults.others import Bench, Planted

from droveway.flows import registry

SAMPLE = {
    "execute": 5,
    "revert": 4,
    "during": 3,
    "parked": 2,
    "rest": 2,
    "after": 2,
    "paused": 1,
    "ended": 1,
    "waiting": 1,
}
"""So many points of each kind."""
OF_OTHERS = 1
"""So many of each operation between cells, of each that brings a server to no host or back, and to another host."""
SEED = 16
FOUND = (
    "migrate:during-revert.start_guest:delete-port:apart-stopped",
    "migrate:during-revert.release_source:delete-port:shared",
    "resize:during-execute.stop_guest:evacuate:shared-stopped",
    "migrate:during-execute.define_guest:delete-port:apart-stopped",
    "revert:during-execute.prepare_source_guest:delete-port:shared-stopped",
    "resize:execute.mark_migrating:reset-stop",
    "revert:parked-revert.move_volumes:reset-stop",
    "cross_cell_resize:execute.start_guest:late-delete:cells",
    "cross_cell_revert:during-execute.start_guest:delete-local:cells-stopped",
    "cross_cell_confirm:during-execute.discard_source:delete-local:cells-stopped",
    "cross_cell_migrate:execute.switch_mapping:evacuate:cells",
    "cross_cell_resize:execute.start_guest:evacuate:cells",
    "cross_cell_resize:after-execute.delete_images:reset-stop:cells",
    "cross_cell_revert:execute.stop_guest:reset-stop:cells",
    "unshelve:execute.delete_images:delete:shared",
    "unshelve:execute.finish_records:reset-stop:shared",
    "shelve:execute.settle_records:reset-error",
    "cross_cell_unshelve:execute.carry_late_writes:delete:cells",
    "cross_cell_unshelve:revert.switch_mapping:reset-active:cells",
    "unshelve:execute.start_guest:reset-stop:shared",
    "cross_cell_unshelve:paused.switch_mapping:reset-stop:cells",
    "cross_cell_revert:execute.carry_late_writes:delete:cells",
    "cross_cell_revert_elsewhere:after-revert.carry_late_writes:delete-local:elsewhere",
    "cross_cell_revert_elsewhere:execute.copy_disks:reset-evacuate:elsewhere",
)
"""Points that did not hold once.

A guest that stays off kept a port that was gone; a host plugged one that went meanwhile; the disks of the guest that
Nova had built on shared storage were set aside; a guest was started that its user had stopped behind a reset state; a
delete that had read the mapping before the move switched it left a move that no command could end; a confirm or revert
whose server was deleted past its point of no return took the copy that was to go for the only one; one whose user had
stopped it behind a reset state had another vm_state in each cell, and no step took the older one; the rows of a server
that Nova had evacuated stayed in the other cell; an unshelve asked the host of a server that was deleted for its disks,
or kept the copy of one for the last, and one whose user had stopped the server did not end; a shelve whose server's
state was reset once its disks were gone took that for a database that was put back; the undo of an unshelve in another
cell could not hide a copy whose state was reset; no retry ended an unshelve whose server's state was reset before its
start; the rows that a user had deleted between the switch of a revert and its undo were taken for those of another one.
A revert to another host that Nova's evacuation ended left the server's ports bound on that host.
"""


def chosen() -> list[str]:
    """The fixed sample."""
    every = [Point.parse(text) for text in other_points.points()]
    sample: list[str] = []
    for kind, count in SAMPLE.items():
        found = [str(point) for point in every if point.kind == kind and point.operation in other_points.OPERATIONS]
        sample += command.sample(found, count, SEED)
    for operation in (*other_points.CROSSING, *other_points.SHELVING, other_points.BACK_ELSEWHERE):
        found = [str(point) for point in every if point.operation == operation]
        sample += command.sample(found, OF_OTHERS, SEED)
    return list(dict.fromkeys([*sample, *FOUND]))


@pytest.fixture(scope="module", name="bench")
def fixture_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("others")) as made:
        yield made


@pytest.mark.timeout(900)
def test_a_sample_of_the_points_holds(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    verdicts = list(others.run(tmp_path, chosen()))
    bad = [f"{verdict.point}: {verdict.trouble}" for verdict in verdicts if verdict.trouble]
    record_property("two faults", (others.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert bad == []


def test_there_are_enough_points_and_each_names_itself() -> None:
    points = other_points.points()
    assert len(points) == len(set(points)) > 5000
    assert [str(Point.parse(text)) for text in points] == points
    assert {Point.parse(text).act for text in points} == {*other_points.ACTS}


def test_each_way_of_being_in_a_move_and_each_world_is_met() -> None:
    """In the sample too; and every step of every flow is met in each direction that it has."""
    every, few = ([Point.parse(text) for text in found] for found in (other_points.points(), chosen()))
    assert {*FOUND} <= {*map(str, every)}
    assert {point.kind for point in every} == {point.kind for point in few} == {*SAMPLE}
    assert {point.world for point in every} == {point.world for point in few} == {*other_points.WORLDS}
    assert {point.operation for point in few} == {*other_points.EVERY}
    for operation in other_points.EVERY:
        steps = {step.step_name() for step in registry.latest(operation).walk()}
        met = {point.at for point in every if (point.operation, point.way) == (operation, "execute")}
        undone = {point.at for point in every if (point.operation, point.way) == (operation, "revert")}
        assert (met, undone) == ({*steps, other_points.END}, {*other_points.undone(operation), other_points.END})


@pytest.mark.parametrize(
    ("act", "state", "word"),
    [
        ("stop", other_points.VERIFYING, "check_instance_state"),
        ("attach-port", other_points.VERIFYING, "check_instance_state"),
        ("evacuate", other_points.VERIFYING, "check_instance_state"),
        ("attach", other_points.State(task_state="resize_migrated"), "check_instance_state"),
        ("revert", dataclasses.replace(other_points.VERIFYING, migration="confirming"), "get_by_instance_and_status"),
        ("evacuate", other_points.State(task_state="resize_migrated"), ""),
        ("delete", other_points.State(task_state="resize_finish"), ""),
        ("reset-error", other_points.VERIFYING, ""),
    ],
)
def test_what_novas_api_refuses_is_no_point(act: str, state: other_points.State, word: str) -> None:
    told = other_points.refused(act, state)
    assert word in told
    assert bool(word) == bool(told)


BROKEN: dict[str, Callable[[Bench], None]] = {
    "changed": lambda bench: bench.nova.write("UPDATE instances SET locked = 0 WHERE uuid = ?", bench.server),
    "power_state": lambda bench: bench.lab.lab.hypervisor("host2").stop(bench.server, grace=0.0, fence=lambda: None),
    "has the ports": lambda bench: next(
        (bench.lab.root / "hosts" / "host2" / "vifs" / bench.server).glob("*.json")
    ).unlink(),
    "no whole copy": lambda bench: _zero(bench.lab.root, bench.server),
    "neighbour": lambda bench: bench.nova.write("UPDATE instances SET task_state = 'x' WHERE display_name = 'near'"),
}


def _zero(root: Path, server: str) -> None:
    for folder in world.folders(root, server):
        for path in folder.glob("disk"):
            with path.open("r+b") as file:
                file.seek(world.BLOCK * 16)
                file.write(bytes(256))


@pytest.mark.parametrize("told", [*BROKEN])
def test_a_world_that_was_broken_by_hand_is_rejected(bench: Bench, told: str) -> None:
    """The server was locked and confirmed; then something is not as it has to be."""
    planted = bench.carry(Point("resize", "rest", "confirm", "lock"))
    assert isinstance(planted, Planted)
    assert planted.judge(bench.watch) == ""
    BROKEN[told](bench)
    assert told in planted.judge(bench.watch)


def test_a_server_that_was_evacuated_and_touched_since_is_rejected(bench: Bench) -> None:
    planted = bench.carry(Point("resize", "execute", "copy_disks", "evacuate"))
    assert isinstance(planted, Planted)
    assert planted.judge(bench.watch) == ""
    bench.lab.lab.hypervisor(bench.nova.refuge).stop(bench.server, grace=0.0, fence=lambda: None)
    assert "where it runs" in planted.judge(bench.watch)
