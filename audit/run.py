"""Running an audit: every check over one snapshot, and a second look at whatever was found while moves go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from droveway.audit import (
    allocations,
    bindings,
    connections,
    disks,
    guests,
    hosts,
    images,
    journal,
    migrations,
    rows,
    usage,
    volumes,
)
from droveway.audit.findings import Finding, Kind, Report, unique
from droveway.audit.snapshot import Phase, Snapshot
from droveway.audit.sources import Sources, take

Check = Callable[[Snapshot], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    allocations.check,
    bindings.check,
    volumes.check,
    images.check,
    disks.check,
    guests.check,
    connections.check,
    rows.check,
    migrations.check,
    usage.check,
    journal.check,
    hosts.check,
)


def audit(sources: Sources) -> Report:
    """Compare all books and say what contradicts; nothing is changed.

    Raises what databases and services raise when they cannot be read.  While flows run, databases and hosts are not
    read at one instant: then a finding counts only when a second look finds it again.  Where hosts are asked, a flow
    may begin while they answer, of which the journal that was read before knows nothing: there, too.
    """
    snapshot = take(sources)
    report = judge(snapshot)
    moving = any(standing.phase is Phase.MOVING for standing in snapshot.standings.values())
    if report.clean or not (moving or sources.asks):
        return report
    later = take(sources)
    again = judge(later)
    stood = set(report.findings)
    # What could not be looked at twice was not compared, whatever kept either look from it.
    gaps = {gap.host: gap for each in (snapshot, later) for gap in hosts.check(each)}
    found = [finding for finding in again.findings if finding in stood]
    return Report(unique(iter({*found, *gaps.values()})), again.noted, again.counted)


def judge(snapshot: Snapshot) -> Report:
    """What every check finds in the snapshot, with what debts explain set apart."""
    found = unique(finding for check in CHECKS for finding in check(snapshot))
    owed = {
        (debt.host, debt.move)
        for debt in snapshot.debts
        if not debt.kept and (not debt.written_off or debt.host in snapshot.down)
    }
    explained = [each for each in found if _is_owed(each, owed)]
    findings = tuple(each for each in found if each not in explained)
    noted = unique(iter([*explained, *_debts(snapshot), *journal.late_calls(snapshot)]))
    return Report(findings, noted, snapshot.counted())


def _is_owed(finding: Finding, owed: set[tuple[str, str]]) -> bool:
    return any((host, finding.move) in owed for host in finding.host.split(","))


def _debts(snapshot: Snapshot) -> Iterator[Finding]:
    for debt in snapshot.debts:
        if debt.written_off or debt.kept:
            continue
        move = snapshot.move_by_id[debt.move]
        yield Finding(
            Kind.HOST,
            f"debt {debt.id}",
            f"{debt.host} still owes {debt.action} for the move {move.short} of {move.server_name}",
            f"droveway debt show {debt.id}",
            debt.host,
            move.server,
            move.id,
        )
