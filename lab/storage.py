"""Finds out how a server's disks would get from host to host in a lab, by looking at the disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from droveway.wire.values import SWAP
from droveway.workers.directories import Directories

if TYPE_CHECKING:
    from droveway.lab.parts import Parts


def variant(lab: Parts, server: str, source: str, destination: str) -> tuple[str, str, int]:
    """Return how the disks would get to the destination, the reason for that, and the bytes to send.

    The bytes are those that the disks, without swap, have allocated; 0 when no disk goes over the network.
    """
    hypervisor = lab.hypervisor(source)
    directories = Directories(hypervisor.instances)
    formats = directories.formats(server)
    if destination == source:
        return "same-host", f"the server stays on {source}: the copy is made there", 0
    shared = lab.host(source).shared
    if shared is not None and shared == lab.host(destination).shared:
        return "shared", f"{source} and {destination} keep their servers in one directory, {shared}", 0
    copied = [disk for disk in directories.disks(server) if disk != SWAP]
    if not copied:
        return "volume", "the server has no local disks", 0
    paths = [(directories.path(server, disk), formats[disk]) for disk in copied]
    why = f"{source} and {destination} share no directory: {destination} pulls the disks"
    return "copy", why, sum(hypervisor.disk_info(path, disk_format).allocated for path, disk_format in paths)
