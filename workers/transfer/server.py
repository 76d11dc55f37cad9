"""The source's end of the disk transfer: serves the disks that were set aside to the host that they are offered to."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

from droveway import log_context
from droveway.errors import DrovewayError, StepError
from droveway.outages import Seldom
from droveway.printable import printable
from droveway.workers.transfer import extents, frames
from droveway.workers.transfer.endpoints import HANDSHAKE, IDLE, Endpoint, Unwelcome, address_of, peer_of
from droveway.workers.transfer.limits import Bucket
from droveway.workers.transfer.sources import LocalSource

LOG = logging.getLogger(__name__)

Admit = Callable[[frames.Hello], LocalSource]
"""Opens the disks that a hello asks for; raises StepError or Fenced when it may not have them."""

ACCEPT_AGAIN: Final = 1.0
"""Seconds after which a worker that could accept nobody tries again."""

MOST_CONNECTIONS: Final = 512
"""Most peers at once: a single host may come with 16 copies of 4 disks with 3 readers each."""

FARTHEST: Final = 1 << 62
"""Bytes: no file is that long, and offsets far beyond it do not fit into the system's numbers."""


class TransferServer:
    """Serves disks at its endpoint from `start` to `stop`, with a thread for each connection.

    ``limit`` bounds how much is sent.
    """

    def __init__(self, host: str, endpoint: Endpoint, admit: Admit, *, limit: Bucket | None = None) -> None:
        self.host = host
        self._endpoint = endpoint
        self._admit = admit
        self._limit = limit or Bucket(0)
        self._turned_away = Seldom(LOG, f"Turned away at the disk transfer of {host}")
        self._lock = threading.Lock()
        self._open: dict[frames.FrameSocket, bool] = {}
        """All connections, oldest first, and whether their peers were admitted."""
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to listen."""
        self._stopping.clear()
        listener = self._endpoint.listen()
        self._listener = listener
        with self._lock:
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
            threads = list(self._threads)
            for connection in self._open:
                connection.end()
            self._open.clear()
        for thread in threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"transfer-{self.host}", daemon=True)
        self._threads = {known for known in self._threads if known.is_alive()} | {thread}
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._listener is listener:
            try:
                stream, _ = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return
                # For example, too many files are open.  That ends some time, and the worker then has to serve disks.
                self._turned_away.log_once("accept", f"everybody: {error}")
                self._stopping.wait(ACCEPT_AGAIN)
                continue
            self._enter(frames.FrameSocket(stream))

    def _enter(self, connection: frames.FrameSocket) -> None:
        """Begin to serve a peer; if there is no room, end a peer that has not proved yet who it is."""
        with self._lock:
            if self._listener is not None and self._has_room():
                self._open[connection] = False
                try:
                    self._spawn(self._serve, connection)
                except RuntimeError as error:  # this machine can make no more threads now
                    del self._open[connection]
                    self._turned_away.log_once("thread", f"everybody: {error}")
                else:
                    return
        connection.close()

    def _has_room(self) -> bool:
        if len(self._open) < MOST_CONNECTIONS:
            return True
        mute = next((connection for connection, admitted in self._open.items() if not admitted), None)
        if mute is None:
            self._turned_away.log_once("full", f"one peer more than {MOST_CONNECTIONS}")
            return False
        # Otherwise anybody who can connect could keep all others out without proving anything.
        self._turned_away.log_once(
            "full", f"{address_of(mute.stream)}, which had asked for nothing while there were {MOST_CONNECTIONS} peers"
        )
        del self._open[mute]
        mute.end()
        return True

    def _serve(self, connection: frames.FrameSocket) -> None:
        who = address_of(connection.stream)
        try:
            self._wrap(connection)
            self._endpoint.welcome(connection.stream)
            who = peer_of(connection.stream)
            hello, _ = connection.receive(longest=frames.LONGEST_QUESTION, within=HANDSHAKE)
            connection.stream.settimeout(IDLE)
            self._answer(connection, hello, who)
        except Unwelcome as error:
            if connection in self._open:  # if not, this server has ended the connection and logged why
                self._turned_away.log_once(error.kind, error)
        except frames.Malformed as error:
            self._turned_away.log_once("malformed", f"{who}: {error}")
        except OSError as error:
            if isinstance(error, TimeoutError) and self._open.get(connection) is False:
                self._turned_away.log_once("mute", f"{who}, which had asked for nothing within {HANDSHAKE:g} s")
            LOG.debug("A disk transfer from %s broke off: %s", who, error)
        except Exception as error:  # noqa: BLE001 - it is logged in full, and only seldom
            self._turned_away.log_once("failed", f"{who}, which could not be answered: {error!r}", trace=True)
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _wrap(self, connection: frames.FrameSocket) -> None:
        try:
            # A thread that ends the connection holds the lock too.  So it never finds a stream that is half wrapped.
            with self._lock:
                connection.stream.settimeout(HANDSHAKE)
                connection.stream = self._endpoint.wrap(connection.stream)
        except OSError as error:
            raise Unwelcome("own", f"everybody: {error}") from None

    def _answer(self, connection: frames.FrameSocket, hello: frames.Frame, who: str) -> None:
        """Serve one peer until it closes the connection or something is refused."""
        try:
            asked = self._vouched(connection, hello)
            if asked.probe:
                connection.send(frames.Welcome(disks=[]))
                return
            with (
                log_context.of_move(printable(asked.move), server_id=printable(asked.server)),
                contextlib.closing(self._admitted(connection, asked)) as source,
            ):
                connection.send(frames.Welcome(disks=source.manifest.disks, bases=source.manifest.bases))
                memory = extents.memory()
                while True:
                    request, _ = connection.receive(longest=frames.LONGEST_QUESTION)
                    connection.send(*self._answered(source, request, memory))
        except StepError as error:
            refused = StepError(error.message, code=error.error_code, host=error.host or self.host)
            self._refuse(connection, who, refused.as_dict())
        except DrovewayError as error:
            self._refuse(connection, who, {"code": error.code, "message": str(error), "host": self.host})

    def _refuse(self, connection: frames.FrameSocket, who: str, error: dict[str, str]) -> None:
        self._turned_away.log_once(error["code"], f"{who}: {error['message']}")
        connection.send(frames.Refusal(error=error))

    def _vouched(self, connection: frames.FrameSocket, hello: frames.Frame) -> frames.Hello:
        """Return the hello of a peer; raises StepError unless the peer has proved that it is the host it names."""
        if not isinstance(hello, frames.Hello):
            raise StepError("a transfer begins with a hello", code="protocol", host=self.host)
        if not self._endpoint.vouches(connection.stream, hello.peer):
            raise StepError(
                f"the peer that asks for the disks of server {hello.server} says it is {hello.peer} and does not prove "
                "it",
                code="certificate",
                host=self.host,
            )
        return hello

    def _admitted(self, connection: frames.FrameSocket, hello: frames.Hello) -> LocalSource:
        source = self._admit(hello)
        with self._lock:
            if connection in self._open:
                self._open[connection] = True
        return source

    def _answered(
        self, source: LocalSource, request: frames.Frame, memory: memoryview
    ) -> tuple[frames.Frame, bytes | memoryview]:
        """Return the answer to one question; its bytes lie in ``memory``."""
        if isinstance(request, frames.MapRequest):
            return frames.MapFrame(map=source.disk_map(request.disk)), b""
        if (
            isinstance(request, frames.ChunkRequest)
            and 0 <= request.offset < FARTHEST
            and 0 < request.length <= extents.CHUNK
        ):
            if seconds := self._limit.take(request.length):
                return frames.LaterFrame(seconds=seconds), b""
            data, checksum = source.read(request.disk, request.offset, request.length, memory)
            return frames.ChunkFrame(checksum=checksum), data
        raise StepError(f"{type(request).__name__} is no question", code="protocol", host=self.host)
