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
