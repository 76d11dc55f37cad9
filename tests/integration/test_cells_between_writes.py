"""Between any two writes of a move between cells its server is in one place, whole, and in every list once."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.labs.copies_sampler import CopiesSampler, Seen
from support.labs.operations import Stage, stage

from droveway.errors import DestinationFault

CLOUD = """
options: {cross_cell: true}
cells: {cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""
HOME = Seen("cell1", ("cell1",), 1)
AWAY = Seen("cell2", ("cell2",), 2)
BOTH = ("cell1", "cell2")
THERE = [HOME, Seen("cell1", BOTH, 3), Seen("cell2", BOTH, 3), AWAY]
BACK = THERE[::-1]


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        write(made, "cell1", "INSERT INTO tags (resource_id, tag) VALUES (?, 'blue')", made.id_of("web"))
        write(
            made,
            "cell1",
            "INSERT INTO instance_metadata (instance_uuid, key, value, deleted) VALUES (?, 'of', 'the user', 0)",
            made.id_of("web"),
        )
        yield made


def write(lab: Stage, cell: str, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{cell}.sqlite")) as connection, connection:
        connection.execute(statement, values)


@contextlib.contextmanager
def watched(lab: Stage, fails: str = "") -> Iterator[CopiesSampler]:
    """Every commit of the block is looked at, and after each step what the commands list; one step may fail."""
    sampler, lists = CopiesSampler(lab.root, lab.id_of("web")), set()

    def count(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == (fails, "execute", "before"):
            raise DestinationFault("it does not start", code="start-failed", host="host2")
        if phase == "after":
            lists.add((len(lab.json("server", "list")), len(lab.json("move", "list"))))

    with lab.running(probe=count), sampler.watching():
        yield sampler
    assert sampler.wrong == []
    assert lists == {(1, 1)}
    assert {name: sampler.looks[name] > 0 for name in ("api", "cell1", "cell2", "journal")} == dict.fromkeys(
        ("api", "cell1", "cell2", "journal"), True
    )


@pytest.mark.parametrize(("ending", "seen"), [("revert", [*THERE, *BACK[1:]]), ("confirm", THERE)])
def test_a_resize_into_another_cell_and_its_end(lab: Stage, ending: str, seen: list[Seen]) -> None:
    """R1-12, R1-13, R1-14: the mapping names a visible, whole copy after every write, and so after every kill.

    Quota counts the server never less than once, and once at every rest.
    """
    with watched(lab) as sampler:
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
        lab.cli("server", ending, "web")
    assert sampler.seen == seen


def test_a_move_that_is_undone(lab: Stage) -> None:
    """R1-14: back through the same instants."""
    with watched(lab, fails="start_guest") as sampler:
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2", code=3)
    assert sampler.seen == [*THERE, *BACK[1:]]


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE instances SET hidden = 1 WHERE uuid = ?", "the mapping names cell2, and in the lists"),
        ("UPDATE instances SET host = 'host1' WHERE uuid = ?", "names host1, which is no host of that cell"),
        ("DELETE FROM tags WHERE resource_id = ?", "'tags': 0"),
    ],
)
def test_a_copy_that_is_not_whole_when_the_mapping_names_it_is_told(lab: Stage, statement: str, told: str) -> None:
    server = lab.id_of("web")
    sampler = CopiesSampler(lab.root, server)
    spoil: list[Callable[[], None]] = [lambda: write(lab, "cell2", statement, server)]

    def probe(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("switch_mapping", "execute", "before") and spoil:
            spoil.pop()()
        if (step, direction, phase) == ("switch_mapping", "execute", "stored"):
            write(lab, "cell2", "UPDATE instances SET hidden = 0, host = 'host2' WHERE uuid = ?", server)

    with lab.running(probe=probe), sampler.watching():
        lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    assert any(told in text for text in sampler.wrong), sampler.wrong
