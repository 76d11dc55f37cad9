"""Images: how a disk comes into the image service and back, however often the way breaks off."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import adapter

from droveway import deadlines
from droveway.clients import image as image_client
from droveway.clients import sessions
from droveway.clients.embedded.cloud import embedded_cloud
from droveway.clients.embedded.image import image_service
from droveway.clients.embedded.services import Answer, services_engine
from droveway.clients.image import ACTIVE, CHUNK, QUEUED, SAVING, Images
from droveway.clients.references import References
from droveway.clients.rest import ATTEMPTS
from droveway.conf import settings
from droveway.errors import StepError
from droveway.lab.layout import Layout
from droveway.lab.served_cloud import served

IMAGE = "6f1c6d0e-5d0a-4e0e-9a63-0d9c1d3b7a10"
BYTES = hashlib.shake_256(b"disk").digest(3 * CHUNK + 1000)


class Parts:
    """The bytes, part by part in one memory; ``before`` is called with the number of the part that comes next."""

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.before = before

    def __len__(self) -> int:
        return len(BYTES)

    def __iter__(self) -> Iterator[memoryview]:
        memory = bytearray(CHUNK)
        for number, start in enumerate(range(0, len(BYTES), CHUNK)):
            self.before(number)
            part = BYTES[start : start + CHUNK]
            memory[: len(part)] = part
            yield memoryview(memory)[: len(part)]


def local(folder: Path) -> Images:
    (folder / "images").mkdir(exist_ok=True)
    return Images(image_service(services_engine(folder / "services.sqlite"), folder / "images"))


@contextlib.contextmanager
def behind_http(folder: Path, timeout: float = 60.0) -> Iterator[Images]:
    files = Layout(folder)
    files.images.mkdir(exist_ok=True)
    with served(files) as server:
        path = folder / "droveway.conf"
        options = server.image_settings()["glance"] | {"timeout": f"{timeout:g}"}
        path.write_text("[glance]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
        session, where = sessions.connect(settings.load_deployment(path), "glance")
        yield Images(adapter.Adapter(session, **where))


@pytest.fixture(name="images", params=["local", "http"])
def fixture_images(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Images]:
    if request.param == "local":
        yield local(tmp_path)
    else:
        with behind_http(tmp_path) as images:
            yield images


def queue(images: Images, **facts: Any) -> None:
    images.create(IMAGE, name="web-shelved", min_disk_gb=1, properties={"droveway_move": "m"}, **facts)


def status(images: Images) -> str:
    return images.require(IMAGE).status


def test_a_disk_comes_into_an_image_and_back(images: Images) -> None:
    assert images.find(IMAGE) is None
    for _ in range(2):
        queue(images, disk_format="qcow2", owner="project", visibility="private")
    queued = images.require(IMAGE)
    assert (queued.status, queued.size, queued.checksum, queued.algorithm) == (QUEUED, None, "", "")
    for _ in range(2):
        images.upload(IMAGE, Parts())
    found = images.require(IMAGE)
    assert (found.status, found.size, found.algorithm) == (ACTIVE, len(BYTES), "sha512")
    assert found.checksum == hashlib.sha512(BYTES).hexdigest()
    assert (found.disk_format, found.owner, found.visibility) == ("qcow2", "project", "private")
    assert found.properties == {"droveway_move": "m"}
    for offset in (0, 1, CHUNK, len(BYTES) - 1):
        assert b"".join(images.download(IMAGE, offset)) == BYTES[offset:]
    for _ in range(2):
        images.delete(IMAGE)
    assert images.find(IMAGE) is None


def test_an_image_that_is_not_there_is_named(images: Images) -> None:
    for ask in (
        lambda: images.require(IMAGE),
        lambda: images.upload(IMAGE, Parts()),
        lambda: b"".join(images.download(IMAGE)),
    ):
        with pytest.raises(StepError, match=IMAGE) as caught:
            ask()
        assert caught.value.error_code == "image-gone"


def test_the_services_answer_others_while_an_image_comes(images: Images) -> None:
    """No transaction is open meanwhile; a second writer is told that there is a first one, and changes nothing."""

    def look(number: int) -> None:
        until(lambda: status(images) == SAVING)
        if number == 1:
            images.upload(IMAGE, Parts(lambda _: pytest.fail("it is sent twice")))

    queue(images)
    images.upload(IMAGE, Parts(look))
    assert status(images) == ACTIVE
    assert b"".join(images.download(IMAGE)) == BYTES


def test_a_second_writer_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    images = local(tmp_path)
    queue(images)
    answers: list[Answer] = []

    def intrude(_number: int) -> None:
        service = images._rest._adapter
        answers.append(service.request(f"/images/{IMAGE}/file", "PUT", data=[b"other"]))

    images.upload(IMAGE, Parts(intrude))
    assert {answer.status_code for answer in answers} == {409}
    assert b"".join(images.download(IMAGE)) == BYTES


def test_an_upload_that_breaks_off_leaves_the_image_queued_and_begins_anew(images: Images) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise StepError("cancelled", code="cancelled")

    queue(images)
    with pytest.raises(StepError, match="cancelled"):
        images.upload(IMAGE, Parts(fail))

    def again() -> bool:
        images.upload(IMAGE, Parts())  # refused until the service has noticed
        return status(images) == ACTIVE

    until(again)
    assert b"".join(images.download(IMAGE)) == BYTES


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _upload_and_die(folder: Path) -> None:
    def kill(number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    local(folder).upload(IMAGE, Parts(kill))


def test_a_killed_upload_leaves_no_image_in_saving(tmp_path: Path) -> None:
    images = local(tmp_path)
    queue(images)
    images._rest._adapter.close()  # type: ignore[attr-defined]
    process = multiprocessing.get_context("fork").Process(target=_upload_and_die, args=(tmp_path,))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    with contextlib.closing(sqlite3.connect(tmp_path / "services.sqlite")) as services:
        assert services.execute("SELECT status FROM images").fetchall() == [(SAVING,)]
    assert status(images) == QUEUED
    with (tmp_path / "images" / f"{IMAGE}.part").open("ab") as left:
        left.write(BYTES)  # what was left may be longer
    images.upload(IMAGE, Parts())
    assert b"".join(images.download(IMAGE)) == BYTES
    assert os.listdir(tmp_path / "images") == [IMAGE]  # noqa: PTH208


def test_an_image_that_is_deleted_while_it_comes_stays_gone(tmp_path: Path) -> None:
    images = local(tmp_path)
    queue(images)
    with pytest.raises(StepError) as caught:
        images.upload(IMAGE, Parts(lambda number: images.delete(IMAGE) if number == 2 else None))
    assert caught.value.error_code == "image-gone"
    assert not os.listdir(tmp_path / "images")  # noqa: PTH208


def test_an_image_of_an_earlier_lab_is_read_and_gets_its_data(tmp_path: Path) -> None:
    """Its rows say nothing of format, owner and checksum."""
    images = local(tmp_path)
    images.images()
    rows = [(IMAGE, "queued", None), ("base", "active", 5)]
    with contextlib.closing(sqlite3.connect(tmp_path / "services.sqlite")) as services, services:
        for image, state, size in rows:
            traits = json.dumps({"trait:X": "required"})
            services.execute("INSERT INTO images VALUES (?, 'lab', ?, ?, 0, ?)", (image, state, size, traits))
    (tmp_path / "images" / "base").write_bytes(b"bytes")
    base = images.require("base")
    assert (base.status, base.disk_format, base.checksum, base.properties) == (
        *(ACTIVE, "raw", ""),
        {"trait:X": "required"},
    )
    assert b"".join(images.download("base", 2)) == b"tes"
    images.upload(IMAGE, Parts())
    assert images.require(IMAGE).checksum == hashlib.sha512(BYTES).hexdigest()


class Told:
    """A service that gives what its test says; ``answers`` take the offset that was asked for."""

    def __init__(self, *answers: Callable[[int], Any]) -> None:
        self.answers = list(answers)
        self.offsets: list[int] = []

    def request(self, _url: str, _method: str, **options: Any) -> Any:
        offset = int(options["headers"].get("Range", "bytes=0-")[6:-1])
        self.offsets.append(offset)
        return self.answers.pop(0)(offset) if self.answers else Stream(BYTES[offset:], offset)


class Stream:
    """An answer with a stream in it."""

    def __init__(self, data: bytes, offset: int, *, cut: bool = False, known: bool = True) -> None:
        self.status_code = 206 if offset and known else 200
        self.headers = {"Content-Range": f"bytes {offset}-{len(BYTES) - 1}/{len(BYTES)}"}
        self.text = ""
        self._data = data
        self._cut = cut
        self.closed = False

    def iter_content(self, size: int) -> Iterator[bytes]:
        for start in range(0, len(self._data), size):
            yield self._data[start : start + size]
        if self._cut:
            raise OSError("connection reset")

    def close(self) -> None:
        self.closed = True


def cut(offset: int) -> Stream:
    return Stream(BYTES[offset : offset + CHUNK], offset, cut=True)


def test_a_stream_that_breaks_off_is_gone_on_with_where_it_ended() -> None:
    service = Told(cut, cut)
    assert b"".join(Images(service).download(IMAGE)) == BYTES
    assert service.offsets == [0, CHUNK, 2 * CHUNK]


def test_a_stream_that_breaks_off_behind_its_last_byte_is_complete(
    images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service refuses the range behind it, and the size of the image says that no byte is missing."""
    queue(images)
    images.upload(IMAGE, Parts())
    received, breaks = image_client._received, iter([True])

    def broken(response: Any) -> Iterator[bytes]:
        yield from received(response)
        if next(breaks, False):
            raise image_client._CutError("connection reset")

    monkeypatch.setattr(image_client, "_received", broken)
    assert b"".join(images.download(IMAGE)) == BYTES
    assert b"".join(images.download(IMAGE, len(BYTES))) == b""
    with pytest.raises(StepError, match="answered 416") as caught:
        b"".join(images.download(IMAGE, len(BYTES) + 1))
    assert caught.value.error_code == "image-failed"


