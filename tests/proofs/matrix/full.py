"""The whole crash matrix: every point of every cloud, by several processes, and the page that tells of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from proofs.crash.bench import HOWS
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import table as matrix_table
from proofs.matrix.table import ReportedPoint

from droveway.errors import DrovewayError
from droveway.flows import registry
from droveway.persistence.journal import kinds

TESTS: Final = Path(__file__).resolve().parents[2]
PAGE: Final = TESTS.parent / "docs" / "crash-matrix.rst"
BETWEEN_PAGE: Final = TESTS.parent / "docs" / "crash-matrix-cells.rst"
SHELVING_PAGE: Final = TESTS.parent / "docs" / "crash-matrix-shelving.rst"
PORTS_PAGE: Final = TESTS.parent / "docs" / "crash-matrix-ports.rst"

_GOING: Final = ".going"
"""Ends the name of a report whose part is being run, or was when its run ended."""

PAIRS: Final = 75
"""Double faults that are chosen for each cloud; the first cloud has all of them."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which points, and how far."""

    seed: int
    """Of the double faults that are chosen, and of ``sample``."""
    sample: int | None = None
    """So many points of each part of it; None: all of them."""
    whole: bool = False
    """Each point is run to its end, whatever states it meets."""

    def words(self) -> list[str]:
        """The options of each part."""
        few = [] if self.sample is None else ["--sample", str(self.sample), "--seed", str(self.seed)]
        return [*few, *(["--whole"] if self.whole else [])]

    def __str__(self) -> str:
        return f"seed-{self.seed}-sample-{self.sample or 'all'}{'-whole' if self.whole else ''}"


def run(
    jobs: int,
    choice: Choice,
    page: Path,
    reports: Path | None = None,
    clouds: Sequence[str] = matrix_clouds.CLOUDS,
) -> int:
    """Run it, or what is chosen of it, in these clouds and write the page; 0 when every point converged.

    Parts that ``reports`` has from an earlier run of the same ``jobs`` and ``choice`` are not run again; that the code
    is the same, whoever names it has to know.
    """
    with contextlib.ExitStack() as stack:
        folder = reports or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="droveway-matrix-")))
        # Of another division or choice of the points no part may be taken for one of these.
        kept = folder / f"{clouds[0]}-jobs-{jobs}-{choice}"
        kept.mkdir(parents=True, exist_ok=True)
        for number, cloud in enumerate(clouds):
            chosen = ["--sample", str(PAIRS // jobs), "--seed", str(choice.seed)] if number else []
            lots = [_kinds(cloud, once=number > 0), [*_kinds(cloud, once=True), "--pairs", *chosen]]
            confirms = [kind for kind in matrix_clouds.kinds_in(cloud) if kinds.of(kind).ends == kinds.Way.CONFIRM]
            lots += [["--kind", *confirms, "--confirm", how] for how in HOWS[1:] if confirms]
            for lot, words in enumerate(lots):
                _together(kept / f"{cloud}-{lot}", jobs, ["--cloud", cloud, *words, *choice.words()])
        told, states = _read(kept)
    matrix_table.write(
        page, matrix_table.page(told, states=states, seed=choice.seed, clouds=clouds, sample=choice.sample)
    )
    bad = sum(not each.converged for each in told)
    sys.stdout.write(f"seed {choice.seed}; {states} distinct end states were used\n")
    sys.stdout.write(f"crash matrix: {len(told)} points, {len(told) - bad} converged, {bad} leaks\n")
    return 1 if bad or not told else 0


def _together(name: Path, jobs: int, words: list[str]) -> None:
    """Let each of so many processes run its part of the points; a report gets its name once its part has run."""
    started = {}
    for number in range(1, jobs + 1):
        report = name.with_name(f"{name.name}.{number}")
        if not report.exists():
            going = report.with_name(f"{report.name}{_GOING}")
            going.write_bytes(b"")
            part = ["--part", f"{number}/{jobs}", "--report", str(going), *words]
            command = [sys.executable, "-m", "proofs.matrix.command", *part]
            started[report] = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(TESTS)})
    codes = [process.wait() for process in started.values()]
    if any(code not in (0, 1) for code in codes):
        raise DrovewayError(f"a part of the matrix ended with {codes}")
    for report in started:
        going = report.with_name(f"{report.name}{_GOING}")
        if not going.stat().st_size:
            raise DrovewayError(f"a part of the matrix ran no point: {report.name} ({' '.join(words)})")
        report.with_name(f"{report.name}{_GOING}").rename(report)


def _kinds(cloud: str, *, once: bool) -> list[str]:
    """The options that name the cloud's kinds; ``once``: of those that share their steps only the first."""
    first: dict[tuple[str, ...], str] = {}
    every = matrix_clouds.kinds_in(cloud)
    for kind in every:
        first.setdefault(tuple(registry.latest(kind).names()), kind)
    return [word for kind in (first.values() if once else every) for word in ("--kind", kind)]


def _read(reports: Path) -> tuple[list[ReportedPoint], int]:
    """What was told of every point, and how many end states were used."""
    told, states = [], 0
    for report in sorted(path for path in reports.iterdir() if path.suffix != _GOING):
        lines = list(_lines(report))
        told += [ReportedPoint(*line[:-1]) for line in lines]
        states += lines[-1][-1] if lines else 0
    return told, states


def _lines(report: Path) -> Iterator[tuple[str, str, str, bool, bool, int]]:
    for line in report.read_text(encoding="utf-8").splitlines():
        yield tuple(json.loads(line))
