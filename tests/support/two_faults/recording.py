"""An operation that runs once, with copies of its lab at every effect and of its databases at every boundary.

A fault is planted many times in what was copied: the lab as it was at an effect, and in it a database as it had been at
an earlier boundary, or none at all.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from support.labs.operations import Stage
from support.two_faults import copies, shelved, ways_out, world
from support.two_faults.copies import Copy

from droveway.clients.embedded import placement
from droveway.errors import StepError
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab.layout import Layout

UNDONE: Final = "-undone"
FORWARD_KINDS: Final = ("resize", "migrate")
_SHELVE: Final = "shelve"
_UNSHELVE: Final = "unshelve"
OPERATIONS: Final = tuple(f"{kind}{end}" for kind in ("resize", "migrate", "confirm", "revert") for end in ("", UNDONE))
BETWEEN: Final = "cross_cell_"
BETWEEN_CELLS: Final = tuple(f"{BETWEEN}{operation}" for operation in OPERATIONS)
"""The same into another cell and back, in the storage `CELLS`."""
SHELVING: Final = ("shelve", "shelve-undone", "unshelve", "unshelve-undone")
UNSHELVE_BETWEEN: Final = ("cross_cell_unshelve", "cross_cell_unshelve-undone")
REVERT_ELSEWHERE: Final = ("cross_cell_revert_elsewhere", "cross_cell_revert_elsewhere-undone")
"""To another host of the source's cell, as the source is dead; in the storage `ELSEWHERE`."""

REST: Final = "rest"
"""The boundary before what was asked for of a server that waits, or is shelved."""
BEGIN: Final = "begin"
"""The boundary before the first step."""
FORWARD: Final = "forward."
"""Before a step of the resize that a confirm or revert ends, or of the shelve before: the boundary behind it."""

LOST: Final = "worker-"
"""Before a host's name, in a boundary's place: the journal of that host's worker was moved away."""
CELL: Final = "cell-"
TARGET_CELL: Final = "target-cell-"
API: Final = "api-"
PLACEMENT: Final = "placement-"
NEUTRON: Final = "neutron-"
CINDER: Final = "cinder-"
"""Before a boundary's name: what was put back is that database, and not the journal.

It is that of the source's cell, of the cell that a move between cells leads to, Nova's API database, or a service's.
"""
DATABASES: Final = (CELL, TARGET_CELL, API, PLACEMENT, NEUTRON, CINDER)
SOURCE: Final = "host1"
HOSTS: Final = (SOURCE, "host2")

AWAY: Final = ("up", *HOSTS)
CHOICES: Final = ("confirm", "revert")

CELLS: Final = "cells"
"""The storage of hosts that are in a cell each."""

VOLUME: Final = "volume"
"""The storage of a server that has no disk of its own."""

SHELF: Final = "shelf"
"""Before the storages in which servers are shelved: whose root disks are no larger than their images."""
SHELVES: Final = (SHELF, f"{SHELF}-shared", f"{SHELF}-{VOLUME}")
SHELVES_BETWEEN: Final = (f"{SHELF}-{CELLS}", f"{SHELF}-{CELLS}-{VOLUME}")

ELSEWHERE: Final = "elsewhere"
"""The storage of two cells whose first one has a host more."""
_SPARE: Final = "host3"
"""That host."""

_IMAGE: Final = "{flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}"
_BOOT: Final = "{flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}]}"
_CLOUD: Final = """
options: {cross_cell: true}
cells: CELLS
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: ROOT}
  large: {vcpus: 2, memory_mb: 512, root_gb: ROOT}
images: {base: {size_mb: 1}}
servers:
  web: WEB
  near: {flavor: small, host: host1, image: base, ports: [{}]}
"""

