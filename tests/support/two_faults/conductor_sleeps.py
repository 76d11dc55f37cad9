"""A conductor that sleeps right before one of its writes, and is woken once others have carried the move to its end.

A write is the beginning of a transaction that is to write, its commit, a call that changes something in Placement,
Neutron or Cinder, or a change in ZooKeeper.  A database gives up the transaction of who stands still.

Many sleep in one run, each in another step: the next one enters that step anew and falls asleep in a later one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from support.daemons import stale_relay
from support.daemons.stale_relay import Relay
from support.labs.small_lab import differences, file_flow, in_child, is_released, read_move, until
from support.two_faults import shelved, storages, world
from support.two_faults.shelved import Watch
from support.two_faults.world import Verdict

from droveway.clients import rest
from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import conductor, host_channel
from droveway.engines.conductor.conductor import Conductor
from droveway.engines.conductor.run import Probe
from droveway.lab import books, runner
from droveway.persistence import database
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State

WHO: Final = "writer"

CLAIM: Final = "claim"
"""What a conductor does before the first step that it enters."""

_NODES: Final = ("create", "create_guarded", "put", "delete", "ensure")
NEVER: Final = "it never came there"
_PATIENCE: Final = 240.0
CHILD_SECONDS: Final = 300
"""However busy the machine is: a dozen conductors or workers follow each other."""
_LATE: Final = {
    "network-": ("services.sqlite:ports", "services.sqlite:port_bindings"),
    "volume-POST": ("services.sqlite:attachments",),
    "image-POST": ("services.sqlite:images",),
}
"""What a call changes that lands late all the same: Neutron compares nothing with what a call expects, and Cinder and
Glance make an attachment or an image for each who asks.  The audit names each, with its mend."""
_OF_SHELVED: Final = {
    "execute.release_allocation.placement-POST": tuple(
        f"placement.sqlite:{table}" for table in ("allocations", "consumers", "resource_providers")
    ),
}
"""So does this one: Placement forgets a consumer that holds nothing, and begins again with its first generation."""
_MAY_CHANGE: Final = tuple(itertools.chain(*_LATE.values(), *_OF_SHELVED.values()))

_NAME: Final = "name of the database"
_GONE: Final = "whether it was given up"

_here = threading.local()


class Sleeper:
    """A conductor's probe, and what its run tells of each write before it is made."""

    def __init__(self, wanted: Collection[str], otherwise: Probe) -> None:
        """``wanted``: it sleeps at the first of these places by which it comes; where there is none it only notes."""
        self.place = ""
        self.passed: list[str] = []
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._wanted = frozenset(wanted)
        self._otherwise = otherwise
        self._at = ""
        self._count: Counter[str] = Counter()

    def __call__(self, move: str, step: str, direction: str, phase: str) -> None:
        """The conductor's probe: from here on it is in this step, whatever it writes."""
        _here.sleeper = self
        if phase == "before":
            self.enter(f"{direction}.{step}")
        self._otherwise(move, step, direction, phase)

    def enter(self, at: str) -> None:
        """A step, or the claim; entered again it counts anew."""
        self._at = at
        self._count.clear()

    def comes_to(self, write: str) -> None:
        """It is about to make the write."""
        self._count[write] += 1
        place = f"{self._at}.{write}.{self._count[write]}"
        self.passed.append(place)
        if place not in self._wanted or self.place:
            return
        for transaction in _open():
            transaction.rollback()
            transaction.info[_GONE] = True
        self.place = place
        self.reached.set()
        self.go_on.wait()


def comes_to(write: str) -> None:
    """Whoever runs a move in this thread is about to make the write.

    What it notes while it waits for a worker depends on how long that takes: nobody sleeps there.
    """
    sleeper = getattr(_here, "sleeper", None)
    if sleeper is not None and not getattr(_here, "waits", False):
        sleeper.comes_to(write)


def _open() -> list[Any]:
    """The connections of this thread's transactions that are to write, which others wait for."""
    found: list[Any] = _here.__dict__.setdefault("open", [])
    return found


