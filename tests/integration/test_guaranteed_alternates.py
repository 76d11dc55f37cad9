"""Alternates once more, with ports that are each guaranteed bandwidth and a packet rate (R4-02)."""

from __future__ import annotations

import pytest
from integration.test_alternates import *  # noqa: F403 - each test of it, whatever comes there
from support.labs.operations import Stage

pytestmark = pytest.mark.usefixtures("guaranteed_ports")


def test_each_port_is_guaranteed_something(lab: Stage) -> None:
    """So that the tests above are about such ports."""
    assert {port.resources is not None for port in lab.lab.cloud.network.all_ports()} == {True}
