"""What happens to one flow at a point of the crash matrix: probes of conductor, workers and cloud calls.

What has happened is kept in memory that a process shares with its forks, so that the next one knows it.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import signal
import threading
import zlib
from collections.abc import Callable
from typing import Any, Final

from proofs.crash.points import CALL, EFFECT, Path, Point, Spot

from droveway.errors import DestinationFault, DrovewayError, Refused, StepError
from droveway.flows.graph import Graph
from droveway.wire.values import Direction
from droveway.workers.actions import table as actions

SOURCE: Final = "host1"
"""The host on which every server of the matrix lives at first."""

FIRED: Final = 1
ACCEPTED: Final = 2

_TURNED: Final = 15
"""The byte that tells whether the flow was turned back."""
_EFFECTS: Final = {f"{EFFECT}.source": 16, f"{EFFECT}.destination": 24}
"""Where the effects of each role's workers in one run of a step are counted, each worker being a process of its own.

The first byte is their number, the second has a bit for each host that has had one, and four tell which run it is.
"""


@dataclasses.dataclass(frozen=True)
class Passed:
    """One place that a flow has passed."""

    direction: str
    step: str
    phase: str


class Script:
    """The things that are to happen, in order, and where the flow is by now."""

    def __init__(self, path: Path, spots: tuple[Spot, ...], no_return: str) -> None:
        self.path = path
        self.spots = spots
        self.no_return = no_return
        self.passed: list[Passed] = []
        self.ask: Callable[[str], None] = _nobody
        """Writes a request into the journal."""
        self.landed: Callable[[], None] = _nothing
        """Called once all of them have happened, whenever the result of an atom was stored; not for a failure of them:
        what was handed to a worker may still be under way there."""
        self.spoil: Callable[[], None] = _nothing
        """Makes the world bad."""
        self._shared = mmap.mmap(-1, 32)
        self._lock = threading.Lock()
        self._at: tuple[str, str] | None = None
        self._failed: tuple[str, str] | None = None
        self._worked: dict[str, tuple[str, str]] = {}
        self._counted: dict[str, int] = {}

    @classmethod
    def of(cls, point: Point, no_return: str) -> Script:
        """The script of a point."""
        return cls(point.path, point.spots, no_return)

    def fired(self) -> int:
        """How many of the things have happened."""
        return sum(bool(self._shared[number]) for number in range(len(self.spots)))

    def fire(self) -> None:
        """Note that the next of the things has happened."""
        self._shared[self.fired()] = FIRED

    def accepted(self) -> bool:
        """Whether the first thing was a request that was granted."""
        return self._shared[0] == ACCEPTED

    def turned_back(self, *, already: bool = False) -> bool:
        """Whether the flow was turned back at its point of no return; ``already``: before the script began."""
        if already:
            self._shared[_TURNED] = 1
        return bool(self._shared[_TURNED])

    def conductor(self, _move: str, step: str, direction: str, phase: str) -> None:
        """The conductor's probe."""
        if phase == "before":
            self._at = (step, direction)
            self._worked.clear()
            self._counted.clear()
            self._shared[16:32] = bytes(16)
        self._meet(step, direction, "posted" if phase == "during" else phase)
        if (step, direction, phase) == (self.no_return, "execute", "before"):
            self._turn_back()
        if phase == "after":
            self._at = None
        if phase == "stored" and self.fired() == len(self.spots):
            if self._failed == (step, direction):
                self._failed = None
            else:
                self.landed()

    def worker(self, host: str) -> Callable[[str, Direction, str, str], None]:
        """The probe of a host's worker, between two effects; the worker may be in a process of its own."""
        counter = f"{EFFECT}.{'source' if host == SOURCE else 'destination'}"

        def fire(step: str, direction: Direction, _phase: str, _detail: str) -> None:
            with self._lock:
                if self._worked.get(counter) != (step, direction):
                    self._worked[counter] = (step, direction)
                    self._begin(counter, host, f"{step} {direction}")
                at = _EFFECTS[counter]
                self._shared[at] += 1
                place = f"{counter}.{self._shared[at]}"
            self._meet(step, direction, place)

        return fire

    def _begin(self, counter: str, host: str, run: str) -> None:
        """Count anew, unless another host of this role has begun with this run of the step.

        A host whose worker died counts anew too: it is given the command once more.
        """
        at, whose, which = _EFFECTS[counter], 1 << zlib.crc32(host.encode()) % 8, zlib.crc32(run.encode()).to_bytes(4)
        known = self._shared[at + 2 : at + 6] == which and not self._shared[at + 1] & whose
        self._shared[at : at + 6] = (
            bytes([self._shared[at], self._shared[at + 1] | whose, *which]) if known else bytes([0, whose, *which])
        )

    def on_request(self, method: str, _path: str) -> None:
        """Before each request to a cloud service."""
        if method != "GET" and self._at is not None:
            self._meet(*self._at, self._next(CALL))

    def repeat(self, graph: Graph) -> None:
        """Let the steps of this process that are to run twice do so."""
        for number, spot in enumerate(self.spots):
            if spot.effect == "twice":
                self._repeat(graph, number, spot)

    def _repeat(self, graph: Graph, number: int, spot: Spot) -> None:
        step = next(each for each in graph.walk() if each.step_name() == spot.step)
        name = "perform" if spot.direction == "execute" else "undo"
        body = getattr(step, name)

        def twice(*arguments: Any) -> Any:
            self._shared[number] = FIRED
            body(*arguments)
            return body(*arguments)

        setattr(step, name, twice)
        action = getattr(step, "action", "") or spot.step
        if action in actions.ACTIONS:
            once = actions.ACTIONS[action]
            actions.ACTIONS[action] = once._replace(execute=_twice(once.execute), revert=_twice(once.revert))

    def _next(self, what: str) -> str:
        with self._lock:
            self._counted[what] = self._counted.get(what, 0) + 1
            return f"{what}.{self._counted[what]}"

    def _meet(self, step: str, direction: str, phase: str) -> None:
        place = Passed(direction, step, phase)
        self.passed.append(place)
        number = self.fired()
        if number == len(self.spots):
            return
        spot = self.spots[number]
        if spot.direction == "revert" and self.path != "execute" and not self.turned_back():
            return  # on its way forward a step may take back a part of itself
        due = "before" if spot.effect == "bad" else spot.phase
        if spot.effect == "twice" or (spot.direction, spot.step, due) != (direction, step, phase):
            return
        self._shared[number] = FIRED
        if spot.effect == "bad":
            self.spoil()
            return
        if spot.effect in ("kill", "worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if spot.effect in ("fail", "refuse"):
            self._failed = (step, direction)
            raise (StepError if spot.effect == "fail" else DestinationFault)(f"fault at {spot}", code="fault", host="")
        if self._granted(spot.effect):
            self._shared[number] = ACCEPTED

    def _granted(self, request: str) -> bool:
        try:
            self.ask(request)
        except Refused:
            return False
        return True

    def _turn_back(self) -> None:
        """Let the point of no return prove that it was not passed: for good, or on the first alternate only.

        A delete goes forward only: once it was asked for, nothing turns the flow back any more.
        """
        if any(spot.effect == "delete" and self._shared[number] for number, spot in enumerate(self.spots)):
            return
        turned = self.turned_back()
        self.turned_back(already=self.path != "execute")
        if self.path == "revert":
            raise StepError("the script turns the flow back", code="not-begun")
        if self.path == "retry" and not turned:
            raise DestinationFault("the script refuses the alternate", code="fault", host="")


def _twice(body: actions.Body) -> actions.Body:
    def both(context: Any, details: Any) -> dict[str, Any]:
        body(context, details)
        return body(context, details)

    return both


def _nothing() -> None:
    """Nobody wants to know."""


def _nobody(request: str) -> None:
    raise DrovewayError(f"nobody is there to ask for {request}")
