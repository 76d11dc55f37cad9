"""Every step of every flow, in both directions and every phase, has a stale conductor, and none has any effect.

The relays are read from the graphs: a step is among them by being in a graph.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.daemons.stale_relay import Bench, Relay, bench, relay

RELAYS = [
    *(
        relay("resize", direction, phase)
        for direction in ("execute", "revert")
        for phase in ("during", "after", "stored")
    ),
    relay("resize", "revert", "before"),
    *(relay("migrate", direction, "before") for direction in ("execute", "revert")),
    *(relay("revert", "execute", phase) for phase in ("before", "during", "after", "stored")),
    *(relay("revert", "revert", phase) for phase in ("before", "during", "after", "stored")),
    *(relay("confirm", "execute", phase) for phase in ("before", "during", "after", "stored")),
    *(relay("confirm", "revert", phase) for phase in ("before", "after", "stored")),
    relay("resize", "execute", "before", then="revert"),
    relay("resize", "execute", "after", then="revert"),
    relay("resize", "execute", "before", then="confirm"),
    relay("revert", "revert", "before", then="revert"),
    relay("revert", "revert", "before", then="confirm"),
]


@pytest.fixture(scope="module", name="stage")
def fixture_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("stale")) as made:
        yield made


@pytest.mark.parametrize("given", RELAYS, ids=str)
def test_a_stale_conductor_has_no_effect(stage: Bench, given: Relay) -> None:
    stage.run(given)
