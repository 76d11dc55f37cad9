"""Formats of disks: recorded, raw or qcow2, and never read off bytes that somebody else wrote."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.labs.disked import Disked, qemu
from support.rigs.worker_rig import MIB, PROBE, SERVER, Cloud, cloud, make_disk

from droveway.errors import StepError
from droveway.wire import commands
from droveway.workers.directories import BASES, DISK_INFO
from droveway.workers.hypervisors import headers, qcow2
from droveway.workers.hypervisors.libvirt import files as libvirt_files

FIT = commands.FitDisks(root_bytes=8 * MIB, ephemeral_bytes=0, swap_bytes=MIB)
SECRET = b"what the host keeps for itself"


@pytest.fixture(name="site", params=["pull", "local"])
def fixture_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr("support.rigs.worker_rig.Sandbox", Disked)
    with cloud(tmp_path, shared=request.param == "local") as made:
        made.make_server()
        made.serve("alpha")
        yield made


def disk_of(site: Cloud) -> Path:
    return site.hosts["alpha"].directories.path(SERVER, "disk")


def record(site: Cloud, **formats: str) -> None:
    site.hosts["alpha"].directories.write_formats(SERVER, SERVER, {"disk.swap": "raw", **formats})


def copy(site: Cloud) -> dict[str, Any]:
    """The disks' part of a move up to the copy."""
    shared = site.hosts["alpha"].directories.instances == site.hosts["beta"].directories.instances
    site.run("alpha", "set_aside")
    site.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    details = commands.CopyDisks(
        variant="local" if shared else "pull",
        source="alpha",
        address=site.hosts["alpha"].transfer_address,
        probe=PROBE,
    )
    return site.run("beta", "copy_disks", details)


def with_a_data_file(path: Path, data: Path, size: int) -> None:
    """A qcow2 disk whose data is to lie in another file, which is not touched."""
    other = path.with_name("made-with")
    path.unlink(missing_ok=True)
    qemu("create", "-f", "qcow2", "-o", f"data_file={other}", path, size)
    other.unlink()
    patched = path.read_bytes().replace(str(other).encode(), str(data).encode().ljust(len(str(other)), b"\0"), 1)
    assert str(data).encode() in patched
    path.write_bytes(patched)


def header_of(path: Path) -> headers.Header | None:
    file = os.open(path, os.O_RDONLY)
    try:
        return headers.read(file, str(path))
    finally:
        os.close(file)


@pytest.mark.parametrize("options", [(), ("-o", "compat=0.10"), ("-o", "cluster_size=512"), ("-o", "cluster_size=2M"),
                                     ("-o", "extended_l2=on"), ("-o", "preallocation=metadata")])  # fmt: skip
@pytest.mark.parametrize("rests", ["", "absolute", "relative"])
def test_a_header_is_read_as_qemu_img_reads_it(tmp_path: Path, options: tuple[str, ...], rests: str) -> None:
    """Size, backing file and its format, for every layout that qemu-img writes."""
    base, disk = tmp_path / "base", tmp_path / "disk"
    make_disk(base, MIB)
    on = {"": (), "absolute": ("-F", "raw", "-b", base), "relative": ("-F", "raw", "-b", "base")}[rests]
    if rests and "preallocation=metadata" in options:
        options = ()
    qemu("create", "-f", "qcow2", *options, *on, disk, 5 * MIB)
    told = json.loads(qemu("info", "--output=json", "-f", "qcow2", disk))
    found = header_of(disk)
    assert found is not None
    assert found.virtual_size == told["virtual-size"]
    assert found.backing == told.get("backing-filename", "")
    assert found.backing_format == told.get("backing-filename-format", "")
    assert (found.external, found.data_file) == (False, "")
    assert qcow2.info(disk, "qcow2").backing == (str(base) if rests else "")


def test_a_data_file_is_seen_where_qemu_img_sees_it(tmp_path: Path) -> None:
    disk, data = tmp_path / "disk", tmp_path / "data"
    qemu("create", "-f", "qcow2", "-o", f"data_file={data}", disk, MIB)
    told = json.loads(qemu("info", "--output=json", "-f", "qcow2", disk))
    found = header_of(disk)
    assert found is not None
    assert found.external
    assert found.data_file == told["format-specific"]["data"]["data-file"] == str(data)


