"""A deleted server leaves nothing connected on a host, also what the services no longer know of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.worker_rig import OTHER_MOVE, PORT, SERVER, VOLUME, Cloud, KillAt, Killed, cloud, effects_of

from droveway.errors import StepError
from droveway.workers.hypervisors.base import Mark, Port, Volume

OTHER = "77777777-2ee8-4b0d-9e2c-6b2d60f6ad07"


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        yield made


def connected(site: Cloud) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    hypervisor = site.hosts["alpha"].hypervisor
    return list(hypervisor.connections()), list(hypervisor.plugged())


def connect(site: Cloud, server: str, volume: str, port: str) -> None:
    hypervisor = site.hosts["alpha"].hypervisor
    connection = site.references.connection_info(VOLUME.attachment)
    hypervisor.connect_volume(server, Volume(volume=volume, device="/dev/vdc", boot=False, connection=connection))
    hypervisor.plug(server, Port(port=port, mac="fa:16:3e:00:00:02"))


def test_what_a_nova_forgot_is_disconnected_with_its_server(site: Cloud) -> None:
    """It was detached in the services while this host was away, so that no step names it."""
    connect(site, SERVER, "vol2", "port2")
    assert connected(site) == (
        [(SERVER, VOLUME.volume), (SERVER, "vol2")],
        [(SERVER, PORT.port), (SERVER, "port2")],
    )
    site.run("alpha", "remove_guest")
    assert connected(site) == ([], [])
    assert site.hosts["alpha"].hypervisor.guest(SERVER) is None
    assert not site.hosts["alpha"].directories.exists(SERVER)


def test_a_neighbours_volumes_and_ports_stay(site: Cloud) -> None:
    connect(site, OTHER, "vol9", "port9")
    probe = KillAt()
    site.run("alpha", "remove_guest", probe=probe)
    assert (probe.names.count("disconnect_volume"), probe.names.count("unplug")) == (1, 1)
    assert connected(site) == ([(OTHER, "vol9")], [(OTHER, "port9")])


@pytest.mark.parametrize("left", ["a volume", "a port", "nothing"])
def test_either_alone_is_found_and_nothing_is_no_work(site: Cloud, left: str) -> None:
    hypervisor = site.hosts["alpha"].hypervisor
    if left != "a volume":
        hypervisor.disconnect_volume(SERVER, VOLUME.volume)
    if left != "a port":
        hypervisor.unplug(SERVER, PORT.port)
    probe = KillAt()
    site.run("alpha", "remove_guest", probe=probe)
    assert connected(site) == ([], [])
    assert ("disconnected" in probe.names) is (left != "nothing")
    assert [name for name in probe.names if name in ("unplug", "disconnect_volume")] == {
        "a volume": ["disconnect_volume"],
        "a port": ["unplug"],
        "nothing": [],
    }[left]


def test_killed_anywhere_it_is_done_when_it_is_run_again(tmp_path: Path) -> None:
    with cloud(tmp_path / "count") as counted:
        counted.make_server()
        number = effects_of(lambda probe: counted.run("alpha", "remove_guest", probe=probe))
    assert number >= 5
    for at in range(number):
        with cloud(tmp_path / str(at)) as site:
            site.make_server()
            with pytest.raises(Killed):
                site.run("alpha", "remove_guest", probe=KillAt(at))
            site.run("alpha", "remove_guest")
            assert connected(site) == ([], [])
            assert not site.hosts["alpha"].directories.exists(SERVER)


def test_nothing_of_a_guest_that_runs_is_disconnected(site: Cloud) -> None:
    site.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
    before = connected(site)
    with pytest.raises(StepError) as caught:
        site.run("alpha", "remove_guest")
    assert caught.value.error_code == "guest-runs"
    assert connected(site) == before


def test_nothing_of_a_guest_of_another_move_that_lives_is_disconnected(site: Cloud) -> None:
    site.set_epoch(9, OTHER_MOVE)
    site.hosts["alpha"].hypervisor.define(
        SERVER,
        site.definition(),
        vcpus=None,
        memory_mb=None,
        disks=[],
        volumes=[],
        ports=[],
        mark=Mark(move=OTHER_MOVE, epoch=9),
    )
    before = connected(site)
    with pytest.raises(StepError) as caught:
        site.run("alpha", "remove_guest")
    assert caught.value.error_code == "foreign"
    assert connected(site) == before
