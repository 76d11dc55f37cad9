"""What stands in for the cloud: a Keystone that knows one user, before a lab's Placement, ports, volumes and images."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

from proofs.install_trial.network import CONTROL as ADDRESS

from droveway.lab import served_cloud
from droveway.lab.layout import Layout

PORT: Final = 5000
PASSWORD: Final = "CHANGE-ME-keystone"
"""What the page gives the user."""

_TOKEN: Final = "admin"
"""The only one that the lab's Placement takes."""
_PATHS: Final = {"placement": "placement", "network": "network", "block-storage": "volume", "image": "image"}
"""Type of a service in the catalog → its path at the lab's server."""


class _Keystone(http.server.ThreadingHTTPServer):
    def __init__(self, services: str) -> None:
        super().__init__((ADDRESS, PORT), _Handler)
        self.services = services


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Keystone

    def do_GET(self) -> None:
        """Say which version there is."""
        link = {"rel": "self", "href": f"http://{self.headers['Host']}/v3"}
        self._say(200, {"version": {"id": "v3.14", "status": "stable", "links": [link]}})

    def do_POST(self) -> None:
        """Give a token to who has the page's password."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = body["auth"]["identity"]["password"]["user"]
        if (user["name"], user["password"]) != ("droveway", PASSWORD):
            self._say(401, {"error": {"code": 401, "title": "Unauthorized", "message": "wrong name or password"}})
            return
        self._say(201, {"token": self._token()})

    def _token(self) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC)
        domain = {"id": "default", "name": "Default"}
        catalog = [
            {
                "type": kind,
                "name": kind,
                "id": kind,
                "endpoints": [
                    {
                        "id": f"{kind}-{interface}",
                        "interface": interface,
                        "region": "RegionOne",
                        "region_id": "RegionOne",
                        "url": f"{self.server.services}/{path}",
                    }
                    for interface in ("public", "internal", "admin")
                ],
            }
            for kind, path in _PATHS.items()
        ]
        return {
            "methods": ["password"],
            "user": {"id": "droveway", "name": "droveway", "domain": domain},
            "project": {"id": "service", "name": "service", "domain": domain},
            "roles": [{"id": name, "name": name} for name in ("admin", "service")],
            "issued_at": now.isoformat().replace("+00:00", "Z"),
            "expires_at": (now + dt.timedelta(hours=12)).isoformat().replace("+00:00", "Z"),
            "catalog": catalog,
        }

    def _say(self, status: int, content: dict[str, Any]) -> None:
        told = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.send_header("X-Subject-Token", _TOKEN)
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Nothing: the daemons' own logs say what was answered."""


class _Versioned:
    """A lab's service at the paths that one with a catalog is asked by, which begin with a version."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def request(self, path: str, *words: Any, **options: Any) -> Any:
        """Ask the service without the version."""
        return self._service.request(re.sub(r"^/v[0-9.]+(?=/)", "", path), *words, **options)

    def close(self) -> None:
        """Close it."""
        self._service.close()


@contextlib.contextmanager
def served(files: Layout) -> Iterator[None]:
    """Keystone and the lab's services, answering where the hosts reach them."""
    with served_cloud.served(files, ADDRESS) as services:
        local: Any = {name: _Versioned(service) for name, service in services.local.items()}
        services.local = local
        keystone = _Keystone(f"http://{ADDRESS}:{services.server_port}")
        thread = threading.Thread(target=keystone.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            keystone.shutdown()
            thread.join()
            keystone.server_close()
