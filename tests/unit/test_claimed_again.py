"""A confirm gives the server its claim again where Placement was put back from a copy of before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.rows.moving_rows import MOVE, SERVER, Moving

from droveway.clients.placement import Allocations
from droveway.flows.steps.allocations import ReleaseSourceAllocation

OLD = {"on host1": {"VCPU": 1}}
NEW = {"on host2": {"VCPU": 2}}
MORE = {"on host2": {"VCPU": 3}}


class Books:
    """Two consumers and what they hold."""

    def __init__(self, **held: dict[str, dict[str, int]]) -> None:
        self.held = {SERVER: held["server"], MOVE: held["migration"]}

    def allocations(self, consumer: str) -> Allocations:
        return Allocations(allocations=self.held[consumer], generation=1, project_id="p", user_id="u", consumer_type="")

    def claim_move(self, *, source: Allocations, destination: dict[str, Any], **_others: Any) -> None:
        wanted = {name: each["resources"] for name, each in destination["allocations"].items()}
        self.held = {SERVER: wanted, MOVE: source.allocations}

    def release(self, consumer: str) -> None:
        self.held[consumer] = {}


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Any]:
    made: Any = Moving(tmp_path, "confirm")
    assert made.chosen is not None
    made.chosen.provider = "on host2"
    made.chosen.request = {"allocations": {"on host2": {"resources": {"VCPU": 2}}}}
    made.intent = lambda _service, _call: contextlib.nullcontext()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("server", "migration", "left"),
    [
        (NEW, OLD, NEW),
        (NEW, {}, NEW),
        (OLD, {}, NEW),
        (MORE, {}, MORE),
        ({}, {}, {}),
    ],
    ids=["as claimed", "released before", "put back", "changed by somebody", "deleted"],
)
def test_a_confirm_releases_the_source_and_leaves_the_server_its_claim(
    moving: Any, server: dict[str, dict[str, int]], migration: dict[str, dict[str, int]], left: dict[str, Any]
) -> None:
    moving.cloud.placement = Books(server=server, migration=migration)
    step: Any = ReleaseSourceAllocation(SimpleNamespace())  # type: ignore[arg-type]
    step.perform(moving.context("release_source_allocation"))
    assert moving.cloud.placement.held == {SERVER: left, MOVE: {}}
