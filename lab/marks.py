"""Recognises a lab's databases that were truncated, swapped with another lab's, or restored from an older copy.

Whenever the lab begins to run, and again when it ends, it writes down numbers that only ever grow, called marks: the
epoch and step of the conductors' journal, the finished commands of each worker's journal, the generations of
Placement's providers. A database with a lower number than its mark is older than what the lab has seen.

If an operator's command was killed, it has not written the marks of its end. Then the workers' journals can still show
that the conductors' journal was restored from an older copy: they have higher epochs or step numbers than it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from droveway.errors import Refused
from droveway.lab.layout import Layout
from droveway.persistence.restored import ADOPT, EPOCH, INCARNATION, Mark, Standing, contradiction
from droveway.workers.hypervisors import durable
from droveway.workers.seen import JOURNAL, seen

BUSY_TIMEOUT: Final = 30.0
"""Seconds that a read waits for another process's write."""

_LARGEST_PAGE: Final = 65536
"""The size of a page for which SQLite writes 1."""

_NOTE: Final = ("lab", INCARNATION)
"""The note in a worker's journal that says which journal it belongs to."""

# SQL as text: the models of these tables, Placement's above all, take longer to load than a list of moves.
_JOURNAL: Final = (
    "SELECT (SELECT value FROM counters WHERE name = ?), (SELECT value FROM counters WHERE name = ?),"
    " (SELECT max(seq) FROM move_steps)"
)
_PROVIDERS: Final = "SELECT uuid, generation FROM resource_providers ORDER BY uuid"
_WORKER: Final = "SELECT (SELECT value FROM notes WHERE stem = ? AND name = ?), (SELECT count(result) FROM commands)"

_Read = TypeVar("_Read")


class WorkerMark(Mark, frozen=True, kw_only=True):
    """The mark of a worker's journal: which journal it belongs to, and how many commands it has finished."""

    finished: int = 0
    """How many commands have a result. The begin of a command is not synced, so a power cut may undo it."""


class Marks(Mark, frozen=True, kw_only=True):
    """The marks of the lab's journal and of its other databases."""

    providers: str | None = None
    """A digest of the providers' ids; None when they were never read."""
    generations: int = 0
    workers: dict[str, WorkerMark] = msgspec.field(default_factory=dict)


@contextlib.contextmanager
def kept(files: Layout, hosts: Iterable[str]) -> Iterator[None]:
    """Check the databases against the marks, and write new marks when the block begins and when it ends.

    Raises `droveway.errors.Refused` as `Databases.require` does; the caller holds the lab's lock.
    """
    with Databases(files, hosts) as databases:
        databases.require()
        databases.record()
        try:
            yield
        finally:
            databases.record()
            databases.close_together()


def recorded(files: Layout) -> Marks | None:
    """Read the last marks; None for a lab that never ran."""
    data = durable.read(files.marks)
    try:
        return None if data is None else msgspec.json.decode(data, type=Marks)
    except msgspec.DecodeError as error:
        raise Refused(f"{files.marks} is corrupt ({error}): remove it, then {ADOPT}") from None


