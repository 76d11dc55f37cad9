"""Which tests of tests/integration are left out where all of its files run, so that `tools/test` ends in time.

With ``--every-case``, and where a file is named, none is.
"""

from __future__ import annotations

import collections
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FILES: Final = frozenset({"test_crash_same_host", "test_crash_volume_backed", "test_protocol_model_whole"})
"""Files of which another one tries the same in another cloud, or a smaller model of it."""

EVERY: Final = 5
"""Each how many-th case of a test runs.

Each case is the same test at another step, with another server, host, storage, database, operation or bad word.
"""

MANY: Final = frozenset(
    {
        "test_alternates",
        "test_attached_meanwhile",
        "test_bad_input_labs",
        "test_behind",
        "test_cells_away",
        "test_cells_away_steps",
        "test_cells_by_image",
        "test_choosing_cells",
        "test_daemons_bad_input",
        "test_declared_down",
        "test_evacuated_meanwhile",
        "test_guaranteed_bad_input",
        "test_kept_sources",
        "test_operations",
        "test_operations_failing",
        "test_outcomes_beside_nova",
        "test_overtaken",
        "test_revert_elsewhere",
        "test_settling_books",
        "test_settling_cells",
        "test_settling_copies",
        "test_shelving",
        "test_soak",
        "test_stale_conductor_all",
        "test_starts_permission",
        "test_two_faults_databases",
        "test_two_faults_restores",
        "test_ways_out_of_parks",
    }
)
"""Files whose tests have many cases, or long ones."""
EVERY_OF_MANY: Final = 9
"""The same of these."""

ONCE_MORE: Final = frozenset(
    {
        "test_guaranteed_alternates",
        "test_guaranteed_attached",
        "test_guaranteed_confirm_policies",
        "test_guaranteed_deletions",
        "test_guaranteed_operations",
        "test_guaranteed_shelving",
    }
)
"""Files that run the tests of another one in other clouds: each how many-th case of any of their tests runs.

Of the other file each test has a case that runs.
"""


STEP_BY_STEP: Final = frozenset({"test_policies_changed", "test_policies_on_neutron"})
"""Files whose tests do the same at each step of each operation."""
EVERY_OF_STEPS: Final = 25
"""The same of these."""


def left_out(tests: Iterable[str]) -> set[str]:
    """Return those of the tests, by their node ids, that do not run: the same ones in whichever order they come."""
    cases: dict[str, list[str]] = collections.defaultdict(list)
    out = set()
    for test in tests:
        if file_of(test) in FILES:
            out.add(test)
        elif file_of(test) in ONCE_MORE:
            cases[file_of(test)].append(test)
        elif "[" in test:
            cases[test.partition("[")[0]].append(test)
    for name, found in cases.items():
        file = file_of(name)
        every = EVERY_OF_STEPS if file in STEP_BY_STEP else EVERY_OF_MANY if file in MANY | ONCE_MORE else EVERY
        # Not the first of each: of two makes of a database that would always be the same one.
        first = zlib.crc32(name.encode()) % min(every, len(found))
        out |= {*found} - {*sorted(found)[first::every]}
    return out


def file_of(test: str) -> str:
    """Return the name of a test's file, without its ending."""
    return Path(test.partition("::")[0]).stem
