"""The model of the protocol finds a broken rule when a mend is taken out, and none in the pairs of faults with all."""

from __future__ import annotations

from typing import Final

import pytest
from support.protocol.explore import explore
from support.protocol.state import MENDS, Budget, World, broken, first

NONE: Final = Budget(restores=0, sleeps=0, deaths=0, nova=0)
FAULTS: Final = {
    "e1A": (False, NONE._replace(restores=1, deaths=1)),
    "e1B": (False, NONE._replace(restores=1, deaths=1)),
    "e1C": (False, NONE._replace(deaths=1)),
    "e23": (False, NONE._replace(deaths=1, lost_notes=1, failures=1)),
    "e24": (False, NONE._replace(deaths=1, nova=1)),
    "e24b": (False, NONE._replace(deaths=1, nova=1)),
    "e31": (True, NONE._replace(sleeps=1)),
    "e40": (False, NONE),
    "e41": (True, NONE._replace(sleeps=1)),
    "e63": (False, NONE._replace(deaths=1, nova=1)),
    "permission": (False, NONE._replace(sleeps=1, deaths=1, nova=1)),
    "overtaken": (False, NONE._replace(restores=1, deaths=1)),
}
"""Whether storage is shared, and which faults it takes to see that a mend is missing."""


@pytest.mark.parametrize("mend", MENDS)
def test_without_a_mend_a_rule_is_broken(mend: str) -> None:
    shared, budget = FAULTS[mend]
    world = World(mends=frozenset(MENDS) - {mend}, shared=shared, twin=mend == "e40")
    _, way, rule = explore(world, budget)
    assert way, f"the model holds without the mend of {mend}"
    assert rule


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("pair", [("sleeps", "nova"), ("deaths", "nova")], ids="-".join)
def test_two_faults_break_no_rule(pair: tuple[str, str], *, shared: bool) -> None:
    count, way, rule = explore(World(shared=shared, twin=True), NONE._replace(**dict.fromkeys(pair, 1)))
    assert not way, f"{rule}: {'; '.join(way or [])}"
    assert count > 1000


def test_each_rule_is_seen_to_be_broken() -> None:
    state = first()
    assert broken(state) is None
    assert broken(state._replace(guests=(True, True, False, False))) == "two guests of one server run"
    nothing = (None, None, None)
    assert broken(state._replace(stores=(nothing, nothing))) == "no whole directory holds what the guest wrote last"
    own, *_ = state.stores[0]
    assert broken(state._replace(stores=((None, own, None), nothing))) == "a guest runs without its disks"
