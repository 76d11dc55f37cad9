"""A server's disks on their way out of the image service: killed at each effect, cut off, and lied to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import qemu
from support.rigs import image_site
from support.rigs.image_site import PART, code_of, content, digest, disk, queue, run
from support.rigs.worker_rig import MIB, MOVE, OTHER_MOVE, PROBE, SERVER, Cloud, KillAt, Killed
from support.rigs.worker_stages import IMAGE, Stage, downloaded, killed_at, uploaded

from droveway.errors import DestinationFault, Fenced, StepError
from droveway.wire import commands
from droveway.workers.actions import images
from droveway.workers.directories import Marker
from droveway.workers.transfer import copying, extents


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.plain(tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture(name="resting")
def fixture_resting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.resting(tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture(name="shelved")
def fixture_shelved(site: Cloud) -> Cloud:
    """The image has the disk's data."""
    run(site, uploaded())
    return site


def down(site: Cloud, **facts: Any) -> Stage:
    image = site.references.images.require(IMAGE)
    recorded = {
        "disk": "disk",
        "image": IMAGE,
        "size": image.size,
        "checksum": image.checksum,
        "algorithm": image.algorithm,
        "format": image.disk_format,
    }
    return downloaded([commands.DownloadedDisk(**{**recorded, **facts})])


def test_an_image_becomes_a_disk_of_its_bytes(shelved: Cloud) -> None:
    beta = shelved.hosts["beta"].directories
    beta.write_probe(PROBE, MOVE)
    value = run(shelved, down(shelved))
    assert disk(shelved, "beta").read_bytes() == disk(shelved).read_bytes()
    assert disk(shelved, "beta").stat().st_blocks * 512 < 5 * MIB, "zeros become holes"
    (copied,) = value["disks"]
    assert (value["variant"], value["bases"], value["bytes"]) == ("image", [], 5 * MIB)
    assert copied["checksum"] == copied["source_checksum"] == digest(content(shelved))
    marker = beta.marker(SERVER)
    assert marker is not None
    assert (marker.move, marker.host, marker.disks[0].source_checksum) == (MOVE, "beta", copied["checksum"])
    assert (beta.formats(SERVER), beta.has_probe(PROBE)) == ({"disk": "raw"}, False)
    assert {entry.name for entry in beta.path(SERVER).iterdir()} == {"disk", "disk.info", "droveway.json"}
    assert run(shelved, down(shelved)) == value


def test_a_download_is_killed_at_each_effect_repeated_and_undone(shelved: Cloud) -> None:
    before, stage = shelved.snapshot(), down(shelved)
    numbers = []
    for number in killed_at(lambda probe: run(shelved, stage, probe=probe)):
        numbers.append(number)
        for _ in killed_at(lambda probe: run(shelved, stage, probe=probe, direction="revert")):
            pass
        assert shelved.snapshot() == before
    assert len(numbers) > 8
    run(shelved, stage)
    after = shelved.snapshot()
    for _ in range(2):
        run(shelved, stage, direction="revert")
        assert shelved.snapshot() == before
    for _ in killed_at(lambda probe: run(shelved, stage, probe=probe)):
        pass
    assert shelved.snapshot() == after


