"""The rows of a real Nova go through the models into Nova's own schema and come back as they were."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import DateTime, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Session

from droveway.persistence.nova import api, cell
from droveway.persistence.nova.objects import decode, encode

Rows = list[tuple[str, dict[str, Any]]]

DUMPS = Path(__file__).parent.parent / "data" / "nova"
DATABASES: dict[str, tuple[str, type[DeclarativeBase]]] = {
    "nova_api": ("nova-schema-api.sql", api.ApiBase),
    "nova_cell1": ("nova-schema-cell.sql", cell.CellBase),
    "nova_cell2": ("nova-schema-cell.sql", cell.CellBase),
}
NOT_NOVAS = {"placement.allocations", "cinder.volume_attachment", "neutron.ml2_port_bindings"}
KEYS_ONLY = "nova_cell1.instance_system_metadata"


def models(base: type[DeclarativeBase]) -> dict[str, type[Any]]:
    """Return the models of a database by the name of their table."""
    return {mapper.local_table.name: mapper.class_ for mapper in base.registry.mappers}  # type: ignore[attr-defined]


def to_column(model: type[Any], column: str, value: Any) -> Any:
    """Return an example's value as our code hands it to a model."""
    if isinstance(value, dict):
        return encode(value["(JSON text)"])
    if isinstance(value, str) and isinstance(model.__table__.c[column].type, DateTime):
        return datetime.fromisoformat(value)
    return value


def from_column(example: Any, value: Any) -> Any:
    """Return a model's value as the example shows it."""
    if isinstance(example, dict):
        return {"(JSON text)": decode(value)}
    return str(value) if isinstance(value, datetime) else value


@pytest.fixture
def databases(tmp_path: Path) -> dict[str, Path]:
    """Nova's three databases, empty, made by Nova's own schema."""
    for name, (dump, _base) in DATABASES.items():
        with sqlite3.connect(tmp_path / name) as connection:
            connection.executescript((DUMPS / dump).read_text())
    return {name: tmp_path / name for name in DATABASES}


def test_every_example_row_survives_the_models(nova_rows: Rows, databases: dict[str, Path]) -> None:
    seen = 0
    for database, path in databases.items():
        by_table = models(DATABASES[database][1])
        rows = [(name.partition(".")[2], row) for name, row in nova_rows if name.startswith(f"{database}.")]
        rows = [(table, row) for table, row in rows if f"{database}.{table}" != KEYS_ONLY]
        engine = create_engine(f"sqlite:///{path}")
        with Session(engine) as session, session.begin():
            for table, row in rows:
                model = by_table[table]
                session.add(model(**{column: to_column(model, column, value) for column, value in row.items()}))
        with Session(engine) as session:
            for table, row in rows:
                model = by_table[table]
                found = session.scalars(select(model).where(model.id == row["id"])).one()
                columns = model.__table__.columns.keys()
                assert {name: from_column(row[name], getattr(found, name)) for name in columns} == row, table
                seen += 1
    assert seen == sum(name not in NOT_NOVAS | {KEYS_ONLY} for name, _row in nova_rows) > 25


def test_every_system_metadata_key_survives_the_models(nova_rows: Rows, databases: dict[str, Path]) -> None:
    (keys,) = [row for name, row in nova_rows if name == KEYS_ONLY]
    engine = create_engine(f"sqlite:///{databases['nova_cell1']}")
    model = cell.InstanceSystemMetadata
    with Session(engine) as session, session.begin():
        session.add_all(model(instance_uuid="server", key=key, value=value) for key, value in keys.items())
    with Session(engine) as session:
        assert {row.key: row.value for row in session.scalars(select(model))} == keys
        assert {row.deleted for row in session.scalars(select(model))} == {0}


def test_examples_name_no_table_that_we_leave_out(nova_rows: Rows) -> None:
    known = {f"{database}.{table}" for database, (_dump, base) in DATABASES.items() for table in models(base)}
    assert {name for name, _row in nova_rows} <= known | NOT_NOVAS
