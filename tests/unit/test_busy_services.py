"""A service that is busy is asked again once the time is over that its header Retry-After names, within limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import requests
from keystoneauth1 import exceptions

from droveway import deadlines
from droveway.clients.rest import Rest
from droveway.errors import StepError

NOW: Final = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""
LONGEST: Final = 10.0
UNASKED: Final = 2.0
"""Seconds within which a service is asked again that names no time."""


class Clock:
    """The time of a test, which goes on where somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = NOW, list[float]()
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Busy:
    """A service that answers so, and then that all is well; a Keystone's answers are raised by keystoneauth."""

    def __init__(self, *answers: requests.Response, keystone: bool = False) -> None:
        self._answers = list(answers)
        self._keystone = keystone
        self.asked = 0

    def request(self, url: str, method: str, **_options: Any) -> Any:
        self.asked += 1
        if not self._answers:
            return answer(200)
        found = self._answers.pop(0)
        if self._keystone:
            raise exceptions.from_response(found, method, url)
        return found


def answer(status: int, told: str | None = None) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made._content = b"{}"
    if told is not None:
        made.headers["Retry-After"] = told
    return made


def ask(service: Busy) -> Any:
    return Rest(service, "network").get("/ports")


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The machine's own time is not that of the dates."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield Clock(patch)
    time.tzset()


@pytest.mark.parametrize("keystone", [False, True], ids=["service", "keystone"])
@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize(
    ("told", "pause"),
    [
        ("4", 4.0),
        ("Sun, 06 Nov 1994 08:49:41 GMT", 4.0),
        ("Sunday, 06-Nov-94 08:49:41 GMT", 4.0),
        ("Sun Nov  6 08:49:41 1994", 4.0),
        ("86400", LONGEST),
        ("Mon, 07 Nov 1994 08:49:37 GMT", LONGEST),
    ],
)
def test_it_is_left_alone_for_as_long_as_it_says(
    clock: Clock, status: int, told: str, pause: float, *, keystone: bool
) -> None:
    """Dates come in three forms, and no time is longer than the limit."""
    service = Busy(answer(status, told), keystone=keystone)
    assert ask(service) == {}
    assert clock.slept == [pytest.approx(pause)]


@pytest.mark.parametrize("keystone", [False, True], ids=["service", "keystone"])
@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize(
    "told",
    [
        None,
        "",
        "0",
        "-3",
        "1.5",
        "soon",
        "Sun, 06 Nov 1994 08:49:33 GMT",
        "Sun, 31 Feb 2094 08:49:37 GMT",
        "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
    ],
)
def test_what_names_no_time_to_come_counts_as_nothing(
    clock: Clock, status: int, told: str | None, *, keystone: bool
) -> None:
    assert ask(Busy(answer(status, told), keystone=keystone)) == {}
    (pause,) = clock.slept
    assert pause <= UNASKED


def test_it_is_asked_five_times_and_no_more(clock: Clock) -> None:
    service = Busy(*[answer(429, "3")] * 9)
    with pytest.raises(StepError, match=r"failed 5 times to carry out a request \(HTTP 429") as caught:
        ask(service)
    assert caught.value.error_code == "network-unavailable"
    assert (service.asked, clock.slept) == (5, [3.0] * 4)


def test_the_deadline_of_a_step_cuts_the_time_short(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "left", lambda: 1.0)
    ask(Busy(answer(429, "Sun, 06 Nov 1994 08:49:45 GMT")))
    assert clock.slept == [1.0]


@pytest.mark.parametrize(
    "refuse",
    [lambda: Busy(answer(403, "4")), lambda: Busy(answer(403, "4"), keystone=True)],
    ids=["service", "keystone"],
)
def test_a_refusal_for_good_is_one(clock: Clock, refuse: Callable[[], Busy]) -> None:
    service = refuse()
    with pytest.raises(StepError):
        ask(service)
    assert (service.asked, clock.slept) == (1, [])
