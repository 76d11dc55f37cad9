"""The crash matrix of a server that goes into another cell: a fixed sample.

`tools/matrix --full --between` has all points.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.crash_points import BETWEEN, BY_IMAGE, KINDS_BETWEEN, OF_IMAGES, assert_converged, sample, unmet


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("cloud", "steps"), [(BETWEEN, ()), (BY_IMAGE, OF_IMAGES)])
def test_each_step_of_every_flow_between_cells_converges(
    cloud: str, steps: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    """Each step is killed on one of its flow's ways, and all else happens to each flow, delete and cancel too.

    The rows of both cells are judged: one copy is visible, the one that the mapping names.
    """
    ran = assert_converged(record_property, *sample(cloud, each_way=False))
    assert unmet(ran, kinds=KINDS_BETWEEN, of=steps, each_way=False) == []
