"""Reads which hosts a person declared down, having made sure that they are off: `services.forced_down` in Nova."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell_hosts import Service

_DOWN: Final = sa.select(Service.host).where(
    Service.binary == "nova-compute", Service.forced_down.is_(True), Service.deleted == 0, Service.host.is_not(None)
)
_IS_DOWN: Final = _DOWN.where(Service.host == sa.bindparam("name"))


def is_down(session: orm.Session, host: str) -> bool:
    """Tell whether a person declared the host down."""
    return session.scalar(_IS_DOWN, {"name": host}) is not None


def down(session: orm.Session) -> frozenset[str]:
    """Return the names of the cell's hosts that a person declared down."""
    return frozenset(str(host) for host in session.scalars(_DOWN))
