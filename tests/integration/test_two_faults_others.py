"""What Nova and its users do in the middle of a move: a fixed sample of the points, and a judge that can say no."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.two_faults import command, others, world
from support.two_faults.others import Bench, Planted, Point

SAMPLE = 80
SEED = 16


@pytest.fixture(scope="module", name="bench")
def fixture_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("others")) as made:
        yield made


def test_a_sample_of_the_points_holds(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    chosen = command.sample(others.points(), SAMPLE, SEED)
    verdicts = list(others.run(tmp_path, chosen))
    bad = [f"{verdict.point}: {verdict.trouble}" for verdict in verdicts if verdict.trouble]
    record_property("two faults", (others.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert bad == []


def test_there_are_enough_points_and_each_names_itself() -> None:
    points = others.points()
    assert len(points) == len(set(points)) > 500
    assert [str(Point.parse(text)) for text in points] == points
    assert {Point.parse(text).act for text in points} == {*others.ACTS}


@pytest.mark.parametrize(
    ("act", "state", "word"),
    [
        ("stop", others.VERIFYING, "check_instance_state"),
        ("attach-port", others.VERIFYING, "check_instance_state"),
        ("evacuate", others.VERIFYING, "check_instance_state"),
        ("attach", others.State(task_state="resize_migrated"), "check_instance_state"),
        ("revert", dataclasses.replace(others.VERIFYING, migration="confirming"), "get_by_instance_and_status"),
        ("evacuate", others.State(task_state="resize_migrated"), ""),
        ("delete", others.State(task_state="resize_finish"), ""),
        ("reset-error", others.VERIFYING, ""),
    ],
)
def test_what_novas_api_refuses_is_no_point(act: str, state: others.State, word: str) -> None:
    told = others.refused(act, state)
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
    bench.lab.lab.hypervisor(others.REFUGE).stop(bench.server, grace=0.0, fence=lambda: None)
    assert "where it runs" in planted.judge(bench.watch)
