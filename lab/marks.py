"""Recognises a lab's databases that were truncated, swapped with another lab's, or restored from an older copy.

What only ever grows is written down beside them whenever the lab begins and ends to run: the journal's epoch and
steps, the finished commands of each worker's journal, the generations of Placement's providers.  A database that stands
below its mark is older than what the lab has seen.  After a kill, when nothing was written down, the workers' journals
still tell of an older journal: they hold the numbers of its epochs and steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from droveway.errors import Refused
from droveway.lab.layout import WORKER, Layout
from droveway.workers.hypervisors import durable

ADOPT: Final = "droveway db adopt"

EPOCH: Final = "epoch"
INCARNATION: Final = "incarnation"
"""Counters of the journal, by the names that `droveway.persistence.journal.tables` gives them.

Its models load too slowly.
"""

BUSY_TIMEOUT: Final = 30.0
"""Seconds that a look waits for another process's write."""

_HEADER: Final = 100
_MAGIC: Final = b"SQLite format 3\x00"
_LARGEST_PAGE: Final = 65536
_NOTE: Final = ("lab", INCARNATION)
"""Where a worker's journal has whose it is, among its notes."""


class WorkerMark(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's journal says."""

    incarnation: int | None
    """Whose worker it is of; None before it was marked."""
    finished: int = 0
    """How many commands have a result: that one was begun is not synced, and a power cut may take it back."""
    epoch: int
    step: int
    """The highest number of a step of the journal's history that a command has in its key."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What the databases of a lab say of themselves; None for one that cannot be read."""

    incarnation: int | None
    epoch: int | None
    step: int | None
    providers: str | None
    """A digest of the providers' ids."""
    generations: int | None
    workers: dict[str, WorkerMark]


@contextlib.contextmanager
def kept(files: Layout, hosts: Iterable[str]) -> Iterator[None]:
    """Require the databases to be the lab's last ones, and write down what they say as the block begins and ends.

    Raises `droveway.errors.Refused` as `require` does; the caller holds the lab's lock.
    """
    hosts = list(hosts)
    with _Databases() as databases:
        _refuse(_truncated(files, databases))
        present = _look(files, hosts, databases)
        _refuse(_contradiction(files, present))
        _record(files, hosts, present)
        try:
            yield
        finally:
            _record(files, hosts, _look(files, hosts, databases))
            databases.close_together()


def require(files: Layout, hosts: Iterable[str]) -> None:
    """Raise `droveway.errors.Refused` when a database is not the one that this lab has used last."""
    with _Databases() as databases:
        _refuse(_truncated(files, databases) or _contradiction(files, _look(files, hosts, databases)))


def truncated(files: Layout) -> str:
    """The sentence that names a database of which a part is missing, with the mend; empty when there is none."""
    with _Databases() as databases:
        return _truncated(files, databases)


def contradiction(files: Layout, hosts: Iterable[str]) -> str:
    """The sentence that names a database which is not the last one, with the mend; empty when all are."""
    return _contradiction(files, look(files, hosts))


def foreign_providers(files: Layout, known: Marks, present: Marks) -> str:
    """The sentence that says that Placement's database is another lab's; empty when it is this one's."""
    if present.providers in (None, known.providers) or known.providers is None:
        return ""
    return (
        f"the database {files.placement} has the resource providers of another lab, so nothing runs: put this "
        f"lab's own back, then {ADOPT}"
    )


def look(files: Layout, hosts: Iterable[str]) -> Marks:
    """What the databases say now."""
    with _Databases() as databases:
        return _look(files, hosts, databases)


def recorded(files: Layout) -> Marks | None:
    """What was written down last; None for a lab that never ran."""
    try:
        return msgspec.json.decode(files.marks.read_bytes(), type=Marks)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise Refused(f"{files.marks} is corrupt ({error}): remove it, then {ADOPT}") from None


def record(files: Layout, hosts: Iterable[str]) -> None:
    """Write down what the databases say; the caller holds the lab's lock and has made sure that they are this lab's.

    The last marks stand while a database cannot be read: it may be a passing trouble, and the next run looks again.
    """
    hosts = list(hosts)
    _record(files, hosts, look(files, hosts))


class _Databases:
    """Connections for looking, each opened at its first use and held: to open one costs more than to read it."""

    def __init__(self) -> None:
        self._opened: dict[Path, sqlite3.Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for database in self._opened.values():
            database.close()

    def close_together(self) -> None:
        """Close all: who closes a worker's journal last writes its log back and waits for the disk, here once."""
        with futures.ThreadPoolExecutor(len(self._opened) or 1) as closing:
            for closed in [closing.submit(database.close) for database in self._opened.values()]:
                closed.result()

    def rows(self, path: Path, query: str, *values: str) -> list[Any] | None:
        """The rows; None for a database that cannot be read: whoever needs it says so."""
        if not path.exists():
            return None
        try:
            return self.of(path).execute(query, values).fetchall()
        except sqlite3.Error:
            return None

    def of(self, path: Path) -> sqlite3.Connection:
        """The connection.  It may write: what a killed process had begun is rolled back by whoever reads next."""
        if path not in self._opened:
            uri = f"{path.absolute().as_uri()}?mode=rw"
            self._opened[path] = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, check_same_thread=False)
        return self._opened[path]


def _refuse(why: str) -> None:
    if why:
        raise Refused(why)


def _truncated(files: Layout, databases: _Databases) -> str:
    for path in _files(files):
        if not _is_malformed(path, databases):
            continue
        whole = _whole_size(path)
        if path.stat().st_size < whole:
            return (
                f"the database {path} is truncated ({path.stat().st_size} of {whole} bytes), so nothing runs: restore "
                f"it from a copy, then {ADOPT}"
            )
    return ""


def _contradiction(files: Layout, present: Marks) -> str:
    known = recorded(files)
    return next(_contradictions(files, known, present), "") if known is not None else ""


def _look(files: Layout, hosts: Iterable[str], databases: _Databases) -> Marks:
    workers = {}
    for host in hosts:
        # Before the journal: what a worker has was in the journal first.
        found = _worker(files.worker(host), databases)
        if found is not None:
            workers[host] = found
    counted = databases.rows(files.journal, "SELECT name, value FROM counters")
    counters = dict(counted or ())
    steps = (
        databases.rows(files.journal, "SELECT coalesce(max(seq), 0) FROM move_steps") if counted is not None else None
    )
    providers = databases.rows(files.placement, "SELECT uuid, generation FROM resource_providers ORDER BY uuid")
    return Marks(
        incarnation=counters.get(INCARNATION),
        epoch=counters.get(EPOCH, 0) if steps is not None else None,
        step=steps[0][0] if steps is not None else None,
        providers=None if providers is None else _digest(uuid for uuid, _ in providers),
        generations=None if providers is None else sum(generation for _, generation in providers),
        workers=workers,
    )


def _record(files: Layout, hosts: Iterable[str], present: Marks) -> None:
    unread = [host for host in hosts if host not in present.workers and files.worker(host).exists()]
    if unread or present.step is None or present.providers is None:
        return
    for host, mark in present.workers.items():
        if present.incarnation is not None and mark.incarnation != present.incarnation:
            _mark_worker(files.worker(host), present.incarnation)
            present.workers[host] = msgspec.structs.replace(mark, incarnation=present.incarnation)
    data = msgspec.json.encode(present)
    if not files.marks.exists() or files.marks.read_bytes() != data:
        durable.replace(files.marks, data)


def _contradictions(files: Layout, known: Marks, present: Marks) -> Iterator[str]:
    if None not in (present.step, known.incarnation) and known.incarnation != present.incarnation:
        yield _swapped(f"the journal {files.journal}")
    for host, mark in sorted(known.workers.items()):
        found, what = present.workers.get(host), f"the journal of the worker of host {host}"
        if found is None:
            if not (files.worker(host)).exists():
                yield f"{what} is gone, and with it what the host has done: restore it, or {ADOPT} begins a new one"
        elif None not in (found.incarnation, known.incarnation) and found.incarnation != known.incarnation:
            yield _swapped(what)
        elif found.finished < mark.finished:
            yield _older(what, f"{found.finished} commands of {mark.finished}")
    seen = [("", known.epoch or 0, known.step or 0)]
    seen += [(f"the worker of host {host} knows of ", mark.epoch, mark.step) for host, mark in present.workers.items()]
    for who, epoch, step in seen:
        for name, mine, theirs in (("epoch", present.epoch, epoch), ("step", present.step, step)):
            if mine is not None and mine < theirs:
                yield _older(f"the journal {files.journal}", f"its last {name} is {mine}, {who}{theirs}")
    if why := foreign_providers(files, known, present):
        yield why
    if present.generations is not None and present.generations < (known.generations or 0):
        yield _older(f"the database {files.placement}", f"generation {present.generations} of {known.generations}")


def _swapped(what: str) -> str:
    return f"{what} is another lab's, so nothing runs: put this lab's own back, or take it as it is with  {ADOPT}"


def _older(what: str, how: str) -> str:
    return (
        f"{what} was restored from an older copy ({how}), so nothing runs: put the newest one back, or take it as it "
        f"is with  {ADOPT}, which parks every unfinished move"
    )


def _files(files: Layout) -> Iterator[Path]:
    every = [files.journal, files.api, files.placement, files.services, *files.cells.glob("*.sqlite")]
    yield from (path for path in [*every, *files.hosts.glob(f"*/{WORKER}")] if path.exists())


def _is_malformed(path: Path, databases: _Databases) -> bool:
    """Whether SQLite itself finds that the file cannot be what its header says.

    Only such a file is read past SQLite: closing a file that this process has open in SQLite as well drops all of the
    process's locks on it, and what it commits afterwards can be lost.
    """
    try:
        databases.of(path).execute("PRAGMA user_version").fetchall()
    except sqlite3.DatabaseError as error:
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return False


def _whole_size(path: Path) -> int:
    """The size that the file says it has; 0 when it does not say, or its write-ahead log may complete it."""
    log = path.with_name(f"{path.name}-wal")
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC) or header[24:28] != header[92:96]:
        return 0
    if log.exists() and log.stat().st_size:
        return 0
    size = int.from_bytes(header[16:18], "big")
    return (_LARGEST_PAGE if size == 1 else size) * int.from_bytes(header[28:32], "big")


def _worker(path: Path, databases: _Databases) -> WorkerMark | None:
    keys = databases.rows(path, "SELECT key, result IS NOT NULL FROM commands")
    notes = databases.rows(path, "SELECT value FROM notes WHERE stem = ? AND name = ?", *_NOTE)
    epochs = databases.rows(path, "SELECT coalesce(max(epoch), 0) FROM moves")
    if keys is None or notes is None or epochs is None:
        return None
    steps = [int(key.split(".")[3]) for key, _ in keys if key.count(".") >= 3 and key.split(".")[3].isdigit()]  # noqa: PLR2004 - flow.step.direction.number
    return WorkerMark(
        incarnation=notes[0][0] if notes else None,
        finished=sum(finished for _, finished in keys),
        epoch=epochs[0][0],
        step=max(steps, default=0),
    )


def _mark_worker(path: Path, incarnation: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT OR REPLACE INTO notes (stem, name, value) VALUES (?, ?, ?)", (*_NOTE, incarnation))


def _digest(uuids: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(uuids).encode()).hexdigest()