class Databases:
    """Reads a lab's databases over connections that stay open, since opening one takes longer than reading it."""

    def __init__(self, files: Layout, hosts: Iterable[str]) -> None:
        self._files = files
        self._hosts = list(hosts)
        self._opened: dict[Path, sqlite3.Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for database in self._opened.values():
            database.close()

    def close_together(self) -> None:
        """Close all connections at the same time.

        Closing the last connection to a worker's journal waits for the disk. In parallel, these waits take only as long
        as the longest of them.
        """
        with futures.ThreadPoolExecutor(len(self._opened) or 1) as closing:
            for closed in [closing.submit(database.close) for database in self._opened.values()]:
                closed.result()

    def require(self) -> None:
        """Raise `droveway.errors.Refused` when a database is not the one that this lab used last."""
        if why := self.truncated() or self.contradiction():
            raise Refused(why)

    def truncated(self) -> str:
        """Return the sentence on a truncated database, with the mend; empty when there is none."""
        files = self._files
        every = [files.journal, files.api, files.placement, files.services, *files.cells.glob("*.sqlite")]
        for path in [*every, *files.hosts.glob(f"*/{JOURNAL}")]:
            # When a process closes a file, the kernel drops all its POSIX locks on the file, those of SQLite too.
            # What the process commits afterwards can be lost. So a file that SQLite can read is not opened here.
            if path.exists() and self._is_corrupt(path) and (size := path.stat().st_size) < (whole := _size(path)):
                return (
                    f"the database {path} is truncated ({size} of {whole} bytes), so nothing runs: restore it from a "
                    f"copy, then {ADOPT}"
                )
        return ""

    def contradiction(self) -> str:
        """Return the sentence on a database that this lab did not use last, with the mend; empty when there is none."""
        known = recorded(self._files)
        return "" if known is None else next(filter(None, _contradictions(self._files, known, self.read())), "")

    def read(self) -> Marks:
        """Read the marks that the databases have now; a database that cannot be read gets its last recorded mark."""
        files, known = self._files, recorded(self._files) or Marks(incarnation=None, epoch=0)
        # The conductors' journal has each number before a worker has it. It is read after the workers' journals, so its
        # numbers are at least as high as theirs, even when a move goes on meanwhile. In the other order a worker could
        # show a number that is newer, and the conductors' journal would seem to be an older copy.
        present = {host: files.worker(host) for host in self._hosts if files.worker(host).exists()}
        workers = {host: self._read(path, _worker, known.workers.get(host)) for host, path in present.items()}
        incarnation, epoch, step = self._read(files.journal, _journal, (known.incarnation, known.epoch, known.step))
        providers, generations = self._read(files.placement, _providers, (known.providers, known.generations))
        return Marks(
            incarnation=incarnation,
            epoch=epoch,
            step=step,
            providers=providers,
            generations=generations,
            workers={host: mark for host, mark in workers.items() if mark is not None},
        )

    def record(self) -> None:
        """Write the marks that the databases have now; the caller holds the lab's lock, and has checked the databases.

        A database that cannot be read keeps its last mark: the trouble may pass, and the next run reads it again. A
        worker's journal that does not name the conductors' journal as its own gets a note that names it.
        """
        present = self.read()
        for host, mark in present.workers.items():
            if present.incarnation is not None and mark.incarnation != present.incarnation:
                with self._of(self._files.worker(host)) as database:
                    query = "INSERT OR REPLACE INTO notes (stem, name, value) VALUES (?, ?, ?)"
                    database.execute(query, (*_NOTE, present.incarnation))
                present.workers[host] = msgspec.structs.replace(mark, incarnation=present.incarnation)
        data = msgspec.json.encode(present)
        if durable.read(self._files.marks) != data:
            durable.replace(self._files.marks, data)

    def _is_corrupt(self, path: Path) -> bool:
        """Say whether SQLite refuses the file, as it does when the file is shorter than its header says."""
        try:
            self._of(path).execute("PRAGMA user_version").fetchall()
        except sqlite3.DatabaseError as error:
            return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CORRUPT
        return False

    def _read(self, path: Path, reading: Callable[[sqlite3.Connection], _Read], otherwise: _Read) -> _Read:
        try:
            return reading(self._of(path)) if path.exists() else otherwise
        except sqlite3.Error:
            return otherwise  # the part that needs the file reports it

    def _of(self, path: Path) -> sqlite3.Connection:
        """Return the connection. It may write, since the next reader rolls back what a killed process had begun."""
        if path not in self._opened:
            uri = f"{path.absolute().as_uri()}?mode=rw"
            self._opened[path] = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, check_same_thread=False)
        return self._opened[path]


def foreign_providers(files: Layout, known: Marks, present: Marks) -> str:
    """Return the sentence that Placement's database is another lab's; empty when it is this lab's."""
    if None in (known.providers, present.providers) or known.providers == present.providers:
        return ""
    return (
        f"the database {files.placement} has the resource providers of another lab, so nothing runs: put this "
        f"lab's own back, then {ADOPT}"
    )


def _contradictions(files: Layout, known: Marks, present: Marks) -> Iterator[str]:
    """Yield for each database how it differs from the one that the lab used last; empty when it does not.

    The texts with two ``{}`` are parts of the sentence (`droveway.persistence.restored.Standing`). The first ``{}``
    becomes the number that the database has now, and the second one the higher number that was seen before.
    """
    what = f"the journal {files.journal}"
    seen = [("", known.standing(known.incarnation))]
    seen += [(f"the worker of host {host} knows of ", mark.standing(None)) for host, mark in present.workers.items()]
    yield contradiction(what, present.standing(present.incarnation), seen, another=_another(what))
    for host, mark in sorted(known.workers.items()):
        what, now = f"the journal of the worker of host {host}", present.workers.get(host)
        if now is None:
            yield f"{what} is gone, and with it what the host has done: restore it, or {ADOPT} begins a new one"
            continue
        mine, theirs = ({"{} commands of {}": each.finished} for each in (now, mark))
        seen = [("", Standing(known.incarnation, theirs))]
        yield contradiction(what, Standing(now.incarnation, mine), seen, another=_another(what))
    yield foreign_providers(files, known, present)
    mine, theirs = ({"generation {} of {}": each.generations} for each in (present, known))
    what = f"the database {files.placement}"
    yield contradiction(what, Standing(None, mine), [("", Standing(None, theirs))], another="")


def _another(what: str) -> str:
    return f"{what} is another lab's, so nothing runs: put this lab's own back, or take it as it is with  {ADOPT}"


def _journal(db: sqlite3.Connection) -> tuple[int | None, int, int]:
    incarnation, epoch, step = db.execute(_JOURNAL, (INCARNATION, EPOCH)).fetchone()
    return incarnation, epoch or 0, step or 0


def _providers(db: sqlite3.Connection) -> tuple[str | None, int]:
    rows = db.execute(_PROVIDERS).fetchall()
    digest = hashlib.sha256(" ".join(provider for provider, _ in rows).encode()).hexdigest()
    return digest, sum(generation for _, generation in rows)


def _worker(db: sqlite3.Connection) -> WorkerMark:
    incarnation, finished = db.execute(_WORKER, _NOTE).fetchone()
    epoch, step = seen(db)
    return WorkerMark(incarnation=incarnation, epoch=epoch, step=step, finished=finished)


def _size(path: Path) -> int:
    """Return how many bytes a database has, as its first page says."""
    with path.open("rb") as file:
        page, pages = map(int, struct.unpack(">16xH10xI", file.read(32).ljust(32, b"\0")))
    return (_LARGEST_PAGE if page == 1 else page) * pages
