"""Runs one process of a served lab: starts it, waits until it is ready, and starts it again when it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

AGAIN_AFTER: Final = 1.0
"""Seconds from the death of a process to its next start."""

_NOT_INHERITED: Final = ("DROVEWAY_", "OS_", "NOTIFY_SOCKET", "WATCHDOG_")
"""Prefixes of the environment variables that a served process must not inherit: they are for another process or lab."""


class Process:
    """Keeps one process running for as long as the lab is served."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        log: Path,
        *,
        answers: Callable[[], bool] | None = None,
    ) -> None:
        """Write what the process prints to ``log``; ``answers`` says whether it is ready.

        Without ``answers``, the process says so itself: it sends READY=1.
        """
        self.name = name
        self.log = log
        self.is_ready = False
        self._words = words
        self._answers = answers or self._has_notified
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # The kernel chooses an abstract name: the path of a socket may have no more than 107 bytes.
        self._notified.bind("")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        address = "@" + self._notified.getsockname()[1:].decode()
        self._environment = {**inherited, "NOTIFY_SOCKET": address}
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = 0.0

    def start(self) -> None:
        """Start the process in a session of its own, so that a Ctrl-C at the terminal does not reach it."""
        self._drop_notices()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel kills it when this process is killed, so that no daemon outlives it.
                ["setpriv", "--pdeathsig", "KILL", "--", *self._words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def look(self) -> str:
        """Start the process again if it is time, and return a line on what has changed; empty when nothing has."""
        if self._process is None:
            if time.monotonic() >= self._ended_at + AGAIN_AFTER:
                self.start()
            return ""
        pid, code = self._process.pid, self._process.poll()
        if code is not None:
            self._process, self.is_ready, self._ended_at = None, False, time.monotonic()
            how = f"ended with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
            return f"{self.name} {how} (its log is {self.log}), and is started again in {AGAIN_AFTER:g} s"
        if not self.is_ready and self._answers():
            self.is_ready = True
            return f"{self.name} is ready, pid {pid}"
        return ""

    def is_running(self) -> bool:
        """Say whether the process runs, ready or not."""
        return self._process is not None and self._process.poll() is None

    def ask_to_end(self) -> None:
        """Send it a SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def await_end(self, seconds: float) -> bool:
        """Wait until the process has ended, and kill it after ``seconds``; return False when it was killed."""
        self._notified.close()
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def _has_notified(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                if b"READY=1" in self._notified.recv(4096):
                    return True
        return False

    def _drop_notices(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._notified.recv(4096)