def test_a_service_that_breaks_off_at_once_again_and_again_is_given_up() -> None:
    dead = [lambda offset: Stream(b"", offset, cut=True)] * ATTEMPTS
    with pytest.raises(StepError, match="broke off 5 times") as caught:
        b"".join(Images(Told(*dead)).download(IMAGE))
    assert caught.value.error_code == "image-unavailable"


def test_a_service_without_ranges_is_read_from_its_beginning() -> None:
    service = Told(lambda _offset: Stream(BYTES, 7, known=False))
    assert b"".join(Images(service).download(IMAGE, CHUNK + 7)) == BYTES[CHUNK + 7 :]


def test_a_service_that_gives_another_range_is_not_believed() -> None:
    service = Told(lambda offset: Stream(BYTES, offset + 1))
    with pytest.raises(StepError, match="from byte 5 on and gave 'bytes 6-") as caught:
        b"".join(Images(service).download(IMAGE, 5))
    assert caught.value.error_code == "image-failed"


def test_who_stops_before_the_end_hangs_up() -> None:
    stream = Stream(BYTES, 0)
    with contextlib.closing(Images(Told(lambda _offset: stream)).download(IMAGE)) as chunks:
        next(chunks)
        assert not stream.closed
    assert stream.closed


def test_an_upload_may_take_longer_than_an_answer(tmp_path: Path) -> None:
    """The group's time-out is that of each part, and nothing is lost or sent again."""
    asked: list[str] = []
    with behind_http(tmp_path, timeout=1.0) as images:
        queue(images)
        images._rest._on_request = lambda method, _path: asked.append(method)
        images.upload(IMAGE, Parts(lambda _number: time.sleep(0.3)))
    assert asked == ["GET", "PUT"]


