"""The crash matrix of a server that stays on its host: a fixed sample; `tools/matrix --full` has all points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crash_points import assert_converged, sample, unmet


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(900)
def test_each_step_of_every_flow_converges(record_property: Callable[[str, object], None]) -> None:
    """R0-04, R1-22, R3-15: each step is killed on one of its flow's ways, and all else happens to each kind of flow."""
    ran = assert_converged(record_property, *sample("one-host", each_way=False))
    assert unmet(ran, alternates=False, each_way=False) == []
