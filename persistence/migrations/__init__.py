"""Alembic's environment for the journal database."""
