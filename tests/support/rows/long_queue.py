"""Moves by the thousand, as rows."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa

from droveway.flows import registry
from droveway.lab.session import Lab
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim, Move, MoveFlow
from droveway.persistence.nova.api import InstanceMapping
from droveway.persistence.nova.cell import Instance, InstanceExtra

_OF_ALL = {
    "kind": "migrate",
    "source_cell": "cell1",
    "old_flavor": "small",
    "new_flavor": "small",
    "policy": "deadline",
}


def fill(
    journal: Database, count: int, state: State = State.QUEUED, *, host: str = "host1", digest: str = ""
) -> list[str]:
    """So many moves from the host, of servers that nobody has; the moves' ids.

    All but queued ones were claimed once and have no flow to run.  With another ``digest`` than that of the flow no
    conductor takes them up.
    """
    flow = registry.reference("migrate")
    ids = [str(uuid.uuid4()) for _ in range(count)]
    is_queued = state is State.QUEUED
    with journal.begin() as connection:
        now = database_time(connection)
        common: dict[str, Any] = {**_OF_ALL, "source_host": host, "state": state, "created_at": now, "updated_at": now}
        moves = [
            {
                "id": each,
                "server": each,
                "server_name": each[:8],
                "active_server": None if state in ENDED else each,
                "flow_uuid": each if is_queued else None,
                **common,
            }
            for each in ids
        ]
        flows = [
            {
                "uuid": each,
                "move_id": each,
                "kind": flow.kind,
                "version": flow.version,
                "digest": digest or flow.digest,
                "created_at": now,
                "ended_at": None if is_queued else now,
            }
            for each in ids
        ]
        claims = [{"move_id": each, "epoch": 1, "owner": "x", "claimed_at": now, "released_at": now} for each in ids]
        for model, rows in ((Move, moves), (MoveFlow, flows), (Claim, [] if is_queued else claims)):
            if rows:
                connection.execute(sa.insert(model), rows)
    return ids


def add_servers(lab: Lab, count: int) -> None:
    """So many servers more in the first cell's and the API's rows, as like one that is there as its brothers."""
    names = {number: (str(uuid.uuid4()), f"crowd{number}") for number in range(count)}
    cell = next(iter(lab.cell_databases.values()))
    for database, model, key in (
        (cell, Instance, "uuid"),
        (cell, InstanceExtra, "instance_uuid"),
        (lab.api, InstanceMapping, "instance_uuid"),
    ):
        table = model.__table__
        assert isinstance(table, sa.Table)
        with database.begin() as connection:
            like = dict(connection.execute(sa.select(table).limit(1)).mappings().one())
            del like["id"]
            rows = [
                like | {key: server} | ({"display_name": name, "hostname": name} if model is Instance else {})
                for server, name in names.values()
            ]
            connection.execute(sa.insert(table), rows)