def test_a_stream_that_goes_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_client, "CHUNK_WITHIN", 0.1)
    silent: list[float | None] = []

    def stall(offset: int) -> Stream:
        stream = Stream(BYTES, offset)

        def iter_content(_size: int) -> Iterator[bytes]:
            silent.append(deadlines.left())
            yield from ()
            raise TimeoutError("the answer took too long")

        stream.iter_content = iter_content  # type: ignore[method-assign]
        return stream

    assert b"".join(Images(Told(stall)).download(IMAGE)) == BYTES
    assert silent[0] is not None
    assert silent[0] <= 0.1


def test_a_worker_without_an_image_service_says_so(tmp_path: Path) -> None:
    cloud = embedded_cloud(
        placement=tmp_path / "placement.sqlite",
        database=tmp_path / "services.sqlite",
        volumes=tmp_path,
        images=tmp_path,
    )
    references = References(cloud.volumes, None)
    for ask in (
        lambda: references.image(IMAGE),
        lambda: references.upload_image(IMAGE, Parts()),
        lambda: references.download_image(IMAGE, 0),
    ):
        with pytest.raises(StepError, match=r"say in \[glance\]") as caught:
            ask()
        assert caught.value.error_code == "no-image-service"
    queue(cloud.images)
    references = References(cloud.volumes, cloud.images)
    references.upload_image(IMAGE, Parts())
    assert references.image(IMAGE).size == len(b"".join(references.download_image(IMAGE, 0)))
