from __future__ import annotations

import logging

import pytest

from droveway import outages
from droveway.outages import LONGEST, Outage, Seldom

LOG = logging.getLogger("test")


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(outages.time, "monotonic", lambda: now[0])
    return now


def test_an_outage_is_a_line_a_minute(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(LOG, "The keeper waits for the journal")
    for _second in range(130):
        outage.note("connection\n refused")
        clock[0] += 1
    assert caplog.messages == ["The keeper waits for the journal: connection refused"] * 3


def test_its_end_is_said_once(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(LOG, "It waits")
    outage.over()
    outage.note("gone")
    outage.over()
    outage.over()
    outage.note("gone again")
    assert caplog.messages == ["It waits: gone", "It waits no longer: it answers again", "It waits: gone again"]
    assert clock == [100.0]


def test_a_complaint_is_a_line_a_minute_and_counts_what_is_left_out(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger who knocks again and again fills no log, and hides no other one's knock."""
    seldom = Seldom(LOG, "Turned away")
    for second in range(70):
        seldom.log_once("peer", f"one of {second}")
        clock[0] += 1
    seldom.log_once("noise", "another")
    assert caplog.messages == [
        "Turned away: one of 0",
        "Turned away: one of 60 (and 59 more like it since the last line)",
        "Turned away: another",
    ]


def test_a_strangers_words_are_one_short_line_that_no_terminal_obeys(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    seldom = Seldom(LOG, "Turned away")
    seldom.log_once("peer", "a\nWARNING b\x1b[2J\u202e\0" + "c" * (1 << 20))
    [line] = caplog.messages
    assert line.startswith("Turned away: a WARNING b?[2J??ccc")
    assert len(line) < LONGEST + 40
    assert clock == [100.0]
