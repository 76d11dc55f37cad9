"""`--keep-source`: after confirm the source's disks lie on their host for a time, known to everybody, and then go."""

from __future__ import annotations

import datetime as dt
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.crash_points import assert_converged
from support.labs.operations import Stage, Workers, faults_cleared, stage
from support.labs.small_lab import until
from support.rigs import database_clock

from droveway.audit import Finding
from droveway.clients.zookeeper import connect_embedded, embedded_store
from droveway.engines.conductor import registrations
from droveway.engines.keeper.debts import Collector
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import Parked
from droveway.lab import books, stopped
from droveway.persistence.journal import debts, moves
from droveway.persistence.journal.tables import Debt
from droveway.workers.actions.ownership import kept_name, set_aside_name

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {shared: nfs1}, host4: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], state: stopped}
  mail: {flavor: small, host: host3, image: base, state: stopped}
  data: {flavor: small, host: host1, volumes: [{size_gb: 1, boot: true}], state: stopped}
"""
BESIDE = {"host1": "host2", "host2": "host1", "host3": "host4", "host4": "host3"}
WEEK = 7 * 86400


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("kept") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab, in which nothing is kept and nothing moves any more afterwards."""
    with faults_cleared(built):
        yield built
    for host in built.lab.away():
        stopped.start(built.lab.layout, host)
    built.bring_back()
    let_pass(built, WEEK)
    built.cli("move", "resume")
    assert built.json("debt", "list") == []
    built.assert_balanced()


def migrate(lab: Stage, name: str, *options: str) -> str:
    """Move the server to the host beside its own, for good unless another policy is given; the move's id."""
    away = BESIDE[str(lab.server(name).host)]
    policy = [] if "--confirm" in options else ["--confirm", "auto"]
    lab.cli("server", "migrate", name, "--host", away, *policy, *options)
    return lab.move(name).id


def source(lab: Stage, move: str, name_of: Callable[[str], str]) -> Path:
    """A directory on the move's source."""
    with lab.lab.journal.read() as session:
        row = moves.get(session, move)
    return lab.lab.layout.host(row.source_host) / "instances" / name_of(row.server)


def kept(lab: Stage, move: str) -> Path:
    """Where the move's source is kept, or would be."""
    return source(lab, move, lambda server: kept_name(server, move))


def contents(directory: Path) -> dict[str, str]:
    """The digest of every disk."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.glob("disk*"))}


def owes(lab: Stage, move: str) -> bool:
    """Whether the move's source is kept, by the journal."""
    with lab.lab.journal.read() as session:
        return debts.kept(session, move) is not None


def let_pass(lab: Stage, seconds: int) -> None:
    """Let so much time pass for all that is kept."""
    with lab.lab.journal.write() as session:
        for debt in session.scalars(sa.select(Debt).where(Debt.not_before.is_not(None))):
            assert debt.not_before is not None
            debt.not_before -= dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("name", ["web", "mail"])
def test_what_the_server_had_is_kept_until_its_time_is_over(lab: Stage, name: str) -> None:
    """Also on shared storage; the host goes on taking servers, and this one may come back to it meanwhile."""
    home = str(lab.server(name).host)
    had = contents(lab.directory(home, name))
    move = migrate(lab, name, "--confirm", "deadline", "--keep-source", "7d")
    shown = lab.json("move", "show", move)
    assert (shown["keep_source"], shown["kept_as"], shown["kept_until"]) == (WEEK, None, None)
    assert "then the source is kept for 7 d" in lab.cli("move", "show", move)
    lab.cli("move", "confirm", move)
    assert contents(kept(lab, move)) == had != {}
    assert not source(lab, move, set_aside_name).exists()
    lab.assert_balanced()

    shown = lab.json("move", "show", move)
    (owed,) = lab.json("debt", "list", "--move", move)
    assert (owed["host"], owed["due"], owed["state"]) == (home, shown["kept_until"], "owed")
    until_then = dt.datetime.fromisoformat(owed["due"]) - dt.datetime.fromisoformat(owed["created"])
    assert until_then == dt.timedelta(seconds=WEEK)
    assert shown["kept_as"] == kept(lab, move).name
    due = owed["due"].replace("T", " ")
    assert f"kept      {home}: {shown['kept_as']}, purged {due}, in 6 d" in lab.cli("move", "show", move)
    assert f"droveway move purge-kept {move[:8]}" in lab.json("debt", "show", str(owed["id"]))["next"]
    assert books.balance(lab.lab).noted == ()

    back = migrate(lab, name)
    assert lab.server(name).host == home
    assert not kept(lab, back).exists()
    let_pass(lab, WEEK - 60)
    lab.cli("move", "resume")
    assert contents(kept(lab, move)) == had
    let_pass(lab, 60)
    lab.cli("move", "resume")
    assert not kept(lab, move).exists()
    assert lab.json("debt", "show", str(owed["id"]))["state"] == "settled"
    assert lab.json("move", "show", move)["kept_until"] is None
    assert lab.directory(home, name).is_dir()


