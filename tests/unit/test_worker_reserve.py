"""A worker whose file system is full keeps room for one answer, and for what needs none itself."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.small_lab import until
from support.rigs.worker_rig import SERVER, Cloud, cloud

from droveway.clients.zookeeper import command_path, result_path
from droveway.wire import codec, commands
from droveway.wire.values import Direction
from droveway.workers import reserve
from droveway.workers.actions import table as actions
from droveway.workers.daemon import Worker
from droveway.workers.directories import Directories
from droveway.workers.journal import WorkerJournal


class Full:
    """A file system without room: what takes room fails while the reserve is there, and nothing takes it anew."""

    def __init__(self, patched: pytest.MonkeyPatch, journal: Path) -> None:
        self.reserve = journal.with_name(f"{journal.name}.reserve")
        transact, write = WorkerJournal._transact, Directories.write_record

        def transacting(of: WorkerJournal, *query: Any) -> None:
            if self.reserve.exists():
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            transact(of, *query)

        def writing(of: Directories, *record: Any) -> None:
            if self.reserve.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            write(of, *record)

        patched.setattr(WorkerJournal, "_transact", transacting)
        patched.setattr(Directories, "write_record", writing)
        patched.setattr(reserve.os, "posix_fallocate", self._refuse)

    def _refuse(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        yield made


@pytest.fixture(name="worker")
def fixture_worker(site: Cloud) -> Iterator[Worker]:
    worker = site.worker("alpha")
    worker.start()
    yield worker
    worker.stop()
    worker.coordination.close()


def ask(site: Cloud, action: str, details: Any, direction: Direction = "execute") -> commands.Result:
    """What the worker answers to a command."""
    command = site.command("alpha", action, details, direction=direction)
    site.coordination.create(command_path("alpha", command.key), codec.encode(command))
    until(lambda: site.coordination.get(result_path("alpha", command.key)) is not None, "the worker's answer")
    node = site.coordination.get(result_path("alpha", command.key))
    assert node is not None
    return codec.decode_result(node[0])


STOP = commands.StopGuest(grace=5, restart=True)


def test_what_is_undone_on_a_full_host_is_renamed_back_and_started(
    site: Cloud, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = worker._parts.journal
    assert ask(site, "stop_guest", STOP).error is None
    assert ask(site, "set_aside", commands.NoDetails()).error is None
    with monkeypatch.context() as patched:
        full = Full(patched, journal.path)
        assert full.reserve.stat().st_blocks * 512 >= reserve.BYTES
        copy = commands.CopyDisks(variant="local", source="alpha", address="", probe="droveway-probe-x")
        refused = ask(site, "copy_disks", copy).error
        assert refused is not None
        assert refused["code"] == "not-begun"
        assert full.reserve.exists(), "what takes room has none of what is kept"
        assert ask(site, "set_aside", commands.NoDetails(), "revert").error is None
        assert not full.reserve.exists()
        assert ask(site, "stop_guest", STOP, "revert").error is None
        guest = site.hosts["alpha"].hypervisor.guest(SERVER)
        assert guest is not None
        assert guest.running
    assert ask(site, "describe_guest", commands.NoDetails()).error is None
    # Whoever carried the command out keeps it, once it has answered.
    until(full.reserve.exists, "that room is kept anew, now that there is some")


def test_an_answer_finds_room(site: Cloud, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = worker._parts.journal
    command = site.command(
        "alpha", "copy_disks", commands.CopyDisks(variant="local", source="a", address="", probe="p")
    )
    journal.begin(command)
    full = Full(monkeypatch, journal.path)
    with pytest.raises(sqlite3.OperationalError):
        journal.begin(command)
    journal.finish(command.key, b"{}")
    assert journal.result(command.key) == b"{}"
    assert not full.reserve.exists()


def test_an_undo_whose_own_few_bytes_find_no_room_is_tried_again(
    site: Cloud, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full(monkeypatch, worker._parts.journal.path)
    tries: list[bool] = []

    def undo(*_: object) -> dict[str, Any]:
        tries.append(full.reserve.exists())
        if tries[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return {}

    monkeypatch.setitem(actions.ACTIONS, "set_aside", actions.Action(undo, undo))
    monkeypatch.setattr(WorkerJournal, "_transact", lambda *_: None)
    assert ask(site, "set_aside", commands.NoDetails(), "revert").error is None
    assert tries == [True, False]


@pytest.mark.parametrize(
    "calls", [("open",), ("posix_fallocate",), ("posix_fallocate", "unlink"), ("rename",)], ids=" and ".join
)
def test_a_file_system_that_takes_no_reserve_keeps_no_journal_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...]
) -> None:
    """For example, it has no inode left, or no block for the directory."""
    path = tmp_path / "worker.sqlite"
    WorkerJournal(path, "alpha").close()
    kept = tmp_path / "worker.sqlite.reserve"
    kept.unlink()

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        for call in calls:
            patched.setattr(os, call, refuse)
        journal = WorkerJournal(path, "alpha")
    assert not kept.exists()
    journal.keep_room()
    assert kept.stat().st_size == reserve.BYTES
    assert [each.name for each in tmp_path.glob("*.new")] == []
    journal.close()


def test_commands_that_end_together_make_one_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would otherwise cut down or rename the file that the other one is filling."""
    journal = WorkerJournal(tmp_path / "worker.sqlite", "alpha")
    (tmp_path / "worker.sqlite.reserve").unlink()
    allocate = os.posix_fallocate
    free: list[bool] = []

    def filling(*args: int) -> None:
        other = threading.Thread(target=lambda: free.append(journal._lock.acquire(blocking=False)))
        other.start()
        other.join()
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", filling)
    journal.keep_room()
    assert free == [False]
    journal.close()
