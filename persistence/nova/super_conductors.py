"""Finds Nova's super conductors: the nova-conductor services that are listed in the database of cell0."""

from __future__ import annotations

import datetime as dt
from typing import Final

import sqlalchemy as sa

from droveway.persistence.database import Database, database_time
from droveway.persistence.nova.cell_hosts import Service

CELL0: Final = "00000000-0000-0000-0000-000000000000"
"""The uuid of cell0, Nova's cell for servers that never got a host: nothing is ever moved from or to it."""

_DOWN: Final = dt.timedelta(seconds=60)
"""A service that has not reported for this long counts as down: Nova's default `service_down_time`."""


def up(database: Database) -> list[str]:
    """Return the hosts on which a super conductor is up by Nova's rule; ``database`` is the database of cell0."""
    with database.read() as session:
        seen = Service.last_seen_up > database_time(session) - _DOWN
        wanted = sa.select(Service.host).where(Service.binary == "nova-conductor", Service.deleted == 0, seen)
        return sorted(str(host) for host in session.scalars(wanted))
