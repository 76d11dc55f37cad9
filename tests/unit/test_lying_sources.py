"""What a source says of its disks is a stranger's word: it fills no host, and leads to no socket of this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.rigs.transfer_site import Site, set_aside
from support.rigs.worker_rig import MIB

from droveway.errors import DestinationFault, StepError
from droveway.workers.transfer import endpoints
from droveway.workers.transfer.sources import DiskMap, LocalSource


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with set_aside(tmp_path, monkeypatch, tls=True, root_mib=20, ephemeral=False) as site:
        yield site


def lie(monkeypatch: pytest.MonkeyPatch, *extents: tuple[int, int], size: int | None = None) -> None:
    """Let the source tell of these extents, and of this size."""
    honest = LocalSource.disk_map

    def disk_map(source: LocalSource, disk: str) -> DiskMap:
        found = honest(source, disk)
        identity = found.identity if size is None else msgspec.structs.replace(found.identity, size=size)
        return DiskMap(identity=identity, extents=list(extents))

    monkeypatch.setattr(LocalSource, "disk_map", disk_map)


@pytest.mark.parametrize(
    "extents",
    [
        [(0, 2**60)],
        [(2**30, 4096)],
        [(4 * MIB, MIB), (0, MIB)],
        [(0, 2 * MIB), (MIB, 2 * MIB)],
        [(-MIB, MIB)],
        [(0, 0)],
    ],
)
def test_extents_are_in_order_apart_and_within_the_disk(
    site: Site, monkeypatch: pytest.MonkeyPatch, extents: list[tuple[int, int]]
) -> None:
    lie(monkeypatch, *extents)
    with pytest.raises(StepError, match="says wrongly where the data of disk of server") as told:
        site.copy()
    assert told.value.error_code == "protocol"


def test_a_disk_has_the_size_that_was_set_aside(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, (0, 2**60), size=2**61)
    with pytest.raises(StepError, match="were set aside") as told:
        site.copy()
    assert told.value.error_code == "protocol"


def test_more_than_there_is_room_for_is_refused_before_anything_is_fetched(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Room:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr("droveway.workers.transfer.copying.os.fstatvfs", lambda _: Room)
    with pytest.raises(DestinationFault, match="make room") as told:
        site.copy()
    assert told.value.error_code == "disk-full"
    assert site.served == []


def test_with_a_certificate_no_socket_of_this_machine_is_connected_to(site: Site, tmp_path: Path) -> None:
    """The address is the other host's own word."""
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(StepError, match="tcp:HOST:PORT alone") as told:
            endpoints.connect(f"unix:{path}", "alpha", site.cloud.hosts["beta"].identity)
        assert told.value.error_code == "address"
