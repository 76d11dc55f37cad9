"""Makes the files of a guest usable by a daemon that runs as another user than the worker."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from droveway.workers.hypervisors import qcow2


def hand_over(owner: pwd.struct_passwd, paths: Sequence[Path]) -> None:
    """Give what exists of ``paths`` to the daemon's user."""
    for path in paths:
        if path.exists():
            os.chown(path, owner.pw_uid, owner.pw_gid)


def let_reach(disks: Sequence[Path], disk_format: str) -> None:
    """Let the daemon's user enter the disks' directories and read their backing files."""
    for path in disks:
        if path.exists():
            _let(path.parent, stat.S_IXOTH)
            backing = Path(qcow2.info(path, disk_format).backing)
            if backing.is_file():
                _let(backing, stat.S_IROTH)


def _let(path: Path, bit: int) -> None:
    mode = path.stat().st_mode
    if not mode & bit:
        path.chmod(stat.S_IMODE(mode) | bit)
