"""Reports hosts that could not be read, so that an audit with a gap is never clean."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Snapshot


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each host whose guests or directories could not be read."""
    for gap in snapshot.unseen:
        yield Finding(
            Kind.HOST,
            gap.host,
            f"{gap.host} could not be looked at, so what it holds was not compared: {gap.why}",
            f"droveway host show {gap.host}",
            gap.host,
        )