def test_an_operator_ends_it_early(lab: Stage) -> None:
    """A host that is away does it when it is back."""
    move = migrate(lab, "web", "--keep-source", "12h")
    host = str(lab.move("web").source_host)
    lab.cli("lab", "worker", "stop", host)
    assert f"host {host} purges it as soon as it can" in lab.cli("move", "purge-kept", move)
    assert kept(lab, move).is_dir()
    lab.cli("lab", "worker", "start", host)
    assert lab.cli("move", "purge-kept", move) == f"nothing is kept of the source of move {move[:8]} any more\n"
    assert not kept(lab, move).exists()
    assert f"nothing is kept of the source of move {move[:8]} of web" in lab.refused("move", "purge-kept", move)


def test_the_configuration_says_what_is_kept_unless_the_move_does(lab: Stage) -> None:
    lab.lab.layout.configuration.write_text(
        (before := lab.lab.layout.configuration.read_text()) + "\n[confirm]\nkeep_source = 3600\n"
    )
    try:
        first = migrate(lab, "web")
        second = migrate(lab, "web", "--keep-source", "0")
    finally:
        lab.lab.layout.configuration.write_text(before)
    assert kept(lab, first).is_dir()
    assert not kept(lab, second).exists()
    assert lab.json("move", "show", second)["keep_source"] == 0


def test_of_a_server_without_a_disk_of_its_own_nothing_is_kept(lab: Stage) -> None:
    """What it has lies on its volume, which moves along."""
    move = migrate(lab, "data", "--keep-source", "1d")
    assert lab.move("data").state == "done"
    assert lab.json("debt", "list", "--all", "--move", move) == []
    assert not kept(lab, move).exists()


def test_a_server_that_is_deleted_while_it_is_verified_leaves_nothing(lab: Stage) -> None:
    """One that is deleted later leaves what is kept, until its time is over."""
    for name in ("early", "late"):
        lab.cli("lab", "server", "create", name, "--flavor", "small", "--host", "host1", "--image", "base")
    early = migrate(lab, "early", "--confirm", "deadline", "--keep-source", "1d")
    late = migrate(lab, "late", "--keep-source", "1d")
    places = [kept(lab, move) for move in (early, late)]
    for name in ("early", "late"):
        lab.cli("lab", "server", "delete", name)
    assert [place.exists() for place in places] == [False, True]
    assert [row["move"] for row in lab.json("debt", "list")] == [late]
    lab.assert_balanced()


def test_the_audit_finds_what_nobody_keeps_any_more(lab: Stage) -> None:
    """What was written off, or should have been purged long ago, is no secret."""
    move = migrate(lab, "web", "--keep-source", "1d")
    host = str(lab.move("web").source_host)
    lab.cli("lab", "worker", "stop", host)
    let_pass(lab, 86400 + 3000)
    lab.assert_balanced()
    let_pass(lab, 3000)
    (found,) = books.balance(lab.lab).findings
    assert (found.subject, found.host, found.move) == (f"instances/{kept(lab, move).name}", host, move)
    (owed,) = lab.json("debt", "list")
    assert found.mend == f"droveway debt show {owed['id']}"
    with lab.lab.journal.write() as session:
        debt = debts.kept(session, move)
        assert debt is not None
        debt.settled_at = debt.created_at
    (found,) = books.balance(lab.lab).findings
    assert found.mend == f"rm -r {kept(lab, move)}"
    with lab.lab.journal.write() as session:
        session.get_one(Debt, owed["id"]).settled_at = None


