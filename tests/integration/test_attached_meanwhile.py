"""Volumes and ports that come and go while their server is moved: what the rows and services name now is acted on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.labs.beside_nova import Nova, Once
from support.labs.operations import Stage, faults_cleared, stage

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
"""
CELLS = CLOUD.replace(", host2: {}}}}", "}}, cell2: {hosts: {host2: {}}}}").replace(
    "\ncells", "\noptions: {cross_cell: true}\ncells"
)
BOTH = pytest.mark.parametrize("built", [CLOUD, CELLS], ids=["one cell", "cells"], indirect=True)
WEB = "{flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}"


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("attached") / "lab", getattr(request, "param", CLOUD)) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 2\n")
        yield made


@pytest.fixture(name="nova")
def fixture_nova(built: Stage) -> Iterator[Nova]:
    """Nova beside a server of the test's own; whatever was done, the books balance afterwards."""
    name = "web"
    built.create_server(name, WEB)
    with faults_cleared(built):
        yield Nova(built, name)
        built.assert_balanced()
        built.cli("lab", "server", "delete", name)


def is_all_on(nova: Nova, host: str) -> None:
    """Whatever the server has is on the host, and nothing of it elsewhere."""
    standing = nova.stage.standing(nova.name)
    assert standing.host == host
    assert standing.runs == [host]
    assert {where for _, where in nova.volumes().values()} <= {host}
    assert sorted(standing.attachments) == [(host, "attached")] * len(nova.volumes())
    assert standing.bindings == [{host: "ACTIVE"}] * len(nova.ports())
    other = {"host1": "host2", "host2": "host1"}[host]
    assert nova.server not in dict(nova.lab.hypervisor(other).connections())
    assert nova.server not in dict(nova.lab.hypervisor(other).plugged())
    connected = {volume for server, volume in nova.lab.hypervisor(host).connections() if server == nova.server}
    plugged = {port for server, port in nova.lab.hypervisor(host).plugged() if server == nova.server}
    assert connected == nova.volumes().keys()
    assert plugged == nova.ports().keys()
    guest = nova.lab.hypervisor(host).guest(nova.server)
    assert guest is not None
    for known in (*nova.volumes(), *nova.ports()):
        assert known in guest.definition


def change(nova: Nova, what: str) -> None:
    """One thing that a user may do while the server waits for verification."""
    if what == "attach":
        nova.attach_volume()
    elif what == "detach":
        nova.detach_volume(*nova.volumes())
    elif what == "swap":
        nova.swap_volume(*nova.volumes())
    elif what == "attach-port":
        nova.attach_port()
    elif what == "delete-port":
        nova.delete_port(*nova.ports())
    else:
        nova.delete_port_alone(*nova.ports())


CHANGES = ("attach", "detach", "swap", "attach-port", "delete-port")


@BOTH
@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_while_verifying_goes_back_with_the_server(nova: Nova, what: str) -> None:
    """R1-41: within a cell and between two."""
    nova.stage.cli("server", "migrate", nova.name)
    change(nova, what)
    nova.stage.cli("server", "revert", nova.name)
    assert nova.stage.move(nova.name).state == "reverted"
    is_all_on(nova, "host1")


@BOTH
@pytest.mark.parametrize("what", CHANGES)
def test_a_revert_that_is_undone_leaves_it_on_the_destination(nova: Nova, what: str) -> None:
    nova.stage.cli("server", "migrate", nova.name)
    change(nova, what)
    nova.stage.arm("start_guest", "fail", fault="destination")
    nova.stage.cli("server", "revert", nova.name, code=3)
    assert nova.stage.move(nova.name).state == "verifying"
    is_all_on(nova, "host2")
    nova.stage.cli("server", "confirm", nova.name)
    is_all_on(nova, "host2")


