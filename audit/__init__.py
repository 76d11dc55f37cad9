"""Compares the books without the flows' code: `audit` reads everything once and says what contradicts."""

from droveway.audit.findings import Finding, Kind, Report
from droveway.audit.run import audit, judge
from droveway.audit.snapshot import Snapshot
from droveway.audit.sources import Sources, take

__all__ = ["Finding", "Kind", "Report", "Snapshot", "Sources", "audit", "judge", "take"]
