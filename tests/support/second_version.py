"""A second version of resize, migrate and revert beside the first: a host step that only workers of a later level know.

``support/habits/second_version`` makes of a process one of a release that has them; `planted` is for one test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from droveway.wire import commands

ACTION: Final = "sync_source"
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

    def sync_source(_ctx: Any, _details: Any) -> dict[str, Any]:
        return {}

    table.action(thrifty=True)(sync_source)


def graphs(*kinds: str) -> dict[tuple[str, int], Any]:
    """The next version of each of these kinds: the newest with the new step behind `find_storage`, or as its second."""
    from droveway.flows import registry
    from droveway.flows.step import Where
    from droveway.flows.steps.hosts import host
    from droveway.flows.steps.hosts.command import HostStep

    class SyncSource(HostStep):
        """The source writes the server's files to its disks."""

        where = Where.SOURCE
        does = "write what the source has in memory of the server's files"
        no_undo = "it changes nothing"

    def added(steps: tuple[Any, ...]) -> tuple[Any, ...]:
        place = steps.index(host.FindStorage) + 1 if host.FindStorage in steps else 1
        return (*steps[:place], SyncSource, *steps[place:])

    found = {}
    for kind in kinds:
        graph = registry.latest(kind)
        part = "tried" if graph.tried else "steps"
        changed: dict[str, Any] = {part: added(getattr(graph, part))}
        found[kind, graph.version + 1] = dataclasses.replace(graph, version=graph.version + 1, **changed)
    return found


@contextmanager
def planted(*kinds: str, workers: bool = True) -> Iterator[None]:
    """Let the second version of these kinds be the newest in this process; ``workers``: those in it know its action."""
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
