"""The crash matrix of a server that is shelved and unshelved: a fixed sample.

`tools/matrix --full --shelving` has all points.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crash_points import (
    KINDS_OF_SHELVING,
    KINDS_OF_SHELVING_BETWEEN,
    SHELVED,
    SHELVED_BETWEEN,
    assert_converged,
    sample,
    unmet,
)


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(900)
def test_each_step_of_a_shelve_and_an_unshelve_converges(record_property: Callable[[str, object], None]) -> None:
    """Each step is killed on one of its flow's ways, and all else happens to each flow, delete and cancel too."""
    ran = assert_converged(record_property, *sample(SHELVED, each_way=False))
    # A delete of a shelved server asks no host, and test_crash_image_backed.py has all of the others.
    assert unmet(ran, kinds=[kind for kind in KINDS_OF_SHELVING if kind != "delete"], each_way=False) == []


@pytest.mark.timeout(900)
def test_each_step_of_an_unshelve_in_another_cell_converges(record_property: Callable[[str, object], None]) -> None:
    """Each step is killed on one of its flow's ways; the rows of both cells are judged: one copy is left.

    It is the one that the mapping names.
    """
    ran = assert_converged(record_property, *sample(SHELVED_BETWEEN, each_way=False))
    assert unmet(ran, kinds=KINDS_OF_SHELVING_BETWEEN, each_way=False) == []