def hook() -> None:
    """Have every conductor of this process tell of its writes."""
    _hook_databases()
    send = rest.Rest.send

    def sending(self: rest.Rest, method: str, path: str, **options: Any) -> Any:
        if method != "GET":
            comes_to(f"{self._name.lower()}-{method}")
        return send(self, method, path, **options)

    rest.Rest.send = sending  # type: ignore[method-assign]
    for name in _NODES:
        setattr(Coordination, name, _telling(getattr(Coordination, name), f"zookeeper-{name}"))
    wait, dispatch = host_channel.HostChannel.wait, conductor.MoveConductor._dispatch_job

    def waiting(self: host_channel.HostChannel, *names: Any, **options: Any) -> Any:
        _here.waits = True
        try:
            return wait(self, *names, **options)
        finally:
            _here.waits = False

    def dispatching(self: conductor.MoveConductor, job: Any) -> bool:
        probe = self._resources.probe
        if isinstance(probe, Sleeper):
            _here.sleeper = probe
            probe.enter(f"execute.{CLAIM}")
        return dispatch(self, job)

    host_channel.HostChannel.wait = waiting  # type: ignore[method-assign]
    conductor.MoveConductor._dispatch_job = dispatching  # type: ignore[method-assign]


def _telling(call: Any, write: str) -> Any:
    @functools.wraps(call)
    def told(*names: Any, **options: Any) -> Any:
        comes_to(write)
        return call(*names, **options)

    return told


def _hook_databases() -> None:
    writing, connect = database.Database.writing, database.Database._connect
    commit: Callable[[DefaultDialect, Any], object] = database.SqliteDialect.do_commit

    def connecting(self: database.Database) -> sa.Engine:
        engine = connect(self)
        # Who sleeps keeps its connection, as a process of its own would one of its own pool.
        engine.pool._max_overflow = -1  # type: ignore[attr-defined]
        return engine

    @contextlib.contextmanager
    def beginning(self: database.Database) -> Iterator[Any]:
        name = Path(str(self.engine.url.database)).stem
        comes_to(f"{name}-begin")
        info: dict[str, Any] = {}
        try:
            with writing(self) as connection:
                transaction, info = connection.connection, connection.connection.info
                info[_NAME] = name
                _open().append(transaction)
                try:
                    yield connection
                finally:
                    _open().remove(transaction)
        finally:
            # Whoever has the connection next begins anew.
            info.pop(_GONE, None)

    def committing(self: DefaultDialect, dbapi_connection: Any) -> None:
        info = dbapi_connection.info
        if info.get(database._WRITES):
            comes_to(f"{info[_NAME]}-commit")
        if info.pop(_GONE, False):
            raise sqlite3.OperationalError("the server has given the transaction up")
        commit(self, dbapi_connection)

    def executing(self: DefaultDialect, cursor: Any, *statement: Any, **options: Any) -> None:
        # Within another transaction than the one that it was about to begin or to commit it goes on with statements.
        context = options.get("context") or statement[-1]
        if context is not None and context.root_connection.connection.info.get(_GONE):
            raise sqlite3.OperationalError("the server has given the transaction up")
        execute(self, cursor, *statement, **options)

    execute: Callable[..., object] = database.SqliteDialect.do_execute
    database.SqliteDialect.do_execute = executing  # type: ignore[method-assign]
    database.Database._connect = connecting  # type: ignore[method-assign]
    database.Database.writing = beginning  # type: ignore[method-assign]
    database.SqliteDialect.do_commit = committing  # type: ignore[method-assign]


