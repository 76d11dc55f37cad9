from __future__ import annotations

import os

import hypothesis
import pytest
from support import made_once

made_once.share()

# A shared machine is slow at times, and a stored example would make two runs of one seed differ.
hypothesis.settings.register_profile("droveway", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("droveway")


@pytest.fixture(autouse=True)
def _no_cloud_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a test from reaching the lab or the cloud that the caller's shell names."""
    for name in [name for name in os.environ if name.startswith(("DROVEWAY_", "OS_"))]:
        monkeypatch.delenv(name)
