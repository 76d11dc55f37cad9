"""A worker that cannot write its journal says so at once, and has begun nothing."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from support.rigs.worker_rig import cloud

from droveway.clients.zookeeper import command_path, result_path
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
