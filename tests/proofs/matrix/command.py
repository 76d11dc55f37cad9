"""The crash matrix: runs crash points one after another and says what became of each.

The process has no threads and holds no database open, so that its children are true copies to be killed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from proofs import scratch
from proofs.crash import points as crash_points
from proofs.crash import without as crash_without
from proofs.crash.bench import HOWS, Bench, Outcome
from proofs.crash.points import Point
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import full as matrix_full
from support import made_once

from droveway.errors import DrovewayError
from droveway.flows import registry
from droveway.persistence.journal import kinds

LAST: Final = "crash matrix: {} points, {} converged, {} leaks"
MET: Final = "{} met a state from which an earlier point went on to its end: --whole runs them to theirs"
STATES: Final = "{} distinct end states: the server was stopped, started and moved again from each"

FEW: Final = 6
"""Fewer points than that are sooner run than a process is warmed for them."""

MANY: Final = 12
"""So many points of one flow are worth its checkpoints."""

AND: Final = "--and"
"""Between two choices of points for one process: it is warmed once, and an end state used once, for all of them."""

WAYS: Final = "ways"
STEPS: Final = "steps"
"""Tells --cover whether the points that it chooses meet each step on each way, or each step alone."""

EFFECTS: Final = crash_points.EFFECTS
PHASES: Final = ("before", "during", "after", "stored")
PATHS: Final = crash_points.PATHS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the points that are named, or all of the kinds that are; 0 when every one converged."""
    options, *choices = _parse(list(sys.argv[1:] if arguments is None else arguments))
    if options.full:
        choice = matrix_full.Choice(options.seed, options.sample, whole=options.whole)
        clouds, page = matrix_clouds.CLOUDS, matrix_full.PAGE
        if options.between:
            clouds, page = matrix_clouds.BETWEEN, matrix_full.BETWEEN_PAGE
        elif options.shelving:
            clouds, page = matrix_clouds.SHELVING, matrix_full.SHELVING_PAGE
        elif options.ports:
            clouds, page = matrix_clouds.GUARANTEED, matrix_full.PORTS_PAGE
        return matrix_full.run(options.jobs, choice, options.page or page, options.reports, clouds)
    made_once.share()
    folder = Path(tempfile.mkdtemp(prefix="droveway-matrix-", dir=scratch.place()))
    try:
        bench = Bench(
            folder,
            matrix_clouds.spec(options.cloud),
            options.confirm,
            whole=options.whole,
            keep=options.keep_source,
            shelved=options.cloud in matrix_clouds.SHELVED,
        )
        try:
            bench.without = options.without and crash_without.parse(options.without)
            if len(options.points) not in range(1, FEW) or choices:
                bench.warm()
            chosen = (point for choice in (options, *choices) for point in _wanted(bench, choice))
            wanted = list(dict.fromkeys(chosen))
            _prepare(bench, wanted)
            outcomes = [_run(bench, options, point) for point in wanted]
        finally:
            bench.close()
    finally:
        shutil.rmtree(folder)
    bad = sum(bool(outcome.trouble) for outcome in outcomes)
    _say(MET.format(sum(outcome.met for outcome in outcomes)))
    _say(STATES.format(bench.states()))
    _say(LAST.format(len(outcomes), len(outcomes) - bad, bad))
    return 1 if bad or not outcomes else 0


