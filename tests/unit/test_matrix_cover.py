"""The fixed samples of the crash matrix leave no step and no kind of kill out; the whole matrix has what they leave.

The phases within a step are known only once it has run: here every step has the same ones.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proofs.crash import points as crash_points
from proofs.crash.points import Gaps, Point
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import command as matrix
from proofs.matrix import full as matrix_full
from support import crash_points as samples

from droveway.flows import registry
from droveway.flows.graph import Graph

WITHIN = ("posted", "call.1", "effect.source.1", "effect.destination.1")
FIRST = matrix_clouds.CLOUDS[0]


def gaps(graph: Graph, within: tuple[str, ...] = WITHIN) -> Gaps:
    ways = [(way, name) for way in crash_points.paths(graph) for name in crash_points.atoms(graph, way)]
    return {each: within for each in ways if (graph.kind, each[0]) not in samples.SILENT}


def bench(cloud: str) -> Any:
    """All that the choice of points asks of a bench."""
    return SimpleNamespace(
        gaps=lambda kind: gaps(registry.latest(kind)),
        alternates=len(list(matrix_clouds.spec(cloud).hosts())) > 2,
        worlds=lambda _kind: [],
    )


def chosen(words: tuple[str, ...]) -> list[str]:
    """The points that `tools/matrix` runs with these words."""
    first, *others = matrix._parse(list(words))
    return [str(point) for options in (first, *others) for point in matrix._wanted(bench(first.cloud), options)]


@pytest.mark.parametrize(("each_way", "most"), [(True, 250), (False, 150)])
@pytest.mark.parametrize("cloud", samples.SEEDS)
def test_each_sample_meets_every_step_and_every_kind_of_kill(cloud: str, most: int, *, each_way: bool) -> None:
    ran = chosen(samples.sample(cloud, each_way=each_way))
    assert samples.unmet(ran, alternates=bench(cloud).alternates, each_way=each_way) == []
    assert ran == chosen(samples.sample(cloud, each_way=each_way))
    assert len(ran) < most


def test_the_samples_of_the_clouds_are_not_the_same_points() -> None:
    first, second, third = (set(chosen(samples.sample(cloud))) for cloud in samples.SEEDS)
    assert len(first | second | third) > 1.5 * len(first)


def test_a_step_that_no_kill_meets_is_told() -> None:
    ran = chosen(samples.sample(FIRST))
    for graph in (each for each in registry.GRAPHS.values() if each.kind in samples.KINDS):
        for way in crash_points.paths(graph):
            for step in (*crash_points.atoms(graph, way), "end_of_flow"):
                left = [each for each in ran if not each.startswith(f"{graph.kind}:{way}:{step}:")]
                assert f"{graph.kind}@{graph.version}:{way}:{step}" in samples.unmet(left)


def test_a_step_that_no_kill_meets_on_any_way_is_told() -> None:
    ran = chosen(samples.sample(FIRST, each_way=False))
    for graph in (each for each in registry.GRAPHS.values() if each.kind in samples.KINDS):
        for step in (*graph.names(), "end_of_flow"):
            left = [each for each in ran if not (each.startswith(f"{graph.kind}:") and f":{step}:" in each)]
            assert f"{graph.kind}@{graph.version}:any way:{step}" in samples.unmet(left, each_way=False)


def test_a_kind_of_kill_and_all_else_that_never_comes_is_told() -> None:
    points = [crash_points.parse(each) for each in chosen(samples.sample(FIRST))]
    kinds = {(point.kind, point.path, point.first.effect, matrix._phase(point)) for point in points}
    for kind in kinds:
        left = [
            str(point) for point in points if (point.kind, point.path, point.first.effect, matrix._phase(point)) != kind
        ]
        assert ":".join(kind).replace("during", "within") in samples.unmet(left)


def test_a_point_beside_them_hardly_changes_who_is_chosen() -> None:
    graph = registry.latest("resize")
    before, after = (
        set(matrix._cover(list(crash_points.singles(graph, gaps(graph, within))), 1, each_way=True))
        for within in (WITHIN, (*WITHIN, "call.2"))
    )
    assert len(before & after) > 0.8 * len(before)


class Parts:
    """Stands in for the processes of a whole matrix, and notes which points each of them is to run."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str, Point]] = []

    def __call__(self, words: list[str], **_options: object) -> Parts:
        options, *others = matrix._parse(words[3:])
        assert not others
        self.ran += [(options.cloud, options.confirm, point) for point in matrix._wanted(bench(options.cloud), options)]
        told = json.dumps([options.cloud, options.confirm, "resize:execute:accept:kill:after", True, False, 0])
        options.report.write_text(told + "\n", encoding="utf-8")
        return self

    def wait(self) -> int:
        return 0


@pytest.fixture(name="full")
def fixture_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> collections.Counter[tuple[str, str]]:
    """How often a whole matrix runs each point of a cloud whose confirms are asked for."""
    parts = Parts()
    monkeypatch.setattr(matrix_full.subprocess, "Popen", parts)
    matrix_full.run(3, matrix_full.Choice(0), tmp_path / "page.rst")
    return collections.Counter((cloud, str(point)) for cloud, how, point in parts.ran if how == "asked")


def singles(cloud: str, kind: str) -> Iterator[str]:
    graph = registry.latest(kind)
    yield from map(str, crash_points.singles(graph, gaps(graph), alternates=bench(cloud).alternates))


def test_the_whole_matrix_runs_every_point_once(full: collections.Counter[tuple[str, str]]) -> None:
    """What the samples leave out is among them: all single faults of every cloud, all double ones of the first."""
    assert set(full.values()) == {1}
    every = {
        (cloud, point)
        for cloud in matrix_clouds.CLOUDS
        for kind in matrix_clouds.kinds_in(cloud)
        if kind != "migrate" or cloud == FIRST
        for point in singles(cloud, kind)
    }
    kinds = [kind for kind in matrix_clouds.kinds_in(FIRST) if kind != "migrate"]
    double = {(FIRST, str(point)) for kind in kinds for point in crash_points.pairs(registry.latest(kind))}
    assert every | double <= set(full)
    assert len(full) == len(every | double) + (len(matrix_clouds.CLOUDS) - 1) * matrix_full.PAIRS
    sampled = {(cloud, point) for cloud in samples.SEEDS for point in chosen(samples.sample(cloud))}
    assert sampled < every
    assert len(every) > 20 * len(sampled)