def test_a_header_of_noise_is_told_of_and_never_fails_otherwise(tmp_path: Path) -> None:
    """Whatever the bytes are: a header, nothing, or one sentence."""
    disk = tmp_path / "disk"
    qemu("create", "-f", "qcow2", disk, MIB)
    whole, source = disk.read_bytes(), random.Random(3)
    codes: set[str] = set()
    for _ in range(500):
        noisy = bytearray(whole[: source.choice((8, 40, 72, 104, 112, 4096, len(whole)))])
        for _ in range(source.randint(0, 6)):
            noisy[source.randrange(4, min(len(noisy), 160)) if len(noisy) > 4 else 4] = source.randrange(256)
        disk.write_bytes(noisy)
        try:
            header_of(disk)
        except StepError as error:
            codes.add(error.error_code)
    assert codes == {"disk-format"}


def test_a_disk_with_a_data_file_is_refused_before_the_guest_is_touched(site: Cloud) -> None:
    """S3: a copy would lack the data, and the file that it names is another's."""
    data = site.folder / "d"
    data.write_bytes(SECRET)
    with_a_data_file(disk_of(site), data, 4 * MIB)
    record(site, disk="qcow2")
    before = site.snapshot()
    for action in ("describe_guest", "set_aside"):
        with pytest.raises(StepError, match="keeps its data in another file") as failed:
            site.run("alpha", action)
        assert (failed.value.error_code, failed.value.host) == ("disk-format", "alpha")
    site.run("alpha", "set_aside", direction="revert")
    assert site.snapshot() == before
    assert data.read_bytes() == SECRET


def test_a_data_file_that_arrives_is_found_behind_the_copy_and_before_a_tool_grows_it(site: Cloud) -> None:
    """S3: a source may send what it likes; the file that the bytes name is never opened."""
    data = site.folder / "d"
    data.write_bytes(SECRET)
    record(site, disk="qcow2")
    disk = disk_of(site)
    disk.unlink()
    qemu("create", "-f", "qcow2", disk, 4 * MIB)
    evil = site.folder / "evil"
    with_a_data_file(evil, data, 4 * MIB)
    site.run("alpha", "set_aside")
    aside = site.hosts["alpha"].directories
    where = aside.path(f"{SERVER}_resize", "disk")
    where.write_bytes(evil.read_bytes())
    with aside.opened(f"{SERVER}_resize") as directory:
        manifest, status = directory.manifest(), where.stat()
        assert manifest is not None
        disks = [
            msgspec.structs.replace(each, size=status.st_size, mtime_ns=status.st_mtime_ns)
            if each.name == "disk"
            else each
            for each in manifest.disks
        ]
        directory.write_record(msgspec.structs.replace(manifest, disks=disks))
    with pytest.raises(StepError, match="keeps its data in another file"):
        copy(site)
    assert data.read_bytes() == SECRET
    assert not site.hosts["beta"].directories.exists(SERVER)
    with pytest.raises(StepError, match="keeps its data in another file"):
        qcow2.grow(where, "qcow2", 16 * MIB)
    assert data.read_bytes() == SECRET


@pytest.mark.parametrize("known", ["vmdk", "vdi", "luks", "qcow", "host_device", ""])
def test_only_raw_and_qcow2_are_known(site: Cloud, known: str) -> None:
    """S3: others name files of the host in their bytes."""
    record(site, disk=known)
    before = site.snapshot()
    for action in ("describe_guest", "set_aside"):
        with pytest.raises(StepError, match="only raw and qcow2 disks are moved") as failed:
            site.run("alpha", action)
        assert failed.value.error_code == "disk-format"
    assert site.snapshot() == before
    with pytest.raises(StepError, match="only raw and qcow2"):
        qcow2.info(disk_of(site), known)


def test_a_format_that_a_source_tells_is_looked_at(site: Cloud) -> None:
    """S3: what the other worker says goes to no tool."""
    record(site, disk="raw")
    site.run("alpha", "set_aside")
    with site.hosts["alpha"].directories.opened(f"{SERVER}_resize") as directory:
        told = (directory.read("droveway-manifest.json") or b"").replace(b'"format":"raw"', b'"format":"vmdk"')
        directory.write("droveway-manifest.json", told)
    with pytest.raises(StepError, match="'vmdk': only raw and qcow2 disks are moved"):
        copy(site)
    assert not site.hosts["beta"].directories.exists(SERVER)


def test_a_disk_of_an_unrecorded_format_is_named_and_nobody_guesses(site: Cloud) -> None:
    """S1: never probed, and never taken for qcow2."""
    record(site)
    before = site.snapshot()
    for action in ("describe_guest", "set_aside"):
        with pytest.raises(StepError, match=r"the format of .*/disk is recorded nowhere: say in .*disk\.info"):
            site.run("alpha", action)
    assert site.snapshot() == before


