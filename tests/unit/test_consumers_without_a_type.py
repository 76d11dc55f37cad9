"""Consumers that Nova made have no type in Placement, which names that "unknown" and refuses to be sent the word."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from droveway.clients.embedded import placement as embedded
from droveway.clients.placement import Placement

SOURCE = "11111111-1111-4111-8111-111111111111"
DESTINATION = "22222222-2222-4222-8222-222222222222"
SERVER = "33333333-3333-4333-8333-333333333333"
MOVE = "44444444-4444-4444-8444-444444444444"
OWNER = {"project_id": "p", "user_id": "u"}
BEFORE = {SOURCE: {"VCPU": 2}}
AT_DESTINATION = {"allocations": {DESTINATION: {"resources": {"VCPU": 4}}}, "mappings": {"": [DESTINATION]}}


@pytest.fixture(name="database")
def fixture_database(tmp_path: Path) -> Path:
    return tmp_path / "placement.sqlite"


@pytest.fixture(name="placement")
def fixture_placement(database: Path) -> Placement:
    client = Placement(embedded.embedded_placement(database))
    for provider, name in ((SOURCE, "host1"), (DESTINATION, "host2")):
        client.ensure_provider(provider, name, {"VCPU": {"total": 8}})
    client.ensure_allocation(SERVER, BEFORE, **OWNER)
    return client


def forget_types(database: Path) -> None:
    """Let all consumers be as Nova makes them."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("UPDATE consumers SET consumer_type_id = NULL")
    connection.close()


def claim(placement: Placement) -> None:
    source = placement.allocations(SERVER)
    placement.claim_move(server=SERVER, migration=MOVE, source=source, destination=AT_DESTINATION, **OWNER)


@pytest.mark.parametrize("consumer", [SERVER, MOVE])
def test_what_it_holds_is_released(placement: Placement, database: Path, consumer: str) -> None:
    claim(placement)
    forget_types(database)
    placement.release(consumer)
    assert placement.allocations(consumer).allocations == {}


@pytest.mark.parametrize("release", [False, True])
def test_a_move_gives_both_back(placement: Placement, database: Path, *, release: bool) -> None:
    claim(placement)
    forget_types(database)
    placement.return_move(server=SERVER, migration=MOVE, release=release)
    assert placement.allocations(SERVER).allocations == ({} if release else BEFORE)
    assert placement.allocations(MOVE).allocations == {}
