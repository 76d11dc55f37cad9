"""The benchmarks' figures: goals, verdict, table, page and plot."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def load(name: str) -> Any:
    spec = spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="figures", scope="module")
def fixture_figures() -> Any:
    return load("bench_figures")


def bench(figures: Any, *, step: float = 2.0) -> Any:
    return figures.Bench(
        name="engine",
        title="Steps",
        text="What was measured.",
        head=["engine", "ms"],
        rows=[["ours", f"{step}"], ["another", "20.0"]],
        goals=[figures.at_most("a step, ms", step, 2.5), figures.at_least("times the other", 20.0 / step, 10.0)],
        bars=[("ours", step), ("a < b", 20.0)],
        unit="ms a step",
        machine="2 processors",
    )


def test_a_goal_is_met_up_to_its_bound(figures: Any) -> None:
    assert [figures.at_most("x", figure, 2.5).met for figure in (2.4, 2.5, 2.6)] == [True, True, False]
    assert [figures.at_least("x", figure, 10).met for figure in (9.9, 10, 10.1)] == [False, True, True]


def test_the_shorter_cost_is_the_shorter_of_each(figures: Any) -> None:
    assert figures.Cost(3.0, 1.0).shorter(figures.Cost(2.0, 1.5)) == figures.Cost(2.0, 1.0)


def test_the_verdict_counts_what_was_missed(figures: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.report(bench(figures), write=False) == 0
    *_, speed, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "bench engine: 2 goals, 0 missed"
    found = re.search(r"empty loop took (\d+) ms and a synced commit of SQLite ([\d.]+) ms", speed)
    assert found is not None
    assert all(float(figure) > 0 for figure in found.groups())
    assert figures.report(bench(figures, step=4.0), write=False) == 1
    out = capsys.readouterr().out
    assert "MISSED  a step, ms: 4.00 (at most 2.5)" in out
    assert out.splitlines()[-1] == "bench engine: 2 goals, 2 missed"


def test_a_table_is_as_wide_as_its_widest_cells(figures: Any) -> None:
    assert figures.table(["a", "long"], [["wide", "1"], ["b", "2"]]).splitlines() == [
        "====  ====",
        "a     long",
        "====  ====",
        "wide  1",
        "b     2",
        "====  ====",
    ]


def test_the_page_keeps_the_other_benchmarks(figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PAGE", tmp_path / "benchmarks.rst")
    monkeypatch.setattr(figures, "FIGURES", tmp_path / "benchmarks.json")
    figures.write_page(bench(figures))
    other = figures.dataclasses.replace(bench(figures, step=4.0), name="copy", title="Copies")
    figures.write_page(other)
    figures.write_page(bench(figures, step=1.0))
    text = (tmp_path / "benchmarks.rst").read_text()
    assert text.index("Steps\n=====\n") < text.index("Copies\n======\n")
    assert "* a step, ms: 1.00 (at most 2.5): met" in text
    assert "* a step, ms: 4.00 (at most 2.5): **missed**" in text
    assert text.count("Measured on 2 processors.") == 2
    assert {path.name for path in tmp_path.glob("*.svg")} == {"benchmark-engine.svg", "benchmark-copy.svg"}


def test_the_longest_bar_fills_the_plot(figures: Any) -> None:
    root = ET.fromstring(figures.plot([("ours", 5.0), ("a < b", 20.0)], "ms"))
    space = "{http://www.w3.org/2000/svg}"
    assert [float(bar.get("width", "0")) for bar in root.iter(f"{space}rect")] == [105.0, 420.0]
    assert [text.text for text in root.iter(f"{space}text")] == ["ours", "5", "a < b", "20", "ms"]


def test_the_written_page_is_made_of_its_figures(figures: Any) -> None:
    found = figures.json.loads(figures.FIGURES.read_text())
    assert figures.page([figures.read(data) for data in found.values()]) == figures.PAGE.read_text()
    assert list(found) == [name for name in figures.ORDER if name in found]


def test_each_benchmark_is_offered_by_the_tool(figures: Any) -> None:
    script = (TOOLS / "bench").read_text()
    names = {path.stem.removeprefix("bench_") for path in TOOLS.glob("bench_*.py")} - {"cost", "figures"}
    assert names == set(figures.ORDER)
    for name in names:
        assert f"tools/bench {name} " in script
