"""Services are found through Keystone's catalog, whose addresses may lack the version that is spoken there."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import exceptions

from droveway.clients import sessions
from droveway.clients.configured import Services
from droveway.conf import services, settings
from droveway.errors import StepError

PASSWORD = "canary-keystone-55d1"
PROJECT = "3f0d"


class Cloud(http.server.ThreadingHTTPServer):
    """Keystone, and a Neutron, a Cinder and a Glance that have nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        self.token = {
            "methods": ["password"],
            "user": {"id": "1", "name": "droveway", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": PROJECT, "name": "service", "domain": {"id": "default", "name": "Default"}},
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2999-01-01T00:00:00.000000Z",
            "roles": [{"id": "1", "name": "service"}],
            "catalog": [
                self._entry("network", "network"),
                self._entry("block-storage", f"volume/v3/{PROJECT}"),
                self._entry("image", "image"),
            ],
        }

    def _entry(self, kind: str, path: str) -> dict[str, Any]:
        where = {"id": kind, "interface": "public", "region": "one", "region_id": "one", "url": f"{self.root}/{path}"}
        return {"id": kind, "name": kind, "type": kind, "endpoints": [where]}

    def answer(self, path: str) -> tuple[int, Any]:
        """Status and body of a GET."""
        if path.rstrip("/") == "/network":
            link = {"rel": "self", "href": f"{self.root}/network/v2.0/"}
            return 200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]}
        if path.rstrip("/") == "/image":
            link = {"rel": "self", "href": f"{self.root}/image/v2/"}
            return 300, {"versions": [{"id": "v2.9", "status": "CURRENT", "links": [link]}]}
        if path.startswith("/volume/v3/") and not path.startswith(f"/volume/v3/{PROJECT}"):
            link = {"rel": "self", "href": f"{self.root}/volume/v3/"}
            return 200, {"versions": [{"id": "v3.0", "status": "CURRENT", "version": "3.70", "links": [link]}]}
        return {
            "/network/v2.0/ports": (200, {"ports": []}),
            "/image/v2/images": (200, {"images": []}),
            f"/volume/v3/{PROJECT}/attachments": (200, {"attachments": []}),
            f"/volume/v3/{PROJECT}/attachments/detail": (200, {"attachments": []}),
        }.get(path, (404, {"message": f"nothing at {path}"}))


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        self._say(*self.server.answer(path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(201, {"token": self.server.token})

    def _say(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Subject-Token", "token")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Nothing."""


@pytest.fixture(name="cloud")
def fixture_cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    thread = threading.Thread(target=cloud.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield cloud
    cloud.shutdown()
    thread.join()
    cloud.server_close()


def way_in(cloud: Cloud) -> str:
    """The options by which Keystone lets a user in."""
    return (
        f"auth_type = v3password\nauth_url = {cloud.root}/identity/v3\nusername = droveway\npassword = {PASSWORD}\n"
        "user_domain_name = Default\nproject_name = service\nproject_domain_name = Default\n"
    )


@pytest.mark.parametrize("group", list(services.GROUPS))
def test_a_service_that_never_answers_is_not_waited_for_without_end(group: str, tmp_path: Path) -> None:
    """keystoneauth would wait for ever, and the step's deadline with it."""
    path = tmp_path / "droveway.conf"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"http://127.0.0.1:{mute.getsockname()[1]}"
        way_in = f"[{group}]\nauth_type = none\nendpoint_override = {where}\n"
        path.write_text(way_in)
        unchanged = settings.load_deployment(path)
        assert sessions.connect(unchanged, group)[0].timeout == services.ANSWERS_WITHIN
        path.write_text(f"{way_in}timeout = 1\n")
        session, options = sessions.connect(settings.load_deployment(path), group)
        with pytest.raises(exceptions.ConnectTimeout):
            session.get(options["endpoint_override"])


def test_neutron_is_found_below_the_address_that_is_configured(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text(f"[neutron]\nauth_type = none\nendpoint_override = {cloud.root}/network\n")
    assert Services(settings.load_deployment(path)).network.ports("server") == []
    assert cloud.asked == ["/network", "/network/v2.0/ports"]


@pytest.mark.parametrize("address", ["network", "network/", "network/v2.0", "network/v2.0/"])
def test_the_catalog_may_name_the_root_of_neutron_or_its_version(address: str, cloud: Cloud, tmp_path: Path) -> None:
    cloud.token["catalog"] = [cloud._entry("network", address)]
    path = tmp_path / "droveway.conf"
    path.write_text(f"[neutron]\n{way_in(cloud)}")
    assert Services(settings.load_deployment(path)).network.ports("server") == []
    assert cloud.asked == ["/network/v2.0/ports"]


def test_a_neutron_that_the_catalog_lacks_is_an_error_of_its_service(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text(f"[neutron]\n{way_in(cloud)}region_name = nowhere\n")
    network = Services(settings.load_deployment(path)).network
    with pytest.raises(StepError, match="network service cannot be asked: public endpoint for network service in now"):
        network.ports("server")


def test_a_cinder_or_glance_that_the_catalog_lacks_is_an_error_of_its_service(cloud: Cloud, tmp_path: Path) -> None:
    """It is looked for again: a daemon finds it once the catalog has it."""
    path = tmp_path / "droveway.conf"
    path.write_text("".join(f"[{group}]\n{way_in(cloud)}" for group in ("cinder", "glance")))
    whole, cloud.token["catalog"] = cloud.token["catalog"], []
    made = Services(settings.load_deployment(path))
    images = made.images
    assert images is not None
    with pytest.raises(
        StepError, match=r"volume service .* asked: Keystone's catalog has no endpoint of the service block-storage"
    ):
        made.volumes.for_server("server")
    with pytest.raises(
        StepError, match=r"image service .* asked: Keystone's catalog has no endpoint of the service image"
    ):
        images.images()
    cloud.token["catalog"] = whole
    for proxy in (made.volumes, images):
        proxy._rest._adapter._session.invalidate()
    assert made.volumes.for_server("server") == []
    assert images.images() == []


def test_neutron_cinder_and_glance_are_found_in_the_catalog(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text("".join(f"[{group}]\n{way_in(cloud)}" for group in services.GROUPS))
    conf = settings.load_deployment(path)
    assert Services(conf).network.ports("server") == []
    assert Services(conf).volumes.for_server("server") == []
    images = Services(conf).images
    assert images is not None
    assert images.images() == []
    assert images.find("no-image") is None
    assert "/network/v2.0/ports" in cloud.asked
    assert any(asked.startswith(f"/volume/v3/{PROJECT}/attachments") for asked in cloud.asked)
