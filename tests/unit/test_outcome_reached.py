"""A step sees that Nova has brought its flow to its end, of a server that is there and of one that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rows.moving_rows import DESTINATION, SOURCE, Moving

from droveway.flows import outcome


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize(
    ("kind", "host", "status", "reached"),
    [
        ("confirm", DESTINATION, "confirmed", True),
        ("confirm", DESTINATION, "confirming", False),
        ("confirm", SOURCE, "reverted", False),
        ("revert", SOURCE, "reverted", True),
        ("revert", DESTINATION, "reverting", False),
        ("migrate", DESTINATION, "confirmed", False),
    ],
)
def test_the_migration_tells_it(
    moving: Moving, kind: str, host: str, status: str, *, reached: bool, gone: bool
) -> None:
    """Nova deletes a server and lets its migrations stand."""
    moving.kind = kind
    moving.place(host, None, status, "active")
    if gone:
        moving.change(deleted=1)
    assert outcome.is_reached(moving.context("copy_disks")) is reached