class Bench(stale_relay.Bench):
    """A lab that is put back before each run."""

    def __init__(self, folder: Path, storage: str) -> None:
        super().__init__(folder, storages.cloud_of(storage))
        self._storage = storage

    def awake(
        self, kind: str, direction: str, then: str, places: Sequence[str], *, late: bool = False
    ) -> dict[str, str]:
        """What the conductors did that slept at these places, each in another step, by place; "" for nothing.

        With ``late`` a call may land that its sender sent after it had lost its claim, if the audit names it.
        """
        return dict(self._told(kind, direction, then, places, late=late)[0])

    def writes(self, kind: str, direction: str) -> list[str]:
        """The places by which a conductor comes in the operation, in their order."""
        return list(self._told(kind, direction, "", ())[1])

    def _told(self, kind: str, direction: str, then: str, places: Sequence[str], *, late: bool = False) -> Any:
        self.rest.restore()
        answer = self.root.with_name("answer.json")
        answer.unlink(missing_ok=True)

        def play() -> None:
            hook()
            scene = _Scene(self.root, Relay(kind, direction, "before", (), then, storages.keeps_images(self._storage)))
            scene.may_be_late = late
            answer.write_text(json.dumps(scene.told(list(places))))

        in_child(play, CHILD_SECONDS)
        return json.loads(answer.read_text())


class _Scene(stale_relay.Scene):
    """One run, in a process of its own."""

    may_be_late = False

    def told(self, places: list[str]) -> tuple[dict[str, str], list[str]]:
        """By place what its sleeper changed, and the places by which the last conductor came."""
        watch = Watch(self._lab.layout.root)
        move = self._begin()
        asleep = self._all_asleep(places, move)
        last = Sleeper((), self._failing)
        finishing = runner.start_conductor(self._lab, self._session(), probe=last)
        self._rest(move, finishing)
        ending = kinds.of(self._relay.kind).ending(done=self._relay.direction != "revert")
        assert read_move(self._lab, move).state == ending.state
        passed = list(dict.fromkeys(each for each in last.passed if self._counts(each)))
        if self._relay.then == "again":
            if read_move(self._lab, move).state == State.VERIFYING:
                # What a resize wrote is taken back, so that a late write of it shows; a confirm fails here each time.
                ends = "revert" if self._relay.kind.endswith(("resize", "confirm")) else "confirm"
                self._rest(file_flow(self._lab, storages.alike(self._relay.kind, ends)), finishing)
            move = file_flow(self._lab, shelved.next_move(self._lab.layout.root, read_move(self._lab, move).server))
            self._rest(move, finishing)
        told = dict.fromkeys(places, NEVER)
        for runs, sleeper in asleep:
            told[sleeper.place] = self._wake(runs, sleeper)
        return self._ended(watch, move, told), passed

    def _counts(self, place: str) -> bool:
        """Of an operation that is undone only what comes once it is turned back."""
        turned = f"execute.{self._no_return}."
        return self._relay.direction == "execute" or place.startswith(("revert.", turned))

    def _all_asleep(self, places: list[str], move: str) -> list[tuple[Conductor, Sleeper]]:
        """One conductor after another, each asleep at the next place, until one comes by none any more."""
        asleep: list[tuple[Conductor, Sleeper]] = []
        left = set(places)
        while left:
            sleeper = Sleeper(left, self._failing)
            session = self._session()
            runs = runner.start_conductor(self._lab, session, probe=sleeper)
            until(lambda at=sleeper, by=runs: at.reached.is_set() or self._is_over(move, by), "a sleep", _PATIENCE)  # type: ignore[misc]
            # As a whole it sleeps, so it claims nothing more either.
            runs.board.claimable = lambda _posting: False
            if not sleeper.reached.is_set():
                runs.stop()
                break
            # ZooKeeper gave its session up, and it came back with a new one: awake that lets it do anything.
            lost = session.session
            session.client.restart()
            assert session.session not in (None, lost)
            asleep.append((runs, sleeper))
            left.discard(sleeper.place)
        return asleep

    def _is_over(self, move: str, runs: Conductor) -> bool:
        return is_released(self._lab, move) and runs.busy() == 0

    def _wake(self, runs: Conductor, sleeper: Sleeper) -> str:
        """What it changed once awake; "" for nothing, or for what may be late and the audit names with its mend."""
        place = sleeper.place
        before, kept = self._picture(), self._kept()
        sleeper.go_on.set()
        until(lambda: runs.busy() == 0, f"the end of the run that slept at {place}", _PATIENCE)
        changed = differences(before, self._picture())
        if not changed or not self.may_be_late or not self._is_late(place, changed):
            return "; ".join(changed)
        named = [each for each in books.balance(self._lab).findings if each.mend]
        self._mend(kept)
        return "" if named else f"the audit does not name it: {'; '.join(changed)}"

    @staticmethod
    def _is_late(place: str, changed: Collection[str]) -> bool:
        call = place.split(".")[2]
        tables = next((tables for kind, tables in _LATE.items() if call.startswith(kind)), ())
        tables += _OF_SHELVED.get(place.rpartition(".")[0], ())
        return all(each.startswith(tuple(f"{table}: " for table in tables)) for each in changed)

    def _kept(self) -> dict[str, list[world.Row]]:
        found = {}
        for each in _MAY_CHANGE:
            file, _, table = each.partition(":")
            found[each] = world.rows(self._lab.layout.root / file, table)
        return found

    def _mend(self, kept: Mapping[str, list[world.Row]]) -> None:
        """Give the services back what they had, as the audit's mend does."""
        for each, rows in kept.items():
            file, _, table = each.partition(":")
            with world.opened(self._lab.layout.root / file) as database, database:
                database.execute(f"DELETE FROM {table}")
                for row in rows:
                    columns, values = ", ".join(row), ", ".join("?" * len(row))
                    database.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", tuple(row.values()))

    def _ended(self, watch: Watch, move: str, told: dict[str, str]) -> dict[str, str]:
        """Once all are awake the world is still right."""
        row = read_move(self._lab, move)
        verifying = row.state == State.VERIFYING
        dead = storages.dead_before(self._relay.kind)
        wrong = watch.trouble(row.server, ended=not verifying, verifying=verifying, dead=dead)
        if not wrong:
            wrong = "; ".join(
                f"{each.kind} {each.subject}: {each.detail}" for each in books.balance(self._lab).findings
            )
        return {place: trouble or (f"at the end: {wrong}" if wrong else "") for place, trouble in told.items()}


