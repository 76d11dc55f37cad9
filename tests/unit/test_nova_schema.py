"""The models of Nova's databases equal the schema of a real Nova, table by table."""

from __future__ import annotations

import re
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, create_mock_engine, inspect, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session

from droveway.persistence.nova import api, cell

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine.interfaces import Dialect

DUMPS = Path(__file__).parent.parent / "data" / "nova"
SCHEMAS: dict[str, MetaData] = {
    "nova-schema-api.sql": api.ApiBase.metadata,
    "nova-schema-cell.sql": cell.CellBase.metadata,
}
TABLES = [(dump, name) for dump, metadata in SCHEMAS.items() for name in sorted(metadata.tables)]

# "table.part" -> why our model may differ from Nova there; a line that no longer differs fails the test.
EXCEPTIONS: dict[str, str] = {}


def describe(database: Path, table: str) -> dict[str, Any]:
    """Return all that SQLite tells of a table, keyed so that two tables can be compared part by part."""
    seen = inspect(create_engine(f"sqlite:///{database}"))
    parts: dict[str, Any] = {}
    for column in seen.get_columns(table):
        parts[f"{table}.{column['name']}"] = (
            str(column["type"].compile(sqlite.dialect())),
            column["nullable"],
            column["default"],
            column["primary_key"],
        )
    for unique in seen.get_unique_constraints(table):
        parts[f"{table}.unique.{unique['name']}"] = unique["column_names"]
    for index in seen.get_indexes(table):
        parts[f"{table}.index.{index['name']}"] = (index["column_names"], bool(index["unique"]))
    for key in seen.get_foreign_keys(table):
        name = f"{table}.foreign.{','.join(key['constrained_columns'])}"
        parts[name] = (key["name"], key["referred_table"], key["referred_columns"], key["options"])
    return parts


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """For each dump, Nova's database and the one that our models create."""
    made = {}
    for dump, metadata in SCHEMAS.items():
        folder = tmp_path_factory.mktemp("schema")
        theirs, ours = folder / "theirs.sqlite", folder / "ours.sqlite"
        with sqlite3.connect(theirs) as connection:
            connection.executescript((DUMPS / dump).read_text())
        metadata.create_all(create_engine(f"sqlite:///{ours}"))
        made[dump] = (theirs, ours)
    return made


@pytest.mark.parametrize(("dump", "table"), TABLES)
def test_table_equals_novas(databases: dict[str, tuple[Path, Path]], dump: str, table: str) -> None:
    theirs, ours = (describe(database, table) for database in databases[dump])
    differing = {part for part in theirs.keys() | ours.keys() if theirs.get(part) != ours.get(part)}
    expected = {part for part in EXCEPTIONS if part.startswith(f"{table}.")}
    assert {part: (theirs.get(part), ours.get(part)) for part in differing ^ expected} == {}


def test_models_bring_no_table_of_their_own(databases: dict[str, tuple[Path, Path]]) -> None:
    for dump, (theirs, ours) in databases.items():
        novas = set(inspect(create_engine(f"sqlite:///{theirs}")).get_table_names())
        assert set(inspect(create_engine(f"sqlite:///{ours}")).get_table_names()) <= novas, dump


def statements(metadata: MetaData, dialect: Dialect, url: str) -> str:
    """Return the DDL that creates the tables on a database that need not be there."""
    lines: list[str] = []
    engine = create_mock_engine(url, lambda ddl, *_args, **_options: lines.append(str(ddl.compile(dialect=dialect))))
    metadata.create_all(engine, checkfirst=False)
    return "\n".join(lines)


@pytest.mark.parametrize("dump", SCHEMAS)
def test_postgresql_can_create_the_tables(dump: str) -> None:
    ddl = statements(SCHEMAS[dump], postgresql.dialect(), "postgresql+psycopg2://")
    created = re.findall(r"CREATE TABLE (\w+)", ddl)
    assert sorted(created) == sorted(SCHEMAS[dump].tables)
    indexes = re.findall(r"CREATE (?:UNIQUE )?INDEX (\w+)", ddl)
    assert len(indexes) == len(set(indexes)), "PostgreSQL has one namespace for the indexes of all tables"
    assert not set(indexes) & set(created)


@pytest.mark.parametrize("dump", SCHEMAS)
def test_no_key_is_longer_than_mysql_allows(dump: str) -> None:
    ddl = statements(SCHEMAS[dump], mysql.dialect(), "mysql+pymysql://")
    assert sorted(re.findall(r"CREATE TABLE (\w+)", ddl)) == sorted(SCHEMAS[dump].tables)
    for table, columns in re.findall(r"INDEX \w+ ON (\w+) \((.*)\)", ddl):
        assert sum(key_bytes(dump, table, column) for column in re.split(r",\s*", columns)) <= 3072, (table, columns)


def key_bytes(dump: str, table: str, column: str) -> int:
    """Return what a column takes in an InnoDB key, with four bytes a character."""
    name, _, prefix = column.strip("`").partition("(")
    length = getattr(SCHEMAS[dump].tables[table].columns[name.strip("` ")].type, "length", None)
    return 4 * int(prefix.rstrip(")`") if prefix else length) if length or prefix else 8


def test_large_texts_are_novas_mediumtext_on_mysql() -> None:
    ddl = statements(SCHEMAS["nova-schema-cell.sql"], mysql.dialect(), "mysql+pymysql://")
    for column in ("connection_info", "network_info", "user_data", "key_data", "launched_on"):
        assert f"{column} TEXT(16777215)" in ddl


def test_times_are_filled_in_whole_seconds_and_given_ones_kept(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'cell.sqlite'}")
    cell.CellBase.metadata.create_all(engine)
    then = datetime(2026, 11, 21, 15, 43, 6)  # noqa: DTZ001 - Nova's columns are naive
    with Session(engine) as session:
        session.add_all([cell.Instance(uuid="a"), cell.Instance(uuid="b", created_at=then, updated_at=then)])
        session.commit()
        fresh, copied = session.scalars(select(cell.Instance).order_by(cell.Instance.uuid))
        assert fresh.created_at is not None
        assert fresh.created_at.microsecond == 0
        assert fresh.updated_at is None
        assert fresh.deleted == 0
        assert (copied.created_at, copied.updated_at) == (then, then)
        session.execute(update(cell.Instance).where(cell.Instance.uuid == "a").values(host="h"))
        session.refresh(fresh)
        assert fresh.updated_at is not None
        assert fresh.updated_at.microsecond == 0
