"""Overlays: copied as they are, on a base that goes along only where its content is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import Disked, qemu
from support.rigs.worker_rig import MIB, PROBE, SERVER, Cloud, KillAt, Killed, cloud, make_disk

from droveway.errors import StepError
from droveway.wire import commands
from droveway.workers.directories import BASES
from droveway.workers.hypervisors import qcow2
from droveway.workers.transfer import extents

FIT = commands.FitDisks(root_bytes=8 * MIB, ephemeral_bytes=0, swap_bytes=MIB)


def overlay(site: Cloud, base: str = "f" * 40) -> Path:
    """Give the server a root disk over a base of that name, as Nova has it, with a word of its own."""
    host = site.hosts["alpha"]
    raw = host.directories.path(BASES, base)
    raw.parent.mkdir(exist_ok=True)
    make_disk(raw, 6 * MIB)
    disk = host.directories.path(SERVER, "disk")
    disk.unlink()
    qemu("create", "-f", "qcow2", "-F", "raw", "-b", raw, disk, 6 * MIB)
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 7 1M 64k", disk], check=True, capture_output=True)
    host.directories.write_formats(SERVER, SERVER, {"disk": "qcow2", "disk.swap": "raw"})
    return raw


def content(disk: Path, target: Path) -> bytes:
    """What a guest would read of the disk."""
    qemu("convert", "-f", "qcow2", "-O", "raw", disk, target)
    return target.read_bytes()


@pytest.fixture(name="site", params=["pull", "local"])
def fixture_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr("support.rigs.worker_rig.Sandbox", Disked)
    with cloud(tmp_path, shared=request.param == "local") as made:
        made.make_server()
        made.serve("alpha")
        yield made


def variant(site: Cloud) -> Any:
    shared = site.hosts["alpha"].directories.instances == site.hosts["beta"].directories.instances
    return "local" if shared else "pull"


def move(site: Cloud) -> dict[str, Any]:
    """The disks' part of a move, up to where the guest would be defined."""
    site.run("alpha", "set_aside")
    site.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    copied = site.run("beta", "copy_disks", copy(site))
    site.run("beta", "fit_disks", FIT)
    return copied


def copy(site: Cloud) -> commands.CopyDisks:
    address = site.hosts["alpha"].transfer_address
    return commands.CopyDisks(variant=variant(site), source="alpha", address=address, probe=PROBE)


def digest(path: Path) -> str:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        return extents.digest(directory, path.name, lambda: None)
    finally:
        os.close(directory)


def test_an_overlay_moves_with_a_base_that_is_missing_there(site: Cloud, tmp_path: Path) -> None:
    """R0-04: the overlay stays one; the base is named by its content, and the source's disk is not touched."""
    raw = overlay(site)
    before = content(site.hosts["alpha"].directories.path(SERVER, "disk"), tmp_path / "before")
    copied = move(site)
    there = site.hosts["beta"].directories.path(BASES, digest(raw))
    assert [base["checksum"] for base in copied["bases"]] == [there.name]
    assert copied["bytes"] == (
        0 if variant(site) == "local" else sum(d["sent"] for k in ("disks", "bases") for d in copied[k])
    )
    assert there.read_bytes() == raw.read_bytes()
    disk = site.hosts["beta"].directories.path(SERVER, "disk")
    found = qcow2.info(disk, "qcow2")
    assert (found.backing, found.backing_format, found.virtual_size) == (str(there), "raw", 8 * MIB)
    assert content(disk, tmp_path / "after")[: 6 * MIB] == before
    aside = site.hosts["alpha"].directories.path(f"{SERVER}_resize", "disk")
    assert qcow2.info(aside, "qcow2").backing == str(raw)
    manifest = site.hosts["alpha"].directories.manifest(f"{SERVER}_resize")
    assert manifest is not None
    assert [(base.file, base.digest) for base in manifest.bases] == [(raw.name, there.name)]


def test_a_base_that_is_there_is_not_sent(site: Cloud) -> None:
    """R0-04: by its content hash; only the overlay's own bytes cross the wire."""
    raw = overlay(site)
    here = site.hosts["beta"].directories.path(BASES, digest(raw))
    here.parent.mkdir(exist_ok=True)
    here.write_bytes(raw.read_bytes())
    inode = here.stat().st_ino
    copied = move(site)
    assert copied["bases"] == []
    assert sum(disk["sent"] for disk in copied["disks"]) < MIB
    assert here.stat().st_ino == inode


