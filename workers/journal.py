"""Records the worker's commands and their results in SQLite, and syncs a result before anybody relies on it.

The record of a command's result makes sure that a repeated command has its effect at most once.  The journal also
holds the highest epoch of each move, the standing offers of disks, and notes that an action must find again after a
crash.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from droveway.errors import Refused
from droveway.wire.commands import Command
from droveway.workers.hypervisors import durable
from droveway.workers.reserve import Reserve
from droveway.workers.seen import OF_NO_MOVE, seen

APPLICATION: Final = 0x44726F76
VERSION: Final = 1

DEBT: Final = "debt-"
"""Prefix of the last part of a command's key when the command pays a debt, a clean-up that the host still owes.

The claim's epoch and the debt's number follow the prefix.
"""

_SCHEMA: Final = f"""
CREATE TABLE commands (
    key TEXT PRIMARY KEY, move TEXT NOT NULL, server TEXT NOT NULL, step TEXT NOT NULL, action TEXT NOT NULL,
    direction TEXT NOT NULL, epoch INTEGER NOT NULL, begun REAL NOT NULL, finished REAL, result BLOB
);
CREATE TABLE moves (move TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE offers (server TEXT PRIMARY KEY, move TEXT NOT NULL, peer TEXT NOT NULL, epoch INTEGER NOT NULL);
CREATE TABLE notes (stem TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (stem, name));
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


_MODE: Final = 0o600
_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""SQLite's codes for a file system without room; SQLITE_IOERR is what it says when its -shm file cannot grow."""

_NO_ROOM: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
"""SQLite's extended codes that mean nothing else but that the file system has no room."""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

LOG = logging.getLogger(__name__)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer to let the host ``peer`` fetch a server's disks for a move."""

    server: str
    move: str
    peer: str
    epoch: int


class WorkerJournal:
    """The journal of one host's worker; opening raises `droveway.errors.Refused` when the file cannot be used."""

    def __init__(self, path: Path, host: str) -> None:
        self.path = path
        self.host = host
        self._lock = threading.RLock()
        self._thrift = threading.local()
        self._reserve = Reserve(path.with_name(f"{path.name}.reserve"))
        try:
            if not path.exists():
                self._make()
            self._db = self._open()
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        self.keep_room()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def begin(self, command: Command) -> None:
        """Record that the command is being carried out; when repeated, record its newest epoch.

        A crash of the worker does not lose this record.  A power cut loses it when no synced commit came after it.
        Nothing relies on a record that was lost in this way.
        """
        self._write(
            "INSERT INTO commands (key, move, server, step, action, direction, epoch, begun)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET epoch = excluded.epoch",
            (
                *(command.key, command.move, command.server, command.step, command.action, command.direction),
                *(command.epoch, time.time()),
            ),
            synchronous="NORMAL",
        )

    def finish(self, key: str, result: bytes) -> None:
        """Record the result of a command that was begun; a later result does not replace the first one."""
        self._write(
            "UPDATE commands SET result = ?, finished = ? WHERE key = ? AND result IS NULL",
            (result, time.time(), key),
            spends=True,
        )

    def result(self, key: str) -> bytes | None:
        """Return the result of a finished command; None when it was never begun or has not ended."""
        row = self._one("SELECT result FROM commands WHERE key = ?", key)
        return row[0] if row is not None else None

    def begun(self) -> list[str]:
        """Return the keys of all commands that were begun and have no result."""
        with self._lock:
            return [key for (key,) in self._db.execute("SELECT key FROM commands WHERE result IS NULL ORDER BY begun")]

    def raise_epoch(self, move: str, epoch: int) -> bool:
        """Record the move's epoch and return True; return False when a higher one was recorded before."""
        row = self._one("SELECT epoch FROM moves WHERE move = ?", move)
        if row is not None and row[0] >= epoch:
            return bool(row[0] == epoch)
        self._write(
            "INSERT INTO moves (move, epoch) VALUES (?, ?)"
            " ON CONFLICT (move) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
            (move, epoch),
        )
        return True

    def seen(self) -> tuple[int, int]:
        """Return the highest epoch of any move, and the highest step number in the key of any command."""
        with self._lock:
            return seen(self._db)

    def finished_since(self, moment: float) -> list[str]:
        """Return the moves whose recorded commands were all begun after ``moment``, a `time.time`, and have all ended.

        ``moment`` bounds when the commands were begun, not when they ended.  Moves without a recorded command are
        returned too, whatever ``moment`` is.  For example, the worker was only asked questions about such a move, and
        it does not record questions.
        """
        with self._lock:
            rows = self._db.execute(
                "SELECT move FROM commands GROUP BY move HAVING min(begun) > ? AND count(*) = count(result)"
                " UNION SELECT move FROM moves WHERE move NOT IN (SELECT move FROM commands)",
                (moment,),
            )
            return [move for (move,) in rows]

    def forget_move(self, move: str) -> None:
        """Drop everything about a purged move; what `seen` returns stays the same."""
        epoch, step = self.seen()
        with self._lock:
            keys = [key for (key,) in self._db.execute("SELECT key FROM commands WHERE move = ?", (move,))]
        # The order matters when the worker is killed: the numbers of `seen` are written first, and the commands, by
        # which a second try finds the rest, are deleted last.
        for name, value in (("epoch", epoch), ("step", step)):
            self._write("INSERT OR REPLACE INTO notes (stem, name, value) VALUES (?, ?, ?)", (OF_NO_MOVE, name, value))
        for flow in {key.partition(".")[0] for key in keys}:
            self._write("DELETE FROM notes WHERE substr(stem, 1, ?) = ?", (len(flow) + 1, f"{flow}."))
        self._write("DELETE FROM notes WHERE stem = ?", (move,))
        for table in ("offers", "moves", "commands"):
            self._write(f"DELETE FROM {table} WHERE move = ?", (move,))  # noqa: S608 - names of this file alone

    def step_of(self, move: str) -> int:
        """Return the highest step number of the move's commands that were carried out here; 0 when there are none.

        Commands that pay a debt do not count, because they carry the number of the old step that left the debt.
        """
        with self._lock:
            keys = self._db.execute("SELECT key FROM commands WHERE move = ?", (move,)).fetchall()
        parts = [key.split(".") for (key,) in keys]
        return max((int(part[3]) for part in parts if not part[-1].startswith(DEBT)), default=0)

    def put_offer(self, offer: Offer) -> None:
        """Let the peer fetch the server's disks; ends an earlier offer of the server."""
        self._write(
            "INSERT OR REPLACE INTO offers (server, move, peer, epoch) VALUES (?, ?, ?, ?)",
            (offer.server, offer.move, offer.peer, offer.epoch),
        )

    def offer(self, server: str) -> Offer | None:
        """Return the standing offer of the server's disks; None when there is none."""
        row = self._one("SELECT move, peer, epoch FROM offers WHERE server = ?", server)
        return None if row is None else Offer(server=server, move=row[0], peer=row[1], epoch=row[2])

    def drop_offer(self, server: str, move: str) -> None:
        """End the move's offer; does nothing when there is none."""
        self._write("DELETE FROM offers WHERE server = ? AND move = ?", (server, move))

    def note(self, stem: str, name: str, value: int) -> int:
        """Record a number under ``stem`` (a step's `Context.step_key`, or a move) and ``name``, unless one is there.

        Returns the number that is recorded now.
        """
        self._write("INSERT OR IGNORE INTO notes (stem, name, value) VALUES (?, ?, ?)", (stem, name, value))
        return self.noted(stem, name, value)

    def noted(self, stem: str, name: str, default: int) -> int:
        """Return the number that was noted, or ``default``."""
        row = self._one("SELECT value FROM notes WHERE stem = ? AND name = ?", stem, name)
        return int(row[0]) if row is not None else default

    def forget(self, stem: str) -> None:
        """Drop all notes under this stem."""
        self._write("DELETE FROM notes WHERE stem = ?", (stem,))

    def _one(self, query: str, *values: str) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Let this thread's writes use the reserve when the file system has no other room."""
        before, self._thrift.spends = self._spends(), True
        try:
            yield
        finally:
            self._thrift.spends = before

    def make_room(self) -> bool:
        """Give up the reserve if this thread may use it; returns False when it may not or there was none."""
        return self._spends() and self._reserve.give_up()

    def keep_room(self) -> None:
        """Fill the reserve again for the next time."""
        with self._lock:
            self._reserve.fill()

    def _spends(self) -> bool:
        return getattr(self._thrift, "spends", False)

    def _write(self, query: str, values: Sequence[Any], *, synchronous: str = "FULL", spends: bool = False) -> None:
        """Write in one transaction; without room, try once more with the room of the reserve, if it may be used."""
        with self._lock:
            try:
                self._transact(query, values, synchronous)
            except sqlite3.OperationalError as error:
                if not (_is_full(error) and (spends or self._spends()) and self._reserve.give_up()):
                    raise
                LOG.warning("Host %s has no room for the journal %s: the reserve is used up", self.host, self.path)
                self._transact(query, values, synchronous)

    def _transact(self, query: str, values: Sequence[Any], synchronous: str) -> None:
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        try:
            with self._db:
                self._db.execute(query, values)
        except sqlite3.Error:
            # A commit that failed leaves its transaction open.
            self._db.rollback()
            raise

    def _make(self) -> None:
        """Make the file under another name, and rename it when it is complete.

        So the worker never leaves an unfinished file under the final name, not even when it is killed.  An empty file
        there is one that was damaged later.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(self.path.name + ".new")
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
        db = sqlite3.connect(new)
        try:
            db.executescript(_SCHEMA)
        finally:
            db.close()
        new.rename(self.path)
        durable.sync_directory(self.path.parent)

    def _open(self) -> sqlite3.Connection:
        self.path.chmod(_MODE)  # earlier releases let everybody read it; SQLite's other files copy its permissions
        db = sqlite3.connect(self.path, check_same_thread=False, timeout=10.0)
        try:
            if why := self._fault(db):
                raise self._damaged(why)
            db.execute("PRAGMA journal_mode = WAL")
        except (sqlite3.Error, Refused):
            db.close()
            raise
        return db

    def _fault(self, db: sqlite3.Connection) -> str:
        """Return what is wrong with the file's content; empty when all is well."""
        facts = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if facts != [APPLICATION, VERSION]:
            return "it is no worker journal of this version"
        found = str(db.execute("PRAGMA quick_check").fetchone()[0])
        return "" if found == "ok" else found.splitlines()[0]

    def _unusable(self, error: sqlite3.Error) -> Refused:
        """Return the error to raise: only a file whose content is damaged may be moved away."""
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in _DAMAGED:
            return self._damaged(str(error))
        why = "its file system has no room: make room there" if code in _NO_ROOM else f"{error}: mend that"
        return Refused(
            f"the journal {self.path} of the worker of host {self.host} cannot be used, since {why}, leave the file "
            "where it is, and start the worker again"
        )

    def _damaged(self, why: str) -> Refused:
        return Refused(
            f"the journal {self.path} of the worker of host {self.host} is damaged ({why}): "
            "restore it, or move it away with its -wal and -shm files and start the worker again"
        )


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_FULL) & 0xFF in _FULL
