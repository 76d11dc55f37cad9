"""Makes the files of a guest usable by a daemon that runs as another user than the worker."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path


def hand_over(owner: pwd.struct_passwd, paths: Sequence[Path]) -> None:
    """Give those of ``paths`` that exist to the daemon's user."""
    for path in paths:
        if path.exists():
            os.chown(path, owner.pw_uid, owner.pw_gid)


def let_reach(disks: Sequence[Path], bases: Path) -> None:
    """Let the daemon's user enter the disks' directories and read all files in the directory ``bases``.

    A disk's header also names its base, but a guest can write that header and name any file of the host.  So the worker
    does not follow the header.  It makes all base files readable instead, and no other file.  Base files are made of
    images, and Nova lets everybody read them too.
    """
    for directory in {path.parent for path in disks if path.exists()}:
        _let(directory, stat.S_IXOTH)
    if bases.is_dir():
        _let(bases, stat.S_IXOTH)
        with os.scandir(bases) as found:
            files = [Path(entry.path) for entry in found if entry.is_file(follow_symlinks=False)]
        for base in files:
            with contextlib.suppress(FileNotFoundError):  # another move's file that has gone meanwhile
                _let(base, stat.S_IROTH)


def let_enter(disks: Sequence[Path], group: int | None) -> None:
    """Let the group that guests run as enter the disks' directories, which not everybody may enter."""
    for path in {path.parent for path in disks if path.exists()}:
        mode = path.stat(follow_symlinks=False).st_mode
        if not mode & stat.S_IXOTH and group is not None:
            os.chown(path, -1, group, follow_symlinks=False)
            _let(path, stat.S_IXGRP)


def _let(path: Path, bit: int) -> None:
    """Add a permission bit to a file or directory; a link is not followed."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(file).st_mode
        if (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) and not mode & bit:
            os.fchmod(file, stat.S_IMODE(mode) | bit)
    finally:
        os.close(file)
