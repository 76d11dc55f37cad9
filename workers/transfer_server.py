"""The source's end of the disk transfer: serves what was set aside to the one host that it was offered to."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from droveway.errors import DrovewayError, StepError
from droveway.workers import extents, frames
from droveway.workers.sources import LocalSource

LOG = logging.getLogger(__name__)

Admit = Callable[[frames.Hello], LocalSource]
"""Opens what the hello may fetch; raises StepError or Fenced when it may not."""

_CREDENTIALS: Final = struct.Struct("3i")


def socket_path(address: str) -> str:
    """The path in ``unix:/path``; raises StepError for any other address."""
    kind, _, path = address.partition(":")
    if kind != "unix" or not path:
        raise StepError(f"{address!r} is no transfer address: it must be unix:/path", code="address")
    return path


class TransferServer:
    """Listens at ``address`` from `start` to `stop`; a thread for each connection."""

    def __init__(self, host: str, address: str, admit: Admit, *, uid: int | None = None) -> None:
        self.host = host
        self._path = socket_path(address)
        self._admit = admit
        self._uid = os.geteuid() if uid is None else uid
        self._lock = threading.Lock()
        self._open: set[frames.FrameSocket] = set()
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Listen; a socket that a killed worker left is replaced."""
        Path(self._path).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self._path)
        Path(self._path).chmod(0o600)
        listener.listen(64)
        self._listener = listener
        self._spawn(self._accept, listener)

    def stop(self) -> None:
        """End all connections and stop listening."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        Path(self._path).unlink(missing_ok=True)
        with self._lock:
            connections, threads = list(self._open), list(self._threads)
        for connection in connections:
            connection.close()
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
            except OSError:
                return  # closed by stop
            uid = _CREDENTIALS.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
            if uid == self._uid:
                self._spawn(self._serve, stream)
            else:
                LOG.warning("A process of user %s was turned away from the disk transfer of %s", uid, self.host)
                stream.close()

    def _serve(self, stream: socket.socket) -> None:
        connection = frames.FrameSocket(stream)
        with self._lock:
            if self._listener is None:
                connection.close()  # `stop` has ended all that it knew of
                return
            self._open.add(connection)
        try:
            hello, _ = connection.receive()
            self._answer(connection, hello)
        except OSError as error:
            LOG.debug("A disk transfer from %s broke off: %s", self.host, error)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, connection: frames.FrameSocket, hello: frames.Frame) -> None:
        """Serve one peer until it hangs up, or until something is refused."""
        try:
            with contextlib.closing(self._admitted(hello)) as source:
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

    def _admitted(self, hello: frames.Frame) -> LocalSource:
        if isinstance(hello, frames.Hello):
            return self._admit(hello)
        raise StepError("a transfer begins with a hello", code="protocol", host=self.host)

    def _answered(
        self, source: LocalSource, request: frames.Frame, memory: memoryview
    ) -> tuple[frames.Frame, bytes | memoryview]:
        """The answer to one question; the bytes in it lie in ``memory``."""
        if isinstance(request, frames.AskMap):
            return frames.MapFrame(map=source.disk_map(request.disk)), b""
        if isinstance(request, frames.AskChunk) and request.offset >= 0 and 0 < request.length <= extents.CHUNK:
            data, checksum = source.read(request.disk, request.offset, request.length, memory)
            return frames.ChunkFrame(checksum=checksum), data
        raise StepError(f"{type(request).__name__} is no question", code="protocol", host=self.host)
