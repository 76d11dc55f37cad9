"""A journal before and after its policies got the names that say what they do."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import droveway.persistence.migrations
from droveway.persistence.database import Database
from droveway.persistence.journal import migrate, moves
from droveway.persistence.journal.policies import LONGEST
from droveway.persistence.journal.tables import Move

_MIGRATIONS = Path(str(droveway.persistence.migrations.__file__)).parent
_SOON = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns hold it
_REF = moves.FlowRef("migrate", 1, "d")
_TIMES = sa.select(Move.server_name, Move.deadline, Move.confirm_seconds)


def go_to(journal: Database, revision: str, *, down: bool = False) -> None:
    """Bring the journal to that schema."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    with journal.writing() as connection:
        config.attributes["connection"] = connection
        (command.downgrade if down else command.upgrade)(config, revision)
        connection.commit()


def check(journal: Database) -> None:
    """Up, down and up again: no move is confirmed sooner than it was to be, and none waits that was not asked to."""
    migrate.sync(journal)
    for number, policy in enumerate(("deadline", "manual", "auto", "healthy", "manual")):
        seconds = LONGEST if policy == "manual" else 60
        request = moves.Request(
            kind="migrate",
            server=f"s{number}",
            server_name=f"w{number}",
            cell="c",
            host="h",
            old_flavor="f",
            new_flavor="f",
            policy=policy,
            confirm_seconds=seconds,
        )
        with journal.write() as session:
            moves.submit(session, request, _REF)
    with journal.write() as session:
        session.execute(sa.update(Move).values(state="verifying"))
        session.execute(sa.update(Move).where(Move.policy != "manual").values(deadline=_SOON))
        session.execute(sa.update(Move).where(Move.server_name == "w4").values(state="queued"))
    go_to(journal, "0006", down=True)
    old = _policies(journal)
    assert old == {"w0": "manual", "w1": "manual", "w2": "auto", "w3": "healthy", "w4": "manual"}
    with journal.read() as session:
        times = {row.server_name: (row.deadline, row.confirm_seconds) for row in session.execute(_TIMES)}
    assert times["w0"] == (_SOON, 60)
    assert times["w1"] == times["w4"] == (None, LONGEST)
    go_to(journal, "0007")
    new = _policies(journal)
    assert new == {"w0": "deadline", "w1": "manual", "w2": "auto", "w3": "healthy", "w4": "deadline"}


def _policies(journal: Database) -> dict[str, str]:
    with journal.read() as session:
        return dict(session.execute(sa.select(Move.server_name, Move.policy)).tuples().all())
