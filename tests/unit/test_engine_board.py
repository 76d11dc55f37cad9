"""Claims on the board whose answer was lost with the connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss
from support.rigs.engine_rig import embedded_rig
from taskflow.exceptions import JobFailure, UnclaimableJob
from taskflow.jobs.backends.impl_zookeeper import ZookeeperJobBoard

from droveway.engines.conductor.taskflow.board import MoveBoard, MoveJob


@pytest.mark.parametrize("landed", [True, False])
def test_a_claim_whose_answer_was_lost_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """It would be held by a session that runs nothing, for as long as that lives."""
    claim = ZookeeperJobBoard.claim

    def lost(board: MoveBoard, job: MoveJob, who: str) -> None:
        if landed:
            claim(board, job, who)
        raise JobFailure("Claiming failure: connection loss")

    with embedded_rig(tmp_path) as rig:
        move = rig.submit()
        rig.post(move)
        host = rig.host()
        (job,) = host.jobs()
        with monkeypatch.context() as patched:
            patched.setattr(ZookeeperJobBoard, "claim", lost)
            with pytest.raises(UnclaimableJob):
                host.board.claim(job, "me")
        with pytest.raises(UnclaimableJob, match="may be"):
            host.board.claim(job, "me")
        assert host.turn() == [True]
        assert rig.move(move).state == "verifying"


def test_a_claim_that_is_no_longer_doubtful_stays(tmp_path: Path) -> None:
    with embedded_rig(tmp_path) as rig:
        rig.post(rig.submit())
        host = rig.host()
        (job,) = host.jobs()
        host.board.claim(job, "me")
        assert len(host.jobs()) == 1
        assert host.board.lock_owner(job) == host.coordination.session


def test_a_listing_that_is_cut_off_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TaskFlow shows a traceback of each job whose owner it does not hear, as if it were the program's fault."""

    def cut_off(_board: MoveBoard, job: MoveJob) -> str:
        raise JobFailure(f"Owner query failure: {job.uuid}", cause=ConnectionLoss())

    with embedded_rig(tmp_path) as rig:
        rig.post(rig.submit())
        host = rig.host()
        (job,) = host.jobs()
        monkeypatch.setattr(MoveBoard, "find_owner", cut_off)
        assert list(host.board.iterjobs()) == []
        (record,) = [each for each in caplog.records if job.uuid in each.getMessage()]
        assert record.exc_info is None
        assert record.getMessage().endswith(f"Owner query failure: {job.uuid} kazoo.exceptions.ConnectionLoss")


def test_a_round_over_the_jobs_that_is_cut_off_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor that TaskFlow's conductor is made of tells the same error with a traceback of its own."""

    def cut_off(_board: MoveBoard, *_args: object, **_named: object) -> None:
        host.conductor.stop()
        raise JobFailure("Transient job board failure", cause=ConnectionLoss())

    with embedded_rig(tmp_path) as rig:
        host = rig.host()
        monkeypatch.setattr(MoveBoard, "iterjobs", cut_off)
        host.conductor.run()
        (record,) = [each for each in caplog.records if "Transient job board failure" in each.getMessage()]
        assert record.exc_info is None
        assert len(record.getMessage().splitlines()) == 1
