"""Hosts that fail, or die, in the middle of a move: the next alternate is tried, and nothing is forgotten."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, Workers, faults_cleared, stage
from support.labs.small_lab import until
from support.rows import left_over

from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import fencing
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import CoordinationLost, Parked
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab import faults
from droveway.lab.faults import Fault
from droveway.persistence.journal.tables import COLLECTOR, Debt, Move
from droveway.workers.context import Probe
from droveway.workers.directories import Directories
from droveway.workers.transfer.client import RemoteSource

CLOUD = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}, host4: {shared: nfs1}, host5: {shared: nfs1}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  full: {vcpus: 1, memory_mb: 8000, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, ports: [{}], state: stopped}
  mail: {flavor: small, host: host4, image: base, ports: [{}]}
"""
LARGE = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 3}
SMALL = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}
# Long enough for a worker that starts anew, short enough for a test.
AWAY = "[conductor]\nhost_away = 0.3\nretry_for = 0.6\n"

STEPS = {
    place: [step.step_name() for step in registry.latest("resize").walk() if step.where is place]
    for place in (Where.SOURCE, Where.DESTINATION)
}
BEFORE_START = [step for step in STEPS[Where.DESTINATION] if step != "start_guest"]


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("alternates") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write(AWAY)
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers where they were, and nobody owing anything."""
    with faults_cleared(built):
        yield built
    built.bring_back()
    assert {row["name"]: row["host"] for row in built.json("server", "list")} == {
        "web": "host1",
        "idle": "host1",
        "mail": "host4",
    }
    assert owed(built) == []
    built.assert_balanced()


def owed(lab: Stage) -> list[tuple[str, str]]:
    """(host, action) of every debt that stands."""
    with lab.lab.journal.read() as session:
        rows = session.scalars(sa.select(Debt).where(Debt.settled_at.is_(None)).order_by(Debt.id))
        return [(row.host, row.action) for row in rows]


class Mortal:
    """The probe of a worker: once, in the middle of a step, it or another host's worker dies.

    Before the step's first effect, or with ``late`` after its last; ``back`` starts the worker again at once.
    """

    def __init__(self, host: str, step: str, *, late: bool = False, victim: str = "", back: bool = False) -> None:
        self.host = host
        self.step = step
        self.late = late
        self.victim = victim or host
        self.back = back
        self.workers: Workers
        self.dead = threading.Event()

    def __call__(self, step: str, direction: str, _phase: str, effect: str) -> None:
        if self.dead.is_set() or (step, direction) != (self.step, "execute") or (self.late and effect not in LAST):
            return
        self.dead.set()
        dying = threading.Thread(target=self._die)
        dying.start()
        if self.victim == self.host:
            raise Parked(f"{self.host} dies")
        dying.join()

    def _die(self) -> None:
        self.workers.stop(self.victim)
        if self.back:
            self.workers.start(self.victim)


LAST = {"probed", "renamed", "disk_info", "connected", "defined", "started", "stopped", "disconnected"}
"""The effects after which a step has done all that it does."""


def run(lab: Stage, name: str, *probes: Mortal, flavor: str | None = "large", host: str | None = None) -> Move:
    """Ask for the move and let it come to rest, with workers that die."""
    known: dict[str, Probe] = {probe.host: probe for probe in probes}
    move = submit(lab.lab, MoveSpec(server=name, flavor=flavor, host=host)).id
    with lab.running(workers=known) as workers:
        for probe in probes:
            probe.workers = workers
        ended = move_requests.carry(lab.lab, move)
    assert all(probe.dead.is_set() for probe in probes)
    return ended


def destinations(lab: Stage, name: str) -> list[str]:
    plan = lab.json("move", "plan", name, "--flavor", "large")
    return [plan["destination"], *plan["alternates"]]


def settle(lab: Stage) -> None:
    """With every worker back, each host does first what it owes."""
    lab.cli("move", "resume")
    assert owed(lab) == []
    lab.assert_balanced()


@pytest.mark.parametrize(("step", "late"), [("copy_disks", False), *((step, True) for step in BEFORE_START)], ids=str)
def test_a_destination_that_dies_leads_to_the_next_and_clears_up_when_it_is_back(
    lab: Stage, step: str, late: bool
) -> None:
    """R0-20, R3-13: whatever the dead host was doing, the server runs on the alternate, and the debt is paid."""
    before = lab.standing("web")
    first, second = destinations(lab, "web")
    move = run(lab, "web", Mortal(first, step, late=late))
    assert (move.state, move.attempt, move.dest_host) == ("verifying", 2, second)
    assert {host for host, _ in owed(lab)} == {first}
    # What a debt explains is no leak.
    lab.assert_balanced()
    settle(lab)
    assert lab.standing("web") == before.verifying(second, "large", LARGE)


@pytest.mark.parametrize("name", ["web", "idle"])
def test_two_destinations_that_die_leave_the_server_as_it_was(lab: Stage, name: str) -> None:
    """R0-21: exhausted, undone, and both hosts pay when they are back."""
    before = lab.standing(name)
    hosts = destinations(lab, name)
    move = run(lab, name, *(Mortal(host, "define_guest", late=True) for host in hosts))
    assert (move.state, move.attempt, move.error_code) == ("failed", 2, "host-unreachable")
    assert {host for host, _ in owed(lab)} == set(hosts)
    assert lab.standing(name).runs == before.runs
    settle(lab)
    assert lab.standing(name) == before


def test_what_a_dead_destination_left_on_shared_storage_is_removed_by_the_source(lab: Stage) -> None:
    """The server's own directory gets its name back although the copy had taken it."""
    before = lab.standing("mail")
    move = run(lab, "mail", Mortal("host5", "fit_disks", late=True), flavor=None, host="host5")
    assert (move.state, move.storage, move.attempt) == ("failed", "shared", 1)
    assert lab.standing("mail") == before
    settle(lab)
    assert lab.standing("mail") == before