def _parse(given: list[str]) -> list[argparse.Namespace]:
    """What is wanted, and what else of the same cloud."""
    groups: list[list[str]] = [[]]
    for word in given:
        if word == AND:
            groups.append([])
        else:
            groups[-1].append(word)
    first = _parser().parse_args(groups[0])
    if first.full and len(groups) > 1:
        _parser().error(f"--full runs every point, so that nothing may follow it with {AND}: leave one of them out")
    if first.full and (first.cover is not None or first.each is not None):
        _parser().error("--full runs every point, or --sample of each part: leave --cover and --each out")
    choices = argparse.ArgumentParser(prog=f"tools/matrix ... {AND}", parents=[_choice()])
    shared = {"confirm": first.confirm, "cloud": first.cloud}
    return [first, *(choices.parse_args(group, argparse.Namespace(**shared)) for group in groups[1:])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/matrix", description=__doc__, epilog=f"more points of the same cloud: {AND}", parents=[_choice()]
    )
    parser.add_argument("--cloud", default="three-hosts", choices=matrix_clouds.ALL, help="the hosts and the server")
    parser.add_argument(
        "--confirm", default="asked", choices=HOWS, help="kill confirms that are brought about like this"
    )
    parser.add_argument(
        "--keep-source", type=int, default=0, metavar="SECONDS", help="let confirms keep the source for so long"
    )
    parser.add_argument(
        "--without", metavar="KIND:STEP", help="with the effect of this step taken out of every flow of its kind"
    )
    parser.add_argument("--whole", action="store_true", help="run each point to its end, whatever states it meets")
    parser.add_argument("--report", type=Path, help="write what became of each point to this file, one JSON line each")
    parser.add_argument("--full", action="store_true", help="every point of every cloud, written to --page")
    parser.add_argument("--between", action="store_true", help="of --full: of the clouds of two cells")
    parser.add_argument("--shelving", action="store_true", help="of --full: of servers that are shelved and unshelved")
    parser.add_argument(
        "--ports", action="store_true", help="of --full: of servers whose ports are guaranteed bandwidth"
    )
    parser.add_argument("--page", type=Path, help="of --full: where to write it")
    parser.add_argument(
        "--reports", type=Path, help="of --full: what has run is noted in this directory, and is not run again"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of --full: processes side by side")
    return parser


def _choice() -> argparse.ArgumentParser:
    """The options that choose points."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("points", nargs="*", help="points as they are printed; none: all of the kinds")
    parser.add_argument("--kind", action="append", choices=registry.kinds(), help="only this kind of flow")
    parser.add_argument("--direction", action="append", choices=PATHS, help="only flows that run this way")
    parser.add_argument("--effect", action="append", choices=EFFECTS, help="only this effect")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this phase")
    parser.add_argument("--step", action="append", help="only this step")
    parser.add_argument("--pairs", action="store_true", help="double faults instead of single ones")
    parser.add_argument("--part", default="1/1", help="N/M: only every Mth point, from the Nth on")
    parser.add_argument("--sample", type=int, metavar="N", help="only N points, chosen by --seed")
    parser.add_argument(
        "--each", type=int, metavar="N", help="only N points of each flow, way, effect and phase, chosen by --seed"
    )
    parser.add_argument(
        "--cover",
        nargs="?",
        const=WAYS,
        choices=(WAYS, STEPS),
        help="only as many points as kill each step and let each effect come in each phase: on each way, or anywhere",
    )
    parser.add_argument("--seed", type=int, default=0, help="of --sample, --each and --cover")
    return parser


def _wanted(bench: Bench, options: argparse.Namespace) -> list[Point]:
    if options.points:
        return [crash_points.parse(text) for text in options.points]
    every = [point for point in _points(bench, options) if _is_wanted(point, options)]
    number, parts = (int(each) for each in options.part.split("/"))
    chosen = every[number - 1 :: parts]
    if options.each is not None:
        chosen = _some_of_each(chosen, options.each, options.seed)
    if options.cover is not None:
        several, chosen = len(chosen), _cover(chosen, options.seed, each_way=options.cover == WAYS)
        _say(f"{len(chosen)} of {several} points cover them, seed {options.seed}")
    if options.sample is not None and options.sample < len(chosen):
        _say(f"{options.sample} of {len(chosen)} points, seed {options.seed}")
        chosen = sorted(random.Random(options.seed).sample(chosen, options.sample))
    return chosen


def _some_of_each(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    chance = random.Random(seed)
    alike: dict[tuple[str, ...], list[Point]] = collections.defaultdict(list)
    for point in points:
        alike[point.kind, point.path, point.first.effect, _phase(point)].append(point)
    chosen = {point for group in alike.values() for point in chance.sample(group, min(count, len(group)))}
    return [point for point in points if point in chosen]


def _cover(points: Sequence[Point], seed: int, *, each_way: bool) -> list[Point]:
    """Choose points until every step is killed on every way, and every effect comes in every phase of every way.

    Without ``each_way`` until a step is killed anywhere in its flow, and an effect comes anywhere in a phase.

    A point's turn follows from the seed and its own name alone: another point beside it hardly changes who is chosen.
    """
    met: set[tuple[str, ...]] = set()
    chosen = set()
    for point in sorted(points, key=lambda point: random.Random(f"{seed} {point}").random()):
        effect = point.first.effect
        flow = (point.kind, point.path) if each_way else (point.kind,)
        meets: set[tuple[str, ...]] = {(*flow, effect, _phase(point))}
        if effect in ("kill", "worker"):
            meets.add((*flow, point.first.step))
        if not meets <= met:
            met |= meets
            chosen.add(point)
    return [point for point in points if point in chosen]


def _phase(point: Point) -> str:
    return point.first.phase if point.first.phase in PHASES else "during"


def _prepare(bench: Bench, wanted: Sequence[Point]) -> None:
    counted = collections.Counter((point.kind, point.path) for point in wanted)
    for (kind, path), count in sorted(counted.items()):
        if count >= MANY:
            bench.prepare(kind, path)


def _points(bench: Bench, options: argparse.Namespace) -> Iterator[Point]:
    for kind in options.kind or matrix_clouds.kinds_in(options.cloud):
        graph = registry.latest(kind)
        if options.pairs:
            yield from crash_points.pairs(graph)
        else:
            within = options.phase is None or "during" in options.phase
            yield from crash_points.singles(graph, bench.gaps(kind) if within else {}, alternates=bench.alternates)
            yield from bench.worlds(kind)


def _is_wanted(point: Point, options: argparse.Namespace) -> bool:
    if options.confirm != "asked" and not _is_plain_confirm(point):
        return False
    return (
        point.path in (options.direction or PATHS)
        and point.first.effect in (options.effect or EFFECTS)
        and _phase(point) in (options.phase or PHASES)
        and (options.step is None or point.first.step in options.step)
    )


def _is_plain_confirm(point: Point) -> bool:
    """Whether it is a point that any confirm has, whoever asks for it: what fails comes back in its own time."""
    of_confirm = kinds.of(point.kind).ends == kinds.Way.CONFIRM and point.path == "execute"
    return of_confirm and point.first.effect in ("kill", "worker", "twice")


def _run(bench: Bench, options: argparse.Namespace, point: Point) -> Outcome:
    outcome = bench.run(point)
    trouble = f"\n  {outcome.trouble}\n  again:  tools/matrix {_where(options)} {point}" if outcome.trouble else ""
    met = "  met" if outcome.met else ""
    _say(f"{point}  {outcome.end or 'BAD'}  {outcome.seconds:.1f} s{met}{trouble}")
    if options.report is not None:
        told = [options.cloud, options.confirm, str(point), not outcome.trouble, outcome.met, bench.states()]
        with options.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
    return outcome


def _where(options: argparse.Namespace) -> str:
    how = "" if options.confirm == "asked" else f" --confirm {options.confirm}"
    keeps = f" --keep-source {options.keep_source}" if options.keep_source else ""
    defect = f" --without {options.without}" if options.without else ""
    return f"--cloud {options.cloud}{how}{keeps}{defect}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except DrovewayError as error:
        raise SystemExit(f"droveway: {error}") from None
