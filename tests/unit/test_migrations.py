from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import autogenerate
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from support.rows import journal_policies
from taskflow.persistence.backends.sqlalchemy import tables

import droveway.persistence.migrations
from droveway.persistence.database import Database, DatabaseUnusable, sqlite_url
from droveway.persistence.journal import migrate
from droveway.persistence.journal.tables import JournalBase

MIGRATIONS = Path(str(droveway.persistence.migrations.__file__)).parent


@pytest.fixture
def journal(tmp_path: Path) -> Database:
    return Database(sqlite_url(tmp_path / "journal.sqlite"))


def wanted_schema() -> sa.MetaData:
    metadata = sa.MetaData()
    for table in JournalBase.metadata.tables.values():
        table.to_metadata(metadata)
    tables.fetch(metadata)
    return metadata


def test_the_migrations_make_the_schema_of_the_models(journal: Database) -> None:
    assert migrate.sync(journal) == (None, migrate.HEAD)
    with journal.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert autogenerate.compare_metadata(context, wanted_schema()) == []


def test_a_second_sync_changes_nothing(journal: Database) -> None:
    migrate.sync(journal)
    with journal.write() as session:
        session.execute(sa.text("INSERT INTO counters (name, value) VALUES ('epoch', 7)"))
    assert migrate.sync(journal) == (migrate.HEAD, migrate.HEAD)
    migrate.check(journal)
    with journal.read() as session:
        assert session.scalar(sa.text("SELECT value FROM counters")) == 7


def test_the_head_named_in_the_code_is_the_last_script() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == migrate.HEAD


def test_an_empty_journal_is_refused_until_it_is_synced(journal: Database) -> None:
    with pytest.raises(DatabaseUnusable, match="droveway db sync"):
        migrate.check(journal)


def test_a_journal_of_a_later_version_is_left_alone(journal: Database) -> None:
    migrate.sync(journal)
    with journal.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for refuse in (migrate.sync, migrate.check):
        with pytest.raises(DatabaseUnusable, match=r"has schema 9999.* later Droveway that made it"):
            refuse(journal)


def test_a_file_that_is_no_database_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(DatabaseUnusable, match="cannot be read"):
        migrate.check(Database(sqlite_url(path)))


def test_downgrading_leaves_no_table(journal: Database) -> None:
    from alembic import command
    from alembic.config import Config

    migrate.sync(journal)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with journal.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        connection.commit()
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]


def test_policies_get_the_names_that_say_what_they_do(journal: Database) -> None:
    journal_policies.check(journal)
