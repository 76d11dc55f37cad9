"""A version more of a graph beside those that there are: it has a host step that only workers of a later level know.

``support/habits/second_version`` makes of a process one of a release that has them; `planted` is for one test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from droveway.wire import commands

ACTION: Final = "touch_source"
LATER: Final = max(schema.since for schema in commands.ACTIONS.values()) + 1
"""The level that comes with the action."""
BEFORE: Final = LATER - 1

_SCHEMA: Final = commands.Schema(commands.NoDetails, commands.Nothing, since=LATER)


def declare() -> None:
    """Declare the action on the wire; in a process of the later release before anything else is imported."""
    commands.ACTIONS[ACTION] = _SCHEMA  # type: ignore[index]


def enter() -> None:
    """Let workers carry the action out."""
    from droveway.workers.actions import table

    def touch_source(_ctx: Any, _details: Any) -> dict[str, Any]:
        return {}

    table.action(thrifty=True)(touch_source)


def graphs(*kinds: str) -> dict[tuple[str, int], Any]:
    """A version more of each of these kinds: the newest with the new step behind `find_storage`, or as its second."""
    from droveway.flows import registry
    from droveway.flows.step import Where
    from droveway.flows.steps.hosts import host
    from droveway.flows.steps.hosts.command import HostStep

    class TouchSource(HostStep):
        """The source does nothing that anybody would see."""

        where = Where.SOURCE
        does = "touch the source"
        no_undo = "it changes nothing"

    def added(steps: tuple[Any, ...]) -> tuple[Any, ...]:
        place = steps.index(host.FindStorage) + 1 if host.FindStorage in steps else 1
        return (*steps[:place], TouchSource, *steps[place:])

    found = {}
    for kind in kinds:
        graph = registry.latest(kind)
        part = "tried" if graph.tried else "steps"
        changed: dict[str, Any] = {part: added(getattr(graph, part))}
        found[kind, graph.version + 1] = dataclasses.replace(graph, version=graph.version + 1, **changed)
    return found


def forget_older(kind: str) -> None:
    """Let there be only the newest version of the kind, as in a release that needs the others no more."""
    from droveway.flows import registry

    for graph in registry.versions(kind)[1:]:
        del registry.GRAPHS[kind, graph.version]


@contextmanager
def planted(*kinds: str, workers: bool = True) -> Iterator[None]:
    """Let there be a version more of these kinds in this process; ``workers``: those in it know its action."""
    from droveway.flows import registry
    from droveway.wire import levels
    from droveway.workers.actions import table

    with (
        mock.patch.dict(commands.ACTIONS, {ACTION: _SCHEMA}),
        mock.patch.dict(levels.SINCE, {ACTION: LATER}),
        mock.patch.dict(table.ACTIONS),
        mock.patch.dict(registry.GRAPHS, graphs(*kinds)),
    ):
        if workers:
            enter()
        yield
