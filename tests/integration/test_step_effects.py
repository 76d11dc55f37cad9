"""The crash matrix notices when a step does nothing: a fixed sample of the mutants that are made from the graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from proofs.matrix import effects as matrix_effects

SAMPLE = (
    "resize:check_destination",
    "resize:copy_disks",
    "resize:start_guest",
    "confirm:check_destination_copy",
    "confirm:discard_source",
    "revert:restore_disks",
    "delete:mark_deleting",
)
"""Of each kind those that only look, and some whose effect is on disks; tools/mutate --graph has all."""


def _mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proofs.matrix.effects", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_absence_of_each_effect_is_noticed(record_property: Callable[[str, object], None]) -> None:
    done = _mutants(*(word for each in SAMPLE for word in ("--only", each)), "--cloud", "many-disks")
    record_property("graph mutants", len(SAMPLE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == matrix_effects.LAST.format(len(SAMPLE), len(SAMPLE))


def test_an_effect_that_no_point_notices_is_told() -> None:
    """A stopped server has no guest to be shut down: where all servers are, nothing notices that the step is gone."""
    done = _mutants("--only", "migrate:stop_guest", "--cloud", "stopped")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["migrate:stop_guest: SURVIVED", matrix_effects.LAST.format(0, 1)]
