"""The journal's clock: what was filed later is later, within one second as well."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from droveway.persistence import database
from droveway.persistence.database import Database, database_time


def test_two_moments_of_one_second_differ_and_are_in_order(tmp_path: Path) -> None:
    clock = Database(database.sqlite_url(tmp_path / "clock.sqlite"))
    seen: list[dt.datetime] = []
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    while len({moment.replace(microsecond=0) for moment in seen}) == len(set(seen)):
        assert dt.datetime.now(dt.UTC) < ends
        with clock.read() as session:
            seen.append(database_time(session))
    clock.close()
    assert seen == sorted(seen)
    assert abs(seen[-1] - dt.datetime.now(dt.UTC).replace(tzinfo=None)) < dt.timedelta(seconds=30)


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        (postgresql.dialect(), "SELECT clock_timestamp() AT TIME ZONE 'utc' AS utc_now_1"),
        (mysql.dialect(), "SELECT utc_timestamp(6) AS utc_now_1"),
    ],
    ids=["postgresql", "mysql"],
)
def test_other_databases_are_asked_for_utc_below_a_second(dialect: sa.Dialect, sql: str) -> None:
    assert str(sa.select(database._UtcNow()).compile(dialect=dialect)) == sql
