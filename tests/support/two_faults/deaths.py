"""A host of a move, or both, dies for good at any point, is declared down, and is back when the move has ended.

Each point begins with a copy of one lab.  The lab runs until the host dies; whatever the move comes to rest at is ended
by the commands that it names.  Then the host is back, with its guests off or running again, and pays what it owes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from support.labs.operations import Stage, stage
from support.two_faults import copies, death_flows, death_rests, death_worlds
from support.two_faults.death_flows import BETWEEN, ELSEWHERE, FROM_REST, SHELVES, UNDONE, UNSHELVES, begin
from support.two_faults.death_worlds import BACK, DESTINATION, SURE, Death, Spot
from support.two_faults.world import Verdict

from droveway.clients.embedded import placement
from droveway.engines.operations import move_requests

KIND: Final = "deaths"

_VOLUME: Final = "volumes: [{size_gb: 1}], "
STORAGES: Final = {"apart": ("", _VOLUME), "shared": ("shared: nfs1", _VOLUME), "bare": ("", "")}
"""Where the hosts keep disks, and the server's volume: without one nothing else keeps a second guest from starting."""
STORAGES_BETWEEN: Final = {"cells": ("", _VOLUME), "cells-bare": ("", "")}
"""The same of hosts in two cells."""
SHELF: Final = "shelf"
_BOOT: Final = "volumes: [{size_gb: 1, boot: true}], "
STORAGES_SHELVED: Final = {
    SHELF: ("", _VOLUME),
    f"{SHELF}-shared": ("shared: nfs1", _VOLUME),
    f"{SHELF}-bare": ("", ""),
    f"{SHELF}-volume": ("", _BOOT),
}
"""The same where servers are shelved, whose root disk is no larger than its image, or is a volume."""
STORAGES_SHELVED_BETWEEN: Final = {
    f"{SHELF}-cells": ("", _VOLUME),
    f"{SHELF}-cells-bare": ("", ""),
    f"{SHELF}-cells-volume": ("", _BOOT),
}
STORAGES_ELSEWHERE: Final = {"elsewhere": ("", _VOLUME), "elsewhere-bare": ("", "")}
"""The same where the source of a move between cells is dead before, and another host takes its place."""

CHOICES: Final = ("confirm", "revert")

SOURCE_HOST: Final = "host1"
"""Where the server is at first."""

