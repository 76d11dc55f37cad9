"""Visits every state of the model and finds the shortest way to one that breaks a rule."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from support.protocol.conductors import conductor
from support.protocol.outside import machine, nova, person, restore
from support.protocol.state import A, B, Budget, State, World, broken, first
from support.protocol.workers import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

_S = TypeVar("_S", bound="Hashable")


def explore(world: World, budget: Budget | None = None, limit: int = 5_000_000) -> tuple[int, list[str] | None, str]:
    """Visit every state; returns how many there are, the shortest way to a broken rule, and the rule.

    Raises RuntimeError when there are more than ``limit`` states.
    """
    start = first(budget, shared=world.shared)
    return search(start, lambda state: actions(world, state), lambda state: broken(state) or "", limit)


def search(
    start: _S, actions: Callable[[_S], Iterable[tuple[str, _S]]], broken: Callable[[_S], str], limit: int
) -> tuple[int, list[str] | None, str]:
    """Visit every state that the actions lead to, nearest first, until one is broken.

    Returns as `explore` does, and raises as that.
    """
    came: dict[_S, tuple[_S, str] | None] = {start: None}
    ahead = deque([start])
    while ahead:
        state = ahead.popleft()
        rule = broken(state)
        if rule:
            return len(came), _way(came, state), rule
        for name, after in actions(state):
            if after not in came:
                came[after] = (state, name)
                ahead.append(after)
        if len(came) > limit:
            raise RuntimeError(f"there are more than {limit} states")
    return len(came), None, ""


def _way(came: dict[_S, tuple[_S, str] | None], state: _S) -> list[str]:
    names: list[str] = []
    at = came[state]
    while at:
        names.append(at[1])
        at = came[at[0]]
    return names[::-1]


def actions(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Whatever may happen next, with its name and the state that it leads to."""
    for number in (0, 1):
        yield from conductor(world, state, number)
    for host in (A, B):
        yield from worker(world, state, host)
        yield from machine(world, state, host)
    yield from person(world, state)
    yield from restore(state)
    yield from nova(state)
