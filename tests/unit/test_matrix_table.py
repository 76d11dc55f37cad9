"""The page of a whole crash matrix counts every point once; points that cannot be chosen together are refused."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest
from proofs.crash import points as crash_points
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import command as matrix
from proofs.matrix import full as matrix_full
from proofs.matrix import table as matrix_table
from proofs.matrix.table import ReportedPoint

from droveway.flows import registry


def test_the_page_counts_each_point_in_its_cell() -> None:
    told = [
        ReportedPoint("three-hosts", "asked", "resize:execute:claim:kill:before", True, False),
        ReportedPoint("three-hosts", "asked", "resize:execute:claim:kill:call.1", True, True),
        ReportedPoint("three-hosts", "asked", "resize:revert:claim:kill:before", False, False),
        ReportedPoint("one-host", "deleted", "confirm:execute:check_source:worker:effect.source.1", True, True),
    ]
    text = matrix_table.page(told, states=3, seed=7)
    assert "``crash matrix: 4 points, 3 converged, 1 leaks``" in text
    assert "2 of them met a state" in text
    assert "3 distinct end states" in text
    assert "seed 7" in text
    table = text.partition("   :header-rows: 1\n\n")[2]
    rows = [[cell.strip() for cell in row.split(",")] for row in table.splitlines()]
    assert rows[0][:2] == ["cloud", "flow"]
    assert rows[1][:4] == ["three-hosts", "resize", "1/2", "1/1"]
    assert rows[2][:2] == ["one-host", "confirm (deleted)"]
    assert rows[2].count("1/1") == 1
    assert len(rows) == 3
    assert {len(row) for row in rows} == {2 + len(matrix_table.COLUMNS)}


@pytest.mark.parametrize(
    ("path", "clouds", "command"),
    [
        (matrix_full.PAGE, matrix_clouds.CLOUDS, "tools/matrix --full"),
        (matrix_full.BETWEEN_PAGE, matrix_clouds.BETWEEN, "tools/matrix --full --between"),
        (matrix_full.SHELVING_PAGE, matrix_clouds.SHELVING, "tools/matrix --full --shelving"),
        (matrix_full.PORTS_PAGE, matrix_clouds.GUARANTEED, "tools/matrix --full --ports"),
    ],
)
def test_the_page_is_of_the_graphs_that_there_are(path: Path, clouds: tuple[str, ...], command: str) -> None:
    """A graph that has changed since is run by `tools/matrix --full` before it is published: until then it is older."""
    page = path.read_text(encoding="utf-8")
    wanted = {kind for cloud in clouds for kind in matrix_clouds.kinds_in(cloud)}
    kinds = [kind for kind in registry.kinds() if kind in wanted]
    ran = re.findall(r"^- (``(\w+)@\d+`` \w+)$", page, re.MULTILINE)
    other = {graph for graph, _ in ran} - {matrix_table.named(graph) for graph in registry.GRAPHS.values()}
    missing = set(kinds) - {kind for _, kind in ran}
    then = f"run {command}, which writes the page anew"
    assert not other, f"{path.name} is of graphs that are no more: {', '.join(sorted(other))}; {then}"
    assert not missing, f"{path.name} knows nothing of {', '.join(sorted(missing))}: {then}"
    assert [kind for _, kind in ran] == kinds, then


def test_every_kind_runs_in_some_cloud_and_each_has_a_graph_of_its_own() -> None:
    ran = {kind for cloud in matrix_clouds.ALL for kind in matrix_clouds.kinds_in(cloud)}
    assert ran == set(registry.kinds())
    assert len({each.split()[1] for each in matrix_table.graphs()}) == len(registry.kinds())


def test_some_of_each_has_every_pair_of_a_way_and_a_thing_that_happens() -> None:
    graph = registry.latest("resize")
    every = list(crash_points.singles(graph, {("execute", "claim"): ["call.1", "call.2"]}))
    some, same, other = (matrix._some_of_each(every, 2, seed) for seed in (1, 1, 2))
    pairs = collections.Counter((point.path, point.first.effect, matrix._phase(point)) for point in some)
    assert set(pairs) == {(point.path, point.first.effect, matrix._phase(point)) for point in every}
    assert set(pairs.values()) <= {1, 2}
    assert pairs["execute", "kill", "before"] == 2
    assert some == same
    assert some != other
    assert some == [point for point in every if point in some]


@pytest.mark.parametrize("kind", registry.kinds())
def test_every_point_has_a_column(kind: str) -> None:
    graph = registry.latest(kind)
    gaps = {("execute", name): ["effect.source.1", "call.1", "posted"] for name in graph.names()}
    bad = [crash_points.point(kind, "execute", name, "bad", "unbound") for name in graph.names()]
    every = [*crash_points.singles(graph, gaps), *crash_points.pairs(graph), *bad]
    assert {matrix_table.column(point) for point in every} <= set(matrix_table.COLUMNS)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--full", "--and", "--kind", "delete"], "--full runs every point"),
        (["--full", "--cover"], "leave --cover and --each out"),
        (["--full", "--each", "1"], "leave --cover and --each out"),
        (["--kind", "delete", "--and", "--cloud", "shared"], "unrecognized arguments: --cloud"),
    ],
)
def test_what_cannot_be_chosen_together_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        matrix.main(words)
    assert left.value.code == 2
    assert why in capsys.readouterr().err
