"""Who is asked to put a revert's disks back, and to set them aside again; and what ended without it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rows.moving_rows import DESTINATION, MIB, SOURCE, Moving, disk, guest

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, Context
from droveway.flows.steps.hosts.restoring import RestoreDisks
from droveway.wire import commands
from droveway.wire.values import Direction


class Reverting(Moving):
    """The revert of a move; a host that is declared down carries nothing out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "revert")
        self.parts: list[str] = []
        self.owed: list[tuple[str, str, str]] = []

    def command(self, *words: Any, part: str = "", **facts: Any) -> dict[str, Any]:
        if facts["host"] in self.down:
            raise StepError("it is off for good", code=DECLARED_DOWN, host=facts["host"])
        if facts["action"] != "describe_guest":
            self.parts.append(part)
        return super().command(*words, **facts)

    def owe(self, _step: str, *, host: str, action: str, direction: Direction, **_others: Any) -> None:
        """Write the debt down."""
        self.owed.append((host, action, direction))


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Reverting]:
    made = Reverting(tmp_path)
    yield made
    made.close()


def context(moving: Moving, direction: Direction = "execute") -> Context:
    return moving.context("restore_disks", direction)


@pytest.mark.parametrize(("storage", "shared"), [("copy", False), ("shared", True), ("same-host", True)])
def test_the_source_puts_its_disks_back(moving: Reverting, storage: str, *, shared: bool) -> None:
    moving.row.storage = storage
    RestoreDisks(moving).perform(context(moving))
    assert moving.commands == [(SOURCE, "restore_disks", "execute")]
    assert moving.told == [commands.RestoreDisks(same_directory=shared)]


@pytest.mark.parametrize("storage", ["copy", "shared", "same-host"])
def test_the_source_sets_them_aside_again(moving: Reverting, storage: str) -> None:
    moving.row.storage = storage
    RestoreDisks(moving).undo(context(moving, "revert"))
    assert (moving.commands, moving.parts) == ([(SOURCE, "restore_disks", "revert")], [""])
    assert moving.owed == []


def test_for_a_dead_source_the_destination_does_it_in_the_directory_of_both(moving: Reverting) -> None:
    """The destination's guest is started next, and its disks have to have the name of the server's own again."""
    moving.row.storage = "shared"
    moving.down.add(SOURCE)
    RestoreDisks(moving).undo(context(moving, "revert"))
    assert (moving.commands, moving.parts) == ([(DESTINATION, "restore_disks", "revert")], ["shared"])
    assert moving.told == [commands.RestoreDisks(same_directory=True)]
    assert moving.owed == []


def test_a_dead_source_that_keeps_its_disks_apart_owes_it(moving: Reverting) -> None:
    """No other host reaches them."""
    moving.down.add(SOURCE)
    RestoreDisks(moving).undo(context(moving, "revert"))
    assert moving.commands == []
    assert moving.owed == [(SOURCE, "restore_disks", "revert")]


def test_a_host_that_is_both_ends_is_asked_itself(moving: Reverting) -> None:
    """Nobody else can do it for a host that is declared down: it owes it."""
    assert moving.chosen is not None
    moving.row.storage, moving.row.dest_host, moving.chosen.host = "same-host", SOURCE, SOURCE
    RestoreDisks(moving).undo(context(moving, "revert"))
    assert moving.commands == [(SOURCE, "restore_disks", "revert")]
    moving.commands.clear()
    moving.down.add(SOURCE)
    RestoreDisks(moving).undo(context(moving, "revert"))
    assert (moving.commands, moving.owed) == ([], [(SOURCE, "restore_disks", "revert")])


def test_where_somebody_else_ended_the_revert_the_manifest_goes(moving: Reverting) -> None:
    moving.says[SOURCE] = guest(disk("disk", MIB))
    RestoreDisks(moving).perform_ended(context(moving))
    assert moving.commands == [(SOURCE, "set_aside", "revert")]


@pytest.mark.parametrize("how", ["set aside", "elsewhere"])
def test_the_manifest_stays_while_the_disks_are_set_aside_or_are_not_the_servers(moving: Reverting, how: str) -> None:
    moving.says[SOURCE] = guest(disk("disk", MIB), set_aside=how == "set aside")
    if how == "elsewhere":
        moving.place("host3", None, "reverted")
    RestoreDisks(moving).perform_ended(context(moving))
    assert moving.commands == []


def test_a_source_that_does_not_say_owes_its_manifest(moving: Reverting) -> None:
    moving.down.add(SOURCE)
    RestoreDisks(moving).perform_ended(context(moving))
    assert moving.owed == [(SOURCE, "set_aside", "revert")]
