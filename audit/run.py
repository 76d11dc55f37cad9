"""Runs an audit: every check over one snapshot, and once more over a second one if anything was found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from droveway.audit.checks import (
    allocations,
    bindings,
    cells,
    commands,
    connections,
    contents,
    disks,
    guaranteed,
    guests,
    hosts,
    images,
    journal,
    migrations,
    owners,
    rows,
    usage,
    volumes,
)
from droveway.audit.findings import Finding, Kind, Report, unique
from droveway.audit.gently import gently
from droveway.audit.snapshot import Snapshot
from droveway.audit.sources import Sources, take

Check = Callable[[Snapshot], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    allocations.check,
    owners.check,
    bindings.check,
    guaranteed.check,
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
    cells.check,
    contents.check,
    commands.check,
)


ON_HOST: Final = frozenset({Kind.DISK, Kind.GUEST, Kind.CONNECTION, Kind.INTERFACE, Kind.ALLOCATION})
"""The kinds of findings that a debt explains when its action is not in `TAKEN_AWAY`.

Of the kind ALLOCATION a debt explains only the finding that a host has something of a server without an allocation.
"""
_DISKS: Final = frozenset({Kind.DISK, Kind.ALLOCATION})
_WIRES: Final = frozenset({Kind.CONNECTION, Kind.INTERFACE})
TAKEN_AWAY: Final[dict[str, frozenset[Kind]]] = {
    "check_destination": _DISKS,
    "set_aside": _DISKS,
    "offer_disks": _DISKS,
    "copy_disks": _DISKS,
    "rename_copy": _DISKS,
    "fit_disks": _DISKS,
    "restore_disks": _DISKS,
    "connect": _WIRES,
    "disconnect": _WIRES,
    "define_guest": frozenset({Kind.GUEST, Kind.ALLOCATION}),
    "start_guest": frozenset({Kind.GUEST, Kind.ALLOCATION}),
    "stop_guest": frozenset({Kind.GUEST}),
}
"""Maps an action that a host may owe to the kinds of findings that the action removes.

An action that is missing here may remove every kind of `ON_HOST`.
"""


def audit(sources: Sources) -> Report:
    """Compare everything and report what contradicts; nothing is changed.

    Raises what databases and services raise when they cannot be read. They are not read at one instant: a flow may
    begin or end after the journal was read. So a finding counts only when a second snapshot has it as well.
    """
    snapshot = take(sources)
    report = judge(snapshot)
    if report.clean:
        return report
    later = take(sources)
    again = judge(later)
    stood = {_again(finding) for finding in report.findings}
    # If one of the snapshots could not read a host or a cell, that one was not compared twice. So its gap is reported
    # even if the two snapshots give different reasons for it.
    gaps = {
        (gap.kind, gap.subject): gap for each in (snapshot, later) for gap in (*hosts.check(each), *cells.check(each))
    }
    found = [finding for finding in again.findings if _again(finding) in stood]
    return Report(unique(iter({*found, *gaps.values()})), again.noted, again.counted)


def _again(finding: Finding) -> Hashable:
    """Return the key by which a finding of the first snapshot is found again in the second.

    For a guest that runs twice the key leaves out what a move may change meanwhile.
    """
    twice = finding.kind is Kind.GUEST and "," in finding.host
    return (finding.subject, finding.host) if twice else finding


def judge(snapshot: Snapshot) -> Report:
    """Run every check over the snapshot; findings that a debt explains are only noted.

    Findings that a cell which could not be read may explain are left out.
    """
    found = unique(
        gently(snapshot, finding)
        for check in CHECKS
        for finding in check(snapshot)
        if cells.is_certain(snapshot, finding)
    )
    owed = {
        (debt.host, known, kind)
        for debt in snapshot.debts
        if not debt.kept and (not debt.written_off or debt.host in snapshot.down)
        for known in (debt.move, snapshot.move_by_id[debt.move].server)
        for kind in TAKEN_AWAY.get(debt.action, ON_HOST)
    }
    explained = [each for each in found if _is_owed(each, owed)]
    findings = tuple(each for each in found if each not in explained)
    noted = unique(
        iter(
            [
                *explained,
                *_debts(snapshot),
                *journal.late_calls(snapshot),
                *contents.unread(snapshot),
                *hosts.declared_down(snapshot),
                *cells.declared_down(snapshot),
            ]
        )
    )
    return Report(findings, noted, snapshot.counted())


def _is_owed(finding: Finding, owed: set[tuple[str, str, Kind]]) -> bool:
    """Say whether a debt explains the finding: the debt will remove it from its host. A running guest is never owed."""
    # A finding about a thing that the move made has the move's id. A finding about a thing that was there before the
    # move, such as the disks on the source, has only the server.
    known = finding.move or finding.server
    return finding.owable and any((host, known, finding.kind) in owed for host in finding.host.split(","))


def _debts(snapshot: Snapshot) -> Iterator[Finding]:
    for debt in snapshot.debts:
        if debt.written_off or debt.kept:
            continue
        move = snapshot.move_by_id[debt.move]
        yield Finding(
            Kind.HOST,
            f"debt {debt.id}",
            f"{debt.owner} still owes {debt.action} for the move {move.short} of {move.server_name}",
            f"droveway debt show {debt.id}",
            debt.host,
            move.server,
            move.id,
        )
