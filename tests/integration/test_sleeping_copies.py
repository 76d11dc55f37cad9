"""A destination that slept over its copy, on storage that others share, finds nothing that it could change."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import Disked, qemu
from support.rigs.worker_rig import MIB, PROBE, SERVER, Cloud, cloud, make_disk

from droveway.clients.zookeeper import command_path
from droveway.errors import DrovewayError, Fenced
from droveway.wire import commands
from droveway.workers.actions import dispatch
from droveway.workers.context import Context
from droveway.workers.directories import BASES, Directory

FIT = commands.FitDisks(root_bytes=8 * MIB, ephemeral_bytes=2 * MIB, swap_bytes=MIB)
COPY = commands.CopyDisks(variant="local", source="alpha", address="", probe=PROBE)
EFFECTS = ["rebase", "grow", "disk_info", "create_ephemeral", "create_swap"]
WRITES = ["rebase_disk", "grow_disk", "write", "create_disk ephemeral", "create_disk swap"]
PATIENCE = 180.0


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A server on an overlay that two destinations may take, its copy made on the first of them."""
    monkeypatch.setattr("support.rigs.worker_rig.Sandbox", Disked)
    with cloud(tmp_path, shared=True) as made:
        made.add("gamma", tmp_path / "shared")
        made.make_server()
        directories = made.hosts["alpha"].directories
        base, disk = directories.path(BASES, "f" * 40), directories.path(SERVER, "disk")
        base.parent.mkdir()
        make_disk(base, 6 * MIB)
        disk.unlink()
        qemu("create", "-f", "qcow2", "-F", "raw", "-b", base, disk, 6 * MIB)
        directories.write_formats(SERVER, SERVER, {"disk": "qcow2", "disk.swap": "raw"})
        made.run("alpha", "set_aside")
        made.run("beta", "copy_disks", COPY)
        yield made


class Sleeper:
    """A worker's fit_disks, which stops where it is told to, until it is woken."""

    def __init__(self, site: Cloud, host: str) -> None:
        self.site = site
        self.command = site.command(host, "fit_disks", FIT)
        self.asleep, self.awake = threading.Event(), threading.Event()
        self.where = ""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(host,))

    def sleep(self, where: str) -> None:
        """Begin, and return once it sleeps there."""
        self.where = where
        self._thread.start()
        assert self.asleep.wait(PATIENCE), f"it never came to {where}: {self.error}"

    def pass_by(self, where: str) -> None:
        if where == self.where and threading.current_thread() is self._thread:
            self.where = ""
            self.asleep.set()
            assert self.awake.wait(PATIENCE)

    def wake(self) -> BaseException | None:
        """What ended it."""
        self.awake.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.error

    def _run(self, host: str) -> None:
        context = Context(self.site.hosts[host], self.command, probe=lambda *words: self.pass_by(words[-1]))
        try:
            with self.site.asked(self.command):
                dispatch.run(context, FIT)
        except (DrovewayError, OSError) as error:
            self.error = error


def hook(monkeypatch: pytest.MonkeyPatch, sleeper: Sleeper) -> None:
    """Let it sleep right before a write too, behind the fence."""

    def before(change: Callable[..., Any], name: str) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            sleeper.pass_by(f"{name} {options['kind']}" if "kind" in options else name)
            return change(*args, **options)

        return changed

    for name in ("rebase_disk", "grow_disk", "create_disk"):
        monkeypatch.setattr(Disked, name, before(getattr(Disked, name), name))
    monkeypatch.setattr(Directory, "write", before(Directory.write, "write"))


def seen(site: Cloud) -> dict[str, tuple[int, int, str]]:
    """Inode, time of change and content of every file that the hosts share."""
    return {
        str(path.relative_to(site.folder / "shared")): (
            path.stat().st_ino,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted((site.folder / "shared").rglob("*"))
    }


def write_as_a_guest(site: Cloud, disk: str) -> None:
    path = site.hosts["gamma"].directories.path(SERVER, disk)
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 9 0 64k", path], check=True, capture_output=True)


@pytest.mark.parametrize("where", EFFECTS + WRITES)
def test_who_slept_over_a_copy_changes_nothing_of_the_server_that_another_host_has(
    site: Cloud, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """e31, e31b: at each effect, and right before each write, behind its fence: inode and bytes stay."""
    sleeper = Sleeper(site, "beta")
    hook(monkeypatch, sleeper)
    sleeper.sleep(where)
    site.set_epoch(2)
    site.run("gamma", "copy_disks", COPY, epoch=2)
    # It is as large as it was: what the sleeper meant to do can be seen then.
    site.run("gamma", "fit_disks", commands.FitDisks(root_bytes=7 * MIB, ephemeral_bytes=MIB, swap_bytes=MIB), epoch=2)
    for disk in ("disk", "disk.eph0", "disk.swap"):
        write_as_a_guest(site, disk)
    before = seen(site)
    assert sleeper.wake() is not None
    assert seen(site) == before


@pytest.mark.parametrize("where", EFFECTS + WRITES)
def test_who_slept_over_a_copy_changes_nothing_of_the_servers_own_disks(
    site: Cloud, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """e31: the move was undone meanwhile, and the server is on its source again, under the same name."""
    sleeper = Sleeper(site, "beta")
    hook(monkeypatch, sleeper)
    sleeper.sleep(where)
    site.set_epoch(2)
    site.run("alpha", "set_aside", epoch=2, direction="revert")
    before = seen(site)
    assert sleeper.wake() is not None
    assert seen(site) == before


@pytest.mark.parametrize("where", EFFECTS)
def test_who_slept_before_its_copy_was_fitted_by_another_command_replaces_nothing(
    site: Cloud, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It holds the right directory, and its command was taken back: the fence is looked at before each write."""
    sleeper = Sleeper(site, "beta")
    hook(monkeypatch, sleeper)
    sleeper.sleep(where)
    site.coordination.delete(command_path("beta", sleeper.command.key))
    site.run("beta", "fit_disks", commands.FitDisks(root_bytes=7 * MIB, ephemeral_bytes=MIB, swap_bytes=MIB))
    for disk in ("disk", "disk.eph0", "disk.swap"):
        write_as_a_guest(site, disk)
    before = seen(site)
    assert isinstance(sleeper.wake(), Fenced)
    assert seen(site) == before


def test_a_copy_of_the_same_move_that_another_host_made_is_left_alone(site: Cloud) -> None:
    """Both are marked with the move; whose copy it is, the mark says too."""
    before = seen(site)
    with pytest.raises(DrovewayError, match="is not the copy that gamma made for move"):
        site.run("gamma", "fit_disks", FIT)
    assert seen(site) == before
