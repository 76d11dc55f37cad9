"""A lab's Placement, ports and volumes behind HTTP, for daemons that reach their cloud as a real one."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from droveway.clients.embedded.network import network_service
from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.embedded.services import LocalService, services_engine
from droveway.clients.embedded.volume import volume_service
from droveway.lab.layout import Layout

_PLACEMENT = "http://placement.invalid"
_VERSIONS = {"network": "v2.0", "volume": "v3.0"}


class Server(http.server.ThreadingHTTPServer):
    """Answers on a port of its own: `/placement`, `/network` and `/volume`."""

    def __init__(self, files: Layout) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        engine = services_engine(files.services)
        self.placement = embedded_placement(files.placement)
        self.local: dict[str, LocalService] = {
            "network": network_service(engine),
            "volume": volume_service(engine, files.volumes),
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle of its request is no error here."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def settings(self) -> dict[str, dict[str, str]]:
        """How the daemons' configuration says that each service is reached, by its group."""
        root = f"http://127.0.0.1:{self.server_port}"
        return {
            "placement": {"auth_type": "admin_token", "endpoint": f"{root}/placement", "token": "admin"},
            "neutron": {"auth_type": "none", "endpoint_override": f"{root}/network"},
            "cinder": {"auth_type": "none", "endpoint_override": f"{root}/volume"},
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        _, service, path = f"{parts.path}/".split("/", 2)
        path = path.removesuffix("/")
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionAbortedError("the client was gone before it had said all")
        if service == "placement":
            found = self.server.placement.request(
                f"/{path}?{parts.query}",
                self.command,
                endpoint_override=_PLACEMENT,
                data=body or None,
                headers=dict(self.headers),
                authenticated=False,
                raise_exc=False,
            )
            self._say(found.status_code, found.content, dict(found.headers))
        elif not path:
            link = {"rel": "self", "href": f"http://{self.headers['Host']}/{service}"}
            body = json.dumps({"versions": [{"id": _VERSIONS[service], "status": "CURRENT", "links": [link]}]}).encode()
            self._say(200, body, {"Content-Type": "application/json"})
        else:
            options: dict[str, Any] = {
                "params": dict(urllib.parse.parse_qsl(parts.query)),
                "headers": dict(self.headers),
                "data": io.BytesIO(body),
            }
            if self.headers.get("Content-Type") == "application/json":
                options["json"] = json.loads(body)
            answer = self.server.local[service].request(f"/{path}", self.command, **options)
            self._say(answer.status_code, answer.text.encode(), {"Content-Type": "application/json"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815 - the names that the base class calls

    def _say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Nothing: the daemons' own logs say what was answered."""


@contextlib.contextmanager
def served(files: Layout) -> Iterator[Server]:
    """The lab's services, answering."""
    server = Server(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for service in server.local.values():
            service.close()