@contextlib.contextmanager
def bench(folder: Path, storage: str) -> Iterator[Bench]:
    """A bench in this folder, which is made and removed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Bench(folder, storage)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def run(made: Bench, kind: str, wanted: Sequence[Sequence[str]]) -> Iterator[Verdict]:
    """Run the points of one storage, each split into its words: of each step one sleeps in a run."""
    for (of, direction, then), found in itertools.groupby(wanted, lambda words: tuple(words[2:5])):
        for together in packed(found):
            began = time.monotonic()
            places = [words[5] for words in together]
            told = _told(made, of, direction, then, places)
            for place in places:
                # Who takes over clears up no more than what it knows of: alone it is the first that comes there.
                if told[place] == NEVER and len(places) > 1:
                    told |= _told(made, of, direction, then, [place])
            lasted = (time.monotonic() - began) / len(places)
            for words in together:
                yield Verdict(kind, ":".join(words), told[words[5]], lasted)


def _told(made: Bench, of: str, direction: str, then: str, places: list[str]) -> dict[str, str]:
    try:
        return made.awake(of, direction, then, places)
    except AssertionError as error:
        return dict.fromkeys(places, str(error))


def packed(found: Iterable[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Runs of points, in each at most one of a step: who enters a step anew writes as the first one did."""
    count: Counter[str] = Counter()
    runs: list[list[Sequence[str]]] = []
    for words in found:
        step = words[5].rsplit(".", 2)[0]
        if count[step] == len(runs):
            runs.append([])
        runs[count[step]].append(words)
        count[step] += 1
    return runs


def one_of_each(places: Iterable[str]) -> list[str]:
    """Of each kind of write the first place in a step that has no other one yet."""
    kinds: set[str] = set()
    steps: set[str] = set()
    found = []
    for place in places:
        step, write, _number = place.rsplit(".", 2)
        if write not in kinds and step not in steps:
            kinds.add(write)
            steps.add(step)
            found.append(place)
    return found
