"""Reads what hosts really have: the guests of their hypervisors and the files below their instances directories.

``held`` is a list of records of `droveway.wire.queries`, by which a host reports all that it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from droveway.audit.records import CommandView, Directory, DiskDigest, HostsSeen, HostView, Store, Unseen
from droveway.errors import DrovewayError
from droveway.wire import queries
from droveway.workers import host_contents
from droveway.workers.digests import Digests
from droveway.workers.hypervisors.base import Hypervisor

_DIGESTS: Final = Digests()


def read(hypervisors: Mapping[str, Hypervisor]) -> HostsSeen:
    """Read all hosts of a lab, which are on this machine, and note those that could not be read."""
    views, unseen = [], []
    for host, hypervisor in sorted(hypervisors.items()):
        try:
            views.append(view(host, host_contents.guests(hypervisor)))
        except (DrovewayError, OSError) as error:
            # The host is reported as unseen. Otherwise the audit would look clean.
            unseen.append(Unseen(host=host, why=str(error)))
    stores, unread = _stores(hypervisors)
    disks: list[DiskDigest] = []
    for store in stores:
        host = store.hosts[0]
        try:
            disks += digests(host, _DIGESTS.of(hypervisors[host].instances))
        except OSError as error:
            unseen.append(Unseen(host=host, why=str(error)))
    return HostsSeen(hosts=tuple(views), stores=stores, unseen=(*unseen, *unread), digests=tuple(disks))


def answered(
    answers: Mapping[str, Sequence[queries.Held]],
    unseen: Mapping[str, str],
    nodes: Iterable[tuple[str, str, str]] = (),
) -> HostsSeen:
    """Return what the hosts' workers answered; ``unseen`` says why the other hosts could not be read.

    Hosts whose directories have the same id share storage. ``nodes`` has the host, the folder and the name of each
    node in ZooKeeper that is meant for a worker.
    """
    views: list[HostView] = []
    sharing: dict[str, dict[str, tuple[Directory, ...]]] = {}
    paths: dict[str, str] = {}
    gaps = dict(unseen)
    for host, answer in sorted(answers.items()):
        held = list(answer)
        stores = [each for each in held if isinstance(each, queries.StoreRef)]
        if len(stores) != 1:
            gaps[host] = f"its worker told of {len(stores)} instances directories"
            continue
        views.append(view(host, held))
        sharing.setdefault(stores[0].id, {})[host] = directories(held)
        paths.setdefault(stores[0].id, stores[0].path)
    return HostsSeen(
        hosts=tuple(views),
        stores=tuple(
            Store(hosts=tuple(own), path=paths[name], entries=_merged(itertools.chain(*own.values())), own=own)
            for name, own in sharing.items()
        ),
        unseen=tuple(Unseen(host=host, why=why) for host, why in sorted(gaps.items())),
        digests=tuple(disk for host, answer in sorted(answers.items()) for disk in digests(host, answer)),
        commands=tuple(CommandView(host=host, folder=folder, key=key) for host, folder, key in nodes),
    )


def digests(host: str, held: Iterable[queries.Held]) -> list[DiskDigest]:
    """Return the digests of disks that the host reported."""
    return [
        DiskDigest(host=host, name=each.name, disk=each.disk, digest=each.digest, read=each.read, size=each.size)
        for each in held
        if isinstance(each, queries.Digest)
    ]


def view(host: str, held: Iterable[queries.Held]) -> HostView:
    """Return the guests, connections and interfaces that the host reported."""
    found = list(held)
    return HostView(
        host=host,
        guests=tuple(each for each in found if isinstance(each, queries.Guest)),
        connections=frozenset((each.server, each.volume) for each in found if isinstance(each, queries.Connection)),
        plugged=frozenset((each.server, each.port) for each in found if isinstance(each, queries.Interface)),
    )


def directories(held: Iterable[queries.Held]) -> tuple[Directory, ...]:
    """Return the entries of the instances directory that the host reported, sorted by name."""
    entries = (each for each in held if isinstance(each, queries.Entry))
    return _merged(
        Directory(name=each.name, is_directory=each.directory, files=frozenset(each.files), move=each.move)
        for each in entries
    )


def _merged(entries: Iterable[Directory]) -> tuple[Directory, ...]:
    """Return each entry once, with all that was seen of it.

    Hosts read a shared directory at different moments, so that one may see files which another does not.
    """
    found: dict[str, Directory] = {}
    for entry in entries:
        found[entry.name] = _both(found[entry.name], entry) if entry.name in found else entry
    return tuple(found[name] for name in sorted(found))


def _both(one: Directory, other: Directory) -> Directory:
    return Directory(
        name=one.name,
        is_directory=one.is_directory or other.is_directory,
        files=one.files | other.files,
        move=one.move or other.move,
    )


def _stores(hypervisors: Mapping[str, Hypervisor]) -> tuple[tuple[Store, ...], tuple[Unseen, ...]]:
    """Read the instances directories; hosts that have the same one share storage."""
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
    return Store(hosts=hosts, path=str(path), entries=directories(host_contents.entries(path)))
