"""A relay of HTTP between Droveway and a service: it keeps what passes, answers in the service's place, and has TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from support.servers.certificates import Files

_OF_CONNECTION: Final = {"connection", "content-length", "keep-alive", "transfer-encoding"}
"""Headers of one connection, which are not passed on."""


@dataclasses.dataclass(frozen=True)
class Passed:
    """A request that came, and how it was answered."""

    method: str
    path: str
    status: int
    at: float
    """When, by the clock that never goes back."""


class Relay(http.server.ThreadingHTTPServer):
    """Listens on a port of its own and passes everything on to another port."""

    def __init__(self, port: int, certificate: Files | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.passed: list[Passed] = []
        self.refusals: list[tuple[str, int, Mapping[str, str]]] = []
        """How the next requests that begin so are answered, each once: status and headers."""
        self._scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            # Else a client that breaks off the handshake would keep all others waiting.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._scheme}://localhost:{self.server_port}"

    def refusal(self, request: str) -> tuple[int, Mapping[str, str]] | None:
        """Return how the request is refused, when one that begins so is to be."""
        for each in self.refusals:
            begins, status, headers = each
            if request.startswith(begins):
                self.refusals.remove(each)
                return status, headers
        return None

    def count(self, method: str, path: str, status: int) -> int:
        """Return how many requests of a method for paths with this part were answered so."""
        return sum(each.method == method and path in each.path and each.status == status for each in self.passed)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let a client go that has broken off, as one does that trusts another authority."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refusal = self.server.refusal(f"{self.command} {self.path}")
        if refusal is not None:
            self._say(*refusal, b"{}")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target)
        with contextlib.closing(connection):
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self._say(answer.status, dict(answer.getheaders()), answer.read())

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815 - the names that the base class calls

    def _say(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.server.passed.append(Passed(self.command, self.path, status, time.monotonic()))
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Nothing: what passed is kept."""


@contextlib.contextmanager
def running_relay(port: int, certificate: Files | None = None) -> Iterator[Relay]:
    """Run one that passes everything on to this port of the machine."""
    relay = Relay(port, certificate)
    thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        thread.join()
        relay.server_close()
