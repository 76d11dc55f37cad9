"""A TCP proxy between daemons and a server: it cuts connections, stalls them, falls silent, and loses commits."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

Loss = Literal["before", "after"]
"""Whether the server never hears of a COMMIT, or makes it and nobody hears the answer."""

_COMMIT = b"COMMIT"
_LOOKS = 0.05
"""Seconds between two looks at what is wished of a connection that is silent."""


class Proxy:
    """Listens at ``port`` of 127.0.0.1 and passes everything on."""

    def __init__(self, target: Path | tuple[str, int]) -> None:
        """``target``: a server's Unix socket, or its address and port."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        """Commits that were lost."""
        self.unanswered = 0
        """Requests since it fell silent, the one that it fell silent at among them."""
        self._asking = threading.Event()
        self._answering = threading.Event()
        self._pass_on()
        self._cut = False
        self._closed = False
        self._generation = 0
        self._lock = threading.Lock()
        self._loses: tuple[Callable[[int], bool], Loss] | None = None
        self._silent_at: tuple[bytes, bool] | None = None
        self._silent = False
        self._commits = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and each new one at once, until `heal`."""
        self._cut = True
        self._generation += 1

    def heal(self) -> None:
        """Pass everything on again."""
        self._cut = False
        with self._lock:
            self._silent_at, self._silent = None, False
        self._pass_on()

    def stall(self) -> None:
        """Keep the connections, take new ones, and pass nothing on until `heal`."""
        self._asking.clear()
        self._answering.clear()

    def fall_silent(self, at: bytes, *, heard: bool) -> None:
        """Answer nothing any more from the next request on that holds ``at``, until `heal`.

        What is ``heard`` reaches the server, whose answers are kept back; else the requests are.
        """
        with self._lock:
            self._silent_at, self.unanswered = (at, heard), 0

    def lose_commits(self, which: Callable[[int], bool], loss: Loss) -> None:
        """Lose those whose number, counted from 1 on, ``which`` says, and their connections with them."""
        with self._lock:
            self._commits, self.lost, self._loses = 0, 0, (which, loss)

    def lose_none(self) -> None:
        """Lose no more of them."""
        self._loses = None

    def close(self) -> None:
        """Break all and listen no more."""
        self._closed = True
        self.cut()
        self._pass_on()
        self._listener.close()

    def _pass_on(self) -> None:
        self._asking.set()
        self._answering.set()

    def _note(self, request: bytes) -> None:
        with self._lock:
            if self._silent_at is None:
                return
            at, heard = self._silent_at
            if not self._silent and at in request:
                self._silent = True
                self._answering.clear()
                if not heard:
                    self._asking.clear()
            self.unanswered += self._silent and bool(request)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        generation = self._generation
        # Not `select.select`, which takes no file descriptor above 1,023: a process that runs many tests has such ones.
        with client, contextlib.suppress(OSError), self._connect() as server, selectors.DefaultSelector() as ready:
            for each in (client, server):
                ready.register(each, selectors.EVENT_READ, each)
            while not self._cut and generation == self._generation:
                for source in (key.data for key, _events in ready.select(_LOOKS)):
                    data = source.recv(65536)
                    if source is client:
                        self._note(data)
                    (self._asking if source is client else self._answering).wait()
                    loss = self._loss(data) if source is client else None
                    if not data or loss == "before" or generation != self._generation:
                        return
                    (server if source is client else client).sendall(data)
                    if loss == "after":
                        server.recv(65536)
                        return

    def _connect(self) -> socket.socket:
        if self._cut:
            raise ConnectionRefusedError
        if isinstance(self._target, tuple):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server

    def _loss(self, data: bytes) -> Loss | None:
        if _COMMIT not in data:
            return None
        with self._lock:
            if self._loses is None:
                return None
            which, loss = self._loses
            self._commits += 1
            if not which(self._commits):
                return None
            self.lost += 1
            return loss


@contextlib.contextmanager
def running_proxy(target: Path | tuple[str, int]) -> Iterator[Proxy]:
    """One that passes everything on to the target."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
