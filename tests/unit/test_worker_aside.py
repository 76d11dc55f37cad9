"""What was set aside goes into images, or is asked for at a transfer port, while a move leads into another cell."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import qemu
from support.rigs import image_site
from support.rigs.image_site import PART, code_of, content, disk
from support.rigs.worker_rig import MOVE, SERVER, Cloud, cloud
from support.rigs.worker_stages import IMAGE, killed_at

from droveway.lab.isolated import IsolatedEndpoint
from droveway.wire import commands
from droveway.workers.actions import copies

ASIDE = f"{SERVER}_resize"
SECOND = "0c5f3a52-5a4e-4f5e-8d0c-3b1d9f6f0002"


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.plain(tmp_path, monkeypatch) as site:
        site.run("alpha", "set_aside")
        yield site


@pytest.fixture(name="resting")
def fixture_resting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with image_site.resting(tmp_path, monkeypatch) as site:
        site.run("alpha", "set_aside")
        yield site


def upload(site: Cloud, *names: str, **options: Any) -> dict[str, Any]:
    wanted = [commands.ImageOfDisk(disk=name, image=IMAGE) for name in names or ("disk",)]
    return site.run("alpha", "upload_disks", commands.UploadDisks(disks=wanted, aside=True), **options)


def test_what_was_set_aside_is_uploaded_from_there(site: Cloud) -> None:
    before = site.snapshot()
    for _ in killed_at(lambda probe: upload(site, probe=probe)):
        pass
    (found,) = upload(site)["disks"]
    assert content(site) == disk(site, folder=ASIDE).read_bytes()
    assert (found["disk"], found["checksum"]) == ("disk", hashlib.sha512(content(site)).hexdigest())
    assert site.snapshot() == before
    upload(site, direction="revert")
    assert site.snapshot() == before


def test_an_overlay_is_flattened_and_its_flat_copy_goes_with_the_undo(resting: Cloud, tmp_path: Path) -> None:
    before = resting.snapshot()
    for _ in killed_at(lambda probe: upload(resting, probe=probe)):
        pass
    image = tmp_path / "image"
    image.write_bytes(content(resting))
    assert b"backing" not in qemu("info", image)
    for path in (image, disk(resting, folder=ASIDE)):
        qemu("convert", "-f", "qcow2", "-O", "raw", path, tmp_path / f"{path.name}.raw")
    assert (tmp_path / "image.raw").read_bytes() == (tmp_path / "disk.raw").read_bytes()
    assert disk(resting, folder=f"{PART}-alpha").exists()
    for _ in killed_at(lambda probe: upload(resting, probe=probe, direction="revert")):
        pass
    assert resting.snapshot() == before


@pytest.mark.parametrize("names", [("disk", "disk.eph0"), ("disk.eph0",)], ids=["one too many", "another"])
def test_all_disks_have_to_be_named_and_no_others(site: Cloud, names: tuple[str, ...]) -> None:
    assert code_of(lambda: upload(site, *names), "disk was set aside on alpha, and") == "missing"
    assert site.references.image(IMAGE).size is None


def test_a_disk_that_nobody_named_is_not_left_behind(tmp_path: Path) -> None:
    with cloud(tmp_path) as site:
        site.make_server(ephemeral=True)
        site.run("alpha", "set_aside")
        assert code_of(lambda: upload(site), "disk, disk.eph0 was set aside") == "missing"


@pytest.mark.parametrize("when", ["before", "upload", "compare"])
def test_a_disk_that_changed_since_it_was_set_aside_is_no_image(site: Cloud, when: str) -> None:
    def change() -> None:
        with disk(site, folder=ASIDE).open("r+b") as file:
            file.seek(7)
            file.write(b"?")

    def probe(_step: str, _direction: str, _phase: str, effect: str) -> None:
        if effect == when:
            change()

    if when == "before":
        change()
    assert code_of(lambda: upload(site, probe=probe), "was changed on alpha") == "source-changed"


def test_a_base_that_changed_since_is_no_image_either(resting: Cloud) -> None:
    base = resting.hosts["alpha"].directories.path("_base", "ba5e")
    status = base.stat()
    os.utime(base, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert code_of(lambda: upload(resting), "was changed on alpha") == "source-changed"


def test_what_another_move_set_aside_is_left_alone(site: Cloud) -> None:
    site.set_epoch(1, SECOND)
    assert code_of(lambda: upload(site, move=SECOND), f"was left by move {MOVE}") == "foreign"


# Whether the transfer port is reached.


def probe(site: Cloud, **options: Any) -> tuple[bool, str]:
    details = commands.ProbeTransfer(source="alpha", address=site.hosts["alpha"].transfer_address)
    told = site.run("beta", "probe_transfer", details, **options)
    return told["reached"], told["why"]


@pytest.mark.parametrize("tls", [False, True], ids=["socket", "TLS"])
def test_a_port_that_answers_is_reached_and_gives_nothing(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(copies, "PROBE_PATIENCE", 0.1)
    with cloud(tmp_path, tls=tls) as site:
        site.make_server()
        before = site.snapshot()
        reached, why = probe(site)
        assert (reached, "does not serve the disks" in why) == (False, True)
        site.serve("alpha")
        assert probe(site) == (True, "")
        assert site.snapshot() == before
        assert not caplog.records, "nobody was turned away"


def test_an_isolated_cell_lets_its_own_hosts_in_and_no_others(tmp_path: Path) -> None:
    with cloud(tmp_path) as site:
        site.make_server()
        path = f"{site.sockets}/alpha"
        site.endpoints["alpha"] = IsolatedEndpoint(path, "cell1", frozenset({"alpha", "beta"}))
        site.serve("alpha")
        assert probe(site) == (True, "")
        site.servers.pop("alpha").stop()
        site.endpoints["alpha"] = IsolatedEndpoint(path, "cell1", frozenset({"alpha"}))
        site.serve("alpha")
        why = "cell cell1 is isolated: beta, which is in another cell, does not reach its hosts' disks"
        assert probe(site) == (False, why)
