"""What the units as they are shipped leave open, by systemd's own count."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

UNITS: Final = Path(__file__).parents[2] / "etc/systemd"
MOST: Final = 3.0


@pytest.mark.parametrize("unit", ["droveway-conductor.service", "droveway-worker.service"])
def test_a_unit_is_exposed_no_more_than_it_needs(unit: str) -> None:
    """S15: `systemd-analyze security --offline` rates it at most 3.0."""
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", UNITS / unit],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    rated = re.search(r"Overall exposure level for (\S+): ([0-9.]+)", said)
    assert rated is not None, said
    assert rated[1] == unit
    assert float(rated[2]) <= MOST, said


@pytest.mark.parametrize("unit", ["droveway-conductor.service", "droveway-worker.service"])
def test_each_unit_filters_what_costs_it_nothing(unit: str) -> None:
    """S15, by name: a rating may be reached by other ways."""
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / unit)
    service = dict(parser["Service"])
    wanted = {
        "SystemCallArchitectures": "native",
        "ProtectClock": "yes",
        "ProtectHostname": "yes",
        "ProtectKernelLogs": "yes",
        "RestrictRealtime": "yes",
        "RestrictNamespaces": "yes",
        "PrivateMounts": "yes",
        "PrivateDevices": "yes",
        "NoNewPrivileges": "yes",
    }
    assert {name: service.get(name) for name in wanted} == wanted
    assert "@system-service" in (UNITS / unit).read_text()
    assert int(service["UMask"], 8) & 0o027 == 0o027
    # Nobody's signals, users or groups: what a worker starts is its own.
    granted = set(service["CapabilityBoundingSet"].split())
    assert granted <= {"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER"}
