"""What alembic runs for each command: the migrations, in the transaction of the connection that it was given."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    # SQLite alters a column by copying its table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
