"""Forked children of the crash matrix: each a true copy of a process without threads and without open databases."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from droveway.errors import DrovewayError

CHILD_SECONDS: Final = 100.0
"""A child that takes longer is cut off, and its point has not converged."""

ROOM: Final = 60_000
"""Bytes that a child may say: a pipe holds them without a reader."""

Leave = Callable[[Any], NoReturn]
"""Ends a child at once with a value, from any of its threads and as abruptly as a kill does."""

_DATABASES: Final = (".sqlite", ".sqlite-wal", ".sqlite-shm")


@dataclass(frozen=True)
class Ended:
    """How a child ended: killed, failed with what it said, or done with its value."""

    killed: bool
    trouble: str
    value: Any = None


def fork(work: Callable[[Leave], Any]) -> Ended:
    """Do the work in a forked child and wait for its end; it returns what JSON can tell, or leaves with it."""
    require_quiet()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(work, writing)
    os.close(writing)
    watch = _Alarm(pid)
    _pid, status = os.waitpid(pid, 0)
    watch.cancel()
    # What the child forked itself may hold the pipe open for a moment more: what it said is there, and nothing follows.
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as pipe:
        said = (pipe.read() or b"").decode()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        in_time = number == signal.SIGKILL and not watch.rang
        return Ended(in_time, "" if in_time else f"the process was ended by signal {number} after {CHILD_SECONDS:g} s")
    return Ended(False, said) if os.WEXITSTATUS(status) else Ended(False, "", json.loads(said))


def apart(work: Callable[[], Any]) -> None:
    """Do the work in a forked child, so that this process opens no database; raises DrovewayError when it failed."""

    def quietly(_leave: Leave) -> None:
        work()

    ended = fork(quietly)
    if ended.killed or ended.trouble:
        raise DrovewayError(ended.trouble or "the process was killed")


def require_quiet() -> None:
    """Raise DrovewayError unless this process may be forked: no second thread, no open database."""
    if threading.active_count() > 1:
        raise DrovewayError(f"the process that forks has threads: {threading.enumerate()}")
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            target = descriptor.readlink()
        except FileNotFoundError:
            continue  # the listing's own
        if target.name.removesuffix(" (deleted)").endswith(_DATABASES):
            raise DrovewayError(f"the process that forks has {target} open")


def _be_the_child(work: Callable[[Leave], Any], writing: int) -> NoReturn:
    def leave(value: Any) -> NoReturn:
        _end(writing, json.dumps(value), 0)

    try:
        answer = json.dumps(work(leave))
    except BaseException as error:  # noqa: BLE001 - the parent is told, whatever it was
        _end(writing, str(error) if isinstance(error, DrovewayError) else traceback.format_exc(), 1)
    _end(writing, answer, 0)


def _end(writing: int, answer: str, code: int) -> NoReturn:
    try:
        os.write(writing, answer.encode()[:ROOM])
        sys.stdout.flush()
    finally:
        os._exit(code)


class _Alarm:
    """Cuts a child off that hangs; an alarm, since the process that forks has no threads."""

    def __init__(self, pid: int) -> None:
        self.rang = False
        self._pid = pid
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, CHILD_SECONDS)

    def cancel(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, *_: object) -> None:
        self.rang = True
        os.kill(self._pid, signal.SIGKILL)
