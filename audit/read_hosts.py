"""Reading what hosts really hold: their hypervisors' guests, and what lies below their instances directories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from droveway.audit.records import Directory, HostView, Store, Unseen
from droveway.errors import DrovewayError
from droveway.workers.hypervisors.base import Hypervisor, Mark

MARKER: Final = "droveway.json"
"""The file that says which move made a copy; it stays in the directory, through later moves too."""
MANIFEST: Final = "droveway-manifest.json"
"""The file that says which move set a directory aside."""


def look(hypervisors: Mapping[str, Hypervisor]) -> tuple[tuple[HostView, ...], tuple[Unseen, ...]]:
    """What every host's hypervisor holds, and which hosts could not be asked."""
    views, unseen = [], []
    for host, hypervisor in sorted(hypervisors.items()):
        try:
            views.append(
                HostView(
                    host=host,
                    hypervisor=hypervisor.name,
                    guests=tuple(hypervisor.guests()),
                    connections=frozenset(hypervisor.connections()),
                    plugged=frozenset(hypervisor.plugged()),
                )
            )
        except (DrovewayError, OSError) as error:
            # An audit that cannot see a host must say so: a silent gap would read as clean.
            unseen.append(Unseen(host=host, why=str(error)))
    return tuple(views), tuple(unseen)


def stores(hypervisors: Mapping[str, Hypervisor]) -> tuple[tuple[Store, ...], tuple[Unseen, ...]]:
    """What lies below the instances directories; hosts whose directory is the same one share storage."""
    sharing: dict[tuple[int, int], list[str]] = {}
    unseen = []
    for host, hypervisor in sorted(hypervisors.items()):
        try:
            status = hypervisor.instances.stat()
        except FileNotFoundError:
            # A host that never had a server has no directory yet.
            continue
        except OSError as error:
            unseen.append(Unseen(host=host, why=str(error)))
        else:
            sharing.setdefault((status.st_dev, status.st_ino), []).append(host)
    found = []
    for hosts in sharing.values():
        try:
            found.append(_store(tuple(hosts), hypervisors[hosts[0]].instances))
        except OSError as error:
            unseen += [Unseen(host=host, why=str(error)) for host in hosts]
    return tuple(found), tuple(unseen)


def _store(hosts: tuple[str, ...], path: Path) -> Store:
    with os.scandir(path) as listing:
        entries = tuple(_directory(entry) for entry in sorted(listing, key=lambda entry: entry.name))
    return Store(hosts=hosts, path=str(path), entries=entries)


def _directory(entry: os.DirEntry[str]) -> Directory:
    if not entry.is_dir(follow_symlinks=False):
        return Directory(name=entry.name, is_directory=False, files=frozenset(), move="")
    path = Path(entry.path)
    files = frozenset(file.name for file in path.iterdir())
    move = next((_move_named_in(path / name) for name in (MANIFEST, MARKER) if name in files), "")
    return Directory(name=entry.name, is_directory=True, files=files, move=move)


def _move_named_in(path: Path) -> str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark).move
    except (FileNotFoundError, msgspec.DecodeError):
        # Gone since it was listed, or damaged: then nobody is named, and the directory is judged by its name alone.
        return ""
