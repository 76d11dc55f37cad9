"""The files of one server in a host's ``run`` directory: they tell whether its guest runs, and in which process.

``<uuid>.lock`` is locked from before the guest's process is made until it has ended, by an open file description lock
that the process inherits.  So a crash can neither leave the lock behind nor free it early.  ``<uuid>.pid`` names the
process to signal.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from droveway.errors import StepError
from droveway.workers.hypervisors import durable, processes
from droveway.workers.hypervisors.sandbox import guest as sandbox_guest

POLL_SECONDS = 0.002
REPEAT_SECONDS = 0.25
# struct flock of fcntl(2): type, whence, start, length, pid.
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NO_LOCK = struct.pack("hhqqi", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)


class Run:
    """The present run of a server on a host, if there is one."""

    def __init__(self, host: str, directory: Path, server: str, guests_log: Path) -> None:
        self.host = host
        self.server = server
        self.path = directory / server
        self._lock = directory / f"{server}.lock"
        self._record = directory / f"{server}.pid"
        self._guests_log = str(guests_log)

    def held(self) -> bool:
        """Return whether a guest runs or is being started; looks at the lock without taking it."""
        try:
            file = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        finally:
            os.close(file)
        return int(struct.unpack("hhqqi", answer)[0]) != fcntl.F_UNLCK

    def take(self) -> int | None:
        """Take the lock to start the guest, or to keep it from starting; returns None when the lock is held."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file

    def release(self, lock: int) -> None:
        """Free a lock that no guest was started with."""
        # Closing the file is not enough.  If another thread forks a process at this moment, that process has the file
        # open until its exec.  Until then the guest would count as running.
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _NO_LOCK)
        finally:
            os.close(lock)

    def up(self) -> bool:
        """Return whether the guest has booted and still runs."""
        return self.held() and self._alive() and bool(self._recorded()["up"])

    def signal(self, number: signal.Signals, seconds: float) -> None:
        """Send the guest a signal and wait at most ``seconds`` for its end.

        The signal never reaches another process that has got the same pid.
        """
        deadline = time.monotonic() + seconds
        while self.held():
            process = self._open_process()
            if process is None:
                time.sleep(POLL_SECONDS)
            else:
                try:
                    _send(process, number, deadline - time.monotonic())
                finally:
                    os.close(process)
            if time.monotonic() >= deadline:
                return

    def await_off(self, deadline: float) -> None:
        """Wait until nothing holds the lock, at most until ``deadline`` (monotonic)."""
        while self.held() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def write_stop_line(self) -> None:
        """Write the stop line of a guest that ended without one; such a guest has left its record."""
        if self._record.exists():
            with sandbox_guest.LockedLog(self._guests_log) as log:
                log.write_stop_lines(self.server)
                # A new guest writes its record while it holds the log, so this record is still the dead guest's.
                if not self._alive():
                    self._record.unlink(missing_ok=True)

    def age(self) -> float | None:
        """Return the seconds since the guest's process was started; None when it is not up."""
        return processes.age(self._recorded()["born"]) if self.up() else None

    def query_guest(self, mark: str | None, seconds: float) -> dict[str, Any]:
        """Ask the guest a question and return its answer; unless ``mark`` is None, it first writes that to its disk.

        Raises StepError when it does not answer within ``seconds``, or cannot write.
        """
        question = uuid.uuid4().hex
        ask, answer = self.path.with_name(f"{self.server}.ask"), self.path.with_name(f"{self.server}.answer")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.held():
            # Another question may have replaced this one in the file, so it is asked again until it is answered.
            durable.write(ask, msgspec.json.encode({"id": question, "mark": mark}))
            self.signal(signal.SIGUSR1, 0)
            again = time.monotonic() + REPEAT_SECONDS
            while time.monotonic() < again:
                given: dict[str, Any] = msgspec.json.decode(durable.read(answer) or b"{}")
                if given.pop("id", None) == question:
                    if "error" in given:
                        raise StepError(f"the guest of server {self.server} fails: {given['error']}", host=self.host)
                    return given
                time.sleep(POLL_SECONDS)
        raise StepError(f"the guest of server {self.server} on {self.host} does not answer", host=self.host)

    def _open_process(self) -> int | None:
        """Open a handle of the guest's process; returns None when there is no process yet, or none any more."""
        record = self._recorded()
        try:
            process = os.pidfd_open(record["pid"])
        except (KeyError, ProcessLookupError):
            return None
        # Checked with the record that named the pid, because a new guest may have written another record.
        if _lives(record):
            return process
        os.close(process)
        return None

    def _alive(self) -> bool:
        """Return whether the process that the record names still runs."""
        return _lives(self._recorded())

    def _recorded(self) -> dict[str, Any]:
        return msgspec.json.decode(durable.read(self._record) or b"{}", type=dict[str, Any])


def _lives(record: dict[str, Any]) -> bool:
    """Return whether the process of this record still runs."""
    return bool(record) and sandbox_guest.born(record["pid"]) == record["born"]


def _send(process: int, number: signal.Signals, seconds: float) -> None:
    """Send a signal through the handle of a process, and wait at most ``seconds`` for its end."""
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll(max(0.0, seconds) * 1000)
