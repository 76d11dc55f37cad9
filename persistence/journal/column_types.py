"""The column type of the journal's times: UTC, naive, with microseconds on every database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles


class Moment(sa.DateTime):
    """A time with microseconds.  A plain DATETIME of MySQL would be rounded to whole seconds, up as often as down."""


@compiles(Moment, "mysql", "mariadb")
def _of_mysql(_element: Moment, _compiler: Any, **_: Any) -> str:
    return "DATETIME(6)"
