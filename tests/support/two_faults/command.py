"""Two faults at once, point after point: what `tools/matrix --two` runs."""

from __future__ import annotations

import argparse
import collections
import importlib
import logging
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from proofs import scratch
from support import made_once
from support.two_faults.world import Verdict

KINDS: Final = ("restores", "sleeps", "others", "deaths", "strangers")

LAST: Final = "two faults: {} points, {} held ({})"


class Kind(Protocol):
    """A module of this folder that makes one kind of points."""

    KIND: str

    def points(self) -> list[str]:
        """The name of every point, by the graphs of today."""

    def run(self, folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
        """Run the points in an empty folder, and judge each."""


def kinds() -> dict[str, Kind]:
    """Every kind that there is, by its name."""
    there = [name for name in KINDS if Path(__file__).with_name(f"{name}.py").exists()]
    return {name: importlib.import_module(f"support.two_faults.{name}") for name in there}


def sample(points: Sequence[str], count: int | None, seed: int) -> list[str]:
    """So many of the points, in their order; the same ones for one seed."""
    if count is None or count >= len(points):
        return list(points)
    chosen = random.Random(seed).sample(range(len(points)), count)
    return [points[number] for number in sorted(chosen)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is wanted; 0 when every point held."""
    # What the lab logs of sessions that end with each command is no verdict.
    logging.getLogger().addHandler(logging.NullHandler())
    made_once.share()
    known = kinds()
    options = _parse(known, sys.argv[1:] if arguments is None else arguments)
    counted: collections.Counter[str] = collections.Counter()
    held = 0
    for name in options.kind or known:
        folder = Path(tempfile.mkdtemp(prefix=f"droveway-{name}-", dir=scratch.place()))
        try:
            for verdict in known[name].run(folder, _wanted(known[name], options)):
                counted[name] += 1
                held += not verdict.trouble
                tell(verdict)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    points = sum(counted.values())
    by_kind = ", ".join(f"{name} {counted[name]}" for name in KINDS)
    say(LAST.format(points, held, by_kind))
    return 0 if points == held > 0 else 1


def _parse(known: Iterable[str], arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/matrix --two", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="KIND | POINT", help="only these kinds; of one kind these points")
    parser.add_argument("--sample", type=int, metavar="N", help="only N points of each kind, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="N/M: only every Mth point, from the Nth on")
    options = parser.parse_args(arguments)
    options.kind = [word for word in options.words if word in known]
    options.points = [word for word in options.words if word not in known]
    if options.points and len(options.kind) != 1:
        parser.error(f"points belong to one kind, named before them: {', '.join(known)}")
    return options


def _wanted(kind: Kind, options: argparse.Namespace) -> list[str]:
    if options.points:
        return list(options.points)
    number, parts = (int(each) for each in options.part.split("/"))
    return sample(kind.points()[number - 1 :: parts], options.sample, options.seed)


def tell(verdict: Verdict) -> None:
    """Say what became of a point, and how one that did not hold is run again."""
    say(f"{verdict.kind} {verdict.point}  {'BAD' if verdict.trouble else 'held'}  {verdict.seconds:.1f} s")
    if verdict.trouble:
        say(f"  {verdict.trouble}\n  again:  tools/matrix --two {verdict.kind} {verdict.point}")


def say(line: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
