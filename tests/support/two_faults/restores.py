"""A database put back from an older copy, or a worker's journal moved away, in the middle of an operation.

Each operation runs once, and the whole lab is copied around every effect.  A point is a pair: the lab as it was at one
effect, and in it the journal or one of OpenStack's databases as it had been at an earlier boundary, or a host whose
worker's journal is gone.  A lab whose journal is another one is adopted as the documents say, and the move then ends by
the commands that it names.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from support.labs.operations import stage
from support.two_faults import audited, databases, recording, ways_out
from support.two_faults.recording import (
    AWAY,
    BETWEEN_CELLS,
    CELLS,
    CHOICES,
    ELSEWHERE,
    LOST,
    OPERATIONS,
    REVERT_ELSEWHERE,
    SHELVES,
    SHELVES_BETWEEN,
    SHELVING,
    UNSHELVE_BETWEEN,
    Point,
    Recording,
    cloud,
    pairs,
)
from support.two_faults.world import Verdict

KIND: Final = "restores"

HOWS: Final = tuple(itertools.product(("retried", "left"), AWAY, CHOICES))
"""What is done once it was adopted, whose worker is away meanwhile, and how the move is ended where it waits."""

WORLDS: Final = (
    *itertools.product(("apart", "shared"), OPERATIONS),
    *itertools.product((CELLS,), BETWEEN_CELLS),
    *itertools.product(SHELVES, SHELVING),
    *itertools.product(SHELVES_BETWEEN, UNSHELVE_BETWEEN),
    *itertools.product((ELSEWHERE,), REVERT_ELSEWHERE),
)
"""Storage and operation."""

COVER: Final = 4000
"""About so many points are a full run's: all of them would take days."""


def points() -> list[str]:
    """Every point: with the journal put back, a worker's journal moved away, another database put back."""
    return [*put_back(), *moved_away(), *databases.points()]


def full() -> list[str]:
    """A fixed cover of about `COVER` points of all.

    Every effect, every boundary, and every step with every database and every way is met at least once.
    """
    every = points()
    chosen, met = set[int](), set[object]()
    for number, point in enumerate(map(Point.parse, every)):
        kind = LOST if point.of.startswith(LOST) else point.database
        step = (kind, point.operation, point.at.rpartition(".")[0])
        wanted = {
            (*step, point.at),
            (kind, point.operation, "of", point.of),
            (*step, "in", point.storage),
            *((*step, each) for each in point.how),
        }
        if not wanted <= met:
            met |= wanted
            chosen.add(number)
    rest = [number for number in range(len(every)) if number not in chosen]
    more = max(0, COVER - len(chosen))
    chosen |= {rest[number * len(rest) // more] for number in range(more)}
    return [every[number] for number in sorted(chosen)]


def put_back() -> list[str]:
    """Every effect of every operation with every earlier boundary, each in one of `HOWS` in turn."""
    turns = itertools.cycle(HOWS)
    return [
        str(Point(storage, operation, at, of, recording.living(operation, next(turns))))
        for storage, operation in WORLDS
        for at, of in pairs(operation)
    ]


def moved_away() -> list[str]:
    """Every effect of every operation with each host's worker's journal moved away, each in one of `HOWS` in turn."""
    every = [
        (storage, operation, at)
        for storage, operation in WORLDS
        for at in dict.fromkeys(at for at, _ in pairs(operation))
    ]
    # One turn for both hosts: else each would be tried in every second of them only.
    return [
        str(Point(storage, operation, at, f"{LOST}{host}", recording.living(operation, how)))
        for (storage, operation, at), how in zip(every, itertools.cycle(HOWS), strict=False)
        for host in recording.hosts(operation)
    ]


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Record each operation of the points once, then run its points one after another."""
    wanted = sorted(map(Point.parse, points), key=lambda point: (point.storage, point.operation))
    for (storage, operation), found in itertools.groupby(wanted, lambda point: (point.storage, point.operation)):
        place = folder / f"{storage}-{operation}"
        with stage(place / "lab", cloud(storage)) as lab:
            taken = Recording(lab, place, operation)
            for point in found:
                began = time.monotonic()
                trouble = _judged(point)(taken, point)
                yield Verdict(KIND, str(point), trouble, time.monotonic() - began)
            taken.close()
        shutil.rmtree(place)
        # Labs that were put back refer to themselves, and each one has its databases open until it is collected.
        gc.collect()


def _judged(point: Point) -> Callable[[Recording, Point], str]:
    return databases.trouble if point.database else trouble


def trouble(taken: Recording, point: Point) -> str:
    """Make the world of the point, adopt it where that is wanted, and end the move by what it names."""
    taken.put_back(point)
    rest, away, choice = point.how
    lab = taken.lab
    if not point.of.startswith(LOST) or taken.is_refused():
        said = ways_out.say(lab, "db", "adopt")
        if said.code != 0:
            return f"db adopt ended with {said.code}: {said.error.strip()}"
    if away != "up":
        # Not before: with a journal that was put back every other command is refused.
        said = ways_out.say(lab, "lab", "worker", "stop", away)
        if said.code != 0:
            return f"the worker of {away} is not away: {said.error.strip()}"
    if rest == "left":
        ways_out.say(lab, "move", "resume")
    elif away != "up":
        ways_out.say(lab, "move", "retry", taken.move)
    if wrong := taken.trouble(ended=False):
        return f"adopted and {rest}: {wrong}"
    if away != "up":
        ways_out.say(lab, "lab", "worker", "start", away)
    if stuck := ways_out.finish(lab, taken.move, choice=choice):
        return stuck
    if away != "up":
        # A host pays what it owes once its worker is there, in a lab as the next command runs.
        ways_out.say(lab, "move", "resume")
    if wrong := taken.trouble(ended=True):
        return wrong
    return taken.rests_wrong() or audited.trouble(lab)