class Dying:
    """The probe of a worker that dies before the named effect, once, and is back at once; it audits what it leaves."""

    def __init__(self, lab: Stage, host: str, effect: str) -> None:
        self.lab = lab
        self.host = host
        self.effect = effect
        self.workers: Workers
        self.dead = threading.Event()
        self.found: tuple[Finding, ...] = ()

    def __call__(self, step: str, _direction: str, _phase: str, effect: str) -> None:
        if step == "discard_source" and effect == self.effect and not self.dead.is_set():
            self.found = books.balance(self.lab.lab).findings
            self.dead.set()
            threading.Thread(target=self._again).start()
            raise Parked(f"{self.host} dies")

    def _again(self) -> None:
        self.workers.stop(self.host)
        self.workers.start(self.host)


@pytest.mark.parametrize("effect", ["discard", "delete", "purged"])
def test_a_worker_that_dies_in_the_middle_of_a_purge_ends_it_when_it_is_back(lab: Stage, effect: str) -> None:
    """The server is on its way back to that host meanwhile."""
    move = migrate(lab, "web", "--keep-source", "1d")
    probe = Dying(lab, str(lab.move("web").source_host), effect)
    let_pass(lab, 86400)
    with lab.running(workers={probe.host: probe}) as workers:
        probe.workers = workers
        assert probe.dead.wait(180)
        assert probe.found == ()
        back = move_requests.carry(lab.lab, submit(lab.lab, MoveSpec(server="web", host=probe.host, policy="auto")).id)
        until(lambda: not owes(lab, move), "the end of the purge")
    assert (back.state, back.dest_host) == ("done", probe.host)
    here = kept(lab, move).parent
    assert [path.name for path in here.glob(f"{lab.id_of('web')}*")] == [lab.id_of("web")]
    lab.assert_balanced()


def test_a_process_that_is_killed_when_it_begins_to_purge_is_followed_by_one_that_purges(lab: Stage) -> None:
    move = migrate(lab, "web", "--keep-source", "1d")
    let_pass(lab, 86400)
    lab.arm("discard_source", "kill", phase="during", process="worker")
    lab.killed("move", "resume")
    assert kept(lab, move).is_dir()
    lab.assert_balanced()
    lab.cli("move", "resume")
    assert not kept(lab, move).exists()


@pytest.mark.timeout(300)
def test_whatever_happens_while_the_source_is_kept_converges(record_property: Callable[[str, object], None]) -> None:
    """The points of the one step that a kept source changes; those of a deleted source are the crash matrix's."""
    step = ("--kind", "confirm", "--direction", "execute", "--step", "discard_source")
    assert_converged(record_property, "--keep-source", "3600", *step, "--each", "1", "--seed", "1")


def test_a_jump_of_the_clock_purges_nothing(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's clock is set a week ahead while somebody collects; who asks for the purge waits for no clock."""
    move = migrate(lab, "web", "--keep-source", "2d")
    session = connect_embedded(embedded_store())
    asked: list[str] = []
    with monkeypatch.context() as patched, database_clock.settable(lab.lab.journal) as set_ahead:
        patched.setattr(registrations, "workers", lambda _session: dict.fromkeys(BESIDE))
        collector = Collector(session, lab.lab.journal, every=1.0)
        collector._collect_from = lambda moved, _host, _owed: asked.append(moved)  # type: ignore[method-assign]
        collector.round()
        set_ahead(dt.timedelta(seconds=WEEK))
        collector.round()
        assert asked == []
        with lab.lab.journal.write() as journal:
            debts.end_keeping(journal, move)
        collector.round()
    session.close()
    assert asked == [move]
    lab.cli("move", "resume")
    assert not owes(lab, move)
