"""Keeping a lab as it is, and putting it back: how one prepared lab serves hundreds of crash points.

A lab's rows and definitions hold paths below its directory, so a snapshot is only ever put back where it was taken.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from droveway.lab.build import stop_guests
from droveway.lab.session import Lab
from droveway.workers.directories import MANIFEST, Manifest

_LASTING: Final = ({"hosts", "shared"}, None, {"instances"})
"""Directories that stay themselves: a move knows the one of a host's servers again by its inode."""


@dataclass(frozen=True)
class Snapshot:
    """A lab at rest, its guests off, kept beside it."""

    root: Path
    kept: Path
    running: tuple[tuple[str, str], ...]
    """(host, server) of every guest that ran."""

    def restore(self) -> Lab:
        """The lab as it was, its guests running again; whatever ran there since is cut off first."""
        if self.root.exists():
            lab = Lab.open(self.root)
            stop_guests(lab)
            lab.close()
            _empty(self.root, _LASTING)
        _copy(self.kept, self.root)
        _recognise(self.root)
        lab = Lab.open(self.root)
        for host, server in self.running:
            lab.hypervisor(host).start(server, _unfenced)
        lab.close()
        return lab


def take(root: Path, kept: Path) -> Snapshot:
    """Keep the lab in ``kept``, a directory that does not exist yet; its guests are stopped."""
    lab = Lab.open(root)
    running = tuple(
        (host, guest.server)
        for host in sorted(lab.identity.hosts)
        for guest in lab.hypervisor(host).guests()
        if guest.running
    )
    stop_guests(lab)
    lab.close()
    _copy(root, kept)
    return Snapshot(root, kept, running)


def _empty(folder: Path, lasting: tuple[set[str] | None, ...]) -> None:
    """Remove what lies in the folder; directories of the first of these names, None being any, are emptied instead."""
    for path in folder.iterdir():
        if not path.is_dir() or path.is_symlink():
            path.unlink()
        elif lasting and (lasting[0] is None or path.name in lasting[0]):
            _empty(path, lasting[1:])
        else:
            shutil.rmtree(path)


def _copy(source: Path, target: Path) -> None:
    """Copy what is in the directory, with holes and links kept."""
    target.mkdir(exist_ok=True)
    subprocess.run(["/bin/cp", "-a", "--sparse=always", "--reflink=auto", f"{source}/.", str(target)], check=True)


def _recognise(root: Path) -> None:
    """Let each manifest of disks that were set aside name the inodes of their copies: for the same files' sake."""
    for path in root.glob(f"*/*/**/{MANIFEST}"):
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        disks = [
            msgspec.structs.replace(disk, inode=status.st_ino, allocated=status.st_blocks * 512)
            for disk in manifest.disks
            for status in [path.with_name(disk.name).stat()]
        ]
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, disks=disks)))


def _unfenced() -> None:
    """A guest that is put back belongs to no move yet."""
