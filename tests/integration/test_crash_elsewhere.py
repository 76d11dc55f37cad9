"""Samples of the crash matrix of other servers and other storage (`tools/matrix --full`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from support.crash_points import assert_converged

SEED: Final = ("--seed", "1")
SAMPLES: Final = (
    ("volume-backed", "resize", 40),
    ("one-host", "resize", 40),
    ("shared", "migrate", 10),
    ("stopped", "migrate", 10),
    ("stopped-on-volume", "resize", 10),
    ("many-disks", "resize", 12),
)
"""Resize and migrate are one graph: one of them will do for each cloud."""


@pytest.mark.parametrize(("cloud", "forward", "count"), SAMPLES)
def test_a_sample_of_every_cloud_converges(
    cloud: str, forward: str, count: int, record_property: Callable[[str, object], None]
) -> None:
    """R0-04, R0-11, R1-22, R3-10, R3-15: whatever the server is made of, and wherever its disks lie."""
    kinds = ("--kind", forward, "--kind", "confirm", "--kind", "revert", "--kind", "delete")
    assert_converged(record_property, "--cloud", cloud, *kinds, "--sample", str(count), *SEED)
