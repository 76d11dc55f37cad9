"""That a guest never started elsewhere: what proves it, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import StepError
from droveway.persistence.database import database_time
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import Move, MoveStep

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def undone_without_destination(lab: Stage, step: str, *, adopted: bool = False) -> Move:
    """A move whose destination dies before that step, which then fails."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id

    def adopt() -> None:
        with lab.lab.journal.write() as session:
            session.add(
                MoveStep(
                    move_id=move,
                    flow_uuid=str(move_requests.read_move(lab.lab, move).flow_uuid),
                    flow="",
                    step=ADOPTED,
                    direction="execute",
                    started_at=database_time(session),
                    ended_at=database_time(session),
                )
            )

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, "execute", "before"):
            workers.stop("host2")
            if adopted:
                adopt()
            raise StepError("it fails", code="test")

    with lab.running(meet) as workers:
        move_requests.carry(lab.lab, move)
    return move_requests.read_move(lab.lab, move)


def test_a_guest_that_no_destination_was_asked_to_start_is_brought_back(lab: Stage) -> None:
    """Nothing is owed yet when the source's guest is off and the destination dies."""
    before = lab.starts("web")
    ended = undone_without_destination(lab, "release_source")
    assert (ended.state, ended.error_code) == ("failed", "test")
    assert lab.starts("web") == [*before, "host1"]


def test_a_journal_that_was_adopted_proves_by_absence_nothing(lab: Stage) -> None:
    """The destination may have started the guest after the copy was made: it has to say so itself."""
    before = lab.starts("web")
    ended = undone_without_destination(lab, "release_source", adopted=True)
    assert (ended.state, ended.error_code) == ("needs-operator", "host-unreachable")
    assert lab.starts("web") == before
