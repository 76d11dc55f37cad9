"""Counts how often a guest was started on a host, which libvirt itself does not count.

libvirt has nothing that changes atomically with a start.  So a start is announced here before `create` is called, and
settled when its answer is known:

- The answer is "started", or the guest runs: the start counts.
- The answer is an error and the guest is off: the start does not count.  libvirt lets the processors run as the last
  act of a start, so the guest never ran.
- There is no answer (the worker or the daemon was killed) and the guest is off: libvirt's reason why the guest is off
  decides.  libvirt sets the reason to "failed" when a start fails.  It forgets the reason when its daemon ends.  If the
  reason is "failed" now and was not before the start, the start has failed and does not count.  With any other reason,
  the guest may have run and ended: the start counts.

The count is never too low: when it is what it was before, the guest never started.  It is too high only when a start
was cut off; the move then stops until an operator looks.  A guest that somebody starts by hand is not counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from droveway.errors import StepError
from droveway.workers.hypervisors import durable

POLL_SECONDS = 0.01


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many starts are settled, and whether one more was announced."""

    starts: int = 0
    announced: bool = False
    failed_before: bool = False


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """What libvirt says of a domain: whether it runs, and whether it is off because its last start failed."""

    running: bool
    failed: bool


class Starts:
    """The start count of one server on one host, in a file that survives worker, daemon and redefinition."""

    def __init__(self, directory: Path, server: str) -> None:
        self.server = server
        self._file = directory / f"{server}.json"
        self._lock = directory / f"{server}.lock"

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Be the only starter of this server; a starter that is killed loses the lock.

        Raises StepError when another starter holds it for longer than ``seconds``.
        """
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + seconds
        with self._lock.open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StepError(f"another start of server {self.server} does not end") from None
                    time.sleep(POLL_SECONDS)
            yield

    def counted(self, power: Power | None) -> int:
        """Return the count, with an announced start judged by the guest's present state (None: not defined)."""
        count = self._read()
        never_ran = power is not None and not power.running and power.failed and not count.failed_before
        return count.starts + (1 if count.announced and not never_ran else 0)

    def announce(self, power: Power) -> None:
        """Record durably that a start is about to be tried."""
        self._write(Count(starts=self.counted(power), announced=True, failed_before=power.failed))

    def count_start(self, power: Power | None, *, failed: bool = False) -> int:
        """Settle the announced start and return the count; with ``failed`` (libvirt's own answer) it does not count."""
        count = self._read()
        if count.announced:
            self._write(Count(starts=count.starts if failed else self.counted(power)))
        return self._read().starts

    def forget(self) -> None:
        """Delete the count, because the domain is gone."""
        durable.remove(self._file)

    def _read(self) -> Count:
        data = durable.read(self._file)
        return Count() if data is None else msgspec.json.decode(data, type=Count)

    def _write(self, count: Count) -> None:
        durable.write(self._file, msgspec.json.encode(count))
