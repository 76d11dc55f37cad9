"""A server's disks on their way into the image service: killed at each effect, cut off, and lied to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import qemu
from support.rigs import image_site
from support.rigs.image_site import PART, code_of, content, digest, disk, queue, run
from support.rigs.worker_rig import MIB, SERVER, Cloud, Killed
from support.rigs.worker_stages import IMAGE, killed_at, uploaded

from droveway.clients.image import ACTIVE, SAVING, Data, ImageRecord
from droveway.errors import Fenced, StepError
from droveway.wire import commands
from droveway.workers.actions import images
from droveway.workers.directories import Directories


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.plain(tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture(name="resting")
def fixture_resting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.resting(tmp_path, monkeypatch) as site:
        yield site


def test_a_disk_becomes_an_image_of_its_bytes(site: Cloud) -> None:
    told: list[commands.Progress] = []
    (found,) = run(site, uploaded(), tell=told.append)["disks"]
    assert content(site) == disk(site).read_bytes()
    assert found == {
        "disk": "disk",
        "image": IMAGE,
        "size": 5 * MIB,
        "checksum": digest(content(site)),
        "format": "raw",
    }
    assert (told[-1].done, told[-1].total) == (5 * MIB, 5 * MIB)
    assert not list(site.hosts["alpha"].directories.instances.glob("*.part-*"))


def test_an_upload_is_killed_at_each_effect_repeated_and_undone(site: Cloud) -> None:
    before, service = site.snapshot(), site.references.images
    for _ in killed_at(lambda probe: run(site, uploaded(), probe=probe)):
        for _ in killed_at(lambda probe: run(site, uploaded(), probe=probe, direction="revert")):
            pass
        assert site.snapshot() == before
    value = run(site, uploaded())
    assert run(site, uploaded()) == value
    run(site, uploaded(), direction="revert")
    assert site.snapshot() == before
    service.delete(IMAGE)
    queue(site)
    assert len(list(killed_at(lambda probe: run(site, uploaded(), probe=probe)))) > 1
    assert run(site, uploaded()) == value


def test_what_is_active_already_is_compared_and_not_sent(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    value = run(site, uploaded())
    monkeypatch.setattr(type(site.references), "upload_image", lambda *_: pytest.fail("it is sent again"))
    assert run(site, uploaded()) == value
    with disk(site).open("r+b") as file:
        file.write(b"x")
    assert code_of(lambda: run(site, uploaded()), "differs from .*: alpha reads") == "checksum"


class Lies:
    """Tells of the image what its test wants, in place of the service, in each look from the first on."""

    def __init__(self, site: Cloud, monkeypatch: pytest.MonkeyPatch, *lies: dict[str, Any]) -> None:
        self._site = site
        self._lies = list(lies)
        monkeypatch.setattr(type(site.references), "image", lambda _, image: self.image(image))

    def image(self, image: str) -> ImageRecord:
        found = self._site.references.images.require(image)
        facts = self._lies.pop(0) if self._lies else {}
        return ImageRecord(**{**vars(found), **facts})


@pytest.mark.parametrize(
    "lie",
    [
        {"checksum": "00" * 64},
        {"checksum": "", "algorithm": ""},
        {"size": 7},
        {"algorithm": "sha1"},
        {"algorithm": "shake_128"},
        {"algorithm": "unheard-of"},
    ],
    ids=["other", "none", "size", "sha1", "shake", "unknown"],
)
def test_an_image_of_other_bytes_is_none(site: Cloud, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]) -> None:
    run(site, uploaded())
    Lies(site, monkeypatch, lie)
    assert code_of(lambda: run(site, uploaded()), "differs from .*: alpha reads") == "checksum"


def test_another_algorithm_of_the_service_is_used(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"algorithm": "sha256", "checksum": hashlib.sha256(disk(site).read_bytes()).hexdigest()}
    Lies(site, monkeypatch, {}, said)
    assert run(site, uploaded())["disks"][0]["checksum"] == said["checksum"]


def test_an_upload_that_another_has_under_way_is_waited_for(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a killed worker, until the service notices."""
    Lies(site, monkeypatch, {"status": SAVING}, {"status": SAVING}, {})
    run(site, uploaded())
    assert content(site) == disk(site).read_bytes()


