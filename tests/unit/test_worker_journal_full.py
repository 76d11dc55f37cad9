"""A worker that cannot write its journal says so at once, and has begun nothing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from support.rigs.worker_rig import cloud

from droveway.clients.zookeeper import command_path, result_path
from droveway.errors import Refused
from droveway.wire import codec, commands
from droveway.workers.journal import WorkerJournal
from droveway.workers.run import Run

STOP = commands.StopGuest(grace=5, restart=False)


def full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("write", ["begin", "raise_epoch"])
def test_a_worker_that_cannot_journal_says_that_nothing_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    with cloud(tmp_path) as site:
        site.make_server()
        worker = site.worker("alpha")
        worker.start()
        try:
            monkeypatch.setattr(WorkerJournal, write, full)
            command = site.command("alpha", "stop_guest", STOP)
            run = Run(worker._parts, command, probe=None)
            site.coordination.create(command_path("alpha", command.key), codec.encode(command))
            run.start(threading.Event())
            run.join()
            node = site.coordination.get(result_path("alpha", command.key))
            assert node is not None
            error = codec.decode_result(node[0]).error
            assert error is not None
            assert error["code"] == "not-begun"
            assert "cannot write its journal (database or disk is full)" in error["message"]
        finally:
            worker.stop()
            worker.coordination.close()


def test_what_may_have_begun_before_is_not_said_to_be_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cloud(tmp_path) as site:
        site.make_server()
        worker = site.worker("alpha")
        worker.start()
        try:
            command = site.command("alpha", "stop_guest", STOP)
            worker._parts.journal.begin(command)
            monkeypatch.setattr(WorkerJournal, "begin", full)
            site.coordination.create(command_path("alpha", command.key), codec.encode(command))
            run = Run(worker._parts, command, probe=None)
            run.start(threading.Event())
            run.join()
            assert run.left_begun
            assert "cannot write its journal" in run.why
        finally:
            worker.stop()
            worker.coordination.close()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_FULL, "its file system has no room: make room there"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "its file system has no room: make room there"),
        (sqlite3.SQLITE_IOERR_READ, "disk I/O error: mend that"),
        (sqlite3.SQLITE_BUSY, "disk I/O error: mend that"),
        (sqlite3.SQLITE_CORRUPT, "is damaged (disk I/O error): restore it, or move it away"),
        (sqlite3.SQLITE_NOTADB, "is damaged (disk I/O error): restore it, or move it away"),
    ],
)
@pytest.mark.parametrize("at", ["application_id", "quick_check", "journal_mode"])
def test_only_a_damaged_journal_is_said_to_be_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: str, at: str
) -> None:
    """Whoever moves a whole journal away loses what the worker knows of its commands."""
    path = tmp_path / "worker.sqlite"
    WorkerJournal(path, "alpha").close()

    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if at in sql:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *values)

    connect = sqlite3.connect
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, **more, factory=Failing))
        with pytest.raises(Refused) as refused:
            WorkerJournal(path, "alpha")
    assert told in str(refused.value)
    assert str(path) in str(refused.value)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir() if before.get(each.name)} == before
    WorkerJournal(path, "alpha").close()


def test_a_journal_that_has_no_room_to_be_made_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.sqlite"

    class Failing(sqlite3.Connection):
        def executescript(self, sql: str) -> sqlite3.Cursor:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    connect = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, **more, factory=Failing))
        with pytest.raises(Refused, match="cannot be used, since its file system has no room"):
            WorkerJournal(path, "alpha")
    assert not path.exists()
    WorkerJournal(path, "alpha").close()
