"""Serves a lab's Placement, ports, volumes and images by HTTP, for daemons that reach them as in a real cloud."""

from __future__ import annotations

import contextlib
import http.server
import json
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from droveway.clients.embedded.image import image_service
from droveway.clients.embedded.network import network_service
from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.embedded.services import LocalService, services_engine
from droveway.clients.embedded.volume import volume_service
from droveway.clients.image import CHUNK
from droveway.clients.placement import Placement
from droveway.lab.layout import Layout

_PLACEMENT = "http://placement.invalid"
_VERSIONS = {"network": "v2.0", "volume": "v3.0", "image": "v2.9"}


class Server(http.server.ThreadingHTTPServer):
    """Answers below `/placement`, `/network`, `/volume` and `/image`; port 0 stands for a free one."""

    def __init__(self, files: Layout, port: int = 0, address: str = "127.0.0.1") -> None:
        super().__init__((address, port), _Handler)
        engine = services_engine(files.services)
        self.placement = embedded_placement(files.placement)
        self.local: dict[str, LocalService] = {
            "network": network_service(engine, Placement(self.placement)),
            "volume": volume_service(engine, files.volumes),
            "image": image_service(engine, files.images),
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that was killed in the middle of its request."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def passed(self, way: str, size: int) -> None:
        """Do nothing; tests override it to see the bytes of images as they pass (``upload`` or ``download``)."""

    def settings(self) -> dict[str, dict[str, str]]:
        """Return the options by which daemons reach Placement, ports and volumes, by their groups."""
        return settings(self.server_port)

    def image_settings(self) -> dict[str, dict[str, str]]:
        """Return the options by which daemons reach images, which are optional."""
        return image_settings(self.server_port)


def settings(port: int) -> dict[str, dict[str, str]]:
    """Return the options for Placement, ports and volumes at this port, by their groups."""
    root = f"http://127.0.0.1:{port}"
    return {
        "placement": {"auth_type": "admin_token", "endpoint": f"{root}/placement", "token": "admin"},
        "neutron": {"auth_type": "none", "endpoint_override": f"{root}/network"},
        "cinder": {"auth_type": "none", "endpoint_override": f"{root}/volume"},
    }


def image_settings(port: int) -> dict[str, dict[str, str]]:
    """Return the options for images at this port."""
    return {"glance": {"auth_type": "none", "endpoint_override": f"http://127.0.0.1:{port}/image"}}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        _, service, path = f"{parts.path}/".split("/", 2)
        path = path.removesuffix("/")
        if self.headers.get("Content-Type") == "application/octet-stream":
            self._local(service, path, {"headers": dict(self.headers), "data": self._received()})
            return
        body = b"".join(self._received())
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
            }
            if self.headers.get("Content-Type") == "application/json":
                options["json"] = json.loads(body)
            self._local(service, path, options)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815 - the names that the base class calls

    def _received(self) -> Iterator[bytes]:
        """Yield the request's body, part by part."""
        left = int(self.headers.get("Content-Length", 0))
        while left:
            data = self.rfile.read(min(left, CHUNK))
            if not data:
                raise ConnectionAbortedError("the client was gone before it had said all")
            left -= len(data)
            yield data
            self.server.passed("upload", len(data))

    def _local(self, service: str, path: str, options: dict[str, Any]) -> None:
        answer = self.server.local[service].request(f"/{path}", self.command, **options)
        if answer.file is None:
            # The rest of a body that was not read would be taken for the next request.
            self.close_connection = self.close_connection or "data" in options
            self._say(answer.status_code, answer.text.encode(), {"Content-Type": "application/json"})
            return
        with contextlib.closing(answer):
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for data in answer.iter_content(CHUNK):
                self.wfile.write(data)
                self.server.passed("download", len(data))

    def _say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Log nothing: the daemons' own logs have the answers."""


@contextlib.contextmanager
def served(files: Layout, address: str = "127.0.0.1") -> Iterator[Server]:
    """Serve the lab's services at this address within the block."""
    server = Server(files, address=address)
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


def main(root: str, port: str) -> None:
    """Serve the lab in the directory ``root`` until the process is ended."""
    Server(Layout(Path(root)), int(port)).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