CLOUD: Final = """
cells: {cell1: {hosts: {host1: {SHARED}, host2: {SHARED}, host3: {SHARED}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: ROOT}, large: {vcpus: 2, memory_mb: 512, root_gb: ROOT}}
images: {base: {size_mb: 1}}
servers:
  web: {VOLUME flavor: small, host: host1, IMAGE ports: [{}]}
  near1: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}], state: stopped}
  near2: {flavor: small, host: host2, image: base, ports: [{}], state: stopped}
  near3: {flavor: small, host: host3, image: base, ports: [{}]REST}
"""
CLOUD_OF_CELLS: Final = CLOUD.replace(
    "{cell1: {hosts: {host1: {SHARED}, host2: {SHARED}, host3: {SHARED}}}}",
    "{cell1: {hosts: {host1: {}, host3: {}}}, cell2: {hosts: {host2: {}, host4: {}}}}\noptions: {cross_cell: true}",
)
OPTIONS: Final = "[conductor]\nhost_away = 0.2\nretry_for = 0\n[confirm]\nhealthy_after = 0\n"


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    """One death in one operation, or at one rest."""

    storage: str
    operation: str
    at: str
    """direction.step.phase; of a rest what was planted and what is asked."""
    dead: str
    """Which hosts die: one of `HOSTS` or of `BOTH`."""
    back: str
    """How they come back, one of `BACK`."""
    choice: str
    """How the move is ended where it may be ended either way."""

    def __str__(self) -> str:
        return ":".join(dataclasses.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that `str` of it named."""
        return cls(*text.split(":"))


def points() -> list[str]:
    """Every step of every operation in each phase, and every rest, with either host dead, and with both."""
    return [*points_of_one(), *points_of_both()]


def points_of_one() -> list[str]:
    """Those in which one host dies.  Storage, the way back and the choice take turns."""
    return sorted(
        str(_in_turn(operation, at, dead, dead == DESTINATION))
        for operation, at in _places()
        for dead in death_flows.hosts(_begun(operation, at))
    )


def points_of_both() -> list[str]:
    """Those in which both die; which is declared down and back first takes turns too."""
    return sorted(
        str(_in_turn(operation, at, death_flows.both(_begun(operation, at))[len(at) % 2], 0))
        for operation, at in _places()
        if _begun(operation, at) not in death_flows.ONE_HOST
    )


def _places() -> Iterator[tuple[str, str]]:
    yield from death_flows.in_flows()
    yield from death_rests.rests()


def _begun(operation: str, at: str) -> str:
    return death_rests.begins_with(at) if operation == death_rests.OPERATION else operation


def is_between(operation: str) -> bool:
    """Whether the operation is one between cells."""
    return operation.startswith(BETWEEN)


def storages_of(operation: str) -> list[str]:
    """The storages that take turns for the operation."""
    if operation in ELSEWHERE:
        return [*STORAGES_ELSEWHERE]
    if operation in SHELVES or operation in UNSHELVES:
        return [*(STORAGES_SHELVED_BETWEEN if is_between(operation) else STORAGES_SHELVED)]
    return [*(STORAGES_BETWEEN if is_between(operation) else STORAGES)]


def _in_turn(operation: str, at: str, dead: str, more: int) -> Point:
    # A hash of the place, not its number: a step that is added changes no other point.
    turn = sum(f"{operation}:{at}".encode()) + more
    storages = storages_of(_begun(operation, at))
    storage, back, choice = storages[turn % len(storages)], BACK[turn // 2 % 2], CHOICES[turn // 4 % 2]
    return Point(storage, operation, at, dead, back, choice)


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Run the points, those of one storage in one lab."""
    wanted = sorted(map(Point.parse, points))
    for storage, found in itertools.groupby(wanted, key=lambda point: point.storage):
        place = folder / storage
        with stage(place / "lab", cloud(storage)) as lab:
            ground = Ground(lab, place)
            for point in found:
                began = time.monotonic()
                trouble = ground.trouble(point)
                yield Verdict(KIND, str(point), trouble, time.monotonic() - began)
            placement.disconnect(lab.lab.layout.placement)
        shutil.rmtree(place)


def cloud(storage: str) -> str:
    """The cloud in which the operations of a storage run."""
    within, between = STORAGES | STORAGES_SHELVED, STORAGES_BETWEEN | STORAGES_SHELVED_BETWEEN | STORAGES_ELSEWHERE
    shared, volume = (within | between)[storage]
    text = CLOUD_OF_CELLS if storage in between else CLOUD
    # Of shelves and reverts elsewhere that host dies too; what ran there would be off.
    text = text.replace("REST", "" if storage in STORAGES | STORAGES_BETWEEN else ", state: stopped")
    text = text.replace("ROOT", "0" if storage.startswith((SHELF, *STORAGES_ELSEWHERE)) else "1")
    text = text.replace("IMAGE", "" if volume == _BOOT else "image: base,")
    return text.replace("SHARED", shared).replace("VOLUME", volume)


class Ground:
    """One lab with copies of where its operations begin."""

    def __init__(self, lab: Stage, folder: Path) -> None:
        self.lab = lab
        self._to_cell = ["--to-cell", "cell2"] if "cell2" in lab.lab.cell_databases else []
        with lab.lab.layout.configuration.open("a") as options:
            options.write(OPTIONS)
        copies.stamp(lab.root, [lab.id_of(name) for name in ("web", "near1", "near2", "near3")])
        self.server = lab.id_of("web")
        self._folder = folder
        self._rest = copies.keep(lab.root, folder / "rest")

    @functools.cached_property
    def _waiting(self) -> copies.Copy:
        """The lab while a move to host2 waits."""
        self._put_back(self._rest)
        self.lab.cli("server", "migrate", "web", "--host", "host2", *self._to_cell, "--confirm", "manual")
        return copies.keep(self.lab.root, self._folder / "waiting")

    @functools.cached_property
    def _shelved(self) -> copies.Copy:
        """The lab while its server is shelved."""
        self._put_back(self._rest)
        self.lab.cli("server", "shelve", "web")
        return copies.keep(self.lab.root, self._folder / "shelved")

    @functools.cached_property
    def _source_dead(self) -> copies.Copy:
        """The lab while a move to host2 waits that has kept images, and whose source is dead."""
        self._put_back(self._rest)
        host = ["--host", "host2", *self._to_cell]
        self.lab.cli("server", "migrate", "web", *host, "--keep-image", "--confirm", "manual")
        self.lab.cli("lab", "worker", "stop", SOURCE_HOST)
        self.lab.cli("host", "down", SOURCE_HOST, "--i-made-sure", SURE)
        return copies.keep(self.lab.root, self._folder / "source-dead")

    def _beginning(self, operation: str) -> copies.Copy:
        if operation in ELSEWHERE:
            return self._source_dead
        if operation in UNSHELVES:
            return self._shelved
        return self._rest if operation.removesuffix(UNDONE) in FROM_REST else self._waiting

    def trouble(self, point: Point) -> str:
        """Run the point; "" when it held."""
        planned = point.operation == death_rests.OPERATION
        operation = _begun(point.operation, point.at)
        self._put_back(self._beginning(operation))
        death = Death(self.lab, self.server, point.dead, [SOURCE_HOST] if operation in ELSEWHERE else ())
        wrong = death_rests.bring_about(self.lab, point.at, death) if planned else self._run_until_dead(point, death)
        return wrong or death_worlds.judge(self.lab, death, choice=point.choice, back=point.back)

    def _put_back(self, copy: copies.Copy) -> None:
        self.lab.lab.close()
        placement.disconnect(self.lab.lab.layout.placement)
        self.lab.lab = copy.put_back()

    def _run_until_dead(self, point: Point, death: Death) -> str:
        """Why it did not die, or ""."""
        turns, again = death_flows.turns(point.operation), death_flows.again(point.operation, point.at.split(".")[1])
        spot = Spot(point.at, death, turns=turns, again=again)
        hosts = {host: functools.partial(spot.on_worker, host) for host in sorted(self.lab.lab.identity.hosts)}
        with self.lab.running(spot.on_conductor, hosts) as workers:
            death.workers = workers
            move_requests.carry(self.lab.lab, begin(self.lab, point.operation.removesuffix(UNDONE)))
            spot.join()
        # Only now: what comes after the last step's result may still have been under way.
        death.workers = None
        _direction, step, phase = point.at.split(".")
        death.shown = phase == "during" and point.dead in death_flows.PROVED.get(step, ())
        return "" if death.hosts else "no host ever died"
