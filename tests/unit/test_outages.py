from __future__ import annotations

import logging

import pytest

from droveway import outages
from droveway.outages import Outage

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
