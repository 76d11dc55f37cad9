"""The crash matrix of other servers and other storage: `tools/matrix --full` has all points of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import EVERY, assert_converged

SEEDS: Final = {"shared": 1, "stopped": 2, "many-disks": 4}
"""Of each cloud's points some seeded pairs of a way that a flow can go and a thing that can happen in it."""

# No promise of speed, only a guard: a process runs all points of a cloud, since it is warmed once then.
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("cloud", SEEDS)
def test_a_sample_of_every_other_cloud_converges(cloud: str, record_property: Callable[[str, object], None]) -> None:
    """R0-04, R3-10, R3-15: whatever the server is made of, and wherever its disks lie."""
    seed = str(SEEDS[cloud])
    assert_converged(record_property, "--cloud", cloud, *EVERY, "--each", "1", "--sample", "10", "--seed", seed)
