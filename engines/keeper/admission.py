"""Which of the moves that wait may run now, within the limits of a host, a rack, a cell and the whole.

A move takes room in each of its places.  The oldest goes first; one that finds a place full waits there, and younger
ones that need other places pass it.  So that it is not passed for ever by moves that need only one of its places, the
oldest that waits keeps what room there is in its places: it runs at the latest when all that ran before it have ended.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from oslo_config import cfg


class Kind(enum.StrEnum):
    """What there is a limit for."""

    ALL = "all"
    CELL = "cell"
    HOST = "host"
    RACK = "rack"


class Place(NamedTuple):
    """Where a move takes room."""

    kind: Kind
    name: str


EVERYWHERE: Final = Place(Kind.ALL, "")

Racks = Mapping[str, Collection[str]]
"""Host → the racks that it is in."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How many moves may run in a place of each kind; 0: no limit."""

    running: int = 16
    host: int = 0
    cell: int = 0
    rack: int = 0

    def of(self, place: Place) -> int:
        """The place's own."""
        return self.running if place.kind is Kind.ALL else int(getattr(self, place.kind))


def limits(conf: cfg.ConfigOpts) -> Limits:
    """Those of ``[keeper]``."""
    keeper = conf.keeper
    return Limits(running=keeper.max_running, host=keeper.per_host, cell=keeper.per_cell, rack=keeper.per_rack)


def places(move: sa.Row[Any], racks: Racks) -> frozenset[Place]:
    """Where the move takes room; while its destination is not known, at its source alone."""
    destination = move.dest_host or move.target_host
    hosts = {host for host in (move.source_host, destination) if host}
    found = {EVERYWHERE, *(Place(Kind.HOST, host) for host in hosts)}
    found |= {Place(Kind.CELL, cell) for cell in (move.source_cell, move.dest_cell) if cell}
    found |= {Place(Kind.RACK, rack) for host in hosts for rack in racks.get(host, ())}
    return frozenset(found)


class Admission:
    """Gives room away, to one move after another."""

    def __init__(self, limits: Limits, running: Iterable[Collection[Place]]) -> None:
        """``running``: the places of each move that runs, or is offered to conductors."""
        self._limits = limits
        self._taken = Counter(place for each in running for place in each)
        self._one_waits = False

    def admit(self, wanted: Collection[Place]) -> Place | None:
        """Let the next oldest run, in these places, unless one of them is full, which is returned."""
        full = next((place for place in sorted(wanted) if self.is_full(place)), None)
        if full is None:
            self._taken.update(wanted)
        elif not self._one_waits:
            self._one_waits = True
            # Whoever makes room in a place makes it in the whole too, so nothing has to be kept there.
            self._taken.update(place for place in wanted if place is not EVERYWHERE)
        return full

    def room(self) -> int:
        """How many more may run, wherever that is."""
        return max(0, self._limits.running - self._taken[EVERYWHERE])

    def is_full(self, place: Place) -> bool:
        """Whether there is no room."""
        limit = self._limits.of(place)
        return limit > 0 and self._taken[place] >= limit

    def full(self) -> frozenset[Place]:
        """Every place without room."""
        return frozenset(place for place in self._taken if self.is_full(place))
