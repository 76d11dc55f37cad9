"""The configuration's own file: who may read what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from droveway.conf import rights
from droveway.doctor.findings import FINE, Around, Finding

SUBJECT = "configuration"


def check(around: Around) -> Iterator[Finding]:
    """Whether others than its owner and group have its passwords."""
    for file in around.conf.config_file:
        why = rights.exposed(Path(file))
        yield (
            Finding(FINE, SUBJECT, f"{file} is kept from others")
            if why is None
            else Finding("configuration-open", SUBJECT, why)
        )
