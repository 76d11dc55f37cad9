"""Makes and upgrades the journal database's schema, and tells whether it is the one that this version needs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from droveway.persistence.database import Database, DatabaseUnusable, file_of

HEAD: Final = "0009"
"""The revision of this version's schema."""


def sync(database: Database) -> tuple[str | None, str]:
    """Bring the journal to this version's schema; return its revision before (None: it was empty) and after.

    A repeated call changes nothing.  Raises `droveway.persistence.database.DatabaseUnusable` when the journal has the
    schema of a later version.
    """
    from alembic import command
    from alembic.config import Config

    before = revision(database)
    _refuse_later(before)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    with database.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    return before, HEAD


def revision(database: Database) -> str | None:
    """Read the schema's revision; None when the database is empty.

    Raises `droveway.persistence.database.DatabaseUnusable` when it cannot be read.
    """
    try:
        with database.read() as session:
            found: str | None = session.scalar(sa.text("SELECT version_num FROM alembic_version"))
            return found
    except sa.exc.DatabaseError as error:
        # The error of every kind of database names the table that is missing.
        if "alembic_version" in str(error.orig):
            return None
        raise _unreadable(error) from None


def check(database: Database) -> None:
    """Raise `droveway.persistence.database.DatabaseUnusable` unless the journal has this version's schema."""
    found = revision(database)
    _refuse_later(found)
    if found != HEAD:
        raise DatabaseUnusable(
            f"the journal has schema {found or 'none'} and this Droveway needs {HEAD}: droveway db sync brings it there"
        )


def _refuse_later(found: str | None) -> None:
    if found is not None and found > HEAD:
        raise DatabaseUnusable(
            f"the journal has schema {found} and this Droveway knows up to {HEAD}: use the later Droveway that made it"
        )


def _unreadable(error: sa.exc.DBAPIError) -> DatabaseUnusable:
    name = " ".join(filter(None, ("the journal database", file_of(error))))
    return DatabaseUnusable(f"{name} cannot be read: {error.orig}; give yourself access to it, or restore it")
