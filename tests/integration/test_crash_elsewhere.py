"""The crash matrix of other servers, other storage and one host: `tools/matrix --full` has all points of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import EVERY, assert_converged

SAMPLE: Final = ("--each", "1", "--seed", "1")
"""One step for each pair of a way that a flow can go and a thing that can happen in it."""

# No promise of speed, only a guard: a process runs all points of a cloud, since it is warmed once then.
pytestmark = pytest.mark.timeout(1500)


@pytest.mark.parametrize("cloud", ["volume-backed", "one-host"])
def test_every_single_fault_converges(cloud: str, record_property: Callable[[str, object], None]) -> None:
    """R0-04, R0-11, R1-22, R3-15: of a server on a volume, and of one that keeps its host."""
    assert_converged(record_property, "--cloud", cloud, *EVERY)


@pytest.mark.parametrize("cloud", ["shared", "stopped", "stopped-on-volume", "many-disks"])
def test_a_sample_of_every_other_cloud_converges(cloud: str, record_property: Callable[[str, object], None]) -> None:
    """R0-04, R3-10, R3-15: whatever the server is made of, and wherever its disks lie."""
    assert_converged(record_property, "--cloud", cloud, *EVERY, *SAMPLE)
