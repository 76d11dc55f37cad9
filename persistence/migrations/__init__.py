"""The alembic migrations that make and change the journal database's tables."""
