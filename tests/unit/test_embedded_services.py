"""What a move relies on in Neutron, Cinder and Glance: one suite for the embedded services and the real ones.

A cloud to test is one more entry of CLOUDS.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sqlite3
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import exceptions

from droveway.clients import volume as volume_client
from droveway.clients.embedded.cloud import EmbeddedCloud, embedded_cloud
from droveway.clients.image import Images
from droveway.clients.network import Network
from droveway.clients.references import References
from droveway.clients.volume import Attachment, Volumes
from droveway.errors import DestinationFault, Refused, StepError


@dataclass
class Cloud:
    """A cloud under test. ``tampers`` are called once each in place of the next request, and given what sends it."""

    network: Network
    volumes: Volumes
    images: Images
    hosts: tuple[str, str]
    network_id: str
    tampers: dict[str, list[Callable[[Callable[[], Any]], Any]]]


class Tampered:
    """A service whose next writes go wrong as its test wants."""

    def __init__(self, service: Any, queue: list[Callable[[Callable[[], Any]], Any]]) -> None:
        self.service = service
        self.queue = queue

    def request(self, url: str, method: str, **options: Any) -> Any:
        if method != "GET" and self.queue:
            return self.queue.pop(0)(lambda: self.service.request(url, method, **options))
        return self.service.request(url, method, **options)


def in_folder(folder: Path, *, volumes: Path | None = None, images: Path | None = None) -> EmbeddedCloud:
    """A cloud whose databases lie in the folder, and its bytes too unless they have folders of their own."""
    return embedded_cloud(
        placement=folder / "placement.sqlite",
        database=folder / "services.sqlite",
        volumes=volumes or folder,
        images=images or folder,
    )


@contextmanager
def embedded(folder: Path) -> Iterator[Cloud]:
    (folder / "volumes").mkdir()
    (folder / "images").mkdir()
    cloud = in_folder(folder, volumes=folder / "volumes", images=folder / "images")
    tampers: dict[str, list[Any]] = {"network": [], "volumes": []}
    for name, queue in tampers.items():
        rest = getattr(cloud, name)._rest
        rest._adapter = Tampered(rest._adapter, queue)
    for host in ("host1", "host2"):
        cloud.add_network_host(host)
    yield Cloud(cloud.network, cloud.volumes, cloud.images, ("host1", "host2"), str(uuid.uuid4()), tampers)
    assert tampers == {"network": [], "volumes": []}


CLOUDS = {"embedded": embedded}


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cloud]:
    with CLOUDS[request.param](tmp_path) as found:
        yield found


@pytest.fixture
def server() -> str:
    return str(uuid.uuid4())


def lose_answer(send: Callable[[], Any]) -> Any:
    send()
    raise exceptions.ConnectFailure("the connection broke")


def never_arrive(_send: Callable[[], Any]) -> Any:
    raise exceptions.ConnectFailure("the connection broke")


# Volumes.


@pytest.fixture
def volume(cloud: Cloud) -> str:
    return cloud.volumes.create_volume(name="data", size_gb=1, bootable=True)


@pytest.mark.parametrize("status", ["error", "creating"])
def test_a_volume_that_was_not_made_is_named_with_its_status(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(volume_client, "_CREATE_SECONDS", 0)
    monkeypatch.setattr(cloud.volumes, "status", lambda _volume: status)
    with pytest.raises(StepError, match=f"has not made volume data: .* is {status}, .*: look at its log") as caught:
        cloud.volumes.create_volume(name="data", size_gb=1, bootable=True)
    assert caught.value.error_code == "volume-failed"


def connector(host: str) -> dict[str, Any]:
    return {
        "host": host, "ip": "127.0.0.1", "initiator": f"iqn.{host}", "platform": "x86_64", "os_type": "linux",
        "multipath": False,
    }  # fmt: skip


def attach(cloud: Cloud, volume: str, server: str, host: str) -> str:
    attachment = cloud.volumes.create_attachment(volume, server)
    cloud.volumes.connect(attachment, connector(host), "/dev/vdb")
    cloud.volumes.complete(attachment)
    return attachment


def test_an_attachment_is_reserved_then_connected_then_attached(cloud: Cloud, volume: str, server: str) -> None:
    host = cloud.hosts[0]
    states = [cloud.volumes.status(volume)]
    attachment = cloud.volumes.create_attachment(volume, server)
    assert cloud.volumes.attachments(volume) == [Attachment(attachment, volume, server, "reserved", None)]
    states.append(cloud.volumes.status(volume))
    for _ in range(2):
        cloud.volumes.connect(attachment, connector(host), "/dev/vdb")
    assert cloud.volumes.attachments(volume) == [Attachment(attachment, volume, server, "attaching", "")]
    for _ in range(2):
        cloud.volumes.complete(attachment)
    assert cloud.volumes.for_server(server) == [Attachment(attachment, volume, server, "attached", host)]
    states.append(cloud.volumes.status(volume))
    for _ in range(2):
        cloud.volumes.delete_attachment(attachment)
    states.append(cloud.volumes.status(volume))
    assert states == ["available", "reserved", "in-use", "available"]
    assert cloud.volumes._rest.get(f"/volumes/{volume}")["volume"]["bootable"] == "true"


def test_a_reservation_that_was_left_behind_is_adopted(cloud: Cloud, volume: str, server: str) -> None:
    first = attach(cloud, volume, server, cloud.hosts[0])
    second = cloud.volumes.create_attachment(volume, server)
    assert cloud.volumes.create_attachment(volume, server) == second != first
    assert cloud.volumes.create_attachment(volume, server, known=[second]) not in (first, second)
    assert cloud.volumes.status(volume) == "in-use"


def test_a_volume_of_another_server_is_refused(cloud: Cloud, volume: str, server: str) -> None:
    attach(cloud, volume, server, cloud.hosts[0])
    other = str(uuid.uuid4())
    with pytest.raises(StepError) as caught:
        cloud.volumes.create_attachment(volume, other)
    assert caught.value.error_code == "volume-failed"
    assert cloud.volumes.for_server(other) == []


def test_two_attachments_are_never_connected_at_once(cloud: Cloud, volume: str, server: str) -> None:
    here, there = cloud.hosts
    old = attach(cloud, volume, server, here)
    new = cloud.volumes.create_attachment(volume, server)
    with pytest.raises(StepError) as caught:
        cloud.volumes.connect(new, connector(there), "/dev/vdb")
    assert caught.value.error_code == "volume-connected-elsewhere"
    assert not isinstance(caught.value, DestinationFault)
    cloud.volumes.connect(old, connector(here), "/dev/vdb")
    cloud.volumes.delete_attachment(old)
    assert cloud.volumes.status(volume) == "reserved"
    cloud.volumes.connect(new, connector(there), "/dev/vdb")
    cloud.volumes.complete(new)
    assert cloud.volumes.attachments(volume) == [Attachment(new, volume, server, "attached", there)]
    assert cloud.volumes.status(volume) == "in-use"


@pytest.mark.parametrize("tamper", [lose_answer, never_arrive])
def test_a_volume_is_attached_though_answers_are_lost(
    cloud: Cloud, volume: str, server: str, tamper: Callable[[Callable[[], Any]], Any]
) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: cloud.volumes.create_attachment(volume, server),
        lambda: cloud.volumes.connect(cloud.volumes.attachments(volume)[0].id, connector(cloud.hosts[0]), "/dev/vdb"),
        lambda: cloud.volumes.complete(cloud.volumes.attachments(volume)[0].id),
    ]
    for call in calls:
        cloud.tampers["volumes"].append(tamper)
        call()
    (attachment,) = cloud.volumes.attachments(volume)
    assert (attachment.status, attachment.host) == ("attached", cloud.hosts[0])
    cloud.tampers["volumes"].append(tamper)
    cloud.volumes.delete_attachment(attachment.id)
    assert cloud.volumes.status(volume) == "available"


def test_a_volume_that_no_host_reaches_is_the_destinations_fault(cloud: Cloud, volume: str, server: str) -> None:
    class Refusal:
        status_code = 400
        text = '{"badRequest": {"message": "the connector is invalid", "code": 400}}'

        def json(self) -> Any:
            return {"badRequest": {"message": "the connector is invalid", "code": 400}}

    attachment = cloud.volumes.create_attachment(volume, server)
    cloud.tampers["volumes"].append(lambda _send: Refusal())
    with pytest.raises(DestinationFault, match="the connector is invalid") as caught:
        cloud.volumes.connect(attachment, connector(cloud.hosts[1]), "/dev/vdb")
    assert (caught.value.error_code, caught.value.host) == ("connect-refused", cloud.hosts[1])


def test_a_worker_learns_how_to_reach_a_connected_volume(cloud: Cloud, volume: str, server: str) -> None:
    references = References(cloud.volumes, cloud.images)
    attachment = cloud.volumes.create_attachment(volume, server)
    with pytest.raises(StepError) as caught:
        references.connection_info(attachment)
    assert caught.value.error_code == "volume-unconnected"
    cloud.volumes.connect(attachment, connector(cloud.hosts[0]), "/dev/vdb")
    info = references.connection_info(attachment)
    assert set(info) == {"driver_volume_type", "data", "serial"}
    assert info["serial"] == volume
    assert isinstance(info["data"], dict)
    assert cloud.volumes.shown(attachment)["connection_info"]["driver_volume_type"] == (info["driver_volume_type"])


def test_an_attached_volume_cannot_be_removed(cloud: Cloud, volume: str, server: str) -> None:
    attachment = attach(cloud, volume, server, cloud.hosts[0])
    with pytest.raises(StepError):
        cloud.volumes.delete_volume(volume)
    assert cloud.volumes.status(volume) == "in-use"
    assert attachment in {found.id for found in cloud.volumes.all_attachments()}
    cloud.volumes.delete_attachment(attachment)
    for _ in range(2):
        cloud.volumes.delete_volume(volume)
    with pytest.raises(StepError, match="404"):
        cloud.volumes.status(volume)


# Images.


def test_an_image_comes_with_its_data_and_goes(cloud: Cloud, tmp_path: Path) -> None:
    image = str(uuid.uuid4())
    data = tmp_path / "data"
    data.write_bytes(os.urandom(5000))
    for _ in range(2):
        cloud.images.create(image, name="base", min_disk_gb=1, properties={"trait:CUSTOM_X": "required"})
    (queued,) = cloud.images.images()
    assert (queued.id, queued.size) == (image, None)
    for _ in range(2):
        cloud.images.upload(image, data)
    (found,) = cloud.images.images()
    assert (found.id, found.size, found.min_disk_gb) == (image, 5000, 1)
    assert found.properties == {"trait:CUSTOM_X": "required"}
    for _ in range(2):
        cloud.images.delete(image)
    assert cloud.images.images() == []


# What only the embedded services promise.


def test_an_embedded_volume_is_a_sparse_file_in_its_folder(tmp_path: Path) -> None:
    with embedded(tmp_path) as cloud:
        volume = cloud.volumes.create_volume(name="", size_gb=3)
        attachment = attach(cloud, volume, "server", "host1")
        info = cloud.volumes.connection_info(attachment)
        file = Path(info["data"]["path"])
        assert (info["driver_volume_type"], file) == ("local", tmp_path / "volumes" / volume)
        assert (file.stat().st_size, file.stat().st_blocks) == (3 * 1024**3, 0)
        cloud.volumes.delete_attachment(attachment)
        cloud.volumes.delete_volume(volume)
        assert list((tmp_path / "volumes").iterdir()) == []


def test_an_embedded_image_is_a_file_in_its_folder(tmp_path: Path) -> None:
    with embedded(tmp_path) as cloud:
        data = tmp_path / "data"
        data.write_bytes(b"bytes")
        cloud.images.create("id", name="base", min_disk_gb=0, properties={})
        cloud.images.upload("id", data)
        assert [(path.name, path.read_bytes()) for path in (tmp_path / "images").iterdir()] == [("id", b"bytes")]


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at" * 20, None])
def test_a_services_database_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    database = tmp_path / "folder" / "services.sqlite"
    if content is not None:
        database.parent.mkdir()
        database.write_bytes(content)
    with pytest.raises(Refused, match="services database"):
        in_folder(database.parent)


def test_the_services_hold_no_connection_before_they_are_asked_and_once_they_are_closed(tmp_path: Path) -> None:
    """Who forks must inherit none, and who copies the file must find all of it there: the log stands while one does."""
    log = tmp_path / "services.sqlite-wal"
    cloud = in_folder(tmp_path)
    assert not log.exists()
    for host in ("host1", "host2"):
        cloud.add_network_host(host)
        assert log.exists()
        cloud.close()
        assert not log.exists()
    cloud.network.create_port("server", mac="m", network_id="net", host="host1")
    assert [port.host for port in cloud.network.ports("server")] == ["host1"]
    cloud.close()


def test_a_service_that_cannot_write_fails_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded(tmp_path) as cloud:
        monkeypatch.setattr("droveway.clients.embedded.volume.units", types.SimpleNamespace(Gi=-1))
        with pytest.raises(StepError) as caught:
            cloud.volumes.create_volume(name="", size_gb=1)
        assert caught.value.error_code == "volume-unavailable"
        with contextlib.closing(sqlite3.connect(tmp_path / "services.sqlite")) as services:
            assert services.execute("SELECT count(*) FROM volumes").fetchone() == (0,)
        assert list((tmp_path / "volumes").iterdir()) == []


def _bind_in_turns(folder: Path, server: str) -> None:
    cloud = in_folder(folder)
    for number in range(5):
        port = cloud.network.create_port(server, mac=f"{server}:{number}", network_id="net", host="host1")
        cloud.network.ensure_binding(port, "host2", {})
        cloud.network.activate(port, "host2", device_owner="compute:az1")


def test_processes_and_threads_share_the_embedded_services(tmp_path: Path) -> None:
    with embedded(tmp_path) as cloud:
        fork = multiprocessing.get_context("fork")
        workers: list[Any] = [fork.Process(target=_bind_in_turns, args=(tmp_path, name)) for name in ("a", "b")]
        workers += [threading.Thread(target=_bind_in_turns, args=(tmp_path, name)) for name in ("c", "d")]
        for worker in workers:
            worker.start()
        deadline = time.monotonic() + 60
        for worker in workers:
            worker.join(deadline - time.monotonic())
            assert not worker.is_alive()
        bound = {(port.server, port.host) for port in cloud.network.all_ports()}
        assert bound == {(name, "host2") for name in "abcd"}
        assert len(cloud.network.all_ports()) == 20
