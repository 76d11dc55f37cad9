"""The model of the protocol is explored whole: two conductors, a restore, a sleep, a death, an evacuation of Nova's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.protocol.explore import explore
from support.protocol.state import World


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_all_interleavings_hold(record_property: Callable[[str, object], None], *, shared: bool) -> None:
    count, way, rule = explore(World(shared=shared, twin=True))
    assert not way, f"{rule}: {'; '.join(way or [])}"
    assert count > 500_000
    storage = "shared" if shared else "separate"
    record_property("figure", f"protocol model: {count} states with {storage} storage, no rule is broken")
