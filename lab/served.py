"""Tells whether daemons serve a lab, which then has no other commands, and holds the lock that says so."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from droveway.errors import Refused
from droveway.lab import lock
from droveway.lab.layout import Layout


def folder(files: Layout) -> Path:
    """Return the directory of what serving a lab needs: configuration, logs and ZooKeeper's data."""
    return files.root / "serve"


def configuration(files: Layout) -> Path:
    """Return the file by which commands reach the daemons of a lab that is served."""
    return folder(files) / "droveway.conf"


def require_not_served(files: Layout) -> None:
    """Raise `droveway.errors.Refused` while daemons serve the lab: they and a lab command would run the same moves."""
    if lock.is_held(Layout(folder(files))):
        raise Refused(
            f"daemons serve the lab {files.root}, so lab commands cannot use it: give --config-file "
            f"{configuration(files)}, or stop  droveway lab serve"
        )


@contextlib.contextmanager
def held(files: Layout) -> Iterator[Path]:
    """Keep lab commands out for as long as the block takes; yields an empty directory for what is served.

    The configuration is removed at the end, and the logs stay. Raises `droveway.errors.Refused` while another command
    uses the lab.
    """
    with lock.taken(files):
        if folder(files).exists():
            shutil.rmtree(folder(files))
        folder(files).mkdir(mode=0o700)
        # Any command holds the lab's own lock: this one says that it is daemons.
        with lock.taken(Layout(folder(files))):
            try:
                yield folder(files)
            finally:
                configuration(files).unlink(missing_ok=True)