@pytest.mark.parametrize("late", [False, True], ids=["not-started", "started"])
def test_a_destination_that_dies_while_it_starts_the_guest_is_waited_for(lab: Stage, late: bool) -> None:
    """Nobody can say whether the guest runs: the move rests with that sentence, and goes on when the host is back."""
    before = lab.standing("web")
    first, _second = destinations(lab, "web")
    move = run(lab, "web", Mortal(first, "start_guest", late=late))
    assert (move.state, move.attempt, move.error_code) == ("needs-operator", 1, "host-unreachable")
    assert f"the worker of host {first} is away: start it" in str(move.error)
    assert owed(lab) == []
    lab.cli("move", "retry", move.id)
    assert lab.standing("web") == before.verifying(first, "large", LARGE)


@pytest.mark.parametrize("step", STEPS[Where.SOURCE])
def test_a_source_that_dies_is_waited_for_and_then_undone(lab: Stage, step: str) -> None:
    """The move rests with the sentence that names the host; once that is back, the server is as it was."""
    before = lab.standing("web")
    move = run(lab, "web", Mortal("host1", step, late=step != "find_storage"))
    if move.state == "needs-operator":
        assert "the worker of host host1 is away: start it, or see droveway host show host1" in str(move.error)
        assert lab.cli("move", "retry", move.id, code=3)
        move = lab.move("web")
    assert (move.state, move.error_code, move.attempt) == ("failed", "host-unreachable", 1)
    assert lab.standing("web") == before


