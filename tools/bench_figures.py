"""Holds what the benchmarks share: costs, goals, their verdict, and the page and the plots of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import sqlite3
import tempfile
import timeit
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).resolve().parents[1]
WORK: Final = ROOT / ".venv"
"""The directory of the benchmarks' files, which is on a disk and not in memory."""

PAGE: Final = ROOT / "docs" / "benchmarks.rst"
FIGURES: Final = ROOT / "docs" / "data" / "benchmarks.json"
ORDER: Final = ("engine", "move", "cli", "calls", "copy", "wire", "daemons")
ROUNDS: Final = 10
COMMITS: Final = 20

HEAD: Final = """\
.. Written by tools/bench from docs/data/benchmarks.json: run  tools/bench NAME --write.

==========
Benchmarks
==========

Each benchmark runs what it compares in turns, so that the machine's moods hit all alike, and the shortest times count.
``tools/bench NAME`` measures anew, ends with 1 when a goal is missed, and with ``--write`` changes this page.
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Milliseconds by the clock and of the processor."""

    wall: float
    cpu: float

    def shorter(self, other: Cost) -> Cost:
        """Return the shorter of each time."""
        return Cost(min(self.wall, other.wall), min(self.cpu, other.cpu))


@dataclasses.dataclass(frozen=True)
class Goal:
    """A figure and its bound."""

    what: str
    figure: float
    bound: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Say whether the figure keeps to the bound."""
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound

    def __str__(self) -> str:
        word = "at most" if self.at_most else "at least"
        return f"{self.what}: {self.figure:.2f} ({word} {self.bound:g})"


@dataclasses.dataclass(frozen=True)
class Bench:
    """The results of one benchmark."""

    name: str
    title: str
    text: str
    head: list[str]
    rows: list[list[str]]
    goals: list[Goal]
    bars: list[tuple[str, float]]
    """The bars of the plot."""
    unit: str
    """The unit of the bars."""
    machine: str = ""
    """The kind of machine that it ran on."""


def at_most(what: str, figure: float, bound: float) -> Goal:
    """Return a goal that a larger figure misses."""
    return Goal(what, figure, bound, at_most=True)


def at_least(what: str, figure: float, bound: float) -> Goal:
    """Return a goal that a smaller figure misses."""
    return Goal(what, figure, bound, at_most=False)


def report(bench: Bench, *, write: bool) -> int:
    """Print the figures and the verdict, and with ``write`` the page; 1 when a goal is missed."""
    print(table(bench.head, bench.rows))
    for goal in bench.goals:
        print(f"{'ok    ' if goal.met else 'MISSED'}  {goal}")
    missed = sum(not goal.met for goal in bench.goals)
    bench = dataclasses.replace(bench, machine=machine())
    print(f"measured on {bench.machine}")
    print(f"bench {bench.name}: {len(bench.goals)} goals, {missed} missed")
    if write:
        write_page(bench)
    return min(missed, 1)


def write_page(bench: Bench) -> None:
    """Write the benchmark in place of its last run."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    known[bench.name] = dataclasses.asdict(bench)
    found = {name: known[name] for name in ORDER if name in known}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page([read(data) for data in found.values()]), encoding="utf-8")
    PAGE.with_name(f"benchmark-{bench.name}.svg").write_text(plot(bench.bars, bench.unit), encoding="utf-8")


def read(data: dict[str, Any]) -> Bench:
    """Read a benchmark that `write_page` stored."""
    return Bench(**(data | {"goals": [Goal(**goal) for goal in data["goals"]]}))


def page(benches: list[Bench]) -> str:
    """Return the page of all benchmarks."""
    return "\n".join([HEAD, *(section(bench) for bench in benches)])


def section(bench: Bench) -> str:
    """Return one benchmark as a section of the page."""
    goals = "\n".join(f"* {goal}: {'met' if goal.met else '**missed**'}" for goal in bench.goals)
    picture = f".. image:: benchmark-{bench.name}.svg\n   :alt: {bench.title}, {bench.unit}"
    underline = "=" * len(bench.title)
    parts = [
        f"{bench.title}\n{underline}",
        bench.text,
        table(bench.head, bench.rows),
        picture,
        f"Goals:\n\n{goals}",
        f"Measured on {bench.machine}.",
    ]
    return "\n\n".join(parts) + "\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table for the terminal and for the page."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = "  ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip()
    return "\n".join([rule, title, rule, *lines, rule])


def plot(bars: list[tuple[str, float]], unit: str) -> str:
    """Return horizontal bars as SVG."""
    step, left, width = 28, 240, 420
    longest = max(value for _, value in bars)
    height = step * len(bars) + 30
    box = f"0 0 {left + width + 90} {height}"
    font = 'font-family="sans-serif" font-size="14"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" {font}>']
    for number, (name, value) in enumerate(bars):
        middle, length = 10 + step * number, max(1.0, width * value / longest)
        colour = "#1f6f8b" if number == 0 else "#99a8b2"
        lines += [
            f'<text x="{left - 8}" y="{middle + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{middle}" width="{length:.1f}" height="18" fill="{colour}"/>',
            f'<text x="{left + length + 6:.1f}" y="{middle + 14}">{value:.3g}</text>',
        ]
    lines += [f'<text x="{left}" y="{height - 6}" font-size="12">{escape(unit)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the kind of machine, without its name or a path, and how fast it is now."""
    return (
        f"{os.cpu_count()} processors ({platform.machine()}), {platform.system()}, Python {platform.python_version()}, "
        f"when a million turns of an empty loop took {_loop():.0f} ms and a synced commit of SQLite {_commit():.2f} ms"
    )


def _loop() -> float:
    """Return the milliseconds of the shortest of several empty loops."""
    return min(timeit.repeat("for _ in range(1_000_000): pass", number=1, repeat=ROUNDS)) * 1000


def _commit() -> float:
    """Return the milliseconds of the shortest of several commits."""
    with (
        tempfile.TemporaryDirectory(dir=WORK) as folder,
        contextlib.closing(sqlite3.connect(Path(folder, "x"))) as file,
    ):
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE x (y)"):
            file.execute(statement)

        def commit() -> None:
            with file:
                file.execute("INSERT INTO x VALUES (1)")

        return min(timeit.repeat(commit, number=COMMITS, repeat=ROUNDS)) * 1000 / COMMITS
