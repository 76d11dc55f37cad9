"""Starts the libvirt daemons of a lab's hosts, finds them again, and ends them with the lab.

A host's daemon keeps all its files in the host's directory, ``hosts/NAME/libvirt``: its pid, its log, and the
processes that a `droveway lab destroy` has to end.  Its sockets are reached through the lab's short directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from droveway.lab.layout import Identity, Layout
from droveway.lab.libvirt_hosts import LibvirtHost, start_hosts

if TYPE_CHECKING:
    from droveway.lab.boot_guests import BootGuests


def start(files: Layout, identity: Identity) -> None:
    """Start every host's daemon; raises `droveway.errors.Refused` when one cannot run here."""
    if os.geteuid() == 0:
        _let_enter(files)
    start_hosts(list(_hosts(files, identity)))


def stop(files: Layout, identity: Identity) -> int:
    """End every guest and daemon, and return how many guests ran."""
    return sum(host.stop() for host in _hosts(files, identity))


def hypervisor(files: Layout, identity: Identity, name: str) -> BootGuests:
    """Return the host's hypervisor; its daemon is started again if it has died."""
    from droveway.lab.boot_guests import BootGuests

    daemon = host(files, identity, name)
    daemon.start()
    return BootGuests(
        name,
        daemon.root,
        uri=daemon.uri,
        run_dir=daemon.consoles,
        volumes=files.volumes,
        memory_mb=identity.hosts[name].memory_mb,
    )


def host(files: Layout, identity: Identity, name: str) -> LibvirtHost:
    """Return the host's daemon, whether it runs or not."""
    return LibvirtHost(name, files.host(name), Path(identity.sockets))


def _hosts(files: Layout, identity: Identity) -> Iterator[LibvirtHost]:
    return (host(files, identity, name) for name in sorted(identity.hosts))


def _let_enter(files: Layout) -> None:
    """Give the user of the daemons access through the lab's own directories, whatever the umask was."""
    for path in (files.hosts, files.volumes, files.shared, *files.hosts.iterdir(), *files.shared.iterdir()):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)
    for instances in files.hosts.glob("*/instances"):
        instances.chmod(stat.S_IMODE(instances.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)
