"""Talks to a boot guest over its serial line, which QEMU offers as a unix socket.

A guest that is still booting does not read its serial line, and what it writes while nobody is connected is lost. So
the lab repeats its question for the guest's status until the guest answers. The answer shows that the guest reads the
line. The lab sends any other line only after that, and once on each connection.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from droveway.errors import StepError

ANSWER_SECONDS: Final = 30.0
REPEAT_SECONDS: Final = 0.5
MARK_BYTES: Final = 15
LONGEST_LINE: Final = 1024
_STATUS: Final = re.compile(
    rb"SMV1 status boots=(\d{1,10}) mark=([!-~]{0,15}) vcpus=(\d{1,10}) mem_kib=(\d{1,10}) "
    rb"disk_sectors=(\d{1,10}) uuid=([0-9a-f]{32})\r\n"
)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A boot guest's answer: its processors, its memory (MiB) and its boot disk, as it finds them."""

    boots: int
    mark: str
    vcpus: int
    memory_mb: int
    disk_sectors: int
    uuid: str
    """The server's uuid without dashes."""


class Console:
    """One guest's serial line at ``path``; each call raises StepError when the guest of ``name`` does not answer."""

    def __init__(self, path: Path, name: str, host: str, runs: Callable[[], bool]) -> None:
        """Open nothing yet; ``runs`` tells whether the guest still runs, because only then it is asked again."""
        self._path = path
        self._name = name
        self._host = host
        self._runs = runs

    def status(self, seconds: float = ANSWER_SECONDS) -> Status:
        """Return the guest's status; it has so many seconds to answer."""
        return _status(self._talk("", _STATUS, seconds))

    def mark(self, text: str) -> None:
        """Let the guest write one word of at most `MARK_BYTES` characters into its boot disk."""
        if not (text.isascii() and text.isprintable() and " " not in text and 0 < len(text) <= MARK_BYTES):
            raise StepError(f"the mark {text!r} must be one word of 1 to {MARK_BYTES} characters", host=self._host)
        self._talk(f"mark {text}", _STATUS)

    def _talk(self, order: str, answer: re.Pattern[bytes], seconds: float = ANSWER_SECONDS) -> re.Match[bytes]:
        deadline = time.monotonic() + seconds
        while self._runs() and time.monotonic() < deadline:
            try:
                found = self._try(order, answer, deadline)
            except OSError as error:
                raise StepError(
                    f"the console of server {self._name} on {self._host} is closed: {error}", host=self._host
                ) from None
            if found is not None:
                return found
        raise StepError(f"the guest of server {self._name} on {self._host} does not answer", host=self._host)

    def _try(self, order: str, answer: re.Pattern[bytes], deadline: float) -> re.Match[bytes] | None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._path))
            found = None
            while found is None and time.monotonic() < deadline:
                line.sendall(b"\nstatus\n")
                found = _hear(line, _STATUS, REPEAT_SECONDS)
            if found is None or not order:
                return found
            # The first answer may still be to an earlier question. The mark is written once an answer shows it.
            line.sendall(f"{order}\n".encode("ascii"))
            while (found := _hear(line, answer, deadline - time.monotonic())) is not None:
                if answer is not _STATUS or order == f"mark {_status(found).mark}":
                    return found
        return None


def _hear(line: socket.socket, answer: re.Pattern[bytes], seconds: float) -> re.Match[bytes] | None:
    """Return the next answer; None when none comes in time, or the guest has ended."""
    heard = b""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        line.settimeout(left)
        try:
            part = line.recv(1)
        except TimeoutError:
            return None
        if not part:
            return None
        heard += part
        if part == b"\n":
            if found := answer.search(heard):
                return found
            heard = b""
        elif len(heard) > LONGEST_LINE:
            heard = b""
    return None


def _status(found: re.Match[bytes]) -> Status:
    boots, mark, vcpus, memory_kib, sectors, server = (part.decode("ascii") for part in found.groups())
    return Status(
        boots=int(boots),
        mark=mark,
        vcpus=int(vcpus),
        memory_mb=int(memory_kib) // 1024,
        disk_sectors=int(sectors),
        uuid=server,
    )