class Downloads:
    """Notes where each download began and may break it off."""

    def __init__(self, site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[int] = []
        self.cut: BaseException | None = None
        self.spoil: Callable[[bytes], bytes] = bytes
        download = type(site.references).download_image

        def noted(references: Any, image: str, offset: int) -> Generator[bytes, None, None]:
            self.offsets.append(offset)
            for number, chunk in enumerate(download(references, image, offset)):
                if self.cut is not None and number == 2:
                    raise self.cut
                yield self.spoil(chunk)

        monkeypatch.setattr(type(site.references), "download_image", noted)


@pytest.fixture(name="downloads")
def fixture_downloads(shelved: Cloud, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    return Downloads(shelved, monkeypatch)


def test_a_cut_stream_goes_on_where_it_ended(shelved: Cloud, downloads: Downloads) -> None:
    """When the worker dies, and when the service does."""
    downloads.cut = Killed()
    with pytest.raises(Killed):
        run(shelved, down(shelved))
    downloads.cut = None
    value = run(shelved, down(shelved))
    assert downloads.offsets == [0, 2 * MIB]
    assert value["bytes"] == 3 * MIB
    assert disk(shelved, "beta").read_bytes() == disk(shelved).read_bytes()


def test_a_service_that_comes_back_is_asked_for_the_rest(
    shelved: Cloud, downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads.cut = StepError("away", code="image-unavailable")
    assert code_of(lambda: run(shelved, down(shelved)), "away") == "image-unavailable"
    monkeypatch.setattr(images, "PATIENCE", 30.0)
    run(shelved, down(shelved))
    assert downloads.offsets == [0, 2 * MIB, 4 * MIB]
    assert disk(shelved, "beta").read_bytes() == disk(shelved).read_bytes()


def test_what_an_interrupted_run_left_is_proved_and_fetched_anew_if_it_is_wrong(
    shelved: Cloud, downloads: Downloads
) -> None:
    """A power cut may leave a file's length without its bytes."""
    downloads.cut = Killed()
    with pytest.raises(Killed):
        run(shelved, down(shelved))
    with disk(shelved, "beta", f"{PART}-beta").open("r+b") as file:
        file.write(b"x" * 4096)
    downloads.cut = None
    assert run(shelved, down(shelved))["bytes"] == 5 * MIB
    assert downloads.offsets == [0, 2 * MIB, 0]
    assert disk(shelved, "beta").read_bytes() == disk(shelved).read_bytes()


def test_other_bytes_than_the_images_are_the_destinations_fault_and_not_kept(
    shelved: Cloud, downloads: Downloads
) -> None:
    downloads.spoil = lambda chunk: b"x" + chunk[1:]
    assert code_of(lambda: run(shelved, down(shelved)), "gives back other data", DestinationFault) == "checksum"
    assert not shelved.hosts["beta"].directories.exists(SERVER)
    downloads.spoil = bytes
    run(shelved, down(shelved))
    assert downloads.offsets == [0, 0]


def test_a_byte_that_the_medium_spoils_is_found(shelved: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    read = extents.Medium.read

    def spoiled(medium: extents.Medium, offset: int, length: int) -> memoryview:
        data = read(medium, offset, length)
        data[-1] ^= 1
        return data

    monkeypatch.setattr(extents.Medium, "read", spoiled)
    assert code_of(lambda: run(shelved, down(shelved)), "gives back other data", DestinationFault) == "checksum"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(lambda chunk: chunk[:-1], "gives 5242875 bytes"), (lambda chunk: chunk + b"x", "gives more than")],
    ids=["short", "long"],
)
def test_a_stream_of_another_length_is_refused(
    shelved: Cloud, downloads: Downloads, spoil: Callable[[bytes], bytes], why: str
) -> None:
    downloads.spoil = spoil
    assert code_of(lambda: run(shelved, down(shelved)), why) == "checksum"


def test_an_image_without_a_checksum_is_held_by_its_size(
    shelved: Cloud, downloads: Downloads, caplog: pytest.LogCaptureFixture
) -> None:
    """And begun anew by whoever repeats it: nothing proves what was left."""
    downloads.cut = Killed()
    with pytest.raises(Killed):
        run(shelved, down(shelved, checksum="", algorithm=""))
    downloads.cut = None
    caplog.set_level("INFO")
    (copied,) = run(shelved, down(shelved, checksum="", algorithm=""))["disks"]
    assert downloads.offsets == [0, 0]
    assert (copied["checksum"], copied["source_checksum"]) == (digest(content(shelved)), "")
    assert "has no checksum" in caplog.text


@pytest.mark.parametrize(
    ("facts", "why", "code"),
    [
        ({"checksum": "00"}, "is not what was recorded", "checksum"),
        ({"size": 5}, "is not what was recorded", "checksum"),
        ({"algorithm": "shake_128"}, "which this host cannot compute", "checksum"),
        ({"format": "vmdk"}, "only raw and qcow2", "disk-format"),
        ({"disk": "passwd"}, "no disk's name", "protocol"),
    ],
)
def test_what_is_not_as_recorded_is_refused(shelved: Cloud, facts: dict[str, Any], why: str, code: str) -> None:
    assert code_of(lambda: run(shelved, down(shelved, **facts)), why) == code
    assert not shelved.hosts["beta"].directories.exists(SERVER)


def test_an_image_that_goes_before_or_while_it_comes_is_named(shelved: Cloud, downloads: Downloads) -> None:
    stage = down(shelved)
    downloads.cut = StepError("it is gone", code="image-gone")
    assert code_of(lambda: run(shelved, stage), "it is gone") == "image-gone"
    shelved.references.images.delete(IMAGE)
    assert code_of(lambda: run(shelved, stage), IMAGE) == "image-gone"
    queue(shelved)
    assert code_of(lambda: run(shelved, stage), "it has no data") == "image-gone"


def test_a_full_disk_is_the_destinations_fault(
    shelved: Cloud, downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 1, 4096

    with monkeypatch.context() as patch:
        patch.setattr(copying.os, "fstatvfs", lambda _: Full)
        assert code_of(lambda: run(shelved, down(shelved)), "make room", DestinationFault) == "disk-full"
    assert not downloads.offsets, "found before anything is asked for"

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(images.os, "pwrite", full)
    named = f"the file system of {shelved.hosts['beta'].directories.instances} on beta is full"
    assert code_of(lambda: run(shelved, down(shelved)), named, DestinationFault) == "disk-full"


@pytest.mark.parametrize("owner", ["", OTHER_MOVE])
def test_a_directory_in_the_way_is_left_alone(shelved: Cloud, owner: str) -> None:
    directories = shelved.hosts["beta"].directories
    directories.create(SERVER)
    if owner:
        directories.write_record(SERVER, Marker(move=owner, epoch=1, server=SERVER, host="beta"))
    before = shelved.snapshot()
    assert code_of(lambda: run(shelved, down(shelved)), "see what it is", DestinationFault) == "in-the-way"
    assert shelved.snapshot() == before


def test_an_overtaken_download_is_fenced_before_its_copy_gets_its_name(shelved: Cloud) -> None:
    def overtake(_step: str, _direction: str, _phase: str, effect: str) -> None:
        if effect == "rename":
            shelved.set_epoch(2)

    with pytest.raises(Fenced):
        run(shelved, down(shelved), probe=overtake)
    assert not shelved.hosts["beta"].directories.exists(SERVER)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("-f", "raw"), "disk-format"),
        (("-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw"), "backing-file"),
        (("-f", "qcow2", "-o", "data_file={}/apart"), "disk-format"),
        (("-f", "qcow2"), ""),
    ],
    ids=["no-qcow2", "backed", "apart", "right"],
)
def test_a_qcow2_image_holds_all_that_it_says(
    resting: Cloud, tmp_path: Path, options: tuple[str, ...], code: str
) -> None:
    image = tmp_path / "image"
    qemu("create", "-q", *(word.format(tmp_path) for word in options), image, "1M")
    resting.references.images.upload(IMAGE, image)
    if code:
        assert code_of(lambda: run(resting, down(resting)), IMAGE) == code
        assert not resting.hosts["beta"].directories.exists(SERVER)
    else:
        run(resting, down(resting))
        assert resting.hosts["beta"].directories.formats(SERVER) == {"disk": "qcow2"}


def test_the_effects_have_names(shelved: Cloud) -> None:
    seen = KillAt()
    run(shelved, down(shelved), probe=seen)
    assert seen.names == [
        *("download", *["chunk"] * 5, "received", "verify", "disk_info", "marker", "rename", "renamed"),
    ]
