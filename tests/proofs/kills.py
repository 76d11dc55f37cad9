"""Commands as processes that are killed: each forked from one warm process, and what its kill hits."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from droveway.flows import registry

Run = Callable[[list[str]], int]
"""Runs the command line of these words and returns its exit code."""

KILLED: Final = -signal.SIGKILL
"""How `Child.ended` tells that the process died of a SIGKILL."""

_BUSY: Final = 0.2
"""Seconds for which one look waits for the journal."""

_STANDING: Final = """
    SELECT m.id, m.server_name, c.owner, s.flow, s.step, s.direction, s.ended_at IS NULL, s.error IS NOT NULL,
           (SELECT count(DISTINCT step) FROM move_steps
             WHERE flow_uuid = m.flow_uuid AND direction = s.direction AND seq <= s.seq)
      FROM moves m
      JOIN claims c ON c.move_id = m.id AND c.released_at IS NULL
      JOIN move_steps s ON s.seq = (SELECT max(seq) FROM move_steps WHERE flow_uuid = m.flow_uuid)
     ORDER BY m.created_at, m.id
"""


class Child:
    """One command in a process of its own; what it prints goes to a file."""

    def __init__(self, run: Run, words: Sequence[str], output: Path) -> None:
        """Fork it.  The caller has neither threads nor open connections, which no fork survives."""
        self.words = list(words)
        self.output = output
        self.ended: int | None = None
        """The exit code, or the negative number of the signal that it died of; None while it runs."""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_command(run, self.words, output)

    def has_ended(self) -> bool:
        """Whether it has; does not wait."""
        if self.ended is None:
            self._note(*os.waitpid(self.pid, os.WNOHANG))
        return self.ended is not None

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.ended is None:
            self._note(*os.waitpid(self.pid, 0))
        return int(self.ended or 0)

    def halt(self) -> bool:
        """Stop it where it is, so that what the journal shows is what a kill hits; False when it has ended."""
        os.kill(self.pid, signal.SIGSTOP)
        self._note(*os.waitpid(self.pid, os.WUNTRACED))
        return self.ended is None

    def let_go(self) -> None:
        """Let it run on after `halt`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """Kill it; whether it was the SIGKILL that ended it."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait() == KILLED

    def said(self) -> str:
        """What it printed."""
        return self.output.read_text(encoding="utf-8").strip()

    def _note(self, pid: int, status: int) -> None:
        if pid and not os.WIFSTOPPED(status):
            self.ended = os.waitstatus_to_exitcode(status)


@dataclass(frozen=True)
class Standing:
    """Where a move stands that a process has claimed, as the journal tells it."""

    move: str
    server: str
    pid: int
    flow: str
    step: str
    direction: Literal["execute", "revert"]
    inside: bool
    failed: bool
    passed: int
    """How many different steps have begun in this direction, the present one included."""

    def place(self) -> str:
        """The step that a kill hits now, or the two that it hits between."""
        names = registry.latest(self.flow).names()
        number = names.index(self.step)
        undo = "the undo of " if self.direction == "revert" else ""
        if self.inside:
            return f"inside {undo}{self.step} (step {number + 1} of {len(names)})"
        if self.direction == "execute" and self.failed:
            return f"between the failure of {self.step} and its undo"
        following = number + (1 if self.direction == "execute" else -1)
        beyond = f"{undo}{names[following]}" if 0 <= following < len(names) else "the end"
        return f"between {undo}{self.step} and {beyond}"


def look(journal: Path) -> list[Standing]:
    """Every move that a process has claimed and not given back; one connection a look, so that forks inherit none."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=_BUSY)
    try:
        rows = connection.execute(_STANDING).fetchall()
    except sqlite3.OperationalError as error:
        # A process that has just been stopped may hold the journal; the next look finds it again.
        if "locked" not in str(error):
            raise
        return []
    finally:
        connection.close()
    return [
        Standing(move, server, _pid(owner), flow, step, direction, bool(inside), bool(failed), passed)
        for move, server, owner, flow, step, direction, inside, failed, passed in rows
    ]


def states(journal: Path) -> dict[str, tuple[str, str, str | None]]:
    """By move's id: its server's name, its state and its error."""
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT id, server_name, state, error FROM moves").fetchall()
    finally:
        connection.close()
    return {move: (server, state, error) for move, server, state, error in rows}


def _pid(owner: str) -> int:
    """The process behind a lab's conductor, which is called ``lab-PID-...``."""
    return int(owner.split("-")[1])


def _be_the_command(run: Run, words: list[str], output: Path) -> None:
    code = 1
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(file, "w", encoding="utf-8")
        code = run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - the parent shows what the file holds, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        # Not sys.exit: what the parent would do at its own end is not the command's to do.
        os._exit(code)
