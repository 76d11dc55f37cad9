"""Decides which of the queued moves may run now, within the limits of a host, a rack, a cell and of all together.

A move takes room in each of its places.  The oldest goes first.  A move that finds a place full waits, and younger ones
that need other places may go before it.  But younger ones that need only some of its places must not keep it waiting
for ever.  So the room that there is in the places of the oldest waiting move is kept for it: it runs at the latest when
all moves that ran before it have ended.
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
    """The kinds of places for which there is a limit."""

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
    """How many moves may run in a place of each kind; 0 means no limit for a host, a cell and a rack."""

    running: int = 16
    host: int = 0
    cell: int = 0
    rack: int = 0

    def of(self, place: Place) -> int:
        """Return the limit of the place; 0 means no limit."""
        return self.running if place.kind is Kind.ALL else int(getattr(self, place.kind))


def limits(conf: cfg.ConfigOpts) -> Limits:
    """Read the limits from ``[keeper]``."""
    keeper = conf.keeper
    return Limits(running=keeper.max_running, host=keeper.per_host, cell=keeper.per_cell, rack=keeper.per_rack)


def places(move: sa.Row[Any], racks: Racks) -> frozenset[Place]:
    """Return where the move takes room: at its source, and at its destination once that is known."""
    destination = move.dest_host or move.target_host
    hosts = {host for host in (move.source_host, destination) if host}
    found = {EVERYWHERE, *(Place(Kind.HOST, host) for host in hosts)}
    found |= {Place(Kind.CELL, cell) for cell in (move.source_cell, move.dest_cell) if cell}
    found |= {Place(Kind.RACK, rack) for host in hosts for rack in racks.get(host, ())}
    return frozenset(found)


class Admission:
    """Gives room to moves, one after another."""

    def __init__(self, limits: Limits, running: Iterable[Collection[Place]]) -> None:
        """Count the room that is taken; ``running`` are the places of each move that runs or is on the board."""
        self._limits = limits
        self._taken = Counter(place for each in running for place in each)
        self._one_waits = False

    def admit(self, wanted: Collection[Place]) -> Place | None:
        """Give the next oldest move room in these places; if one of them is full, give none and return that place."""
        full = next((place for place in sorted(wanted) if self.is_full(place)), None)
        if full is None:
            self._taken.update(wanted)
        elif not self._one_waits:
            self._one_waits = True
            # Room is kept for this move in all of its places except EVERYWHERE: each move that ends makes room there.
            self._taken.update(place for place in wanted if place is not EVERYWHERE)
        return full

    def room(self) -> int:
        """Return how many more moves may run, in whatever places."""
        return max(0, self._limits.running - self._taken[EVERYWHERE])

    def is_full(self, place: Place) -> bool:
        """Tell whether the place has no room."""
        limit = self._limits.of(place)
        return limit > 0 and self._taken[place] >= limit

    def full(self) -> frozenset[Place]:
        """Return every place without room."""
        return frozenset(place for place in self._taken if self.is_full(place))
