"""The type of the journal's times: UTC, naive, with microseconds on every database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles


class Moment(sa.DateTime):
    """A time; MySQL would keep whole seconds of it, rounded up as often as down, unless it is told otherwise."""


@compiles(Moment, "mysql", "mariadb")
def _of_mysql(_element: Moment, _compiler: Any, **_: Any) -> str:
    return "DATETIME(6)"
