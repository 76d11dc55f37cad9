"""Reports hosts that could not be read.

An audit with such a gap is clean only when a person has declared the host down: what it holds is nobody's any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Snapshot


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each host whose guests or directories could not be read, unless it is declared down."""
    for gap in snapshot.unseen:
        if gap.host not in snapshot.down:
            yield _gap(gap.host, f"{gap.host} could not be looked at", gap.why)


def declared_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each host that is declared down and could not be read; this is noted only."""
    for gap in snapshot.unseen:
        if gap.host in snapshot.down:
            yield _gap(gap.host, f"{gap.host} is declared down and could not be looked at", gap.why)


def _gap(host: str, what: str, why: str) -> Finding:
    detail = f"{what}, so what it holds was not compared: {why}"
    return Finding(Kind.HOST, host, detail, f"droveway host show {host}", host)
