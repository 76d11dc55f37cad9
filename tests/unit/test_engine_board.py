"""Claims on the board whose answer was lost with the connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.labs.small_lab import until
from support.rigs.engine_rig import embedded_rig
from taskflow import states
from taskflow.exceptions import JobFailure, UnclaimableJob
from taskflow.jobs.backends.impl_zookeeper import ZookeeperJobBoard

from droveway.clients.watches import Listing
from droveway.clients.zookeeper import BOARD
from droveway.engines.conductor.taskflow.board import MoveBoard, MoveJob
from droveway.errors import CoordinationLost


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


def test_whether_a_job_is_claimed_is_known_by_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two conductors with a long board would else ask for every job of it at each change."""

    def asked(*_: object) -> None:
        pytest.fail("the listing tells")

    with embedded_rig(tmp_path) as rig:
        rig.post(rig.submit())
        first, second = rig.host(), rig.host()
        (job,) = first.jobs()
        (same,) = second.jobs()
        first.board.claim(job, "first")
        (same,) = second.jobs()
        with monkeypatch.context() as patched:
            patched.setattr(ZookeeperJobBoard, "claim", asked)
            patched.setattr(ZookeeperJobBoard, "find_owner", asked)
            assert [each.state for each in second.board.iterjobs()] == [states.CLAIMED]
            with pytest.raises(UnclaimableJob, match="claimed already"):
                second.board.claim(same, "second")
        first.board.abandon(job, "first")
        until(lambda: [each.state for each in second.board.iterjobs()] == [states.UNCLAIMED], "an unclaimed job")
        second.board.claim(same, "second")
        second.board.consume(same, "second")
        assert same.state == states.COMPLETE


def test_a_conductor_knows_what_it_has_claimed_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded_rig(tmp_path) as rig:
        rig.post(rig.submit())
        host = rig.host()
        (job,) = host.jobs()
        host.board.claim(job, "me")
        monkeypatch.setattr(Listing, "names", lambda *_, **__: pytest.fail("nothing has told of a change yet"))
        assert job.state == states.CLAIMED


def test_a_board_that_was_wiped_has_no_jobs_and_is_watched_on(tmp_path: Path) -> None:
    with embedded_rig(tmp_path) as rig:
        move = rig.submit()
        rig.post(move)
        host = rig.host()
        assert len(host.jobs()) == 1
        host.coordination.delete(BOARD)
        until(lambda: list(host.board.iterjobs()) == [], "an empty board")
        rig.post(move)
        until(lambda: len(list(host.board.iterjobs())) == 1, "the job")


def test_a_board_that_cannot_be_listed_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor that TaskFlow's conductor is made of shows a traceback, as if it were the program's fault."""

    def cut_off(_listing: Listing, *, fresh: bool = False) -> list[str]:
        host.conductor.stop()
        raise CoordinationLost("ZooKeeper did not answer (ConnectionLoss)")

    with embedded_rig(tmp_path) as rig:
        host = rig.host()
        monkeypatch.setattr(Listing, "names", cut_off)
        host.conductor.run()
        (record,) = [each for each in caplog.records if "could not be listed" in each.getMessage()]
        assert record.exc_info is None
        assert "did not answer" in record.getMessage()
        assert len(record.getMessage().splitlines()) == 1
