"""How often a move asks Placement: one candidates query a schedule, one allocations POST an attempt and direction."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, faults_cleared, stage

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.journal.tables import Move

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, state: stopped}}
"""
QUERY = "GET /allocation_candidates"
POST = "POST /allocations"


class Counted:
    """The lab, and every request to Placement since the last count."""

    def __init__(self, made: Stage) -> None:
        self.stage = made
        self._seen: collections.Counter[str] = collections.Counter()
        counted = Placement(embedded_placement(made.lab.layout.placement), on_request=self._note)
        made.lab.cloud = dataclasses.replace(made.lab.cloud, placement=counted)

    def _note(self, method: str, path: str) -> None:
        self._seen[f"{method} {path.partition('?')[0]}"] += 1

    def requests(self) -> collections.Counter[str]:
        """What was asked since the last time, but for the looks at single consumers and providers."""
        seen = self._seen.copy()
        self._seen.clear()
        return collections.Counter(
            {what: count for what, count in seen.items() if what in (QUERY, POST) or "GET" not in what}
        )

    def ask(self, verb: str) -> Move:
        """Confirm or revert the waiting move and carry it to its end."""
        move = self.stage.move("web").id
        with self.stage.lab.journal.write() as session:
            getattr(move_requests, verb)(session, session.get_one(Move, move))
        with self.stage.running():
            return move_requests.carry(self.stage.lab, move)


@pytest.fixture(scope="module", name="counted")
def fixture_counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with stage(tmp_path_factory.mktemp("counted") / "lab", CLOUD) as made:
        yield Counted(made)


def test_requests_to_placement_are_counted(counted: Counted) -> None:
    """R3-07: a move is claimed by one POST, given back by one POST, and scheduled by one query."""
    lab = counted.stage.lab
    move = submit(lab, MoveSpec(server="web", flavor="large")).id
    assert counted.requests() == {QUERY: 1}
    with counted.stage.running():
        assert move_requests.carry(lab, move).state == "verifying"
    assert counted.requests() == {QUERY: 1, POST: 1}
    assert counted.ask("revert").state == "reverted"
    assert counted.requests() == {POST: 1}

    with faults_cleared(counted.stage) as arm:
        arm("define_guest", "fail", fault="destination")
        move = submit(lab, MoveSpec(server="web")).id
        counted.requests()
        with counted.stage.running():
            assert move_requests.carry(lab, move).attempt == 2
    # One for the first claim, one to take it back, one for the second; the alternates need no second query.
    assert counted.requests() == {QUERY: 1, POST: 3}
    assert counted.ask("confirm").state == "done"
    assert counted.requests() == {POST: 1}

    with faults_cleared(counted.stage) as arm:
        arm("define_guest", "fail", fault="move")
        move = submit(lab, MoveSpec(server="web")).id
        counted.requests()
        with counted.stage.running():
            assert move_requests.carry(lab, move).state == "failed"
    assert counted.requests() == {QUERY: 1, POST: 2}
