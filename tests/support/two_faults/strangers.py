"""A hostile worker with a valid certificate, and a hostile disk: whatever they write where they may write.

A point is one lie, made from its name alone.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from support.two_faults import stranger_disks, stranger_peers, stranger_words
from support.two_faults.stranger_lies import Lies
from support.two_faults.world import Verdict

KIND: Final = "strangers"

Judge = Callable[[Path, Lies], str]

SURFACES: Final[dict[str, tuple[Judge, int]]] = {
    "registration": (stranger_words.registration, 120),
    "progress": (stranger_words.progress, 60),
    "page": (stranger_words.page, 120),
    "result": (stranger_words.result, 120),
    "answer": (stranger_words.answer, 120),
    "header": (stranger_disks.header, 120),
    "definition": (stranger_disks.definition, 100),
    "source": (stranger_peers.source, 80),
    "asker": (stranger_peers.asker, 40),
}
"""Where a stranger may write: who tells the lie and judges what becomes of it, and how many lies are told there."""


def points() -> list[str]:
    """Every lie, by where it is told and its number."""
    return [f"{surface}:{number:03}" for surface, (_, count) in SURFACES.items() for number in range(count)]


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Tell each lie in a site of its own, and judge what became of it."""
    for point in points:
        began = time.monotonic()
        place = folder / point.replace(":", "-")
        place.mkdir()
        yield Verdict(KIND, point, _trouble(place, point), time.monotonic() - began)
        shutil.rmtree(place)


def _trouble(place: Path, point: str) -> str:
    tell, _ = SURFACES[point.partition(":")[0]]
    try:
        return tell(place, Lies(point))
    except Exception as error:  # noqa: BLE001 - a lie that breaks who hears it
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}: {str(error)[:200]!r}"