def test_a_raw_disk_with_a_header_in_it_stays_raw(site: Cloud) -> None:
    """S1: its guest wrote a qcow2 header that names a file of the host; nobody looks at it, on either host."""
    secret = site.folder / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    disk, trap = disk_of(site), site.folder / "trap"
    qemu("create", "-f", "qcow2", "-F", "raw", "-b", secret, trap, MIB)
    with disk.open("r+b") as file:
        file.write(trap.read_bytes())
    size, content = disk.stat().st_size, disk.read_bytes()
    record(site, disk="raw")
    copied = copy(site)
    fitted = site.run("beta", "fit_disks", FIT)
    there = site.hosts["beta"].directories.path(SERVER, "disk")
    assert [(each["name"], each["format"], each["backing"]) for each in copied["disks"]] == [("disk", "raw", "")]
    assert [(each["name"], each["format"], each["backing"]) for each in fitted["disks"]] == [
        ("disk", "raw", ""),
        ("disk.swap", "qcow2", ""),
    ]
    assert there.stat().st_size == 8 * MIB
    assert there.read_bytes()[:size] == content
    assert site.hosts["beta"].directories.formats(SERVER) == {"disk": "raw", "disk.swap": "qcow2"}
    libvirt_files.let_reach([there], site.hosts["beta"].directories.path(BASES))
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_config_drive_is_raw_and_moves(site: Cloud) -> None:
    """S18: Nova records nothing of it."""
    folder = disk_of(site).parent
    record(site, disk="raw")
    drive = folder / "disk.config"
    drive.write_bytes(b"\0" * 32768 + b"\1CD001\1\0" + bytes(32768))
    copy(site)
    site.run("beta", "fit_disks", FIT)
    there = site.hosts["beta"].directories
    assert there.formats(SERVER) == {"disk": "raw", "disk.config": "raw", "disk.swap": "qcow2"}
    assert there.path(SERVER, "disk.config").read_bytes().find(b"CD001") == 32769
    assert json.loads(there.path(SERVER, DISK_INFO).read_bytes())[str(there.path(SERVER, "disk.config"))] == "raw"


def test_what_the_worker_makes_is_not_everybodys(site: Cloud) -> None:
    """S12: a disk, a swap and all beside them, whatever the mask of the worker is."""
    mask = os.umask(0)
    try:
        record(site, disk="raw")
        copy(site)
        site.run("beta", "fit_disks", commands.FitDisks(root_bytes=8 * MIB, ephemeral_bytes=2 * MIB, swap_bytes=MIB))
    finally:
        os.umask(mask)
    there = site.hosts["beta"].directories.path(SERVER)
    assert there.stat().st_mode & 0o777 == 0o750
    modes = {path.name: path.stat().st_mode & 0o777 for path in there.iterdir()}
    assert modes == dict.fromkeys(("disk", "disk.eph0", "disk.swap", "disk.info", "droveway.json"), 0o640)
    assert site.hosts["beta"].journal.path.stat().st_mode & 0o777 == 0o600


def test_a_look_at_a_disk_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S15: memory and processor time, as Nova limits its own; the tool that is run shows its limits."""
    shown = tmp_path / "shown"
    tool = tmp_path / "bin" / "qemu-img"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\ncat /proc/self/limits > {shown}\nexec /usr/bin/qemu-img "$@"\n')
    tool.chmod(0o755)
    disk = tmp_path / "disk"
    qemu("create", "-f", "qcow2", disk, MIB)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert qcow2.info(disk, "qcow2").virtual_size == MIB
    limits = {line[:26].strip(): line[26:].split()[:2] for line in shown.read_text().splitlines()}
    assert limits["Max address space"] == ["1073741824", "1073741824"]
    assert limits["Max cpu time"] == ["30", "30"]


def test_a_guest_is_looked_at_for_what_cannot_move_by_the_step_before_all_others(
    site: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: on its own host, while it runs; a question about a guest that moved already is answered as ever."""

    def refuse(_self: Disked, definition: str) -> None:
        assert definition
        raise StepError("it has a cdrom", code="definition")

    record(site, disk="raw")
    monkeypatch.setattr(Disked, "require_movable", refuse)
    with pytest.raises(StepError, match="it has a cdrom") as failed:
        site.run("alpha", "describe_guest", step="record_before")
    assert (failed.value.error_code, failed.value.host) == ("definition", "alpha")
    assert site.run("alpha", "describe_guest")["defined"]
