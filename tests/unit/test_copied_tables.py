"""Every table of a cell that names a server has its list, and the lists name what is there."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from droveway.persistence.nova import cell, copied_tables
from droveway.persistence.nova.copied_tables import BROUGHT_BACK, COPIED, LISTS, MADE_ANEW

SCHEMA = Path(__file__).parent.parent / "data" / "nova" / "nova-schema-cell.sql"
COLUMNS = {"instance_uuid", "instance_id", "uuid", "resource_id", "consumer_id"}
"""Columns that may name a server."""

OWN = {
    "aggregates": "in the API database today",
    "compute_nodes": "the host's own in Placement",
    "instance_groups": "in the API database today",
    "networks": "nova-network's",
    "reservations": "a quota's, which is counted today",
    "resource_providers": "Placement's",
    "s3_images": "an image's",
    "services": "the service's own",
    "snapshot_id_mappings": "a snapshot's",
    "volume_id_mappings": "a volume's",
}
"""Tables whose column `uuid` names no server → what it names."""


@pytest.fixture(scope="module", name="schema")
def fixture_schema() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA.read_text())
        yield connection


def columns(schema: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in schema.execute(f"PRAGMA table_info({table})")}


def referred(schema: sqlite3.Connection, table: str) -> dict[str, str]:
    """Column → the table that it refers to."""
    return {row[3]: row[2] for row in schema.execute(f"PRAGMA foreign_key_list({table})")}


def tables(schema: sqlite3.Connection) -> list[str]:
    found = [row[0] for row in schema.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    return [name for name in found if not name.startswith("shadow_")]


def naming_servers(schema: sqlite3.Connection) -> set[str]:
    """The tables with a column that may name a server, or with a key to a table that does, however far."""
    found = {name for name in tables(schema) if columns(schema, name) & COLUMNS} - OWN.keys()
    while further := {
        name for name in tables(schema) if name not in found and set(referred(schema, name).values()) & found
    }:
        found |= further
    return found


def test_every_table_that_names_a_server_is_in_one_list(schema: sqlite3.Connection) -> None:
    listed = [entry.table for entries in LISTS.values() for entry in entries]
    assert sorted(set(listed)) == sorted(listed), "a table is in two lists"
    # A group names no server: it is made where the server that is in it goes.
    assert set(listed) - {"security_groups"} == naming_servers(schema)


def test_a_column_that_names_something_else_is_the_rows_own(schema: sqlite3.Connection) -> None:
    for name in OWN:
        assert columns(schema, name) & COLUMNS == {"uuid"}, name


def test_what_is_brought_back_was_copied() -> None:
    brought = [entry.table for entry in BROUGHT_BACK]
    assert len(set(brought)) == len(brought)
    assert set(brought) <= {entry.table for entry in COPIED}


@pytest.mark.parametrize("entry", COPIED, ids=lambda entry: entry.table)
def test_no_id_of_a_cell_crosses(schema: sqlite3.Connection, entry: copied_tables.Entry) -> None:
    """Rule 14: keys of rows, and what refers to them, are left out; servers are referred to by their uuid."""
    known = columns(schema, entry.table)
    ids = {column for column, table in referred(schema, entry.table).items() if table != "instances"}
    ids |= known & {"id", "compute_id", "dest_compute_id", "migration_context"}
    assert ids <= entry.left_out.keys()
    assert entry.left_out.keys() - known <= {"Droveway's own rows"}


@pytest.mark.parametrize("entry", [*COPIED, *MADE_ANEW], ids=lambda entry: entry.table)
def test_all_columns_of_a_copied_table_are_known(schema: sqlite3.Connection, entry: copied_tables.Entry) -> None:
    assert set(cell.CellBase.metadata.tables[entry.table].columns.keys()) == columns(schema, entry.table)


def test_each_entry_has_its_reason() -> None:
    for entry in (*(each for entries in LISTS.values() for each in entries), *BROUGHT_BACK):
        assert entry.why, entry.table
        assert all(entry.left_out.values()), entry.table
