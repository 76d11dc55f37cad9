"""The flows that have begun and not ended: whether this release can go on with each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from droveway.doctor.findings import FINE, Around, Finding
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


def check(around: Around) -> Iterator[Finding]:
    """Each kind and version of them; nothing where the journal cannot be read, which another check tells."""
    try:
        journal = around.site.journal
    except DrovewayError:
        return
    with journal.read() as session:
        live = session.execute(_LIVE).all()
    lost = [row for row in live if not _is_known(row.kind, row.version, row.digest)]
    for row in lost:
        detail = f"this release does not have {row.kind}@{row.version}, which live flows run by: {row.number}"
        yield Finding("flow-unknown", f"{row.kind}@{row.version}", detail)
    for row in live:
        newest = registry.latest(row.kind).version if row not in lost else row.version
        if row.version < newest:
            detail = (
                f"live flows run by {row.kind}@{row.version}, which {row.kind}@{newest} has replaced: {row.number}; a "
                "release without it can take over once they have ended"
            )
            yield Finding(FINE, f"{row.kind}@{row.version}", detail)
    if not lost:
        yield Finding(FINE, SUBJECT, f"this release can go on with all {sum(row.number for row in live)} live flows")


def _is_known(kind: str, version: int, digest: str) -> bool:
    try:
        return registry.graph(kind, version).digest() == digest
    except NotFound:
        return False
