"""Connects volumes and plugs ports on a host without os-brick and os-vif: each is recorded in a file of its own.

Volumes are local files.  A port is a record only, because neither the sandbox nor an unprivileged libvirt has a
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from droveway.errors import DestinationFault
from droveway.workers.hypervisors import durable
from droveway.workers.hypervisors.base import Hypervisor, Port, Volume


class LocalVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that is a local file; of its connection info, only what is no secret.

    ``path`` is relative to the directory of all volumes when that is given, so that a lab may be moved.
    """

    volume: str
    device: str
    boot: bool
    path: str


class AttachingHypervisor(Hypervisor):
    """The part of a hypervisor that connects volumes and plugs ports, for all hypervisors that use local files."""

    volumes_root: Path | None = None
    """The directory in which all volumes must lie; None when they may lie anywhere."""

    def local_volume(self, volume: Volume) -> LocalVolume:
        """Return the volume as a file; raises DestinationFault when it is no local file below `volumes_root`."""
        kind, data = volume.connection.get("driver_volume_type"), volume.connection.get("data", {})
        if kind != "local" or not data.get("path"):
            raise self.fault(f"volume {volume.volume} is exported as {kind}: this host can only use local files")
        path = Path(data["path"]).resolve()
        if self.volumes_root is not None and not path.is_relative_to(self.volumes_root.resolve()):
            raise self.fault(f"volume {volume.volume} lies at {path}: volumes must lie beneath {self.volumes_root}")
        if self.volumes_root is not None:
            path = path.relative_to(self.volumes_root.resolve())
        return LocalVolume(volume=volume.volume, device=volume.device, boot=volume.boot, path=str(path))

    def volume_file(self, local: LocalVolume) -> Path:
        """Return the path of the volume's file."""
        return (self.volumes_root or Path("/")).resolve() / local.path

    def fault(self, message: str) -> DestinationFault:
        """Return an error of this host, after which the next alternate may be tried."""
        return DestinationFault(message, host=self.host)

    def connector(self) -> dict[str, Any]:
        """Return what Cinder has to know about this host to export a volume to it."""
        return {"host": self.host, "ip": "127.0.0.1", "initiator": f"iqn.2026-01.test.droveway:{self.host}"}

    def connect_volume(self, server: str, volume: Volume) -> None:
        """Record that the volume is connected here; raises DestinationFault when its file is not there."""
        local = self.local_volume(volume)
        if not self.volume_file(local).is_file():
            raise self.fault(f"volume {volume.volume} cannot be connected: {self.volume_file(local)} is not there")
        self._put("connections", server, volume.volume, local)

    def disconnect_volume(self, server: str, volume: str) -> None:
        """Delete the record of the volume; does nothing when it is not connected."""
        self._drop("connections", server, volume)

    def connections(self) -> Iterator[tuple[str, str]]:
        """Yield (server, volume) for every volume that is connected on this host."""
        return self._kept("connections")

    def plug(self, server: str, port: Port) -> None:
        """Record that the port is plugged."""
        self._put("vifs", server, port.port, port)

    def unplug(self, server: str, port: str) -> None:
        """Delete the record of the port; does nothing when it is not plugged."""
        self._drop("vifs", server, port)

    def plugged(self) -> Iterator[tuple[str, str]]:
        """Yield (server, port) for every port that is plugged on this host."""
        return self._kept("vifs")

    def require_attached(self, server: str, volumes: Sequence[str], ports: Sequence[str]) -> None:
        """Raise DestinationFault when a volume or a port of the guest is not connected or plugged on this host."""
        for folder, wanted, missing in (("connections", volumes, "not connected"), ("vifs", ports, "not plugged")):
            kept = {name for owner, name in self._kept(folder) if owner == server}
            lacking = sorted(set(wanted) - kept)
            if lacking:
                raise self.fault(f"the guest of server {server} cannot start: {', '.join(lacking)} {missing} here")

    def _put(self, folder: str, server: str, name: str, record: msgspec.Struct) -> None:
        path, data = self._file(folder, server, name), msgspec.json.encode(record)
        if durable.read(path) != data:
            durable.write(path, data)

    def _drop(self, folder: str, server: str, name: str) -> None:
        durable.remove(self._file(folder, server, name))

    def _file(self, folder: str, server: str, name: str) -> Path:
        return self.root / folder / quote(server, safe="") / f"{quote(name, safe='')}.json"

    def _kept(self, folder: str) -> Iterator[tuple[str, str]]:
        for path in sorted((self.root / folder).glob("*/*.json")):
            if not path.name.startswith("."):
                yield unquote(path.parent.name), unquote(path.stem)
