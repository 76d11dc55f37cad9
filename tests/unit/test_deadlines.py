"""A step does not wait without end for a service that is silent, or whose answer drips."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.labs.small_lab import until
from support.servers.certificates import Authority

from droveway import deadlines
from droveway.clients import transport
from droveway.clients.configured import Services
from droveway.conf import services, settings
from droveway.errors import StepError

DRIPS = 0.05
"""Seconds between two bytes: far below any time-out between two of them."""

SOON = 5.0
"""Seconds within which what has a deadline of less than one has long ended, also on a busy machine."""


SENT = "a request that a busy machine sends within the step's time"
"""What is waited for: where the time was over before, the step is run again."""


class Slow:
    """A service that takes every request and never ends its answer: it says ``begun``, then drips ``drops``."""

    def __init__(self, begun: bytes, drops: bytes) -> None:
        self._begun = begun
        self._drops = drops
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.root = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = 0
        self.closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._answer, args=(client,)))
                self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(ConnectionError):  # it was given up
            client.recv(65536)
            self.asked += 1
            client.sendall(self._begun)
            while not self.closed.wait(DRIPS):
                client.sendall(self._drops)


SLOWLY = {
    "silent": (b"", b""),
    "drips its headers": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
    "drips its body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n", b" "),
    "drips its chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.fixture(name="slow", params=SLOWLY)
def fixture_slow(request: pytest.FixtureRequest) -> Iterator[Slow]:
    slow = Slow(*SLOWLY[request.param])
    yield slow
    slow.close()


Asks = Callable[[str, float], None]


@pytest.fixture(name="ask", params=services.GROUPS)
def fixture_ask(request: pytest.FixtureRequest, tmp_path: Path) -> Asks:
    """Ask the service at a root, with this time-out, as a conductor does."""
    importlib.import_module("openstack.connection")  # at its first request it would, which takes a while

    def ask(root: str, timeout: float) -> None:
        path = tmp_path / "droveway.conf"
        group = request.param
        path.write_text(f"[{group}]\nauth_type = none\nendpoint_override = {root}\ntimeout = {timeout:g}\n")
        conf = settings.load_deployment(path)
        Services(conf).ask(group)

    return ask


def test_a_step_ends_at_its_deadline_however_slow_the_service_is(slow: Slow, ask: Asks) -> None:
    said = r"step claim_destination .* service .* 0\.7 s"

    def asked() -> int:
        began = time.monotonic()
        with pytest.raises(StepError, match=said) as caught, deadlines.running("claim_destination", 0.7):
            ask(slow.root, 60)
        assert 0.7 <= time.monotonic() - began < SOON
        assert caught.value.error_code.endswith("-overdue")
        return slow.asked

    assert until(asked, SENT) == 1


@pytest.mark.parametrize("ask", ["placement"], indirect=True)
def test_a_request_ends_at_the_services_own_time_out_and_is_repeated_until_the_deadline(slow: Slow, ask: Asks) -> None:
    """Each request as a whole: what drips is no answer either."""
    began = time.monotonic()
    with pytest.raises(StepError, match=r"deadline of 2\.5 s"), deadlines.running("claim_destination", 2.5):
        ask(slow.root, 1)
    assert 2.5 <= time.monotonic() - began < 2.5 + SOON
    assert 2 <= slow.asked <= 3


@pytest.mark.parametrize("ask", ["placement"], indirect=True)
def test_nothing_is_sent_after_the_deadline(slow: Slow, ask: Asks) -> None:
    with deadlines.running("claim_destination", 0.01):
        time.sleep(0.01)
        with pytest.raises(StepError, match="claim_destination"):
            ask(slow.root, 60)
    assert slow.asked == 0


@pytest.mark.parametrize("ask", ["placement"], indirect=True)
def test_a_host_that_is_waited_for_takes_nothing_of_the_steps_time(slow: Slow, ask: Asks) -> None:
    def asked() -> int:
        with deadlines.running("claim_destination", 0.2):
            with deadlines.paused():
                time.sleep(0.3)
            with pytest.raises(StepError, match="claim_destination"):
                ask(slow.root, 60)
        return slow.asked

    assert until(asked, SENT) == 1


class _Kept(http.server.BaseHTTPRequestHandler):
    """Keeps its connections, and is slow to read and to answer what is asked of ``/slow``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.path == "/slow":
            time.sleep(0.5)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("X-Port", str(self.client_address[1]))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Nothing."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave its request up is no error here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@pytest.fixture(name="kept", params=["http", "https"])
def fixture_kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A service that keeps its connections, and the authority of its certificate."""
    server = _Server(("127.0.0.1", 0), _Kept)
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    if request.param == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(issued.certificate, issued.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"{request.param}://localhost:{server.server_port}", issued.authority
    server.shutdown()
    thread.join()
    server.server_close()


def quick(session: transport.Session, root: str, authority: Path) -> requests.Response | None:
    """The answer to a request that has less time than a slow one takes; None when this machine took longer."""
    with contextlib.suppress(requests.RequestException), deadlines.running("claim_destination", 0.4):
        return session.post(f"{root}/quick", verify=str(authority), timeout=60)
    return None


def test_a_kept_connection_serves_requests_that_have_more_time(kept: tuple[str, Path]) -> None:
    root, authority = kept
    with transport.Session() as session:
        # More than a connection takes that nobody reads from.
        post = functools.partial(session.post, verify=str(authority), data=bytes(20_000_000))
        first = until(lambda: quick(session, root, authority), "a request that a busy machine ends in its short time")
        second = post(f"{root}/slow", timeout=60)
        third = post(f"{root}/slow")
        assert first.headers["X-Port"] == second.headers["X-Port"] == third.headers["X-Port"]
        with pytest.raises(requests.RequestException), deadlines.running("claim_destination", 0.2):
            post(f"{root}/slow", timeout=60)


def test_the_environment_is_looked_through_once_for_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(session: transport.Session, url: str) -> Any:
        return session.merge_environment_settings(url, {}, None, True, None)

    monkeypatch.setenv("http_proxy", "http://gate.test:1")
    monkeypatch.setenv("no_proxy", "near.test")
    with transport.Session() as session, requests.Session() as usual:
        for url in ("http://far.test/one", "http://near.test/one"):
            assert merged(session, url) == usual.merge_environment_settings(url, {}, None, True, None)
        first = merged(session, "http://far.test/one")
        assert first["proxies"]["http"] == "http://gate.test:1"
        first["proxies"].clear()
        monkeypatch.setattr(requests.sessions, "get_environ_proxies", None)
        assert merged(session, "http://far.test/two")["proxies"]["http"] == "http://gate.test:1"
        assert "http" not in merged(session, "http://near.test/two")["proxies"]
