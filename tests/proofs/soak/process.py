"""The processes of a soak: each gives its commands one after another and writes down what became of them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from proofs.kills import Run
from proofs.soak import rest as soak_rest

from droveway.lab import faults, runner
from droveway.lab.layout import Layout
from droveway.lab.session import Lab

STALL_SECONDS: Final = 4.0
"""For so long a command waits for a step that it is to meet stalled."""

FOLLOW_SECONDS: Final = 3.0
"""For so long it waits for a server's move."""

STILL_SECONDS: Final = 0.5
"""How long after the command was given the stalled step goes on."""

_POLL: Final = 0.02
_NO_MOVE: Final = "00000000-none"


@dataclass(frozen=True)
class Operation:
    """One command of a soak."""

    number: int
    words: tuple[str, ...]
    """A word @NAME stands for the id of the server's latest move."""
    delay: float = 0.0
    """Seconds to wait before it is given."""
    meets_stall: bool = False
    """Whether it waits until a step stalls, which then goes on soon after the command was given."""
    follows: str = ""
    """The server that it waits for, before the delay: until a move of it is on its way."""
    codes: frozenset[int] = frozenset({0, 2, 3, 4})
    """The exit codes that it may end with."""
    counts: bool = True
    """Faults are armed by commands too, which are no operations."""

    def __str__(self) -> str:
        return f"{self.number} {' '.join(self.words)}"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of what a process writes down: an operation that it begins, or how it ended."""

    number: int
    code: int | None = None
    said: str = ""
    seconds: float = 0.0


def perform(run: Run, root: Path, operations: Sequence[Operation], record: Path, *, holds: bool) -> int:
    """Give the commands; with ``holds`` this process runs the lab meanwhile, if no other does."""
    with contextlib.ExitStack() as stack:
        if holds:
            stack.enter_context(_running(root))
        lines = stack.enter_context(record.open("ab", buffering=0))
        for operation in operations:
            _give(run, root, operation, lines)
    return 0


def read(record: Path) -> dict[int, Line]:
    """By number the last line of every operation that was begun."""
    try:
        text = record.read_bytes()
    except FileNotFoundError:
        return {}
    # A process that was killed may have left half a line.
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    return {line.number: line for line in (msgspec.json.decode(each, type=Line) for each in whole)}


def _give(run: Run, root: Path, operation: Operation, lines: io.RawIOBase) -> None:
    files = Layout(root)
    if operation.follows:
        _await(lambda: _is_on_its_way(files.journal, operation.follows), FOLLOW_SECONDS)
    time.sleep(operation.delay)
    if operation.meets_stall:
        _await(lambda: has_stalled(files), STALL_SECONDS)
    words = [_latest_move(files.journal, word[1:]) if word.startswith("@") else word for word in operation.words]
    _write(lines, Line(operation.number))
    began = time.monotonic()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), _letting_go(operation, files):
        try:
            code = run(["--lab", str(root), *words])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    if code == 0 and words[:3] == ["lab", "server", "create"]:
        soak_rest.mark(root, words[3])
    _write(lines, Line(operation.number, code, said.getvalue()[-2000:], round(time.monotonic() - began, 2)))


@contextlib.contextmanager
def _letting_go(operation: Operation, files: Layout) -> Iterator[None]:
    """Let a stalled step go on after a while: the command that met it may wait for it to end."""
    if not operation.meets_stall:
        yield
        return
    timer = threading.Timer(STILL_SECONDS, faults.clear, (files, None))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def _write(lines: io.RawIOBase, line: Line) -> None:
    lines.write(msgspec.json.encode(line) + b"\n")


def _await(has_come: Callable[[], bool], seconds: float) -> None:
    """Until it has come, or the time is over: what is waited for may never come."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not has_come():
        time.sleep(_POLL)


def has_stalled(files: Layout) -> bool:
    """Whether a step stands still."""
    return any(fault.action == "stall" and not fault.count for fault in faults.armed(files))


def _is_on_its_way(journal: Path, server: str) -> bool:
    query = "SELECT 1 FROM moves WHERE server_name = ? AND flow_uuid IS NOT NULL"
    return bool(_ask(journal, query, server))


def _latest_move(journal: Path, server: str) -> str:
    query = "SELECT id FROM moves WHERE server_name = ? ORDER BY created_at DESC LIMIT 1"
    return _ask(journal, query, server) or _NO_MOVE


def _ask(journal: Path, query: str, server: str) -> str:
    """The first thing that the journal answers; nothing when it answers nothing."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30)
    try:
        found = connection.execute(query, (server,)).fetchone()
    finally:
        connection.close()
    return str(found[0]) if found else ""


@contextlib.contextmanager
def _running(root: Path) -> Iterator[None]:
    lab = Lab.open(root)
    with lab.layout.lock.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        with runner.running(lab):
            yield
