"""The clock of a SQLite database, set by a test."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from droveway.persistence.database import Database


@contextlib.contextmanager
def settable(database: Database) -> Iterator[Callable[[dt.timedelta], None]]:
    """What sets the database's clock so far ahead, for everybody who uses this object of it."""
    ahead = dt.timedelta(0)

    def shown(_format: str, _now: str) -> str:
        return (dt.datetime.now(dt.UTC) + ahead).strftime("%Y-%m-%d %H:%M:%S.%f")

    def use(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.create_function("strftime", 2, shown)

    def put(seconds: dt.timedelta) -> None:
        nonlocal ahead
        ahead = seconds

    sa.event.listen(database.engine, "checkout", use)
    try:
        yield put
    finally:
        sa.event.remove(database.engine, "checkout", use)
        ahead = dt.timedelta(0)
