"""Checks that this release can go on with each flow that has begun and not ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import DrovewayError, NotFound
from droveway.flows import registry
from droveway.persistence.journal.tables import MoveFlow

SUBJECT: Final = "flows"

_LIVE: Final = (
    sa.select(MoveFlow.kind, MoveFlow.version, MoveFlow.digest, sa.func.count().label("number"))
    .where(MoveFlow.ended_at.is_(None))
    .group_by(MoveFlow.kind, MoveFlow.version, MoveFlow.digest)
    .order_by(MoveFlow.kind, MoveFlow.version)
)


def check(examined: Examined) -> Iterator[Finding]:
    """Check each kind and version of running flows; yields nothing where the journal cannot be read.

    The check of the databases reports that the journal cannot be read.
    """
    try:
        journal = examined.site.journal
    except DrovewayError:
        return
    with journal.read() as session:
        live = session.execute(_LIVE).all()
    lost = [row for row in live if not _is_known(row.kind, row.version, row.digest)]
    for row in lost:
        detail = f"running flows of {row.kind}@{row.version}: {row.number}; this release does not have that graph"
        yield Finding("flow-unknown", f"{row.kind}@{row.version}", detail)
    for row in live:
        newest = registry.latest(row.kind).version if row not in lost else row.version
        if row.version < newest:
            detail = (
                f"running flows of {row.kind}@{row.version}: {row.number}; the newest graph is {row.kind}@{newest}, "
                f"and once these flows have ended, a release without {row.kind}@{row.version} can take over"
            )
            yield Finding(FINE, f"{row.kind}@{row.version}", detail)
    if not lost:
        yield Finding(FINE, SUBJECT, f"this release can go on with all {sum(row.number for row in live)} running flows")


def _is_known(kind: str, version: int, digest: str) -> bool:
    try:
        return registry.graph(kind, version).digest() == digest
    except NotFound:
        return False
