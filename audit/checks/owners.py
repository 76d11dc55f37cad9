"""Compares the type, project and user of consumers in Placement with the server's row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.clients.placement import MIGRATION, SERVER

_NO_SERVER: Final = ("", "")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find consumers with another type, project or user than their server; quotas count by these."""
    for standing in snapshot.standings.values():
        yield from _compare(snapshot, standing, standing.server, SERVER)
        if standing.phase is not Phase.REST:
            yield from _compare(snapshot, standing, standing.move_id, MIGRATION)


def _compare(snapshot: Snapshot, standing: Standing, consumer: str, kind: str) -> Iterator[Finding]:
    found, row = snapshot.consumers.get(consumer), standing.row
    if found is None or row is None or (row.project, row.user) == _NO_SERVER:
        return
    wanted = {"consumer type": kind, "project": row.project, "user": row.user}
    present = {"consumer type": found.kind, "project": found.project, "user": found.user}
    wrong = [f"{name} {present[name]}, not {value}" for name, value in wanted.items() if present[name] != value]
    if not wrong:
        return
    held = " ".join(
        f"--allocation rp={provider},{','.join(f'{name}={amount}' for name, amount in sorted(amounts.items()))}"
        for provider, amounts in sorted(snapshot.allocations.get(consumer, {}).items())
    )
    whose = "the server" if consumer == standing.server else "the migration of"
    yield Finding(
        Kind.ALLOCATION,
        consumer,
        f"the allocation of {whose} {standing.name} is of {' and of '.join(wrong)}",
        f"openstack resource provider allocation set {held} --project-id {row.project} --user-id {row.user} "
        f"--consumer-type {kind} {consumer}",
        next(iter(snapshot.held(consumer)), ""),
        standing.server,
        standing.move_id,
    )
