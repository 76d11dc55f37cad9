"""The crash matrix of a revert whose source is dead: a fixed sample.

`tools/matrix --full --between` has all points.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crash_points import SOURCE_LOST, assert_converged, sample


@pytest.mark.timeout(900)
def test_a_revert_to_another_host_converges(record_property: Callable[[str, object], None]) -> None:
    """Each thing that can happen does, on each way; the source is back before the end is judged."""
    ran = assert_converged(record_property, *sample(SOURCE_LOST))
    assert {point.split(":")[1] for point in ran} == {"execute", "revert", "retry"}
