"""A clock that is off is refused, whichever way; one that is nearly right is not."""

from __future__ import annotations

import datetime as dt

import pytest

from droveway import clocks
from droveway.errors import Refused


@pytest.mark.parametrize(
    ("minutes", "said"), [(60, "60 minutes ahead of that of zk"), (-6, "6 minutes behind that of")]
)
def test_a_clock_that_is_off_is_refused(minutes: int, said: str) -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    with pytest.raises(Refused, match=said):
        clocks.require(now - dt.timedelta(minutes=minutes), "zk")
    clocks.require(now + dt.timedelta(minutes=4), "zk")


class Time:
    """What passed, what the database's clock shows, and a `Steady` that looks at both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 1000.0
        self.shown = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns hold it
        monkeypatch.setattr(clocks.time, "monotonic", lambda: self.passed)
        self.steady = clocks.Steady()
        self.look()

    def look(self, answer: float = 0.0) -> None:
        """``answer``: seconds that the database took."""
        asked, self.passed = self.passed, self.passed + answer
        self.steady.observe(self.shown, asked)
        self.shown += answer * SECOND

    def pass_by(self, seconds: float) -> None:
        self.passed += seconds
        self.shown += seconds * SECOND

    def jump(self, seconds: float) -> None:
        self.shown += seconds * SECOND
        self.look()

    def is_over(self, since: dt.datetime, seconds: float) -> bool:
        return self.steady.passed(since + seconds * SECOND, since, self.shown)


SECOND = dt.timedelta(seconds=1)
DAY = 86400.0


@pytest.fixture(name="time")
def fixture_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_a_clock_that_jumps_ahead_ends_no_wait(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    since = time.shown
    time.pass_by(60)
    time.jump(DAY)
    assert "jumped ahead by 86400 s" in caplog.text
    assert not time.is_over(since, 3600)
    later = time.shown
    for _ in range(59):
        time.pass_by(60)
        time.look()
        assert not time.is_over(since, 3601)
    assert time.is_over(since, 3600)
    # What was written by the clock as it is now is not delayed.
    assert time.is_over(later, 3540)
    assert not time.is_over(later, 3541)


def test_a_clock_that_was_set_back_and_is_right_again_delays_nothing(time: Time) -> None:
    """But for what was written in the hour that both clocks showed, which may wait for longer."""
    since = time.shown
    time.pass_by(3600)
    doubtful = time.shown
    time.pass_by(60)
    time.look()
    time.jump(-3600)
    time.pass_by(60)
    time.jump(3600)
    assert not time.is_over(since, 3721)
    assert time.is_over(since, 3720)
    assert not time.is_over(doubtful, 120)


def test_a_wait_that_began_by_the_slow_clock_lasts_as_long(time: Time) -> None:
    time.jump(-3600)
    since = time.shown
    time.pass_by(60)
    time.jump(3600)
    assert not time.is_over(since, 61)
    assert time.is_over(since, 60)


@pytest.mark.parametrize("answer", [0.0, 30.0])
def test_a_clock_that_follows_time_is_believed(time: Time, answer: float) -> None:
    """However long the database takes to answer, and however rarely it is asked."""
    since = time.shown
    for _ in range(5):
        time.look(answer)
        time.pass_by(DAY)
        time.shown += 20 * SECOND
    time.look(answer)
    time.look()
    assert time.is_over(since, 5 * DAY)


def test_jumps_are_not_kept_for_ever(time: Time) -> None:
    since = time.shown
    for _ in range(500):
        time.pass_by(1)
        time.jump(10)
        time.pass_by(1)
        time.jump(-10)
    assert len(time.steady._jumps) <= clocks.MOST_JUMPS
    assert not time.is_over(since, 1001)