@pytest.mark.parametrize("step", ["stop_guest", "copy_disks", "move_volumes", "move_ports", "define_guest"])
@pytest.mark.parametrize("what", ["detach", "delete-port"])
def test_what_is_gone_between_two_steps_needs_nothing(nova: Nova, step: str, what: str) -> None:
    with nova.stage.running(Once(step, "execute", "before", lambda: change(nova, what))):
        nova.stage.cli("server", "migrate", nova.name)
        is_all_on(nova, "host2")
        nova.stage.cli("server", "confirm", nova.name)


@pytest.mark.parametrize("step", ["stop_guest", "release_source", "copy_disks", "define_guest", "start_guest"])
@pytest.mark.parametrize("what", ["detach", "delete-port"])
def test_what_is_gone_is_left_gone_by_an_undo(nova: Nova, step: str, what: str) -> None:
    with nova.stage.running(Once("mark_migrating", "execute", "after", lambda: change(nova, what), fails=step)):
        nova.stage.cli("server", "migrate", nova.name, code=3)
    assert nova.stage.move(nova.name).state == "failed"
    is_all_on(nova, "host1")


def test_an_undone_guest_starts_without_a_port_of_which_its_host_was_not_told(nova: Nova) -> None:
    """Its old definition still names the port, which nobody can plug any more."""
    act = Once("mark_migrating", "execute", "after", lambda: change(nova, "delete-port-alone"), fails="copy_disks")
    with nova.stage.running(act):
        nova.stage.cli("server", "migrate", nova.name, code=3)
    is_all_on(nova, "host1")


@pytest.mark.parametrize("step", ["reserve_ports", "stop_guest", "move_volumes", "restore_disks"])
@pytest.mark.parametrize("what", ["detach", "delete-port"])
def test_what_is_gone_in_a_revert_needs_nothing(nova: Nova, step: str, what: str) -> None:
    nova.stage.cli("server", "migrate", nova.name)
    with nova.stage.running(Once(step, "execute", "before", lambda: change(nova, what))):
        nova.stage.cli("server", "revert", nova.name)
    is_all_on(nova, "host1")


@pytest.mark.parametrize("what", ["detach", "delete-port"])
def test_a_revert_is_undone_with_what_is_left(nova: Nova, what: str) -> None:
    nova.stage.cli("server", "migrate", nova.name)
    act = Once("move_volumes", "execute", "before", lambda: change(nova, what), fails="switch_records")
    with nova.stage.running(act):
        nova.stage.cli("server", "revert", nova.name, code=3)
    is_all_on(nova, "host2")
    nova.stage.cli("server", "revert", nova.name)


def test_a_volume_that_comes_after_the_reservation_goes_along(nova: Nova) -> None:
    """Nova's attach that was accepted before the move, and lands in it."""
    with nova.stage.running(Once("mark_migrating", "execute", "before", lambda: change(nova, "attach"))):
        nova.stage.cli("server", "migrate", nova.name)
        is_all_on(nova, "host2")
        nova.stage.cli("server", "revert", nova.name)
    is_all_on(nova, "host1")
    act = Once("mark_migrating", "execute", "before", lambda: change(nova, "attach-port"), fails="define_guest")
    with nova.stage.running(act):
        nova.stage.cli("server", "migrate", nova.name, code=3)
    is_all_on(nova, "host1")


def test_a_binding_that_is_the_only_one_is_not_deleted_by_an_undo(nova: Nova) -> None:
    """The journal forgot that the ports were moved: the undo of the reservation gives the source its own back first."""

    def move_ports() -> None:
        network = nova.lab.cloud.network
        for port in nova.ports():
            network.activate(port, "host2", device_owner="compute:nova")
            network.delete_binding(port, "host1")

    with nova.stage.running(Once("mark_migrating", "execute", "before", move_ports, fails="stop_guest")):
        nova.stage.cli("server", "migrate", nova.name, code=3)
    assert list(nova.ports().values()) == [{"host1": "ACTIVE"}]
