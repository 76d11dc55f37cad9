"""The model of a move between cells finds what is broken without a rule, and nothing in any pair of faults."""

from __future__ import annotations

import itertools
from typing import Final

import pytest
from support.protocol_cells.explore import explore
from support.protocol_cells.state import RULES, Budget, Copy, State, World, broken

NEEDS: Final = {
    "fences": ("sleeps", "restores"),
    "held claims": ("sleeps",),
    "carries before a removal": ("writes",),
    "removals ask for evacuations": ("evacuations",),
    "starts ask both copies": ("evacuations",),
    "starts wait for late requests": ("evacuations",),
    "deletes in either copy count": ("deletes",),
    "digests are of the copy": ("kills", "writes"),
    "claims compare the copies": ("restores",),
}
"""The faults that it takes to see that a rule is missing."""

FAULTS: Final = ("kills", "sleeps", "failures", "writes", "deletes", "evacuations", "outages", "restores")
WITH: Final = {"evacuations": "deaths", "outages": "gone"}
"""Nova evacuates from hosts that are dead alone, and a cell is declared down while it is away."""


def budget(*faults: str) -> Budget:
    return Budget(**dict.fromkeys([*faults, *(WITH[each] for each in faults if each in WITH)], 1))


@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_something_is_broken(rule: str) -> None:
    _, way, found = explore(World(rules=frozenset(RULES) - {rule}), budget(*NEEDS[rule]))
    assert way, f"the model holds without the rule: {rule}"
    assert found


@pytest.mark.parametrize("pair", list(itertools.combinations(FAULTS, 2)), ids="-".join)
def test_two_faults_break_nothing(pair: tuple[str, str]) -> None:
    count, way, found = explore(World(), budget(*pair))
    assert not way, f"{found}: {'; '.join(way or [])}"
    assert count > 300


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the rules"):
        World().keeps("the moon is full")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State(guests=(True, True, False)), "two guests of one server run"),
        (State(copies=(None, Copy())), "the mapping names a cell without the server"),
        (State(copies=(Copy(hidden=True), None)), "the mapping names a hidden copy"),
        (State(guests=(False, True, False)), "a guest runs in the cell that the mapping does not name"),
        (State(guests=(False, False, True)), "Nova's guest runs and no rows name its host"),
    ],
)
def test_what_is_broken_is_told(state: State, told: str) -> None:
    assert broken(State()) == ""
    assert broken(state) == told


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (State(copies=(Copy(), Copy(hidden=True))), "a copy is left in the other cell"),
        (State(wrote=True), "what a user wrote is lost"),
        (State(deleted=True), "a user's delete is lost"),
        (State(guests=(False, False, False)), "the server is off"),
    ],
)
def test_what_is_broken_at_the_end_is_told(state: State, told: str) -> None:
    ended = State().journal._replace(flow="ended")
    assert broken(State(journal=ended)) == ""
    assert broken(state._replace(journal=ended)) == told
