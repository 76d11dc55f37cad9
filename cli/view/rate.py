"""How fast a long step goes and when it will be through, from what its host has told so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View
    from droveway.persistence.journal.tables import Move

SHORTEST_WINDOW: Final = 30.0
"""Seconds that a rate looks back over at least, once there are so many: a disk's rate jumps from second to second."""

TOO_EARLY: Final = 1.0
"""Seconds before which nothing is said of a rate, unless a tenth of the bytes are there."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One word of the host: after ``seconds`` of work ``done`` bytes of ``total`` were there, ``kept`` from before."""

    seconds: float
    done: int
    total: int
    kept: int = 0

    @property
    def made(self) -> int:
        """The bytes of this run."""
        return self.done - self.kept


def reported(move: Move | View) -> list[Sample]:
    """The last word of the running step's host, which stands for the run so far; none when it told none."""
    if move.progress_done is None or move.progress_total is None:
        return []
    return [Sample(move.progress_seconds or 0.0, move.progress_done, move.progress_total, move.progress_kept or 0)]


class Series:
    """The words of one run of one step; a run that begins anew begins a new series."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """The next word, perhaps the same one again."""
        if self.samples and _is_other_run(self.samples[-1], sample):
            self.samples.clear()
        if not self.samples or sample != self.samples[-1]:
            self.samples.append(sample)

    def clear(self) -> None:
        """The step has ended."""
        self.samples.clear()


def rate(samples: Sequence[Sample]) -> float | None:
    """Bytes a second of late: over half of the run so far and at least `SHORTEST_WINDOW`; None while nobody can say.

    A slow start is forgotten that way, and a lasting change is believed; what jumps to and fro is evened out.
    """
    if not samples:
        return None
    last = samples[-1]
    if last.seconds < TOO_EARLY and last.made * 10 < last.total - last.kept:
        return None
    begins = min(last.seconds / 2, last.seconds - SHORTEST_WINDOW)
    seconds, made = max(((each.seconds, each.made) for each in samples if each.seconds <= begins), default=(0.0, 0))
    if last.seconds <= seconds or last.made <= made:
        return None
    return (last.made - made) / (last.seconds - seconds)


def left(samples: Sequence[Sample]) -> float | None:
    """Seconds until all bytes are there, counted from the last word; None while nobody can say."""
    speed = rate(samples)
    return None if speed is None else (samples[-1].total - samples[-1].done) / speed


def _is_other_run(last: Sample, sample: Sample) -> bool:
    return sample.seconds < last.seconds or sample.done < last.done