_DATABASES: Final[dict[str, Callable[[Layout], Path]]] = {
    "": lambda files: files.journal,
    CELL: lambda files: files.cell("cell1"),
    TARGET_CELL: lambda files: files.cell("cell2"),
    API: lambda files: files.api,
    PLACEMENT: lambda files: files.placement,
    NEUTRON: lambda files: files.services,
    CINDER: lambda files: files.services,
}
_TABLES: Final = {NEUTRON: ("ports", "port_bindings"), CINDER: ("volumes", "attachments")}
"""What of the lab's services is whose."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One database put back in one world, or moved away there."""

    storage: str
    operation: str
    at: str
    """The effect: direction.step.phase."""
    of: str
    """The boundary that the journal is as of: direction.step, one of `FORWARD`, `BEGIN` or `REST`; with another
    database's name before it, or `LOST` with a host."""
    how: tuple[str, str, str]

    @property
    def database(self) -> str:
        """Which of `DATABASES` was put back; "" for the journal, and where a worker's was moved away."""
        return next((each for each in DATABASES if self.of.startswith(each)), "")

    def __str__(self) -> str:
        return ":".join([self.storage, self.operation, self.at, self.of, *self.how])

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that `str` of it named."""
        storage, operation, at, of, *how = text.split(":")
        return cls(storage, operation, at, of, (how[0], how[1], how[2]))


def cloud(storage: str) -> str:
    """The cloud in which the operations of a storage run."""
    if storage == ELSEWHERE:
        cells = "{cell1: {hosts: {host1: {}, host3: {}}}, cell2: {hosts: {host2: {}}}}"
    elif CELLS in storage:
        cells = "{cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}}"
    else:
        cells = "{cell1: {hosts: {host1: {SHARED}, host2: {SHARED}}}}"
    shared = "shared: nfs1" if storage.endswith("shared") else ""
    text = _CLOUD.replace("CELLS", cells).replace("SHARED", shared)
    # An image of a disk has all of its bytes.
    text = text.replace("ROOT", "0" if storage.startswith((SHELF, ELSEWHERE)) else "1")
    return text.replace("WEB", _BOOT if storage.endswith(VOLUME) else _IMAGE)


def hosts(operation: str) -> tuple[str, str]:
    """The two hosts of an operation that are not dead before it."""
    return (_SPARE, HOSTS[1]) if operation in REVERT_ELSEWHERE else HOSTS


def living(operation: str, how: tuple[str, str, str]) -> tuple[str, str, str]:
    """The same way, with another host away where the one that is named is dead anyway."""
    rest, away, choice = how
    return rest, hosts(operation)[HOSTS.index(away)] if away in HOSTS else away, choice


class Recording:
    """One run of an operation, with copies of the lab at its effects and of the databases at its boundaries."""

    def __init__(self, lab: Stage, folder: Path, operation: str) -> None:
        self.lab = lab
        self._folder = folder
        self._kind = operation.removesuffix(UNDONE)
        self._undone = operation.endswith(UNDONE)
        self._worlds: dict[str, Copy] = {}
        self._lock = threading.Lock()
        with lab.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        copies.stamp(lab.root, [lab.id_of("web"), lab.id_of("near")])
        self.server = lab.id_of("web")
        self._watch = shelved.Watch(lab.root)
        self._dead = [SOURCE] if operation in REVERT_ELSEWHERE else []
        self._record()

    def put_back(self, point: Point) -> None:
        """Make the world of the point, in which nothing runs but the guests."""
        self.lab.lab.close()
        placement.disconnect(self.lab.lab.layout.placement)
        self.lab.lab = self._world(point.at).put_back()
        files = self.lab.lab.layout
        if point.of.startswith(LOST):
            journal = files.worker(point.of.removeprefix(LOST))
            for path in journal.parent.glob(f"{journal.name}*"):
                path.unlink()
        else:
            name = point.database
            kept = self._kept(name, point.of.removeprefix(name))
            if name in _TABLES:
                copies.restore_tables(kept, _DATABASES[name](files), _TABLES[name])
            else:
                copies.restore_database(kept, _DATABASES[name](files))

    def trouble(self, *, ended: bool) -> str:
        """What is wrong of the lab, as `Watch.trouble` has it."""
        return self._watch.trouble(self.server, ended=ended, dead=self._dead)

    def rests_wrong(self) -> str:
        """Whether the server, whose move has ended, is not what that end says; "" where it is.

        Every server ran before; it is off only where a shelve is done, or an unshelve is not.
        """
        verb = self._kind.removeprefix(BETWEEN)
        state = ways_out.shown(self.lab, self.move)["state"]
        if verb in (_SHELVE, _UNSHELVE) and (state == "done") == (verb == _SHELVE):
            is_right = shelved.is_offloaded(self.lab.root, self.server)
            return "" if is_right else f"the {verb} is {state}, and the server is not shelved"
        runs = world.running_on(self.lab.root, self.server)
        return "" if runs else f"the server ran before its move, which is {state}, and is off at its end"

    def is_refused(self) -> bool:
        """Whether the lab says that it has to be adopted: where it has never seen the journal, it misses none."""
        return "db adopt" in ways_out.say(self.lab, "move", "list").error

    def close(self) -> None:
        """Have the lab as it is after the operation: whoever removes it stops its guests."""
        placement.disconnect(self.lab.lab.layout.placement)

    def _world(self, at: str) -> Copy:
        """The world at the effect; where a step had nothing to do on its host, the one after it."""
        if at not in self._worlds:
            at = f"{at.rpartition('.')[0]}.after"
        return self._worlds[at]

    def _kept(self, name: str, of: str) -> Path:
        return self._folder / "databases" / f"{name}{of}"

    def _keep_databases(self, of: str) -> None:
        for name, found in _DATABASES.items():
            path = found(self.lab.lab.layout)
            if path.exists():
                copies.copy_database(path, self._kept(name, of))

    def _record(self) -> None:
        lab = self.lab
        (self._folder / "databases").mkdir()
        if (before := _before(self._kind)) is not None:
            with lab.running(self._on_former):
                lab.cli("server", *before.split())
            for host in self._dead:
                lab.cli("lab", "worker", "stop", host)
                lab.cli("host", "down", host, "--i-made-sure", "power is off")
        if before is not None or self._kind == _SHELVE:
            self._keep_databases(REST)
        hosts = {host: functools.partial(self._on_worker, host) for host in sorted(lab.lab.identity.hosts)}
        with lab.running(self._on_conductor, hosts):
            said = ways_out.say(lab, "server", *_asked(self._kind).split())
            assert "Traceback" not in said.error, said
        self.move = lab.move("web").id
        self._worlds["end"] = copies.keep(lab.root, self._folder / "worlds" / "end")

    def _on_former(self, _move: str, step: str, _direction: str, phase: str) -> None:
        if phase == "stored":
            self._keep_databases(f"{FORWARD}{step}")

    def _on_conductor(self, _move: str, step: str, direction: str, phase: str) -> None:
        if phase == "before" and not self._kept("", BEGIN).exists():
            self._keep_databases(BEGIN)
        if phase in ("before", "after"):
            self._keep(f"{direction}.{step}.{phase}")
        if phase == "stored":
            self._keep_databases(f"{direction}.{step}")
        if self._undone and (step, direction, phase) == (last(self._kind), "execute", "after"):
            raise StepError("it fails", code="test")

    def _on_worker(self, _host: str, step: str, direction: str, _phase: str, _effect: str) -> None:
        """The first effect of the step, and the last one: each one takes the place of the one before."""
        name = f"{direction}.{step}"
        self._keep(f"{name}.{'late' if f'{name}.early' in self._worlds else 'early'}")

    def _keep(self, name: str) -> None:
        with self._lock:
            self._worlds[name] = copies.keep(self.lab.root, self._folder / "worlds" / name)


def _asked(kind: str) -> str:
    """The command of `droveway server` that asks for a flow of the kind."""
    verb = kind.removeprefix(BETWEEN)
    to_cell = " --to-cell cell2" if verb != kind else ""
    return {
        "resize": f"resize web --flavor large{to_cell}",
        "migrate": f"migrate web{to_cell}",
        _UNSHELVE: f"unshelve web{to_cell or ' --host host2'}",
        # The command sees that the source is dead.
        "revert_elsewhere": "revert web",
    }.get(verb, f"{verb} web")


def _former(kind: str) -> str | None:
    """The kind of flow that has to be over before one of the kind; None where a server at rest is enough."""
    verb = kind.removeprefix(BETWEEN)
    if verb in (*FORWARD_KINDS, _SHELVE):
        return None
    return _SHELVE if verb == _UNSHELVE else f"{BETWEEN if verb != kind else ''}resize"


def _before(kind: str) -> str | None:
    """The command of `droveway server` that asks for that flow."""
    former = _former(kind)
    if former is None:
        return None
    # No host of the source's cell but the source has the disks otherwise.
    return _asked(former) + (" --keep-image" if kind in REVERT_ELSEWHERE else "")


def last(kind: str) -> str:
    """The last step before the point of no return: with its failure all is undone."""
    graph = registry.latest(kind)
    names = graph.names()
    return names[names.index(graph.no_return.step_name()) - 1]


def pairs(operation: str) -> Iterator[tuple[str, str]]:
    """Every effect of the operation, with every boundary before it."""
    kind = operation.removesuffix(UNDONE)
    graph = registry.latest(kind)
    at_host = {step.step_name() for step in graph.walk() if step.where is not Where.CONDUCTOR}
    former = _former(kind)
    before = [] if former is None else [f"{FORWARD}{step.step_name()}" for step in registry.latest(former).walk()]
    boundaries = [*before, REST, BEGIN] if before or kind == _SHELVE else [BEGIN]
    for direction, step in _passed(operation):
        for phase in ("before", "early", "late", "after") if step in at_host else ("before", "after"):
            yield from ((f"{direction}.{step}.{phase}", of) for of in boundaries)
        if not (direction == "execute" and operation.endswith(UNDONE) and step == last(kind)):
            boundaries.append(f"{direction}.{step}")
    yield from (("end", of) for of in boundaries)


def _passed(operation: str) -> list[tuple[str, str]]:
    """What the operation passes, in its order."""
    kind = operation.removesuffix(UNDONE)
    names = registry.latest(kind).names()
    if not operation.endswith(UNDONE):
        return [("execute", name) for name in names]
    there = names[: names.index(last(kind)) + 1]
    return [("execute", name) for name in there] + [("revert", name) for name in reversed(there)]
