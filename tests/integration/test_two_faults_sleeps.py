"""Workers that sleep before their effects while others end the move, and wake then; and the judge of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.two_faults import sleeps

from droveway.errors import Fenced
from droveway.workers.context import Context

SAMPLE = [
    ("shared", "resize", "revert", "once"),
    ("apart", "migrate", "execute", "again"),
]
"""Every effect of these: those that sleep in one operation are run together."""

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


def test_every_step_has_a_conductor_that_sleeps_there() -> None:
    points = list(sleeps.points_of_conductors())
    assert len(points) == len(set(points))
    assert {tuple(each.split(":")[1:5]) for each in points} >= {
        (storage, kind, "execute", phase)
        for storage in sleeps.STORAGES
        for kind in ("resize", "migrate", "confirm", "revert")
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
