"""Labs whose ports are guaranteed bandwidth and packet rates, read from the tables of Placement and of Neutron."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Final

from support.labs.operations import Stage

AGENT: Final = "Open vSwitch agent"
EGRESS, INGRESS, PACKETS = (
    "NET_BW_EGR_KILOBIT_PER_SEC",
    "NET_BW_IGR_KILOBIT_PER_SEC",
    "NET_PACKET_RATE_KILOPACKET_PER_SEC",
)

Held = dict[str, dict[str, int]]
"""Provider's name → class → amount."""


@contextlib.contextmanager
def tables(lab: Stage, name: str) -> Iterator[sqlite3.Connection]:
    """Open one of the lab's databases."""
    connection = sqlite3.connect(lab.lab.layout.root / name)
    connection.row_factory = sqlite3.Row
    with contextlib.closing(connection):
        yield connection


def holding(lab: Stage, consumer: str) -> tuple[Held, Held, int]:
    """Return what a consumer holds for ports, what it holds besides, and its generation."""
    for_ports: Held = {}
    besides: Held = {}
    generation = -1
    with tables(lab, "placement.sqlite") as rows:
        for row in rows.execute(
            "SELECT resource_providers.name, resource_classes.name AS class, used, consumers.generation"
            " FROM allocations JOIN resource_providers ON resource_providers.id = resource_provider_id"
            " JOIN resource_classes ON resource_classes.id = resource_class_id"
            " JOIN consumers ON consumers.uuid = consumer_id WHERE consumer_id = ?",
            (consumer,),
        ):
            found = for_ports if row["class"].startswith("NET_") else besides
            found.setdefault(row["name"], {})[row["class"]] = row["used"]
            generation = row["generation"]
    return for_ports, besides, generation


def named(lab: Stage, server: str) -> dict[str, dict[str, str | dict[str, str]]]:
    """Port → host → whom its binding there names: a provider's name, or one for each group; "" where it names none."""
    with tables(lab, "placement.sqlite") as rows:
        names = {row["uuid"]: row["name"] for row in rows.execute("SELECT uuid, name FROM resource_providers")}
    found: dict[str, dict[str, str | dict[str, str]]] = {}
    with tables(lab, "services.sqlite") as rows:
        for row in rows.execute(
            "SELECT ports.id, host, profile FROM port_bindings JOIN ports ON ports.id = port WHERE server = ?",
            (server,),
        ):
            told = json.loads(row["profile"]).get("allocation", "")
            found.setdefault(row["id"], {})[row["host"]] = (
                names.get(told, told)
                if isinstance(told, str)
                else {group: names.get(each, each) for group, each in told.items()}
            )
    return found


def provider(lab: Stage, name: str) -> str:
    """Return the uuid of a provider by its name."""
    with tables(lab, "placement.sqlite") as rows:
        return str(rows.execute("SELECT uuid FROM resource_providers WHERE name = ?", (name,)).fetchone()["uuid"])
