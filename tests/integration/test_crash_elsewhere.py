"""The crash matrix of other servers, other storage and one host: `tools/matrix --full` has all points of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import assert_converged

SEED: Final = ("--seed", "1")
FLOWS: Final = ("--kind", "confirm", "--kind", "revert", "--kind", "delete")
KILLED: Final = ("--effect", "kill", "--phase", "after")
SAMPLES: Final = (
    ("shared", "migrate", 10),
    ("stopped", "migrate", 10),
    ("stopped-on-volume", "resize", 10),
    ("many-disks", "resize", 12),
)
"""Resize and migrate are one graph: one of them will do for each cloud."""

# No promise of speed, only a guard: a process runs all points of a cloud, since it is warmed once then.
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("cloud", ["volume-backed", "one-host"])
def test_every_step_converges_that_was_killed(cloud: str, record_property: Callable[[str, object], None]) -> None:
    """R0-04, R0-11, R1-22, R3-15: and a sample of all else, of a server on a volume, and of one that keeps its host."""
    flows = ("--kind", "resize", *FLOWS)
    assert_converged(record_property, "--cloud", cloud, *flows, *KILLED, "--and", *flows, "--sample", "25", *SEED)


@pytest.mark.parametrize(("cloud", "forward", "count"), SAMPLES)
def test_a_sample_of_every_other_cloud_converges(
    cloud: str, forward: str, count: int, record_property: Callable[[str, object], None]
) -> None:
    """R0-04, R3-10, R3-15: whatever the server is made of, and wherever its disks lie."""
    assert_converged(record_property, "--cloud", cloud, "--kind", forward, *FLOWS, "--sample", str(count), *SEED)
