"""The source's end of the disk transfer: serves what was set aside to the one host that it was offered to."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

from droveway.errors import DrovewayError, StepError
from droveway.outages import Outage
from droveway.workers import extents, frames
from droveway.workers.endpoints import HANDSHAKE, IDLE, Endpoint, Unwelcome
from droveway.workers.limits import Bucket
from droveway.workers.sources import LocalSource

LOG = logging.getLogger(__name__)

Admit = Callable[[frames.Hello], LocalSource]
"""Opens what the hello may fetch; raises StepError or Fenced when it may not."""

ACCEPT_AGAIN: Final = 1.0
"""Seconds after which a worker that could let nobody in tries again."""

MOST_CONNECTIONS: Final = 512
"""So many peers are served at once: 16 copies of 4 disks with 3 readers each come from a single host."""


class TransferServer:
    """Listens at its endpoint from `start` to `stop`; a thread for each connection.

    ``limit`` is what may be sent.
    """

    def __init__(self, host: str, endpoint: Endpoint, admit: Admit, *, limit: Bucket | None = None) -> None:
        self.host = host
        self._endpoint = endpoint
        self._admit = admit
        self._limit = limit or Bucket(0)
        self._turned_away = Outage(LOG, f"Turned away at the disk transfer of {host}")
        self._lock = threading.Lock()
        self._open: set[frames.FrameSocket] = set()
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Listen."""
        self._stopping.clear()
        listener = self._endpoint.listen()
        self._listener = listener
        self._spawn(self._accept, listener)

    def stop(self) -> None:
        """End all connections and stop listening."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        self._stopping.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self._endpoint.close()
        with self._lock:
            connections, threads = list(self._open), list(self._threads)
        for connection in connections:
            connection.end()
        for thread in threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"transfer-{self.host}", daemon=True)
        with self._lock:
            self._threads = {known for known in self._threads if known.is_alive()} | {thread}
            thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                stream, _ = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return
                # Too many files are open, say. That ends, and the worker has to serve disks then.
                self._turned_away.note(error)
                self._stopping.wait(ACCEPT_AGAIN)
                continue
            if len(self._open) < MOST_CONNECTIONS:
                self._spawn(self._serve, stream)
            else:
                self._turned_away.note(f"one peer more than {MOST_CONNECTIONS}")
                stream.close()

    def _serve(self, stream: socket.socket) -> None:
        connection = frames.FrameSocket(stream)
        with self._lock:
            if self._listener is None:
                connection.close()  # `stop` has ended all that it knew of
                return
            self._open.add(connection)
        try:
            stream.settimeout(HANDSHAKE)
            self._wrap(connection)
            self._endpoint.welcome(connection.stream)
            hello, _ = connection.receive()
            connection.stream.settimeout(IDLE)
            self._answer(connection, hello)
        except (Unwelcome, frames.Malformed) as error:
            self._turned_away.note(error)
        except OSError as error:
            LOG.debug("A disk transfer from %s broke off: %s", self.host, error)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _wrap(self, connection: frames.FrameSocket) -> None:
        try:
            with self._lock:  # `stop` closes either the one or the other
                connection.stream = self._endpoint.wrap(connection.stream)
        except OSError as error:
            raise Unwelcome(f"everybody: {error}") from None

    def _answer(self, connection: frames.FrameSocket, hello: frames.Frame) -> None:
        """Serve one peer until it hangs up, or until something is refused."""
        try:
            with contextlib.closing(self._admitted(connection, hello)) as source:
                connection.send(frames.Welcome(disks=source.manifest.disks, bases=source.manifest.bases))
                memory = extents.memory()
                while True:
                    request, _ = connection.receive()
                    connection.send(*self._answered(source, request, memory))
        except StepError as error:
            refused = StepError(error.message, code=error.error_code, host=error.host or self.host)
            connection.send(frames.Refusal(error=refused.as_dict()))
        except DrovewayError as error:
            connection.send(frames.Refusal(error={"code": error.code, "message": str(error), "host": self.host}))

    def _admitted(self, connection: frames.FrameSocket, hello: frames.Frame) -> LocalSource:
        if not isinstance(hello, frames.Hello):
            raise StepError("a transfer begins with a hello", code="protocol", host=self.host)
        if not self._endpoint.vouches(connection.stream, hello.peer):
            self._turned_away.note(f"a peer that says it is {hello.peer}, which its certificate does not")
            raise StepError(
                f"who asks for the disks of server {hello.server} does not prove to be {hello.peer}",
                code="certificate",
                host=self.host,
            )
        return self._admit(hello)

    def _answered(
        self, source: LocalSource, request: frames.Frame, memory: memoryview
    ) -> tuple[frames.Frame, bytes | memoryview]:
        """The answer to one question; the bytes in it lie in ``memory``."""
        if isinstance(request, frames.AskMap):
            return frames.MapFrame(map=source.disk_map(request.disk)), b""
        if isinstance(request, frames.AskChunk) and request.offset >= 0 and 0 < request.length <= extents.CHUNK:
            if seconds := self._limit.take(request.length):
                return frames.LaterFrame(seconds=seconds), b""
            data, checksum = source.read(request.disk, request.offset, request.length, memory)
            return frames.ChunkFrame(checksum=checksum), data
        raise StepError(f"{type(request).__name__} is no question", code="protocol", host=self.host)
