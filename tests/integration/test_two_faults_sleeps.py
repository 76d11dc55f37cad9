"""Workers that sleep before their effects while others end the move, and wake then; and the judge of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.two_faults import conductor_sleeps, sleeps, storages

from droveway.clients import send_guard
from droveway.errors import Fenced
from droveway.flows.steps.records import forward
from droveway.workers.context import Context

SAMPLE = [
    ("shared", "resize", "revert", "once"),
    ("apart", "migrate", "execute", "again"),
    ("elsewhere", "cross_cell_revert_elsewhere", "execute", "once"),
    ("shelf", "shelve", "revert", "once"),
    ("shelf-cells", "cross_cell_unshelve", "execute", "again"),
]
"""Every effect of these: those that sleep in one operation are run together."""

WRITERS = [
    ("apart", "resize", "execute", "again"),
    ("shared", "confirm", "execute", "once"),
    ("cells", "cross_cell_resize", "execute", "again"),
    ("shelf", "shelve", "execute", "again"),
    ("shelf-cells", "cross_cell_unshelve", "revert", "once"),
]
"""Of each kind of write of these the first."""
SPEC = "execute.save_request_spec.api-begin.1"
RELEASE = "execute.release_allocation.placement-POST.1"
LATE = [
    "execute.create_images.image-POST.1",
    "execute.reserve_volumes.volume-POST.1",
    "execute.unbind_ports.network-PUT.1",
    RELEASE,
]
"""Calls of a shelve, one to each service."""

CHUNK = "host2.copy_disks.execute.chunk"
PROBE = "host2.check_destination.execute.probe"


def test_who_slept_changes_nothing_that_others_left(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = [each for words in SAMPLE for each in sleeps.points_of_workers(tmp_path / "-".join(words), *words)]
    verdicts = list(sleeps.run(tmp_path, points))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (sleeps.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert bad == []
    assert {each.point for each in verdicts} == set(points)
    assert len(points) >= 60


@pytest.mark.timeout(900)
def test_a_conductor_that_slept_right_before_a_write_makes_none(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Calls to services too, which compare nothing with the claim: it is looked at right before each."""
    points = []
    for words in WRITERS:
        with conductor_sleeps.bench(tmp_path / "-".join(words), words[0]) as made:
            places = conductor_sleeps.one_of_each(made.writes(*words[1:3]))
        points += [":".join([conductor_sleeps.WHO, *words, place]) for place in places]
    verdicts = list(sleeps.run(tmp_path, points))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (sleeps.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert bad == []
    assert sorted(each.point for each in verdicts) == sorted(points)
    assert len(points) >= 15
    assert {point.split(".")[-2].split("-")[0] for point in points} >= {
        *("journal", "cell1", "cell2", "api", "zookeeper", "network", "volume", "image", "placement")
    }


def test_a_conductor_that_writes_without_its_claim_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes anew has been taken back by the revert that followed."""
    monkeypatch.setattr(forward, "api_rows", lambda ctx: ctx.run.api.write())
    with conductor_sleeps.bench(tmp_path / "bench", "apart") as made:
        assert "request_specs" in made.awake("resize", "execute", "again", [SPEC])[SPEC]


def test_a_call_that_is_late_all_the_same_is_named_by_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let its sender sleep between the look at its claim and the call, while the server is unshelved."""
    monkeypatch.setattr(send_guard, "ask", lambda: None)
    with conductor_sleeps.bench(tmp_path / "bench", "shelf") as made:
        assert made.awake("shelve", "execute", "again", LATE, late=True) == dict.fromkeys(LATE, "")
        assert "placement.sqlite:allocations" in made.awake("shelve", "execute", "again", [RELEASE])[RELEASE]


def test_a_write_that_nobody_makes_is_told(tmp_path: Path) -> None:
    with conductor_sleeps.bench(tmp_path / "bench", "apart") as made:
        assert made.awake("resize", "execute", "once", ["execute.sing.api-begin.1"]) == {
            "execute.sing.api-begin.1": conductor_sleeps.NEVER
        }


def test_every_step_has_a_conductor_that_sleeps_there() -> None:
    points = list(sleeps.points_of_conductors())
    assert len(points) == len(set(points))
    assert {tuple(each.split(":")[1:5]) for each in points} >= {
        (storage, kind, "execute", phase)
        for storage in storages.STORAGES
        for kind, _ in storages.ways(storage)
        for phase in sleeps.PHASES
    }


def told(folder: Path, *places: str) -> dict[str, str]:
    with sleeps.bench(folder, "apart") as made:
        return made.awake("resize", "execute", "once", places)


def test_a_place_where_nobody_comes_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, "host2.sing.execute.loudly") == {"host2.sing.execute.loudly": "it never came there"}


def test_a_worker_that_does_not_look_whether_it_slept_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "_fence_if_slept", lambda _context: None)
    found = told(tmp_path, PROBE, CHUNK)
    assert ".droveway-probe-" in found[PROBE]
    assert "/disk: " in found[CHUNK]


def test_a_file_that_changes_when_somebody_wakes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scribble(context: Context) -> None:
        if context.host.coordination.session != context._session:
            context.directories.path("scribble").touch()
            raise Fenced("it slept")

    monkeypatch.setattr(Context, "_fence_if_slept", scribble)
    assert "hosts/host2/instances/scribble: None -> " in told(tmp_path, PROBE)[PROBE]