def test_an_upload_that_nobody_ends_is_waited_for_until_the_deadline(
    site: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lies(site, monkeypatch, *[{"status": SAVING}] * 1000)
    command = site.command

    def short(*words: Any, **facts: Any) -> commands.Command:
        made = command(*words, **facts)
        return commands.Command(**{**{name: getattr(made, name) for name in made.__struct_fields__}, "deadline": 0.1})

    monkeypatch.setattr(site, "command", short)
    assert code_of(lambda: run(site, uploaded()), "took longer than") == "deadline"


@pytest.mark.parametrize("status", ["deleted", "killed", "deactivated"])
def test_an_image_that_can_hold_nothing_is_named(site: Cloud, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    Lies(site, monkeypatch, {"status": status})
    assert code_of(lambda: run(site, uploaded()), status) == "image-gone"


def test_an_image_that_is_gone_is_named(site: Cloud) -> None:
    site.references.images.delete(IMAGE)
    assert code_of(lambda: run(site, uploaded()), IMAGE) == "image-gone"


def test_an_image_that_says_another_format_gets_nothing(site: Cloud) -> None:
    site.references.images.delete(IMAGE)
    queue(site, "qcow2")
    assert code_of(lambda: run(site, uploaded()), "becomes a raw image") == "disk-format"
    assert site.references.image(IMAGE).status != ACTIVE


def test_a_disk_that_is_not_there_is_named(site: Cloud) -> None:
    wanted = commands.UploadDisks(disks=[commands.ImageOfDisk(disk="disk.eph0", image=IMAGE)])
    assert code_of(lambda: site.run("alpha", "upload_disks", wanted), "has no disk.eph0") == "missing"


def test_disks_of_a_guest_that_runs_are_not_uploaded(site: Cloud) -> None:
    hypervisor = site.hosts["alpha"].hypervisor
    hypervisor.start(SERVER, lambda: None)
    assert code_of(lambda: run(site, uploaded()), "stop it before its disks are uploaded") == "guest-runs"
    assert site.references.image(IMAGE).status != ACTIVE
    hypervisor.stop(SERVER, grace=0, fence=lambda: None)

    def start(_step: str, _direction: str, _phase: str, effect: str) -> None:
        if effect == "uploaded":
            hypervisor.start(SERVER, lambda: None)

    assert code_of(lambda: run(site, uploaded(), probe=start), "stop it before") == "guest-runs"


def test_a_disk_that_is_written_to_meanwhile_is_not_believed(site: Cloud) -> None:
    def write(_step: str, _direction: str, _phase: str, effect: str) -> None:
        if effect == "compare":
            with disk(site).open("r+b") as file:
                file.write(b"x")

    assert code_of(lambda: run(site, uploaded(), probe=write), "was changed on alpha") == "source-changed"


def test_an_upload_is_cancelled_in_its_middle_and_fenced_before_it(
    site: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = type(site.references).upload_image

    def cut(references: Any, image: str, data: Data) -> None:
        class Cut:
            def __len__(self) -> int:
                return len(data)

            def __iter__(self) -> Iterator[Any]:
                yield next(iter(data))
                raise Killed

        upload(references, image, Cut())

    with monkeypatch.context() as patch:
        patch.setattr(type(site.references), "upload_image", cut)
        with pytest.raises(Killed):
            run(site, uploaded())
    assert site.references.image(IMAGE).status != ACTIVE
    site.set_epoch(2)
    with pytest.raises(Fenced):
        run(site, uploaded())
    site.set_epoch(1)
    run(site, uploaded())
    assert content(site) == disk(site).read_bytes()


def test_a_service_that_is_away_for_a_while_is_waited_for(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    upload, failures = type(site.references).upload_image, [1, 2, 3]

    def away(references: Any, image: str, data: Data) -> None:
        if failures:
            failures.pop()
            raise StepError("away", code="image-unavailable")
        upload(references, image, data)

    monkeypatch.setattr(type(site.references), "upload_image", away)
    assert code_of(lambda: run(site, uploaded()), "away") == "image-unavailable"
    monkeypatch.setattr(images, "PATIENCE", 30.0)
    run(site, uploaded())
    assert not failures


# A disk that rests on another file.


def raw_of(path: Path, folder: Path) -> bytes:
    qemu("convert", "-f", "qcow2", "-O", "raw", path, folder / "raw")
    return (folder / "raw").read_bytes()


def test_a_disk_that_rests_on_another_is_flattened_and_sent_the_same_each_time(resting: Cloud, tmp_path: Path) -> None:
    before = resting.snapshot()
    for _ in killed_at(lambda probe: run(resting, uploaded(), probe=probe)):
        for _ in killed_at(lambda probe: run(resting, uploaded(), probe=probe, direction="revert")):
            pass
        assert resting.snapshot() == before
    resting.references.images.delete(IMAGE)
    queue(resting, "qcow2")
    for _ in killed_at(lambda probe: run(resting, uploaded(), probe=probe)):
        pass
    (found,) = run(resting, uploaded())["disks"]
    image = tmp_path / "image"
    image.write_bytes(content(resting))
    assert (found["format"], found["checksum"]) == ("qcow2", digest(content(resting)))
    assert b"backing" not in qemu("info", image)
    assert raw_of(image, tmp_path) == raw_of(disk(resting), tmp_path)
    run(resting, uploaded(), direction="revert")
    assert resting.snapshot() == before


def test_a_flattened_disk_is_used_again_only_while_its_source_is_the_same(resting: Cloud) -> None:
    run(resting, uploaded())
    flat = disk(resting, folder=f"{PART}-alpha")
    first = flat.stat().st_ino
    run(resting, uploaded())
    assert flat.stat().st_ino == first
    qemu("bench", "-w", "-c", "1", "-s", "65536", "--pattern", "9", "-f", "qcow2", disk(resting))
    assert code_of(lambda: run(resting, uploaded()), "differs from .*: alpha reads") == "checksum"
    assert flat.stat().st_ino != first
    resting.run("alpha", "remove_guest")
    assert not flat.parent.exists()


def test_no_disk_is_flattened_without_room_or_from_outside_the_bases(
    resting: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Directories, "free_bytes", lambda _: 4096)
        assert code_of(lambda: run(resting, uploaded()), "4096 free: make room") == "disk-full"
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(MIB))
    qemu("rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", disk(resting))
    assert code_of(lambda: run(resting, uploaded()), "which is no base of host alpha") == "backing-file"


def test_a_flattening_ends_when_it_is_told_to(resting: Cloud, tmp_path: Path) -> None:
    left = [1, 2]

    def beat() -> None:
        if not left:
            raise Killed
        left.pop()

    slow = tmp_path / "slow"
    os.mkfifo(slow)  # qemu-img waits for a writer
    with pytest.raises(Killed):
        images.qcow2.convert(slow, "raw", tmp_path / "flat", beat=beat)
    assert not (tmp_path / "flat").exists()
    with pytest.raises(StepError, match="qemu-img convert has failed"):
        images.qcow2.convert(disk(resting), "luks", tmp_path / "flat", beat=lambda: None)


def test_a_host_without_an_image_service_says_so(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: Any) -> None:
        raise StepError("say in [glance]", code="no-image-service")

    monkeypatch.setattr(type(site.references), "_glance", none)
    assert code_of(lambda: run(site, uploaded()), "glance") == "no-image-service"