def test_a_source_that_dies_while_it_serves_its_disks_is_waited_for(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination names the host whose disks it cannot fetch."""
    monkeypatch.setitem(RemoteSource.__init__.__kwdefaults__, "patience", 0.2)
    before = lab.standing("web")
    first, _second = destinations(lab, "web")
    move = run(lab, "web", Mortal(first, "copy_disks", victim="host1"))
    assert move.state == "needs-operator"
    lab.cli("move", "retry", move.id, code=3)
    assert (lab.move("web").error_code, lab.move("web").attempt) == ("source-unreachable", 1)
    assert "the worker of host1 does not serve the disks" in str(lab.move("web").error)
    assert lab.standing("web") == before


def test_a_worker_that_is_back_in_time_goes_on(lab: Stage) -> None:
    """Nothing is undone: the step is entered again."""
    before = lab.standing("web")
    first, _second = destinations(lab, "web")
    move = run(lab, "web", Mortal("host1", "set_aside", back=True), Mortal(first, "copy_disks", back=True))
    assert (move.state, move.attempt, move.dest_host) == ("verifying", 1, first)
    assert lab.standing("web") == before.verifying(first, "large", LARGE)


def fill(lab: Stage, host: str) -> Callable[[], None]:
    """Somebody else takes the host's room after it was chosen."""
    lab.cli("lab", "server", "create", "full", "--flavor", "full", "--host", host, "--image", "base")
    return lambda: lab.cli("lab", "server", "delete", "full") and None


def leave_no_space(lab: Stage, host: str) -> Callable[[], None]:
    """The host's disk is nearly full."""
    real, instances = Directories.free_bytes, lab.lab.hypervisor(host).instances
    patch = pytest.MonkeyPatch()
    patch.setattr(Directories, "free_bytes", lambda self: 1 if self.instances == instances else real(self))
    return patch.undo


def take_its_agent(lab: Stage, host: str) -> Callable[[], None]:
    """Neutron knows no agent on the host; the bridges that the agent has reported stay for when it is back."""

    def write(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(lab.lab.layout.services)) as services, services:
            assert services.execute(statement, (host,)).rowcount == 1

    write("DELETE FROM network_hosts WHERE name = ?")
    return lambda: write("INSERT INTO network_hosts (name) VALUES (?)")


def take_its_name(lab: Stage, host: str) -> Callable[[], None]:
    """Another guest of that name is defined on the host."""
    guest, other = lab.lab.hypervisor("host1").guest(lab.id_of("web")), str(uuid.uuid4())
    assert guest is not None
    hypervisor = lab.lab.hypervisor(host)
    text = guest.definition.replace(guest.server, other)
    hypervisor.define(other, text, vcpus=None, memory_mb=None, disks=[], volumes=[], ports=[], mark=None)
    return lambda: hypervisor.undefine(other)


def take_its_memory(lab: Stage, host: str) -> Callable[[], None]:
    """The host has less memory than Placement was told."""
    patch = pytest.MonkeyPatch()
    patch.setattr(lab.lab.hypervisor(host), "memory_mb", 100)
    return patch.undo


@pytest.mark.parametrize(
    ("step", "refuse", "words"),
    [
        ("claim", fill, "no room"),
        ("check_destination", leave_no_space, "has 1 bytes free, the disks of server"),
        ("check_destination", take_its_memory, "has 100 MiB of memory, the guest wants 512"),
        ("reserve_ports", take_its_agent, "no agent serves it there"),
        ("define_guest", take_its_name, "is in its way; undefine it first"),
    ],
)
def test_a_host_that_refuses_the_server_is_left_for_the_next(
    lab: Stage, step: str, refuse: Callable[[Stage, str], Callable[[], None]], words: str
) -> None:
    """R0-20: a candidate when it was chosen; the history has its own words, and nothing stays on it."""
    before = lab.standing("web")
    first, second = destinations(lab, "web")
    undo: list[Callable[[], None]] = []

    def spoil(_move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == ("claim", "execute", "before") and not undo:
            undo.append(refuse(lab, first))

    move = submit(lab.lab, MoveSpec(server="web", flavor="large")).id
    try:
        with lab.running(spoil):
            ended = move_requests.carry(lab.lab, move)
    finally:
        undo[0]()
    assert (ended.state, ended.attempt, ended.dest_host) == ("verifying", 2, second)
    assert lab.standing("web") == before.verifying(second, "large", LARGE)
    (failed,) = [row for row in lab.history(move) if row.error]
    assert (failed.step, failed.attempt, failed.error["fault"]) == (step, 1, "destination")
    assert words in failed.error["message"]
    assert first in failed.error["message"]


@pytest.mark.parametrize(
    ("step", "action", "facts", "code"),
    [
        ("fit_disks", "enospc", {}, "disk-full"),
        ("connect_destination", "fail", {"fault": "destination"}, "fault"),
        ("start_guest", "fail", {"fault": "destination", "phase": "before"}, "fault"),
    ],
)
def test_a_host_that_fails_in_the_middle_is_left_for_the_next(
    lab: Stage, step: str, action: str, facts: dict[str, str], code: str
) -> None:
    """R0-20: a full disk, a volume that cannot be connected, a guest that is proved not to have started."""
    before = lab.standing("web")
    first, second = destinations(lab, "web")
    lab.arm(step, action, **({"phase": "during", "host": first} | facts))
    lab.cli("server", "resize", "web", "--flavor", "large")
    move = lab.move("web")
    assert (move.attempt, move.dest_host) == (2, second)
    assert [row.error["code"] for row in lab.history(move.id) if row.error] == [code]
    assert lab.standing("web") == before.verifying(second, "large", LARGE)


def test_a_collector_that_was_killed_is_followed_by_the_next(lab: Stage) -> None:
    """R3-15: its claim stands, and whoever collects next takes it over."""
    before = lab.standing("web")
    first, second = destinations(lab, "web")
    move = run(lab, "web", Mortal(first, "copy_disks", late=True))
    fencing.claim(lab.lab.journal, move.id, COLLECTOR)
    settle(lab)
    assert lab.standing("web") == before.verifying(second, "large", LARGE)


def test_a_collector_that_loses_zookeeper_last_of_all_is_cleared_up_after(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is owed any more then, so that no collector comes back to what it left."""
    lost: list[str] = []
    ends = fencing.write_tombstone

    def lose(coordination: Coordination, move: str, epoch: int) -> None:
        if not lost:
            lost.append(move)
            raise CoordinationLost("ZooKeeper did not answer")
        ends(coordination, move, epoch)

    undone_without_its_directory(lab)()
    monkeypatch.setattr(fencing, "write_tombstone", lose)
    with lab.running() as workers:
        until(lambda: lost and not owed(lab), "the end of the debts")
        left_over.await_none(lab.lab, workers.session())


def test_a_debt_that_cannot_be_settled_is_kept_and_noted(lab: Stage) -> None:
    """Nothing waits for it, the audit lists it apart from leaks, and it is tried again with the next command."""
    first, _second = destinations(lab, "web")
    run(lab, "web", Mortal(first, "copy_disks", late=True))
    faults.arm(
        lab.lab.layout, Fault(id=0, step="copy_disks", direction="revert", phase="during", action="fail", host=first)
    )
    lab.cli("move", "resume")
    assert owed(lab) == [(first, "copy_disks"), (first, "check_destination")]
    lab.assert_balanced()
    lab.cli("lab", "fault", "clear")
    lab.cli("move", "resume")
    assert owed(lab) == []


def undone_without_its_directory(lab: Stage) -> Callable[[], None]:
    """Let a move be undone while another file system is in the place of its destination's; what puts that right."""
    first, _second = destinations(lab, "web")
    instances, away = lab.lab.hypervisor(first).instances, lab.lab.layout.root / "away"

    def vanish(step: str, direction: str, _phase: str, effect: str) -> None:
        if (step, direction, effect) == ("copy_disks", "execute", "renamed") and not away.exists():
            away.mkdir()
            for entry in list(instances.iterdir()):
                entry.rename(away / entry.name)
            raise OSError("stale file handle")

    move = submit(lab.lab, MoveSpec(server="web", flavor="large")).id
    with lab.running(workers={first: vanish}):
        assert move_requests.carry(lab.lab, move).state == "failed"
        assert owed(lab) == [(first, "copy_disks"), (first, "check_destination")]

    def put_back() -> None:
        for entry in list(away.iterdir()):
            entry.rename(instances / entry.name)
        away.rmdir()

    return put_back


def test_a_destination_whose_own_directory_is_away_owes_the_undo(lab: Stage) -> None:
    """e50: another file system in its place, with the same inode, is no tidy one: the copy is owed, not forgotten."""
    before = lab.standing("web")
    first, _second = destinations(lab, "web")
    undone_without_its_directory(lab)()
    lab.cli("move", "resume")
    assert owed(lab) == []
    assert not Directories(lab.lab.hypervisor(first).instances).exists(lab.id_of("web"))
    assert lab.standing("web") == before
