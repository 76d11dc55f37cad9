"""What belonged to a move goes with it: nodes of ZooKeeper, rows of the journal and of workers' journals (e55)."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
import sqlalchemy as sa
from support.daemons.daemons import LONG, Installation
from support.labs.small_lab import until

from droveway.clients.zookeeper import ROOT, epoch_path
from droveway.engines.operations import purging
from droveway.persistence.journal.tables import Debt, Move
from droveway.workers.daemon import JOURNAL

TABLES = ("commands", "moves", "offers")


def lasting(site: Installation) -> set[str]:
    """The nodes that outlive every session."""
    return {path for path in site.nodes(ROOT) if site.session.owner(path) == 0}


def rows(site: Installation, host: str) -> int:
    """How much the journal of the host's worker holds; what it has seen of the rest is no part of it."""
    with contextlib.closing(sqlite3.connect(site.lab.layout.host(host) / JOURNAL)) as journal:
        counted = [journal.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]
        return int(sum(counted) + journal.execute("SELECT count(*) FROM notes WHERE stem != ''").fetchone()[0])


def age(site: Installation, host: str) -> None:
    """Let the worker's records be of a time when ZooKeeper had stood for long."""
    with contextlib.closing(sqlite3.connect(site.lab.layout.host(host) / JOURNAL)) as journal, journal:
        journal.execute("UPDATE commands SET begun = begun + 86400")


def is_settled(site: Installation) -> bool:
    with site.lab.journal.read() as session:
        return session.scalar(sa.select(sa.func.count()).where(Debt.settled_at.is_(None))) == 0


def asked(site: Installation, *words: str) -> str:
    """A move that was asked for and came as far as it goes by itself; its id."""
    move = site.done(*words).split()[1]
    site.done("move", "wait", move)
    return move


def purged(site: Installation) -> bool:
    site.done("db", "purge", "--older-than", "1s")
    return site.session.children(purging.MOVES) == []


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_purge_leaves_nothing_of_a_move_anywhere(site: Installation) -> None:
    workers = site.workers()
    site.conductor()
    asked(site, "server", "migrate", "web", "--confirm", "auto")
    kept = asked(site, "server", "resize", "web", "--flavor", "large", "--confirm", "auto", "--keep-source", "7d")
    site.done("move", "purge-kept", kept)
    until(lambda: is_settled(site), "the purge of what was kept", LONG)
    back = asked(site, "server", "migrate", "web")
    site.done("move", "revert", back)
    site.done("move", "wait", back)
    with site.lab.journal.read() as session:
        ids = list(session.scalars(sa.select(Move.id)))
    before = lasting(site)
    assert {epoch_path(move) for move in ids} <= before
    until(lambda: purged(site), "that all is purged", LONG)
    assert lasting(site) == {path for path in before if not any(move in path for move in ids)}
    held = {host: rows(site, host) for host in workers}
    assert max(held.values()) > 0
    for host, worker in workers.items():
        worker.stop()
        age(site, host)
        site.worker(host)
        until(lambda host=host: rows(site, host) == 0, f"an empty journal of {host}", LONG)
    plan = ("move", "plan", "web", "-f", "json")
    until(lambda: site.droveway(*plan)[0] == 0, "that the conductor has seen the workers again", LONG)
    # What was seen stays seen, and the next move goes on from there.
    asked(site, "server", "migrate", "web", "--confirm", "auto")
