"""The destination's end of the disk transfer: a source behind a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

import tenacity

from droveway.errors import CoordinationLost, Fenced, StepError, step_error
from droveway.workers import frames
from droveway.workers.sources import DiskMap
from droveway.workers.transfer_server import socket_path

PATIENCE: Final = 20.0
"""Seconds for which a source that does not answer is asked again: its worker may be starting anew."""

SILENCE: Final = 30.0
"""Seconds without a word after which a connection is given up."""

Answer = TypeVar("Answer")


class RemoteSource:
    """The disks that another worker offers; connects when it is first asked, and again when the connection breaks.

    ``pause`` waits so many seconds and may raise to end the waiting.
    """

    def __init__(
        self,
        host: str,
        address: str,
        hello: frames.Hello,
        *,
        pause: Callable[[float], Any],
        patience: float = PATIENCE,
    ) -> None:
        self.host = host
        self._path = socket_path(address)
        self._hello = hello
        self._pause = pause
        self._patience = patience
        self._connection: frames.FrameSocket | None = None
        self._offered = frames.Welcome(disks=[])

    def offered(self) -> frames.Welcome:
        """The disks that are offered, and their bases."""
        self._asked(lambda _: None)
        return self._offered

    def disk_map(self, disk: str) -> DiskMap:
        """Where the disk's data lies."""
        return self._asked(lambda peer: self._ask(peer, frames.AskMap(disk=disk), frames.MapFrame)[0]).map

    def read(self, disk: str, offset: int, length: int, into: memoryview) -> tuple[memoryview, str]:
        """One chunk, in ``into``, and the checksum that the source made of it."""
        request = frames.AskChunk(disk=disk, offset=offset, length=length)
        answer, data = self._asked(lambda peer: self._ask(peer, request, frames.ChunkFrame, into[:length]))
        return data, answer.checksum

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _asked(self, question: Callable[[frames.FrameSocket], Answer]) -> Answer:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OSError),
            stop=tenacity.stop_after_delay(self._patience),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
            sleep=self._pause,
            reraise=True,
        )
        try:
            answer: Answer = attempts(self._once, question)
        except OSError as error:
            raise StepError(
                f"the worker of {self.host} does not serve the disks of server {self._hello.server}: {error}",
                code="source-unreachable",
                host=self.host,
            ) from None
        return answer

    def _once(self, question: Callable[[frames.FrameSocket], Answer]) -> Answer:
        try:
            if self._connection is None:
                self._connect()
            assert self._connection is not None  # noqa: S101 - made by the line above
            return question(self._connection)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.settimeout(SILENCE)
        try:
            stream.connect(self._path)
        except OSError:
            stream.close()
            raise
        self._connection = frames.FrameSocket(stream)
        self._offered = self._ask(self._connection, self._hello, frames.Welcome)[0]

    def _ask(
        self,
        peer: frames.FrameSocket,
        request: frames.Frame,
        kind: type[Answer],
        into: memoryview = frames.NOWHERE,
    ) -> tuple[Answer, memoryview]:
        peer.send(request)
        answer, payload = peer.receive(into)
        if isinstance(answer, frames.Refusal):
            if answer.error["code"] == Fenced.code:
                raise Fenced(answer.error["message"])
            if answer.error["code"] == CoordinationLost.code:
                raise frames.FrameError(answer.error["message"])  # it may know more in a moment
            raise step_error(answer.error)
        if not isinstance(answer, kind):
            raise StepError(f"host {self.host} answered with {type(answer).__name__}", code="protocol", host=self.host)
        return answer, payload
