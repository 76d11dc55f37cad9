"""Confirm policies once more, with ports that are each guaranteed bandwidth and a packet rate (R4-02)."""

from __future__ import annotations

import pytest
from integration.test_confirm_policies_lab import *  # noqa: F403 - each test of it, whatever comes there

pytestmark = pytest.mark.usefixtures("guaranteed_ports")
