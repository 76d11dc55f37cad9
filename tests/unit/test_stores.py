"""An instances directory is known by an id that was written into it, and no rename takes a name away."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.worker_rig import MOVE, PROBE, SERVER, Cloud, cloud

from droveway.errors import Refused, StepError
from droveway.wire import commands
from droveway.workers import names
from droveway.workers.directories import Directories
from droveway.workers.stores import STORE


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        made.serve("alpha")
        made.run("alpha", "set_aside")
        made.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
        made.run(
            "beta",
            "copy_disks",
            commands.CopyDisks(
                variant="pull", source="alpha", address=made.hosts["alpha"].transfer_address, probe=PROBE
            ),
        )
        yield made


def unmounted(instances: Path, away: Path) -> None:
    """Take away all that lies in it: what is there then has the same inode."""
    away.mkdir()
    for entry in list(instances.iterdir()):
        entry.rename(away / entry.name)


def mounted(instances: Path, away: Path) -> None:
    for entry in list(instances.iterdir()):
        entry.unlink()
    for entry in list(away.iterdir()):
        entry.rename(instances / entry.name)


@pytest.mark.parametrize("other", ["nothing", "another"])
@pytest.mark.parametrize(
    ("host", "action", "details"),
    [
        ("beta", "copy_disks", commands.CopyDisks(variant="pull", source="alpha", address="", probe=PROBE)),
        ("alpha", "set_aside", commands.NoDetails()),
    ],
)
def test_an_undo_in_another_file_system_says_so(
    site: Cloud, host: str, action: str, details: object, other: str
) -> None:
    """e50: one with the same inode too; nothing is done in its place, and its directory gets no id by it."""
    instances, away = site.hosts[host].directories.instances, site.folder / "away"
    unmounted(instances, away)
    if other == "another":
        site.hosts[host].directories.ensure()
    before = sorted(instances.iterdir())
    with pytest.raises(StepError, match=r"is not the one that move \w+ worked in: mount it again") as failed:
        site.run(host, action, details, direction="revert")  # type: ignore[arg-type]
    assert failed.value.error_code == "storage-away"
    assert sorted(instances.iterdir()) == before
    mounted(instances, away)
    site.run(host, action, details, direction="revert")  # type: ignore[arg-type]
    assert site.hosts[host].directories.exists(SERVER) == (host == "alpha")


@pytest.mark.parametrize(
    ("host", "action", "details"),
    [
        ("alpha", "discard_source", commands.DiscardSource(undefine=False)),
        ("beta", "discard_destination", commands.DiscardDestination(same_directory=False)),
    ],
)
def test_what_is_not_there_is_not_discarded(site: Cloud, host: str, action: str, details: object) -> None:
    """e50: the ends of confirm and revert too; they are other flows than the one that worked there."""
    instances, away = site.hosts[host].directories.instances, site.folder / "away"
    unmounted(instances, away)
    with pytest.raises(StepError) as failed:
        site.run(host, action, details)  # type: ignore[arg-type]
    assert failed.value.error_code == "storage-away"
    mounted(instances, away)
    site.run(host, action, details)  # type: ignore[arg-type]
    assert [path.name for path in instances.iterdir()] == [STORE]


def test_a_directory_keeps_its_id_and_a_damaged_one_is_said(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "instances")
    directories.ensure()
    found = directories.identity()
    directories.ensure()
    assert directories.known_identity() == directories.identity() == found
    (directories.instances / STORE).write_text("no id\n")
    directories.ensure()
    with pytest.raises(Refused, match="holds no id of the directory"):
        directories.identity()


def test_a_directory_that_takes_no_id_keeps_no_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    Directories(tmp_path).ensure()
    assert "gets no id yet" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(name="able", params=["noreplace", "plain"])
def fixture_able(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system that renames with a look, and one that cannot (NFS)."""
    if request.param == "plain":

        def refused(*_: object) -> int:
            names.ctypes.set_errno(errno.EINVAL)
            return -1

        monkeypatch.setattr(names._LIBC, "renameat2", refused)
    return str(request.param)


def test_a_rename_takes_no_name_away(tmp_path: Path, able: str) -> None:
    """A plain rename would take the place of an empty directory."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    directories = Directories(tmp_path)
    with pytest.raises(StepError) as failed:
        directories.rename("old", "new")
    assert failed.value.error_code == "in-the-way"
    top = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            names.rename(top, "old", top, "new")
        (tmp_path / "new").rmdir()
        names.rename(top, "old", top, "new")
    finally:
        os.close(top)
    assert [path.name for path in tmp_path.iterdir()] == ["new"], able


def test_a_name_that_is_taken_behind_the_look_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes between the look and the rename stays, empty directories too."""
    directories = Directories(tmp_path)
    directories.create(f"{SERVER}.part-{MOVE}-beta")
    exists = Directories.exists

    def looked(self: Directories, name: str) -> bool:
        found = exists(self, name)
        if name == SERVER:
            self.path(name).mkdir()
        return found

    monkeypatch.setattr(Directories, "exists", looked)
    with pytest.raises(StepError) as failed:
        directories.rename(f"{SERVER}.part-{MOVE}-beta", SERVER)
    assert failed.value.error_code == "in-the-way"
    assert (tmp_path / f"{SERVER}.part-{MOVE}-beta").is_dir()


def test_who_owns_the_directories_of_servers_owns_what_is_made_in_them(tmp_path: Path) -> None:
    """S12: nothing is everybody's, and Nova's own user goes on to read the formats of the disks."""
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 4321)
    directories = Directories(tmp_path)
    directories.create(SERVER)
    directories.write_formats(SERVER, SERVER, {"disk": "raw"})
    top = tmp_path.stat()
    for path, mode in ((tmp_path / SERVER, 0o750), (tmp_path / SERVER / "disk.info", 0o640)):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (top.st_uid, top.st_gid, mode)
