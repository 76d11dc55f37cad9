"""Checks who may read the configuration's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from droveway.conf import rights
from droveway.doctor.findings import FINE, Examined, Finding

SUBJECT = "configuration"


def check(examined: Examined) -> Iterator[Finding]:
    """Check that nobody but the file's owner and group can read or change its passwords."""
    for file in examined.conf.config_file:
        why = rights.exposed(Path(file))
        yield (
            Finding(FINE, SUBJECT, f"{file} shows no password to others than its owner and group")
            if why is None
            else Finding("configuration-open", SUBJECT, why)
        )
