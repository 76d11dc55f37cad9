"""A minute and 60 moves of chaos over an installation; `tools/chaos` has 200 moves, and as many minutes as wanted."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from support.daemons import chaos

SECONDS: Final = 60.0
MOVES: Final = 60

BREAKS: Final = ("kills", "stops", "freezes", "leaders", "databases", "cuts", "between cells")
"""What has to have happened once at least; the last are moves that led into another cell."""


@pytest.mark.timeout(SECONDS + chaos.MORE + chaos.SETTLES_WITHIN + 120)
def test_every_move_ends_whatever_dies(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Daemons, leaders, databases and connections die at random; all moves end, the audit is clean, no guest is two."""
    seed = secrets.randbelow(10**6)
    # A run that hangs is told by its seed too.
    sys.stdout.write(f"tools/chaos --seed {seed}\n")
    told = chaos.run(tmp_path, SECONDS, seed, MOVES)
    record_property("figure", told)
    assert [each for each in BREAKS if f" {each}," not in f"{told.partition(';')[0]},"] == []
