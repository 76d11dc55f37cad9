"""Works out how fast a long step goes and when it will be done, from its host's reports so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View
    from droveway.persistence.journal.tables import Move

SHORTEST_WINDOW: Final = 30.0
"""The shortest span in seconds over which a rate is measured: a disk's rate jumps from second to second."""

TOO_EARLY: Final = 1.0
"""Seconds before which no rate is shown, unless a tenth of the bytes are done."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One report of the host: after ``seconds`` of work it had ``done`` bytes of ``total``, ``kept`` of them before."""

    seconds: float
    done: int
    total: int
    kept: int = 0

    @property
    def made(self) -> int:
        """Return the bytes of this run."""
        return self.done - self.kept


def reported(move: Move | View) -> list[Sample]:
    """Return a list with the last report of the running step's host; an empty list when the host reported nothing."""
    if move.progress_done is None or move.progress_total is None:
        return []
    return [Sample(move.progress_seconds or 0.0, move.progress_done, move.progress_total, move.progress_kept or 0)]


class Series:
    """The reports of one run of one step; a new run begins a new series."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add the next report, which may be the same one again."""
        if self.samples and _is_other_run(self.samples[-1], sample):
            self.samples.clear()
        if not self.samples or sample != self.samples[-1]:
            self.samples.append(sample)

    def clear(self) -> None:
        """Drop all reports, since the step has ended."""
        self.samples.clear()


def rate(samples: Sequence[Sample]) -> float | None:
    """Return the recent bytes a second; None while it is too early to say.

    It is measured over the second half of the run so far, or over `SHORTEST_WINDOW` if that is longer. So a slow start
    is forgotten, and short jumps are evened out.
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
    """Return the seconds from the last report until all bytes are done; None while it is too early to say."""
    speed = rate(samples)
    return None if speed is None else (samples[-1].total - samples[-1].done) / speed


def _is_other_run(last: Sample, sample: Sample) -> bool:
    return sample.seconds < last.seconds or sample.done < last.done
