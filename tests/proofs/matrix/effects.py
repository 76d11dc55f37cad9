"""Mutants made from the graphs: the effect of one step after another taken out, and the point that notices it.

A mutant runs only points that reach its step, one cloud after another, until one of them notices: first those of the
worlds in which the step has to refuse, then those that repeat, kill and undo it.  Before, the points in bad worlds hold
with nothing taken out; that all others do is what the matrix proves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from proofs import scratch, verdicts
from proofs.crash import points as crash_points
from proofs.crash import without as crash_without
from proofs.crash.bench import Bench
from proofs.crash.points import Point
from proofs.crash.without import Effect
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import table as matrix_table

from droveway.errors import DrovewayError
from droveway.flows import registry

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "graph-mutants.rst"

CLOUDS: Final = (
    *("many-disks", "shared", "volume-backed", "stopped", "one-host", "stopped-on-volume", "three-hosts"),
    *("shelved", "shelved-on-volume", "shelved-two-cells", "shelved-on-volume-two-cells"),
    *("two-cells-stopped", "two-cells", "two-cells-on-volume"),
    *("two-cells-by-image", "two-cells-many-by-image", "two-cells-kept", "source-lost"),
)
"""The clouds in the order in which they are tried: the server of the first has most that can be missing."""

LAST: Final = "graph mutants: {} of {} noticed"


class Found(NamedTuple):
    """What noticed that the effect of a step was gone; nothing did when ``point`` is empty."""

    effect: str
    cloud: str
    point: str
    words: str


def reach(effect: Effect, bench: Bench) -> Iterator[Point]:
    """The points that a mutant runs, those of bad worlds first: of a step that only looks no others tell anything."""
    yield from (point for point in bench.worlds(effect.kind) if point.first.step == effect.step)
    graph, step = registry.latest(effect.kind), effect.step
    yield crash_points.point(effect.kind, "execute", step, "twice", "before")
    yield crash_points.point(effect.kind, "execute", step, "kill", "after")
    if "revert" in crash_points.paths(graph) and step in crash_points.atoms(graph, "revert"):
        yield crash_points.point(effect.kind, "revert", step, "kill", "before")


def hunt(effects: Sequence[Effect], clouds: Sequence[str] = CLOUDS) -> Iterator[Found]:
    """What notices each of them, in the order in which that is found; at the end those that nothing notices."""
    left = list(effects)
    for cloud in clouds:
        here = [effect for effect in left if effect.kind in matrix_clouds.kinds_in(cloud)]
        if not here:
            continue
        with _bench(cloud) as bench:
            for effect in here:
                found = _notice(bench, cloud, effect)
                if found is not None:
                    left.remove(effect)
                    yield found
    yield from (Found(str(effect), "", "", "") for effect in left)


def proves(trouble: str) -> bool:
    """Whether what was wrong at a point proves that a defect was noticed."""
    return bool(trouble) and not verdicts.BROKEN.search(trouble) and not trouble.startswith(verdicts.UNREACHED)


@contextlib.contextmanager
def _bench(cloud: str) -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="droveway-effects-", dir=scratch.place()))
    try:
        bench = Bench(folder, matrix_clouds.spec(cloud), whole=True, shelved=cloud in matrix_clouds.SHELVED)
        try:
            bench.warm()
            yield bench
        finally:
            bench.close()
    finally:
        shutil.rmtree(folder)


def _notice(bench: Bench, cloud: str, effect: Effect) -> Found | None:
    for point in reach(effect, bench):
        if point.first.effect == "bad":
            bench.without = None
            _require_sound(bench, cloud, point)
        bench.without = effect
        trouble = bench.run(point).trouble
        if proves(trouble):
            return Found(str(effect), cloud, str(point), verdicts.first_words(trouble))
    return None


def _require_sound(bench: Bench, cloud: str, point: Point) -> None:
    trouble = bench.run(point).trouble
    if trouble:
        raise DrovewayError(f"with nothing taken out {point} ({cloud}) does not hold: {trouble}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take out the effects that are asked for; 0 when each was noticed."""
    parser = argparse.ArgumentParser(prog="tools/mutate --graph", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="KIND:STEP", help="only this step; may be repeated")
    parser.add_argument("--cloud", action="append", choices=CLOUDS, help="only in this cloud; may be repeated")
    parser.add_argument("--part", default="1/1", metavar="N/M", help="only every Mth step, from the Nth on")
    parser.add_argument(
        "--reports", type=Path, help="keep what noticed each in this directory; the page is written once every part has"
    )
    options = parser.parse_args(arguments)
    chosen = [crash_without.parse(text) for text in options.only or map(str, crash_without.effects())]
    number, parts = (int(each) for each in options.part.split("/"))
    found = list(map(_told, hunt(chosen[number - 1 :: parts], options.cloud or CLOUDS)))
    noticed = sum(bool(each.point) for each in found)
    if noticed == len(found) and not (options.only or options.cloud):
        _keep(found, number, parts, options.reports)
    _say(LAST.format(noticed, len(found)))
    return int(noticed != len(found) or not found)


def _told(found: Found) -> Found:
    by = f"noticed by {found.point} ({found.cloud}): {found.words}" if found.point else "SURVIVED"
    _say(f"{found.effect}: {by}")
    return found


def _keep(found: Sequence[Found], number: int, parts: int, reports: Path | None) -> None:
    """Keep what a part found; write the page when all parts are there."""
    if reports is not None:
        reports.mkdir(parents=True, exist_ok=True)
        report = reports / f"{number}-of-{parts}.json"
        report.write_text("".join(json.dumps(each) + "\n" for each in found), encoding="utf-8")
        kept = [reports / f"{each}-of-{parts}.json" for each in range(1, parts + 1)]
        if not all(path.exists() for path in kept):
            return
        found = [Found(*json.loads(line)) for path in kept for line in path.read_text(encoding="utf-8").splitlines()]
    elif parts > 1:
        return
    PAGE.write_text(page(found), encoding="utf-8")


def page(found: Sequence[Found]) -> str:
    """The page that has each step with what noticed that its effect was gone, in the graphs' order."""
    known = {each.effect: each for each in found}
    lines = [*_HEAD, *(f"- {each}" for each in matrix_table.graphs()), "", *_TABLE]
    for effect in crash_without.effects():
        each = known[str(effect)]
        quoted = each.words.replace("`", "'")
        lines += [
            f"   * - {effect.kind}:{effect.step}",
            f"     - ``{each.point}`` ({each.cloud}): ``{quoted}``",
        ]
    return "\n".join([*lines, ""])


_HEAD: Final = [
    ".. Written by tools/mutate --graph.",
    "",
    "=====================",
    "Mutants of the graphs",
    "=====================",
    "",
    "Does the crash matrix notice when a step does nothing? For each step of each graph ``tools/mutate --graph`` takes",
    "its effect out: the step says what it says in an undisturbed run, and that is all. A step that only looks then",
    "says that all is well, whatever there is, so that it is run in a world in which it has to refuse. Quoted is the",
    "first point that did not end as it has to: where the move rests, the audit, or what the flow is for, which each",
    "kind of flow declares as a check of its own. ``tools/matrix --without KIND:STEP --cloud CLOUD POINT`` runs one",
    "again.",
    "",
    "The graphs, each with what tells it from any other:",
    "",
]

_TABLE: Final = [
    ".. list-table::",
    "   :widths: 30 70",
    "   :header-rows: 1",
    "",
    "   * - Step",
    "     - Noticed by",
]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except DrovewayError as error:
        raise SystemExit(f"droveway: {error}") from None
