"""Runs the migrations; alembic loads this file for each command.

They run on the connection that the caller gives.  On PostgreSQL all of them run in one transaction.  On SQLite and
MariaDB each migration is committed by itself.
"""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    # SQLite cannot alter a column: alembic copies the whole table instead.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
