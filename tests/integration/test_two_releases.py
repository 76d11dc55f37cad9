"""Conductors of two releases side by side: real daemons, one of which has resize@2 instead of resize@1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
import support
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs.small_lab import assert_balanced, in_child, read_move, small_cloud, until
from support.servers import zookeeper_server

from droveway.lab import build, snapshot
from droveway.lab.snapshot import Snapshot
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, MoveFlow
from droveway.wire.levels import LEVEL

LATER: Final = str(Path(next(iter(support.__path__))) / "habits" / "later_release")


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Installation]:
    in_child(lambda: build.create(tmp_path / "lab", small_cloud("host1", "host2")).close())
    rest: Snapshot = snapshot.take(tmp_path / "lab", tmp_path / "kept")
    lab = rest.restore()
    with (
        zookeeper_server.running_server(tmp_path / "zookeeper") as server,
        installation(lab, tmp_path, server.hosts, None) as made,
    ):
        yield made
    lab.close()
    build.destroy(tmp_path / "lab")


def submit(site: Installation, **environment: str) -> str:
    """A resize as the release of this environment files it; the move."""
    code, _, complained = site.droveway("server", "resize", "web", "--flavor", "large", **environment)
    assert code == 0, complained
    with site.lab.journal.read() as session:
        return session.scalars(sa.select(MoveFlow.move_id).where(MoveFlow.ended_at.is_(None))).one()


def version_of(site: Installation, move: str) -> int:
    with site.lab.journal.read() as session:
        return session.scalars(sa.select(MoveFlow.version).where(MoveFlow.move_id == move)).first() or 0


def ran(site: Installation, move: str, conductor: Daemon) -> bool:
    """Whether it is this conductor that had the move last."""
    with site.lab.journal.read() as session:
        owner = session.scalars(sa.select(Claim.owner).where(Claim.move_id == move)).one()
    return f"-{conductor.process.pid}-" in owner


def check(site: Installation) -> tuple[int, dict[str, str]]:
    """`upgrade check`: its exit code, and what is no mere warning."""
    code, said, _ = site.droveway("upgrade", "check", "-f", "json")
    return code, {row["finding"]: row["detail"] for row in json.loads(said) if row["level"] == "failure"}


def test_a_pin_refuses_what_came_after_it_though_every_worker_is_new(site: Installation) -> None:
    """R4-17: what is spoken to workers counts too, not only what they know; the pin is told once nobody needs it."""
    site.workers()
    site.conductor()
    until(lambda: len(site.told("worker", "list")) == 2, "what is known of the workers", LONG)
    kept = ("move", "create", "web", "--flavor", "large", "--keep-source", "1d")
    pinned = {"OS_UPGRADE_LEVELS__WORKER": "1"}
    code, _, said = site.droveway(*kept, **pinned)
    assert (code, "[upgrade_levels] worker pins that to 1: take the pin out" in said) == (2, True), said
    healthy = ("move", "create", "web", "--flavor", "large", "--confirm", "healthy")
    code, _, said = site.droveway(*healthy, OS_UPGRADE_LEVELS__WORKER="3")
    assert (code, "check_guest came with level 4" in said) == (2, True), said
    assert site.told("move", "list") == []
    code, said, _ = site.droveway("upgrade", "check", "-f", "json", **pinned)
    assert (code, [row["finding"] for row in json.loads(said) if row["level"] == "warning"]) == (1, ["level-pinned"])
    code, _, said = site.droveway("conductor", "run", OS_UPGRADE_LEVELS__WORKER=str(LEVEL + 1))
    assert (code, f"Should be less than or equal to {LEVEL}" in said) == (2, True), said
    site.done(*kept)


def test_each_flow_is_run_by_the_release_that_has_it(site: Installation) -> None:
    """The other one leaves it alone without a claim, and says so once."""
    site.workers()
    present = site.conductor("present")
    assert check(site)[1] == {}
    move = submit(site, PYTHONPATH=LATER)
    assert version_of(site, move) == 2
    told = "is a resize@2, which no conductor that is up can run"
    until(lambda: told in present.text(), "that the present release looks at it")
    waits = site.told("move", "show", move)["waits_for"]
    assert waits == (
        "a conductor that knows resize@2 as it was filed: those that are up are of another release "
        "(droveway conductor list)"
    )
    code, found = check(site)
    assert code == 2
    assert found == {"flow-unknown": "this release does not have resize@2, which live flows run by: 1"}
    assert read_move(site.lab, move).state == State.QUEUED
    with site.lab.journal.read() as session:
        assert session.scalars(sa.select(Claim)).all() == [], "it was never claimed"
    later = site.conductor("later", PYTHONPATH=LATER)
    assert site.await_rest(move) == State.VERIFYING, later.text()
    assert ran(site, move, later)
    assert present.log.read_text().count(told) == 1
    assert present.log.read_text().count("of another release") <= 1
    assert check(site)[1] == {}
    assert site.droveway("move", "revert", move)[0] == 0
    assert site.await_rest(move) == State.REVERTED
    second = submit(site)
    assert version_of(site, second) == 1
    assert site.await_rest(second) == State.VERIFYING, present.text()
    assert ran(site, second, present)
    assert "Traceback" not in present.log.read_text() + later.log.read_text()
    assert_balanced(site.lab)
