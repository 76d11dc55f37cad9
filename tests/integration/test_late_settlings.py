"""A person settles a move and is overtaken: no call to a service is sent once somebody else has claimed the move."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.clients import send_guard
from droveway.engines.conductor import fencing
from droveway.persistence.journal.tables import Claim, Move
from droveway.persistence.nova.cell import Instance

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


@pytest.mark.parametrize(
    "words", [("--cell", "cell1"), ("finish_records", "--as", "left"), ("finish_records", "--as", "done")]
)
@pytest.mark.parametrize("claimed", [False, True])
def test_a_move_that_went_on_before_it_could_be_claimed_is_left_to_who_has_it(
    lab: Stage, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], *, claimed: bool
) -> None:
    """Otherwise the conductor would be fenced off in the middle of a step, by who saw the move at rest before."""
    lab.cli("server", "migrate", "web")
    move, claim = lab.move("web").id, fencing.claim
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).values(vm_state="error"))
    epochs: list[int] = []

    def overtaken(*facts: Any, **named: Any) -> int:
        if not epochs:
            with lab.lab.journal.write() as journal:
                journal.execute(sa.update(Move).values(state="confirming"))
            if claimed:
                claim(lab.lab.journal, move, "conductor")
            with lab.lab.journal.read() as journal:
                epochs.append(journal.scalars(sa.select(Claim.epoch)).one())
        return claim(*facts, **named)

    monkeypatch.setattr(fencing, "claim", overtaken)
    said = lab.refused("move", "settle", move[:8], *words, *WHY)
    assert "somebody took move" in said
    with lab.lab.journal.read() as journal:
        assert journal.scalars(sa.select(Claim.epoch)).all() == epochs
    assert lab.move("web").state == "confirming"
    with lab.lab.cell_databases["cell1"].read() as session:
        assert session.scalars(sa.select(Instance.vm_state)).one() == "error"
