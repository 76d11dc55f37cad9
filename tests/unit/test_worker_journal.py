"""A worker's journal: what of it is synced before anybody builds on it."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from droveway.wire import commands
from droveway.workers.journal import Offer, WorkerJournal

COMMAND = commands.Command(
    key="flow.stop_guest.execute.1",
    host="alpha",
    move="move",
    server="server",
    epoch=3,
    step="stop_guest",
    action="stop_guest",
    direction="execute",
    details={},
    deadline=60.0,
)


@pytest.fixture
def journal(tmp_path: Path) -> WorkerJournal:
    return WorkerJournal(tmp_path / "worker.sqlite", "alpha")


def test_a_power_cut_takes_at_most_the_record_that_a_command_was_begun(journal: WorkerJournal) -> None:
    """SQLite says to each statement what it syncs; a commit after a NORMAL one takes that one along."""
    said: list[str] = []
    journal._db.set_trace_callback(said.append)
    journal.begin(COMMAND)
    journal.finish(COMMAND.key, b"{}")
    journal.raise_epoch("move", 3)
    journal.note("stem", "ran", 1)
    journal.put_offer(Offer(server="server", move="move", peer="beta", epoch=3))
    journal.drop_offer("server", "move")
    journal.forget("stem")
    journal._db.set_trace_callback(None)
    level, commits = "", []
    for statement in said:
        if statement.startswith("PRAGMA synchronous = "):
            level = statement.removeprefix("PRAGMA synchronous = ")
        elif statement == "COMMIT":
            commits.append(level)
    assert commits == ["NORMAL", *["FULL"] * 6]
    assert journal.result(COMMAND.key) == b"{}"
    journal.close()


def test_a_begun_command_is_known_to_who_opens_the_journal_after_a_kill(journal: WorkerJournal, tmp_path: Path) -> None:
    journal.begin(COMMAND)
    again = WorkerJournal(tmp_path / "worker.sqlite", "alpha")
    assert again.begun() == [COMMAND.key]
    again.close()
    journal.close()


def test_what_is_forgotten_stays_seen(journal: WorkerJournal, tmp_path: Path) -> None:
    """An older journal of the conductors is known by what workers have seen, of purged moves as well."""
    other = msgspec.structs.replace(COMMAND, key="other.stop_guest.execute.9", move="other")
    for command in (COMMAND, other):
        journal.begin(command)
        journal.raise_epoch(command.move, 7 if command is other else 3)
        journal.note(f"{command.key.partition('.')[0]}.stop_guest", "ran", 1)
    journal.put_offer(Offer(server="server", move="other", peer="beta", epoch=7))
    journal.raise_epoch("asked", 2)
    assert journal.finished_since(0.0) == ["asked"]
    journal.forget_move("asked")
    assert journal.finished_since(0.0) == []
    journal.finish(other.key, b"{}")
    assert journal.finished_since(0.0) == ["other"]
    assert journal.finished_since(time.time() + 60) == []
    journal.forget_move("other")
    assert journal.finished_since(0.0) == []
    assert (journal.result(other.key), journal.offer("server"), journal.noted("other.stop_guest", "ran", 0)) == (
        None,
        None,
        0,
    )
    assert journal.noted("flow.stop_guest", "ran", 0) == 1
    journal.close()
    again = WorkerJournal(tmp_path / "worker.sqlite", "alpha")
    assert again.seen() == (7, 9)
    assert again.begun() == [COMMAND.key]
    again.close()
