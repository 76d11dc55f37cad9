"""What a host tells of a long step reaches the move's row, and costs nothing when it tells nothing new."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.engine_rig import REMOTE, Crash, FakeWorker, Rig, embedded_rig, until

from droveway.clients.zookeeper import progress_path
from droveway.engines.conductor import progress
from droveway.engines.conductor.progress import ProgressNote
from droveway.persistence.database import WriteFailed
from droveway.wire import codec, commands


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "NOTE_EVERY", 0.0)
    monkeypatch.setattr(progress, "FIRST_AFTER", 0.0)


def told(rig: Rig, move: str) -> tuple[Any, ...]:
    row = rig.move(move)
    return row.progress_done, row.progress_total, row.progress_kept, row.progress_seconds


def test_the_row_follows_the_step_and_forgets_it_with_its_end(rig: Rig) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)
    session = rig.session()

    def copy(command: commands.Command) -> dict[str, Any]:
        path = progress_path("h1", command.key)
        session.create(path, codec.encode(commands.Progress(key=command.key, done=5, total=9, kept=3, seconds=0.5)))
        until(lambda: told(rig, move) == (5, 9, 3, 0.5))
        session.put(path, codec.encode(commands.Progress(key=command.key, done=8, total=9, kept=3, seconds=1.5)))
        until(lambda: told(rig, move) == (8, 9, 3, 1.5))
        return {}

    hand = FakeWorker(session, "h1", copy)
    rig.host().turn()
    hand.stop()
    assert rig.move(move).state == "verifying"
    assert told(rig, move) == (None, None, None, None)


def test_a_step_that_is_entered_again_keeps_what_was_told(rig: Rig) -> None:
    move = rig.submit(REMOTE)
    rig.post(move)
    session = rig.session()
    crashing = threading.Event()

    def crash(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("on_host", "after") and not crashing.is_set():
            crashing.set()
            raise Crash

    def copy(command: commands.Command) -> dict[str, Any]:
        path = progress_path("h1", command.key)
        session.create(path, codec.encode(commands.Progress(key=command.key, done=5, total=9)))
        until(lambda: rig.move(move).progress_done == 5)
        return {}

    hand = FakeWorker(session, "h1", copy)
    rig.probe = crash
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    assert rig.move(move).progress_done == 5
    seen: list[int | None] = []
    rig.probe = lambda _move, step, _direction, phase: seen.append(rig.move(move).progress_done)
    rig.host().turn()
    hand.stop()
    assert seen[0] == 5
    assert seen[-1] is None


class Books:
    """Stands for the journal: counts the transactions, the first ``broken`` of which fail."""

    def __init__(self, broken: int = 0) -> None:
        self.begun = 0
        self._broken = broken

    @contextlib.contextmanager
    def write(self) -> Iterator[Any]:
        self.begun += 1
        if self.begun <= self._broken:
            raise WriteFailed("away")
        yield self

    def execute(self, statement: object) -> None:
        """Takes it."""


def test_nothing_is_written_while_nothing_changes() -> None:
    books = Books()
    words = iter([None, commands.Progress(key="k", done=1, total=2), commands.Progress(key="k", done=1, total=2), None])
    note = ProgressNote("m", lambda: next(words), books.write)
    for _ in range(4):
        note.update()
    assert books.begun == 1


def test_a_journal_that_is_away_fails_no_step_and_is_told_the_next_time() -> None:
    books = Books(broken=1)
    note = ProgressNote("m", lambda: commands.Progress(key="k", done=1, total=2), books.write)
    for _ in range(3):
        note.update()
    assert books.begun == 2


def test_nothing_is_read_more_often_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "NOTE_EVERY", 60.0)
    reads: list[None] = []
    note = ProgressNote("m", lambda: reads.append(None), Books().write)
    for _ in range(3):
        note.update()
    assert len(reads) == 1