def test_a_base_may_get_other_rights_while_it_is_copied(site: Cloud) -> None:
    """Whoever starts a guest over it sees to it that it can be read."""
    raw = overlay(site)
    site.run("alpha", "set_aside")
    site.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    seen: list[str] = []

    def start(_step: str, _direction: str, _phase: str, effect: str) -> None:
        seen.append(effect)
        raw.chmod(0o640 if len(seen) % 2 else 0o644)

    (base,) = site.run("beta", "copy_disks", copy(site), probe=start)["bases"]
    assert base["checksum"] == digest(raw)
    assert seen.index("chunk") < seen.index("base")


def test_every_step_of_a_copy_with_a_base_may_be_cut_and_repeated(site: Cloud, tmp_path: Path) -> None:
    """R3-15: killed before each effect, then entered again."""
    raw = overlay(site)
    before = content(site.hosts["alpha"].directories.path(SERVER, "disk"), tmp_path / "before")
    site.run("alpha", "set_aside")
    site.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    for action, details in (("copy_disks", copy(site)), ("fit_disks", FIT)):
        for number in range(1, 99):
            try:
                site.run("beta", action, details, probe=KillAt(number))
            except Killed:
                continue
            break
    assert content(site.hosts["beta"].directories.path(SERVER, "disk"), tmp_path / "after")[: 6 * MIB] == before
    assert site.hosts["beta"].directories.path(BASES, digest(raw)).is_file()
    assert not list(site.hosts["beta"].directories.instances.glob("*.part-*"))


def missing(raw: Path) -> None:
    raw.unlink()


def changed(raw: Path) -> None:
    with raw.open("r+b") as file:
        file.write(b"other")


def chained(raw: Path) -> None:
    raw.unlink()
    make_disk(raw.with_name("lower"), MIB)
    qemu("create", "-f", "qcow2", "-F", "raw", "-b", raw.with_name("lower"), raw, 6 * MIB)
    overlay_of = raw.parent.parent / SERVER / "disk"
    qemu("rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", raw, overlay_of)


def elsewhere(raw: Path) -> None:
    other = raw.parent.parent.parent / "stray"
    raw.rename(other)
    qemu("rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", other, raw.parent.parent / SERVER / "disk")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (missing, "which is not there on alpha: restore it"),
        (changed, "whose content is not what its name says on alpha: restore it"),
        (chained, "which rests on a further file: flatten the disk first"),
        (elsewhere, "which is no base of host alpha: flatten the disk first"),
    ],
)
def test_a_base_that_cannot_go_along_is_named_and_nothing_is_left(site: Cloud, harm: Any, words: str) -> None:
    """One sentence before anything is renamed; its undo finds nothing to do."""
    raw = overlay(site)
    named = raw.rename(raw.with_name(digest(raw)))
    disk = site.hosts["alpha"].directories.path(SERVER, "disk")
    qemu("rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", named, disk)
    harm(named)
    before = site.snapshot()
    if harm is not changed:
        with pytest.raises(StepError, match=words):
            site.run("alpha", "find_storage", commands.FindStorage(probe=PROBE))
    with pytest.raises(StepError) as failed:
        site.run("alpha", "set_aside")
    assert words in failed.value.message
    assert failed.value.error_code == "backing-file"
    site.run("alpha", "set_aside", direction="revert")
    assert site.snapshot() == before


def test_a_damaged_base_at_the_destination_is_its_fault(site: Cloud) -> None:
    """Nothing is ever rested on another content: silent corruption."""
    raw = overlay(site)
    there = site.hosts["beta"].directories.path(BASES, digest(raw))
    there.parent.mkdir(exist_ok=True)
    there.write_bytes(b"other" + raw.read_bytes()[5:])
    site.run("alpha", "set_aside")
    site.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    with pytest.raises(StepError, match="has other content than its name says: remove it") as failed:
        site.run("beta", "copy_disks", copy(site))
    assert failed.value.as_dict()["fault"] == "destination"
    site.run("beta", "copy_disks", copy(site), direction="revert")
    assert not list(site.hosts["beta"].directories.instances.glob("*.part-*"))
