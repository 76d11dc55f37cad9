"""The journal looked at and cleared up: what always holds, what is removed, and what stays."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.small_lab import small_cloud
from support.rigs.engine_rig import CONFIRM, Rig, embedded_rig, reference

from droveway.cli import main
from droveway.errors import Refused
from droveway.lab import build
from droveway.persistence import invariants
from droveway.persistence.database import database_time
from droveway.persistence.journal import debts, moves, open_flows, purge, requests
from droveway.persistence.journal.tables import COLLECTOR, Claim, Counter, Debt, Move, MoveFlow

MONTH = 30 * 86400


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def ended(rig: Rig, server: str, days: int) -> str:
    """A move that was confirmed so many days ago."""
    move = rig.submit(server=server)
    rig.post(move)
    rig.host().turn()
    with rig.journal.write() as session:
        requests.end_wait(session, moves.get(session, move, lock=True), reference(CONFIRM))
    rig.post(move)
    rig.host().turn()
    with rig.journal.write() as session:
        row = moves.get(session, move)
        assert row.state == "done"
        row.ended_at = database_time(session) - dt.timedelta(days=days)
    return move


def counts(rig: Rig) -> dict[str, int]:
    """How many rows each table has, TaskFlow's too; the counters and the schema's revision left out."""
    metadata = sa.MetaData()
    metadata.reflect(rig.journal.engine)
    with rig.journal.read() as session:
        return {
            table.name: session.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
            if table.name not in ("counters", "alembic_version")
        }


def test_a_purge_leaves_nothing_of_what_ended_long_ago_and_all_of_the_rest(rig: Rig) -> None:
    young = ended(rig, "young", 29)
    rig.submit(server="open")
    before = counts(rig)
    old = ended(rig, "old", 31)
    removed = purge.purge(rig.journal, MONTH)
    assert counts(rig) == before
    assert removed["moves"] == 1
    assert removed["move_flows"] == 2
    assert removed["atomdetails"] > 2
    assert old != young
    assert purge.purge(rig.journal, MONTH) == {}


def test_a_move_with_a_debt_or_a_claim_stays(rig: Rig) -> None:
    owing, claimed = ended(rig, "owing", 99), ended(rig, "claimed", 99)
    with rig.journal.write() as session:
        debts.owe(session, move_id=owing, host="h1", action="set_aside", details={})
        session.execute(sa.update(Claim).where(Claim.move_id == claimed).values(released_at=None))
    before = counts(rig)
    assert purge.purge(rig.journal, MONTH) == {}
    assert counts(rig) == before
    with rig.journal.write() as session:
        session.execute(sa.update(Debt).values(settled_at=database_time(session)))
        session.execute(sa.update(Claim).values(released_at=database_time(session)))
    assert purge.purge(rig.journal, MONTH)["moves"] == 2


def test_what_is_kept_for_a_time_keeps_nothing_waiting_but_its_move_s_rows(rig: Rig) -> None:
    """It is due at its date, or as soon as that is asked; asked for twice it is one debt with one date."""
    move = ended(rig, "kept", 99)

    def due() -> list[str]:
        with rig.journal.read() as session:
            return [debt.action for debt in debts.collectable(session)]

    for seconds in (3600, 7200):
        with rig.journal.write() as session:
            debts.keep(session, move_id=move, host="h1", seconds=seconds, details={})
    with rig.journal.read() as session:
        (owed,) = session.scalars(sa.select(Debt))
        assert owed.not_before == owed.created_at + dt.timedelta(hours=1)
        assert not debts.outstanding(session, move)
        assert debts.owing(session) == {}
        assert moves.unreleased_flows(session) == []
    assert due() == []
    assert purge.purge(rig.journal, MONTH) == {}
    with rig.journal.write() as session:
        requests.purge_kept(session, moves.get(session, move))
    assert due() == [debts.PURGE]
    with rig.journal.write() as session:
        session.execute(sa.update(Claim).values(owner=COLLECTOR, released_at=None))
        assert moves.unreleased_flows(session) == []
        session.execute(sa.update(Debt).values(settled_at=database_time(session)))
        assert [left.id for left, _ in moves.unreleased_flows(session)] == [move]
        with pytest.raises(Refused, match="nothing is kept of the source"):
            requests.purge_kept(session, moves.get(session, move))


@pytest.mark.parametrize(
    ("owner", "minutes", "is_left"),
    [
        ("operator ann", 0, False),
        ("operator ann", 4, False),
        ("operator ann", 6, True),
        ("hand of ann", 0, True),
        ("conductor-1", 0, True),
    ],
)
def test_a_persons_command_at_work_is_no_end_that_was_left(
    rig: Rig, owner: str, minutes: int, *, is_left: bool
) -> None:
    """Whoever cleared up after it would take its claim away; after a dead one somebody has to."""
    move = ended(rig, "settled", 0)
    with rig.journal.write() as session:
        now = database_time(session)
        session.execute(
            sa.update(Claim).values(owner=owner, released_at=None, claimed_at=now - dt.timedelta(minutes=minutes))
        )
    wanted = [move] if is_left else []
    with rig.journal.read() as session:
        assert [left.id for left, _ in moves.unreleased_flows(session)] == wanted
        assert [row.id for row in open_flows.left(session, database_time(session))] == wanted


def broken(rig: Rig) -> list[str]:
    with rig.journal.read() as session:
        return [each.detail for each in invariants.journal(session)]


def test_a_journal_that_was_used_breaks_no_invariant(rig: Rig) -> None:
    ended(rig, "s1", 1)
    move = rig.submit(server="s2")
    assert broken(rig) == []
    rig.post(move)
    rig.host().turn()
    assert broken(rig) == []
    with rig.journal.write() as session:
        moves.park(session, rig.submit(server="s3"), "fault", "it is broken")
    assert broken(rig) == []


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (sa.update(Move).where(Move.server == "s1").values(active_server="s1"), "it is done, and still holds"),
        (sa.update(Move).where(Move.server == "s2").values(active_server=None), "does not hold its server"),
        (sa.update(Move).where(Move.server == "s2").values(flow_uuid=None), "has no flow to run"),
        (sa.update(Move).where(Move.server == "s2").values(flow_uuid="none"), "the flow that it is to run is missing"),
        (sa.update(MoveFlow).where(MoveFlow.ended_at.is_(None)).values(ended_at=sa.func.now()), "or has ended"),
        (sa.update(Move).where(Move.server == "s2").values(state="needs-operator"), "the state before that is not"),
        (sa.update(Counter).where(Counter.name == "epoch").values(value=0), "the journal has counted to 0 only"),
    ],
)
def test_each_broken_invariant_is_found(rig: Rig, statement: Any, why: str) -> None:
    ended(rig, "s1", 1)
    rig.submit(server="s2")
    assert broken(rig) == []
    with rig.journal.write() as session:
        session.execute(statement)
    (found,) = broken(rig)
    assert why in found


def test_tables_and_columns_of_novas_are_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "lab"
    build.create(root, small_cloud("host1")).close()
    words = ["--lab", str(root), "db", "check", "-f", "json"]
    assert main.main(words) == 0
    assert json.loads(capsys.readouterr().out) == []
    files = build.Layout(root)
    for path, statement in (
        (files.cell("cell1"), "ALTER TABLE migrations RENAME COLUMN source_node TO other"),
        (files.api, "DROP TABLE request_specs"),
    ):
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()
    assert main.main(words) == 3
    rows = json.loads(capsys.readouterr().out)
    assert [(row["database"], row["subject"], row["detail"]) for row in rows] == [
        ("api", "table request_specs", "it is missing"),
        ("cell cell1", "table migrations", "column source_node is missing"),
    ]
    assert main.main(["--lab", str(root), "db", "purge", "--older-than", "30d"]) == 0
    assert capsys.readouterr().out == "0 moves removed\n"
    build.destroy(root)
