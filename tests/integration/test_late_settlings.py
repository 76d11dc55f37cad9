"""A person settles a move and is overtaken: no call to a service is sent once somebody else has claimed the move."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage

from droveway.clients import send_guard
from droveway.engines.conductor import fencing

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""
WHY = ("--reason", "it was looked at")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def held(lab: Stage) -> list[object]:
    """Tell what the server and its move hold in Placement."""
    return [lab.held(lab.id_of("web")), lab.held(lab.move("web").id)]


def take_the_move_before_a_call(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let somebody else claim the move right before the first call that changes something; the epoch, once it is."""
    ask, taken, move = send_guard.ask, list[int](), lab.move("web").id

    def overtaken() -> None:
        if not taken:
            taken.append(fencing.claim(lab.lab.journal, move, "somebody else"))
        ask()

    monkeypatch.setattr(send_guard, "ask", overtaken)
    return taken


def test_a_move_that_is_left_gives_nothing_back_once_it_was_claimed(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    before = held(lab)
    assert all(before)
    taken = take_the_move_before_a_call(lab, monkeypatch)
    said = lab.refused("move", "settle", lab.move("web").id[:8], "finish_records", "--as", "left", *WHY)
    assert taken
    assert "somebody took move" in said
    assert (held(lab), lab.move("web").state) == (before, "verifying")


def test_nothing_is_written_in_placement_once_the_move_was_claimed(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    placement, older = lab.root / "placement.sqlite", lab.root / "older.sqlite"
    for source, target, after in (
        (placement, older, ("server", "migrate", "web")),
        (older, placement, ("db", "adopt")),
    ):
        with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)
        lab.cli(*after)
    before = held(lab)
    taken = take_the_move_before_a_call(lab, monkeypatch)
    said = lab.refused("move", "settle", lab.move("web").id[:8], "--cell", "placement", *WHY)
    assert taken
    assert "somebody took move" in said
    assert held(lab) == before
