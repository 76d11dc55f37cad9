"""How often a guest was started on a host: what libvirt itself does not count.

libvirt has nothing that changes atomically with a start, so a start is announced here before `create` is called and
settled when its answer is known:

- an answer "started", or a guest that runs: it counts;
- an answer with an error while the guest is off: libvirt lets the processors run as the last act of a start, so it
  never started, and it does not count;
- no answer (the worker or the daemon was killed) and the guest is off: libvirt keeps the reason why a guest is off.
  A start sets it anew, to "failed" when it fails, and a daemon forgets it when it ends.  So "failed" now and not
  before proves that the start failed; without that it may have run and ended, and it counts.

The count is thus never too low: equal to what it was before means "never started".  It is too high only when a start
was cut off; then a move rests until somebody looks.  A guest started behind our back (by hand) is not counted.
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
    """Starts that are settled, and whether one more was announced."""

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
        """Be the only starter of this server; a killed one lets go."""
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
        """The count in the light of the present state (None: not defined)."""
        count = self._read()
        never_ran = power is not None and not power.running and power.failed and not count.failed_before
        return count.starts + (1 if count.announced and not never_ran else 0)

    def announce(self, power: Power) -> None:
        """Say durably that a start is about to be tried."""
        self._write(Count(starts=self.counted(power), announced=True, failed_before=power.failed))

    def count_start(self, power: Power | None, *, failed: bool = False) -> int:
        """Take the announced start into the count, or with ``failed`` (libvirt's own answer) not; the count."""
        count = self._read()
        if count.announced:
            self._write(Count(starts=count.starts if failed else self.counted(power)))
        return self._read().starts

    def forget(self) -> None:
        """Begin anew: the domain is gone."""
        durable.remove(self._file)

    def _read(self) -> Count:
        data = durable.read(self._file)
        return Count() if data is None else msgspec.json.decode(data, type=Count)

    def _write(self, count: Count) -> None:
        durable.write(self._file, msgspec.json.encode(count))
