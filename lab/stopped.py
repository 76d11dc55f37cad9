"""Remembers which workers of a lab an operator has stopped."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

import msgspec

from droveway.lab.layout import Layout
from droveway.workers.hypervisors import durable


def stopped_workers(files: Layout) -> list[str]:
    """Return the hosts whose worker no command starts."""
    try:
        return msgspec.json.decode(files.stopped_workers.read_bytes(), type=list[str])
    except FileNotFoundError:
        return []


def stop(files: Layout, host: str) -> None:
    """Mark the host's worker as stopped; nothing is done when it is marked already."""
    with _locked(files):
        _write(files, [*stopped_workers(files), host])


def start(files: Layout, host: str) -> None:
    """Remove the mark of a stopped worker; nothing is done when there is none."""
    with _locked(files):
        _write(files, [name for name in stopped_workers(files) if name != host])


@contextlib.contextmanager
def _locked(files: Layout) -> Iterator[None]:
    with files.stopped_workers.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(files: Layout, hosts: list[str]) -> None:
    durable.replace(files.stopped_workers, msgspec.json.encode(sorted(set(hosts))))
