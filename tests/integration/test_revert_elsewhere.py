"""Reverts of moves between cells whose source is dead: another host of its cell gets the server."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, Standing, stage
from support.labs.small_lab import until

from droveway.lab import stopped

CLOUD = """
options: {cross_cell: true}
cells:
  cell1: {hosts: {host1: {}, host2: {}, host3: {}}}
  cell2: {hosts: {host4: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0, swap_mb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 0, swap_mb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
"""
SURE = ("--i-made-sure", "power is off, ticket 1")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\nretry_for = 0.5\n")
        yield made


def away(lab: Stage, name: str, *options: str) -> None:
    """The server is in the other cell, and its source is dead."""
    lab.cli("server", "resize", name, "--flavor", "large", "--to-cell", "cell2", *options)
    stopped.stop(lab.lab.layout, "host1")
    lab.cli("host", "down", "host1", *SURE)


def come_back(lab: Stage, host: str) -> None:
    """The host is back, and does what it owes."""
    stopped.start(lab.lab.layout, host)
    lab.cli("host", "enable", host)
    with lab.running():
        until(lambda: not lab.json("debt", "list"), "the end of what is owed")


def elsewhere(lab: Stage, before: Standing, name: str, host: str) -> Standing:
    """The server as it was, but on another host, while the source is not back."""
    moved = before.confirmed(host, before.flavor, before.held[before.host])
    return dataclasses.replace(
        moved,
        status=before.status,
        defined=sorted({before.host, host}),
        directories=sorted([f"{before.host}/ID_resize", *moved.directories]),
    )


def root_disk(lab: Stage, host: str, name: str) -> str:
    return hashlib.sha256((lab.directory(host, name) / "disk").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["idle", "web"])
def test_another_host_of_its_cell_gets_the_server_from_the_kept_images(lab: Stage, name: str) -> None:
    """As it was before the move but for its host; what the source holds is owed, and goes when that is back."""
    before, disk = lab.standing(name), root_disk(lab, "host1", name)
    away(lab, name, "--keep-image")
    lab.cli("server", "revert", name)
    move = lab.move(name)
    assert move.state == "reverted"
    assert {row.flow for row in lab.history(move.id)} == {"cross_cell_resize", "cross_cell_revert_elsewhere"}
    there = str(lab.server(name).host)
    assert there in {"host2", "host3"}
    assert lab.standing(name) == elsewhere(lab, before, name, there)
    # A guest that runs writes to it.
    assert name == "web" or root_disk(lab, there, name) == disk
    assert [(debt["host"], debt["step"]) for debt in lab.json("debt", "list")] == [("host1", "discard_destination")]
    lab.assert_balanced()
    come_back(lab, "host1")
    assert lab.standing(name) == before.confirmed(there, before.flavor, before.held["host1"])
    lab.assert_balanced()


def test_without_kept_images_the_revert_is_refused_with_what_helps(lab: Stage) -> None:
    away(lab, "idle")
    standing = lab.standing("idle")
    said = lab.refused("server", "revert", "idle")
    assert "host host1, the source of move " in said
    assert "it was moved without --keep-image" in said
    assert f"droveway move confirm {lab.move('idle').id[:8]} keeps the server where it is" in said
    assert lab.standing("idle") == standing
    assert lab.move("idle").state == "verifying"


def test_a_source_that_is_back_takes_its_server_back_itself(lab: Stage) -> None:
    before = lab.standing("idle")
    away(lab, "idle", "--keep-image")
    come_back(lab, "host1")
    lab.cli("server", "revert", "idle")
    assert lab.standing("idle") == before
    lab.assert_balanced()
