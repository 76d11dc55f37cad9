"""The crash matrix of a server that boots from a volume and goes to another host (`tools/matrix`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crash_points import EVERY, assert_converged


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(1500)
def test_every_single_fault_converges(record_property: Callable[[str, object], None]) -> None:
    """R0-04, R0-11, R3-15: whatever happens at any step."""
    assert_converged(record_property, "--cloud", "volume-backed", *EVERY)
