"""The crash matrix of a server whose ports are guaranteed bandwidth and packet rates: a fixed sample of each cloud.

Besides what `test_crash_image_backed.py` says, each end is judged by the providers that the bindings name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from proofs.matrix import clouds
from support.crash_points import assert_converged

STEPS: Final = (
    *("claim", "reserve_ports", "move_ports", "release_source_allocation", "return_allocation"),
    *("unbind_ports", "bind_ports", "release_allocation"),
)
"""The steps that write what ports are guaranteed."""


# No promise of speed, only a guard: one process runs all of them, since it is warmed once then.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cloud", clouds.GUARANTEED)
def test_what_ports_are_guaranteed_survives_whatever_happens(
    cloud: str, record_property: Callable[[str, object], None]
) -> None:
    """Each of these steps is killed once in each flow, and all else comes in it."""
    steps = [word for step in STEPS for word in ("--step", step)]
    # Resize and migrate are one graph.
    kinds = [word for kind in clouds.kinds_in(cloud) if "migrate" not in kind for word in ("--kind", kind)]
    assert_converged(record_property, "--cloud", cloud, *kinds, *steps, "--cover", "steps", "--seed", "11")
