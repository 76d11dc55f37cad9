"""What proves that a guest was never started where the journal lacks the count of its starts from before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.rows.moving_rows import DESTINATION, FLOW, MOVE, NOW, SOURCE, Moving, guest, record

from droveway.errors import StepError
from droveway.flows.before import as_json
from droveway.flows.steps import reverting
from droveway.flows.steps.hosts import host, starting
from droveway.persistence.journal.tables import MoveStep

EARLIER: Final = 3
"""How often the guest was started on the source before the move."""


class Begun(Moving):
    """A move whose journal was put back: the rows proved the step done that defined the guest."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.row.before = as_json(record(guest=guest(starts=EARLIER)))

    @staticmethod
    def may_have_begun(_step: str) -> bool:
        """The journal may lack the start."""
        return True

    def define(self, step: str, **result: Any) -> None:
        """Let the history have this result of the step that defined the guest."""
        facts = {"move_id": MOVE, "flow_uuid": FLOW, "flow": self.kind, "epoch": self.epoch, "attempt": 1}
        with self.journal.write() as session:
            session.add(MoveStep(**facts, step=step, direction="execute", started_at=NOW, result=result))


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Begun]:
    made = Begun(tmp_path)
    yield made
    made.close()


GUESTS: Final = {
    "off": ({}, 0, False),
    "running": ({"running": True}, 1, True),
    "running though not counted": ({"running": True}, 0, True),
    "off again": ({}, 1, True),
    "not defined": ({"defined": False}, 1, False),
}


@pytest.mark.parametrize("seen", GUESTS)
@pytest.mark.parametrize(
    ("kind", "step", "at", "before"),
    [("migrate", "define_guest", DESTINATION, 0), ("revert", "prepare_source_guest", SOURCE, EARLIER)],
    ids=["forward", "revert"],
)
def test_a_guest_that_runs_or_was_started_since_the_move_began_may_have_been_started_by_it(
    moving: Begun, kind: str, step: str, at: str, before: int, seen: str
) -> None:
    facts, more, started = GUESTS[seen]
    moving.kind = kind
    moving.define(step)
    moving.says[at] = guest(starts=before + more, **facts)
    start = host.StartGuest(moving) if kind == "migrate" else reverting.StartGuest(moving)
    ctx = moving.context("start_guest")
    assert start.may_have_begun(ctx) is started
    if started:
        with pytest.raises(StepError, match="was started on") as caught:
            starting.require_never_started(ctx, at, step)
        assert caught.value.error_code == "start-unknown"


@pytest.mark.parametrize(("running", "started"), [(False, False), (True, True)])
def test_where_both_ends_are_one_host_a_revert_knows_no_count_and_goes_by_the_guest(
    moving: Begun, *, running: bool, started: bool
) -> None:
    """The forward flow has started the guest there too."""
    assert moving.chosen is not None
    moving.kind, moving.row.dest_host, moving.chosen.host = "revert", SOURCE, SOURCE
    moving.define("prepare_source_guest")
    moving.says[SOURCE] = guest(starts=EARLIER + 1, running=running)
    assert reverting.StartGuest(moving).may_have_begun(moving.context("start_guest")) is started


@pytest.mark.parametrize(("starts", "started"), [(7, False), (8, True)])
def test_a_count_that_the_journal_has_decides(moving: Begun, starts: int, *, started: bool) -> None:
    moving.define("define_guest", starts=7)
    moving.says[DESTINATION] = guest(starts=starts)
    assert host.StartGuest(moving).may_have_begun(moving.context("start_guest")) is started
