"""Ports and volumes that come and go once more, with ports that are each guaranteed bandwidth and packets (R4-02).

A port that comes in mid-move takes part in no claim of the move: what that leaves is found, and put right in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from integration.test_attached_meanwhile import *  # noqa: F403 - each test of it, whatever comes there
from support.labs.beside_nova import Nova, Once
from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS, holding, named

pytestmark = pytest.mark.usefixtures("guaranteed_ports")


def test_each_port_is_guaranteed_something(nova: Nova) -> None:
    """So that the tests above are about such ports."""
    (port,) = nova.lab.cloud.network.listed_ports(nova.server)
    assert port.resources is not None


def assert_both_are_held(nova: Nova, host: str) -> None:
    """The server is on the host and holds what two such ports ask for there; their bindings name who gives it."""
    bridge, agent = f"{host}:{AGENT}:br-g", f"{host}:{AGENT}"
    assert nova.host == host
    assert holding(nova.stage, nova.server)[0] == {bridge: {EGRESS: 2000, INGRESS: 3000}, agent: {PACKETS: 20}}
    bindings = named(nova.stage, nova.server).values()
    assert [{where: sorted(dict(givers).values()) for where, givers in each.items()} for each in bindings] == [
        {host: [agent, bridge]}
    ] * 2
    nova.stage.assert_balanced()


def reverted(nova: Nova) -> str:
    """A revert that goes well."""
    nova.stage.cli("server", "migrate", nova.name)
    port = nova.attach_guaranteed_port()
    nova.stage.cli("server", "revert", nova.name)
    return port


def revert_undone(nova: Nova) -> str:
    """A revert that is undone, and the confirm after it."""
    nova.stage.cli("server", "migrate", nova.name)
    port = nova.attach_guaranteed_port()
    nova.stage.arm("start_guest", "fail", fault="destination")
    nova.stage.cli("server", "revert", nova.name, code=3)
    nova.stage.cli("server", "confirm", nova.name)
    return port


def moved(nova: Nova) -> str:
    """A move in which the port lands, and its confirm."""
    port = landing(nova)
    nova.stage.cli("server", "confirm", nova.name)
    return port


def move_undone(nova: Nova) -> str:
    """A move in which the port lands, and which is undone."""
    return landing(nova, fails="define_guest", code=3)


def landing(nova: Nova, *, fails: str = "", code: int = 0) -> str:
    """Let a port come in the middle of a migrate."""
    ports: list[str] = []

    def attach() -> None:
        ports.append(nova.attach_guaranteed_port())

    with nova.stage.running(Once("mark_migrating", "execute", "before", attach, fails=fails)):
        nova.stage.cli("server", "migrate", nova.name, code=code)
    return ports[0]


WAYS: dict[str, tuple[Callable[[Nova], str], str]] = {
    "reverted": (reverted, "host1"),
    "revert-undone": (revert_undone, "host2"),
    "moved": (moved, "host2"),
    "move-undone": (move_undone, "host1"),
}
"""Name → what is done, which returns the port that came, and where the server is then."""


@BOTH  # noqa: F405 - of the tests above
@pytest.mark.parametrize("way", WAYS)
def test_a_guaranteed_port_that_comes_in_mid_move_is_found_and_put_right(nova: Nova, way: str) -> None:
    """Its binding names nobody until then, and never who gives something on another host."""
    act, host = WAYS[way]
    port = act(nova)
    assert named(nova.stage, nova.server)[port] == {host: ""}
    found = json.loads(nova.stage.cli("audit", "-f", "json", code=3))
    assert {(row["kind"], row["host"]) for row in found} == {("binding", host)}
    assert all(port in row["detail"] for row in found)
    nova.stage.cli("audit", "--heal", "--yes")
    assert_both_are_held(nova, host)


def test_a_guaranteed_port_that_came_while_verifying_stays_with_a_confirm(nova: Nova) -> None:
    nova.stage.cli("server", "migrate", nova.name)
    nova.attach_guaranteed_port()
    nova.stage.cli("server", "confirm", nova.name)
    assert_both_are_held(nova, "host2")
