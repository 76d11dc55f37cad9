"""Which ended move what a host still has is put down to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.engine_rig import Rig, embedded_rig

from droveway.persistence.journal import attempts, moves, orphans


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def ended(rig: Rig, *tried: str, destination: str | None = None) -> str:
    """A move of the server that has ended after it tried these hosts."""
    move = rig.submit()
    with rig.journal.write() as session:
        for number, host in enumerate(tried, 1):
            chosen = {"cell": "c1", "host": host, "node": host, "provider": f"rp-{host}", "request": {}}
            attempts.begin(session, move, number, chosen)
        row = moves.get(session, move)
        row.state, row.active_server, row.flow_uuid, row.dest_host = "failed", None, None, destination
    return move


def test_what_a_tried_host_has_is_put_down_to_the_newest_move_that_tried_it(rig: Rig) -> None:
    ended(rig, "h2", "h3")
    newest = ended(rig, "h2", "h3")
    with rig.journal.read() as session:
        found = orphans.tried_hosts(session, ["s1"])
    assert found == {("s1", host): newest for host in ("h1", "h2", "h3")}


def test_a_move_to_a_host_comes_before_a_newer_one_that_only_tried_it(rig: Rig) -> None:
    to_it = ended(rig, "h2", destination="h2")
    newest = ended(rig, "h2", "h3")
    with rig.journal.read() as session:
        found = orphans.tried_hosts(session, ["s1"])
    assert found == {("s1", "h1"): newest, ("s1", "h2"): to_it, ("s1", "h3"): newest}
