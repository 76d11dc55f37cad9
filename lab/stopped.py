"""Which workers of a lab are away because somebody stopped them."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

import msgspec

from droveway.lab.layout import Layout
from droveway.workers.hypervisors import durable


def stopped_workers(files: Layout) -> list[str]:
    """The hosts whose worker no command starts."""
    try:
        return msgspec.json.decode(files.stopped_workers.read_bytes(), type=list[str])
    except FileNotFoundError:
        return []


def stop(files: Layout, host: str) -> None:
    """Let the host's worker be away; done when it is."""
    with _locked(files):
        _write(files, [*stopped_workers(files), host])


def start(files: Layout, host: str) -> None:
    """Let the host's worker come back; done when it is there."""
    with _locked(files):
        _write(files, [name for name in stopped_workers(files) if name != host])


@contextlib.contextmanager
def _locked(files: Layout) -> Iterator[None]:
    with files.stopped_workers.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(files: Layout, hosts: list[str]) -> None:
    durable.replace(files.stopped_workers, msgspec.json.encode(sorted(set(hosts))))
