"""Visits every state of the model, and finds the shortest way to one that is broken or that comes to no end."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from support.protocol.explore import search
from support.protocol_cells.conductors import conductor
from support.protocol_cells.outside import collector, machines, nova, person, restore, sleeper, user
from support.protocol_cells.state import Budget, State, World, broken

if TYPE_CHECKING:
    from collections.abc import Iterator


def explore(world: World, budget: Budget, limit: int = 3_000_000) -> tuple[int, list[str] | None, str]:
    """Visit every state; returns how many there are, the shortest way to a broken rule, and the rule.

    Raises RuntimeError when there are more than ``limit`` states.
    """
    return search(State(left=budget), lambda state: actions(world, state), broken, limit)


def actions(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Whatever may happen next, with its name and the state that it leads to."""
    return itertools.chain(
        conductor(world, state),
        sleeper(world, state),
        user(state),
        nova(state),
        machines(state),
        person(world, state),
        collector(world, state),
        restore(state),
    )
