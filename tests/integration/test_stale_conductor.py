"""A conductor that was paused inside a step, lost its session and wakes up when all is done has no effect at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.daemons.stale_relay import Bench, Relay, bench, relay


@pytest.fixture(scope="module", name="stage")
def fixture_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("stale")) as made:
        yield made


@pytest.mark.parametrize("given", [relay("resize", "execute", "before")], ids=str)
def test_a_stale_conductor_has_no_effect(stage: Bench, given: Relay) -> None:
    stage.run(given)
