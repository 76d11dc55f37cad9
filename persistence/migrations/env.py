"""Runs the migrations; alembic loads this file for each command.

They run on the connection that the caller gives.  On PostgreSQL all of them run in one transaction.  On SQLite and
MariaDB each migration is committed by itself.

MariaDB commits each statement that changes the schema at once.  So a process that is killed may leave half a migration
there, and the next one runs that migration from its beginning.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context


def make_repeatable(_connection: sa.Connection, statement: Any, *_: object) -> None:
    """Let a statement change nothing if what it creates is there already, or what it drops is gone."""
    for flag in ("if_not_exists", "if_exists"):
        if isinstance(statement, sa.schema.ExecutableDDLElement) and hasattr(statement, flag):
            setattr(statement, flag, True)


connection: sa.Connection = context.config.attributes["connection"]
if getattr(connection.dialect, "is_mariadb", False):
    sa.event.listen(connection, "before_execute", make_repeatable)
context.configure(
    connection=connection,
    target_metadata=context.config.attributes.get("metadata"),
    # SQLite cannot alter a column: alembic copies the whole table instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
