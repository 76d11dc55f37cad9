"""Conductors of two releases side by side: real daemons, one of which has a version of resize more."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
import support
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, in_child, read_move, small_cloud, until
from support.labs.snapshot import Snapshot
from support.second_version import ACTION
from support.servers import zookeeper_server

from droveway.flows import registry
from droveway.lab import build
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, MoveFlow
from droveway.wire.levels import LEVEL
from droveway.wire.values import ACTION_VERSION

TESTS: Final = Path(next(iter(support.__path__))).parent
LATER: Final = str(TESTS / "support" / "habits" / "later_release")
"""A release that has the next version of resize, and none of those before it."""
SECOND: Final = f"{TESTS / 'support' / 'habits' / 'second_version'}{os.pathsep}{TESTS}"
"""A release that has it, with an action of a later level, beside those before it."""
FIRST: Final = registry.latest("resize").version
NEXT: Final = FIRST + 1


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


def check(site: Installation, **environment: str) -> tuple[int, dict[str, str]]:
    """`upgrade check` of the release of this environment: its exit code, and what is no mere warning."""
    code, said, _ = site.droveway("upgrade", "check", "-f", "json", **environment)
    return code, {row["finding"]: row["detail"] for row in json.loads(said) if row["level"] == "failure"}


def test_a_pin_refuses_what_came_after_it_though_every_worker_is_new(site: Installation) -> None:
    """R4-17: what is spoken to workers counts too, not only what they know; the pin is told once nobody needs it."""
    site.workers()
    site.conductor()
    until(lambda: len(site.told("worker", "list")) == 2, "what is known of the workers", LONG)
    kept = ("move", "create", "web", "--flavor", "large", "--keep-source", "1d")
    pinned = {"OS_UPGRADE_LEVELS__WORKER": "1"}
    code, _, said = site.droveway(*kept, **pinned)
    assert (code, "[upgrade_levels] worker allows none above level 1: take the pin out" in said) == (2, True), said
    healthy = ("move", "create", "web", "--flavor", "large", "--confirm", "healthy")
    code, _, said = site.droveway(*healthy, OS_UPGRADE_LEVELS__WORKER="3")
    assert (code, "check_guest came with protocol level 4" in said) == (2, True), said
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
    assert version_of(site, move) == NEXT
    told = f"is a resize@{NEXT}, which no conductor that is up can run"
    until(lambda: told in present.text(), "that the present release looks at it")
    waits = site.told("move", "show", move)["waits_for"]
    assert waits == (
        f"a conductor that knows resize@{NEXT} as it was filed: those that are up are of another release "
        "(droveway conductor list)"
    )
    code, found = check(site)
    assert code == 2
    assert found == {"flow-unknown": f"running flows of resize@{NEXT}: 1; this release does not have that graph"}
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
    assert version_of(site, second) == FIRST
    assert site.await_rest(second) == State.VERIFYING, present.text()
    assert ran(site, second, present)
    assert "Traceback" not in present.log.read_text() + later.log.read_text()
    assert_balanced(site.lab)


def test_workers_of_an_older_level_serve_the_first_version_under_a_pin(site: Installation) -> None:
    """Conductors are upgraded first, and every release in between can go on with the flow or says that it cannot."""
    site.workers()
    present = site.conductor("present")
    until(lambda: len(site.told("worker", "list")) == 2, "what is known of the workers", LONG)
    present.stop()
    code, _, said = site.droveway("server", "resize", "web", "--flavor", "large", PYTHONPATH=SECOND)
    assert code == 2
    assert "droveway: the server's host host1 cannot take part in a move: its worker (" in said
    assert (
        f"does not know {ACTION}@{ACTION_VERSION} (level {LEVEL + 1}): upgrade it first, or set [upgrade_levels] "
        f"worker = {LEVEL} on every conductor's machine until every worker is upgraded\n"
    ) in said
    pinned = {"PYTHONPATH": SECOND, "OS_UPGRADE_LEVELS__WORKER": str(LEVEL)}
    move = submit(site, **pinned)
    assert version_of(site, move) == FIRST
    _, said, _ = site.droveway("upgrade", "check", "-f", "json", **pinned)
    (older,) = (row["detail"] for row in json.loads(said) if row["subject"] == f"resize@{FIRST}")
    assert older.startswith(f"running flows of resize@{FIRST}: 1; the newest graph is resize@{NEXT}, ")
    assert check(site, PYTHONPATH=LATER) == (
        2,
        {"flow-unknown": f"running flows of resize@{FIRST}: 1; this release does not have that graph"},
    )
    later = site.conductor("later", **pinned)
    assert site.await_rest(move) == State.VERIFYING, later.text()
    assert ran(site, move, later)
    assert "flow-unknown" not in check(site, PYTHONPATH=LATER)[1]
    assert site.droveway("move", "revert", move, **pinned)[0] == 0
    assert site.await_rest(move) == State.REVERTED
    assert "Traceback" not in present.text() + later.text()
    assert_balanced(site.lab)
