"""What has to hold of a server that may be shelved, whose root disk lies in an image then; beside all of `world`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from support.two_faults import world
from support.two_faults.world import Row

OFFLOADED: Final = {
    "vm_state": "shelved_offloaded",
    "task_state": None,
    "power_state": 4,
    "host": None,
    "node": None,
    "compute_id": None,
    "launched_on": None,
    "availability_zone": None,
}
"""What the row of a server says that is on no host: by hand, from what Nova's shelve offload writes."""

ROOT: Final = "disk"
"""The only disk that a shelve keeps."""
_KEPT: Final = "shelved_image_id"
_KEYS: Final = frozenset({"shelved_at", "shelved_host", _KEPT})
_NO_HOST: Final = "no host"


class Watch(world.Watch):
    """As `world.Watch`; an image that holds a root disk whole counts as a copy of it, and shelved is a rest."""

    def bytes_of(self, server: str) -> Iterator[tuple[str, str]]:
        """Name and content of each disk, of a server that is on no host as its image has it."""
        if world.the_row(self.root, server)["host"] is not None:
            yield from super().bytes_of(server)
            return
        for image in snapshots(self.root, server):
            yield ROOT, world.content(path_of(self.root, image))

    def stands(self, server: str, found: Iterable[Path], name: str, known: str) -> bool:
        """Whether the disk stands whole, in one of the directories or in an image."""
        if super().stands(server, found, name, known):
            return True
        return name == ROOT and any(
            world.content(path_of(self.root, image)) == known for image in snapshots(self.root, server)
        )

    def left_of_deleted(self, server: str, dead: Collection[str]) -> Iterator[str]:
        """The same, with its images."""
        yield from super().left_of_deleted(server, dead)
        if left := [image["name"] for image in snapshots(self.root, server, active=False)]:
            yield f"of the deleted server {self.servers[server]} the images {', '.join(left)} are left"

    def disagreeing(self, server: str, verifying: bool, dead: Collection[str]) -> Iterator[str]:
        """Where the rows of a server that rests do not agree with services and hosts, nor with its images."""
        name, row = self.servers[server], world.the_row(self.root, server)
        if row["vm_state"] == OFFLOADED["vm_state"] or row["host"] is None:
            yield from self._offloaded(server, name, row, dead)
            return
        yield from super().disagreeing(server, verifying, dead)
        # That of a server whose host is dead is kept: nobody has seen its disks there.
        if row["host"] not in dead and (left := [image["name"] for image in snapshots(self.root, server)]):
            yield f"{name} is on {row['host']}, and of it the images {', '.join(left)} are left"
        if told := sorted(_KEYS & self._metadata(server).keys()):
            yield f"{name} is on {row['host']}, and its rows have {', '.join(told)}"

    def _offloaded(self, server: str, name: str, row: Row, dead: Collection[str]) -> Iterator[str]:
        if wrong := {column: row[column] for column, value in OFFLOADED.items() if row[column] != value}:
            yield f"{name} is on no host, and its row says {wrong}"
        if alive := [each for each in self.migrations(server).values() if each["status"] not in world.OVER]:
            yield f"{name} is on no host and has migrations that are not over: {alive}"
        if runs := world.running_on(self.root, server):
            yield f"{name} is on no host and its guest runs on {', '.join(runs)}"
        yield from self.copies(server, name, verifying=False)
        yield from self._unbound(server, name)
        for consumer in (server, *self.migrations(server)):
            if held := world.allocations(self.root, consumer):
                yield f"{name} is on no host and holds {held}"
        if any(extra["migration_context"] is not None for extra in world.own_rows(self.root, "instance_extra", server)):
            yield f"{name} has a migration context, and no migration"
        yield from self.usage()
        yield from self.hosts(server, name, _NO_HOST, [], verifying=False, dead=dead)
        yield from self._images(server, name)

    def _unbound(self, server: str, name: str) -> Iterator[str]:
        services = self.root / "services.sqlite"
        ports = {row["id"] for row in world.rows(services, "ports") if row["server"] == server}
        # Neutron has a row without a host for a port that is not bound.
        bound = [row for row in world.rows(services, "port_bindings") if row["port"] in ports and row["host"]]
        if bound:
            yield f"{name} is on no host and its ports are bound: {bound}"
        volumes = sorted(
            (row["volume_id"], row["attachment_id"])
            for row in world.own_rows(self.root, "block_device_mapping", server)
            if not row["deleted"] and row["volume_id"]
        )
        found = [row for row in world.rows(services, "attachments") if row["server"] == server]
        if sorted((row["volume"], row["id"]) for row in found) != volumes:
            yield f"{name} has the volumes {volumes}, and the attachments are {found}"
        if taken := [row for row in found if row["status"] != "reserved" or json.loads(row["connector"] or "null")]:
            yield f"{name} is on no host and its volumes are not only reserved: {taken}"

    def _images(self, server: str, name: str) -> Iterator[str]:
        """One image holds the root disk, and the rows name it; of a server on a volume there is none."""
        found, known = snapshots(self.root, server, active=False), self.disks[server].get(ROOT)
        told = self._metadata(server)
        if known is None:
            if found or _KEYS & told.keys():
                yield f"{name} is on a volume, and has the images {found} and {told}"
            return
        if [image["id"] for image in found] != [told.get(_KEPT)] or not told.keys() >= _KEYS:
            yield f"{name} is shelved, its images are {found} and its rows have {told}"
        for image in found:
            if image["status"] != "active" or world.content(path_of(self.root, image)) != known:
                yield f"the image of {name} does not hold its root disk: {image}"

    def _metadata(self, server: str) -> dict[str, str]:
        """What the system metadata say of the shelving."""
        found = world.own_rows(self.root, "instance_system_metadata", server)
        return {row["key"]: row["value"] for row in found if row["key"] in _KEYS and not row["deleted"]}


def is_offloaded(root: Path, server: str) -> bool:
    """Whether the server is shelved and on no host."""
    return bool(world.the_row(root, server)["vm_state"] == OFFLOADED["vm_state"])


def next_move(root: Path, server: str) -> str:
    """Name what may follow: an unshelve of a server that is on no host, else a cold migrate."""
    return "unshelve" if is_offloaded(root, server) else "migrate"


def snapshots(root: Path, server: str, *, active: bool = True) -> list[Row]:
    """The images that a shelve of the server made; ``active``: only those that have all their bytes."""
    found = []
    for row in world.rows(root / "services.sqlite", "images"):
        properties = json.loads(row["properties"])
        mine = properties.get("instance_uuid") == server and properties.get("image_type") == "snapshot"
        if mine and (row["status"] == "active" or not active):
            found.append(row)
    return found


def path_of(root: Path, image: Row) -> Path:
    """Where the image's bytes lie."""
    return root / "images" / str(image["id"])
