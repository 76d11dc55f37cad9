"""QoS policies that change in the middle of moves, over the embedded Neutron."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from policy_changes import CASES, PLACES, POLICIES, Life, Meddler, World, cloud_of
from support.labs.operations import Stage, stage

from droveway.clients.placement import Placement


class Embedded:
    """The embedded services, read from their tables."""

    def __init__(self, lab: Stage) -> None:
        self.lab = lab
        (self.port,) = [row[0] for row in self._rows("services.sqlite", "SELECT port FROM port_policies")]

    def set_policies(self, server: str, policy: str) -> list[int]:
        """Give the port that has a policy this one, or none."""
        network, root = self.lab.lab.cloud.network, self.lab.lab.cloud.network_root
        found = None if policy == "none" else network.named("/qos/policies", policy)
        body = {"port": {"qos_policy_id": found}}
        return [root.request(f"/ports/{self.port}", "PUT", json=body).status_code]

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Provider's name → class → amount, from Placement's tables."""
        found: dict[str, dict[str, int]] = {}
        for name, resource, used in self._rows(
            "placement.sqlite",
            "SELECT resource_providers.name, resource_classes.name, used FROM allocations"
            " JOIN resource_providers ON resource_providers.id = resource_provider_id"
            " JOIN resource_classes ON resource_classes.id = resource_class_id WHERE consumer_id = ?",
            consumer,
        ):
            if resource.startswith("NET_"):
                found.setdefault(name, {})[resource] = used
        return found

    def bindings(self, server: str) -> list[tuple[str, str, dict[str, str]]]:
        """Host, status and group → provider's name of each binding of the port."""
        names = dict(self._rows("placement.sqlite", "SELECT uuid, name FROM resource_providers"))
        query = "SELECT host, status, profile FROM port_bindings WHERE port = ?"
        return [
            (host, status, {group: names[each] for group, each in (json.loads(told).get("allocation") or {}).items()})
            for host, status, told in self._rows("services.sqlite", query, self.port)
        ]

    def asked(self, server: str) -> set[str]:
        """The groups that the port asks for, as Neutron tells."""
        told = self.lab.lab.cloud.network_root.request(f"/ports/{self.port}", "GET").json()["port"]["resource_request"]
        return {group["id"] for group in (told or {}).get("request_groups", ())}

    def _rows(self, database: str, query: str, *values: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.lab.lab.layout.root / database)) as connection:
            return connection.execute(query, values).fetchall()


@pytest.fixture(scope="module", name="worlds")
def fixture_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, World]]:
    """A lab in each place, which runs."""
    with contextlib.ExitStack() as stack:
        worlds = {}
        for place in PLACES:
            root = tmp_path_factory.mktemp(place.replace(" ", "-")) / "lab"
            lab = stack.enter_context(stage(root, cloud_of(place)))
            meddler = Meddler(lab, Embedded(lab))
            stack.enter_context(lab.running(meddler))
            worlds[place] = World(lab, meddler.neutron, meddler)
        yield worlds


@pytest.mark.parametrize(("life", "step", "direction"), CASES, ids=str)
def test_a_move_ends_though_a_policy_was_changed(
    worlds: dict[str, World], life: Life, step: str, direction: str
) -> None:
    worlds[life.place].run(life, step, direction)


@pytest.mark.parametrize(
    ("life", "verb", "step"),
    [
        (Life("hosts", "migrate", "confirm"), "claim_move", "claim"),
        (Life("one host", "revert", "revert"), "return_move", "return_allocation"),
    ],
    ids=["claim", "return"],
)
def test_who_writes_between_a_look_and_a_write_is_looked_at_again(
    worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch, life: Life, verb: str, step: str
) -> None:
    """Neutron changes what the server holds right before Placement is asked to move it; the step goes on."""
    world = worlds[life.place]
    write, answers = getattr(Placement, verb), []

    def meddled(*parts: Any, **named: Any) -> None:
        if not answers:
            answers.extend(world.neutron.set_policies(world.lab.id_of("web"), "more"))
        write(*parts, **named)

    home = world.begin(life)
    monkeypatch.setattr(Placement, verb, meddled)
    if life.flow == "revert":
        world.lab.cli("server", "revert", "web")
    else:
        world.ask(life, home)
        assert world.neutron.held(world.lab.move("web").id) == _on(home, POLICIES["more"])
        world.lab.cli("server", "confirm", "web")
    assert answers == [HTTPStatus.OK]
    ran = [row for row in world.lab.history(world.lab.move("web").id) if row.step == step]
    assert [row.error for row in ran] == [None]
    assert world.neutron.held(world.lab.id_of("web")) == _on(str(world.lab.server("web").host), POLICIES["gold"])
    world.restore(life)


def _on(host: str, guaranteed: tuple[dict[str, int], dict[str, int]]) -> dict[str, dict[str, int]]:
    bandwidth, packets = guaranteed
    return {f"{host}:Open vSwitch agent:br-a": bandwidth, f"{host}:Open vSwitch agent": packets}
