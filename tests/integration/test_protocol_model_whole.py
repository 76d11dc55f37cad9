"""The models of the protocol are explored whole, within a cell and between two, with several faults at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.protocol.explore import explore
from support.protocol.state import World
from support.protocol_cells import explore as between
from support.protocol_cells.state import Budget
from support.protocol_cells.state import World as Between


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_all_interleavings_hold(record_property: Callable[[str, object], None], *, shared: bool) -> None:
    count, way, rule = explore(World(shared=shared, twin=True))
    assert not way, f"{rule}: {'; '.join(way or [])}"
    assert count > 500_000
    storage = "shared" if shared else "separate"
    record_property("figure", f"protocol model: {count} states with {storage} storage, no rule is broken")


BETWEEN = {
    "what users do": Budget(kills=1, failures=1, writes=1, deletes=1),
    "who slept": Budget(kills=1, sleeps=1, failures=1, writes=1),
    "a cell that is gone": Budget(kills=1, outages=1, gone=1, writes=1, failures=1),
    "a journal put back": Budget(kills=1, failures=1, restores=1, outages=1, gone=1),
    "an evacuation": Budget(kills=1, sleeps=1, failures=1, deaths=1, evacuations=1),
}
"""Faults that happen to one move between cells, its confirm or its revert."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("faults", BETWEEN)
def test_all_interleavings_between_cells_hold(record_property: Callable[[str, object], None], faults: str) -> None:
    count, way, rule = between.explore(Between(), BETWEEN[faults])
    assert not way, f"{rule}: {'; '.join(way or [])}"
    assert count > 10_000
    record_property("figure", f"protocol model between cells, {faults}: {count} states, no rule is broken")
