"""Says whether daemons serve a lab, and holds the lock that shows it; a served lab takes no lab commands."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from droveway.errors import Refused
from droveway.lab import lock
from droveway.lab.layout import Layout


def folder(files: Layout) -> Path:
    """Return the directory with configuration, logs and ZooKeeper's data of a served lab."""
    return files.root / "serve"


def configuration(files: Layout) -> Path:
    """Return the configuration file for commands to the daemons of a served lab."""
    return folder(files) / "droveway.conf"


def require_not_served(files: Layout) -> None:
    """Raise `droveway.errors.Refused` while daemons serve the lab, since both would run the same moves."""
    if lock.is_held(Layout(folder(files))):
        raise Refused(
            f"daemons serve the lab {files.root}: give --config-file {configuration(files)} instead of the lab, or, "
            "for a command  droveway lab ..., stop  droveway lab serve  first"
        )


@contextlib.contextmanager
def held(files: Layout) -> Iterator[Path]:
    """Keep lab commands out within the block; yields an empty directory for the files of the daemons.

    The configuration is removed at the end, and the logs stay. Raises `droveway.errors.Refused` while another command
    uses the lab.
    """
    with lock.taken(files):
        if folder(files).exists():
            shutil.rmtree(folder(files))
        folder(files).mkdir(mode=0o700)
        # Every command holds the lab's own lock. This second lock shows that it is held for daemons.
        with lock.taken(Layout(folder(files))):
            try:
                yield folder(files)
            finally:
                configuration(files).unlink(missing_ok=True)
