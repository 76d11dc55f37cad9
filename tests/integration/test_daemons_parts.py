"""What each part of an installation does, and what it does without: the board, workers, conductors, undoing."""

from __future__ import annotations

import configparser
import signal
from typing import Final

import pytest
import sqlalchemy as sa
from support.daemons.daemons import Daemon, Installation
from support.labs.small_lab import assert_balanced, differences, history, picture, read_move, until

from droveway.clients.zookeeper import BOARD, command_path, epoch_in, epoch_path, worker_path
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import cloud
from droveway.persistence.journal import debt_views
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.vm_states import TaskState
from droveway.wire import codec

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"

CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{host1: {_HOST}, host2: {_HOST}, host3: {_HOST}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
servers:
  web: {{host: host1, {_SERVER}}}
  db: {{host: host1, {_SERVER}}}
"""

LONG: Final = 180.0


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(CLOUD, "parts")


def to(site: Installation, server: str, host: str | None) -> str:
    """Migrate the server to the host; the move."""
    return submit(site.lab, MoveSpec(server=server, host=host)).id


def waits_for(site: Installation, move: str, host: str) -> bool:
    """Whether the last step that was begun is one of the host's, and has not ended."""
    rows = history(site.lab, move)
    return bool(rows) and (rows[-1].host, rows[-1].ended_at) == (host, None)


def unhurried(site: Installation, seconds: int) -> dict[str, Daemon]:
    """A worker for every host, which is given up so long after it is stopped."""
    return {
        host: site.worker(host, OS_ZOOKEEPER__SESSION_TIMEOUT=str(seconds)) for host in sorted(site.lab.identity.hosts)
    }


def owner_of(site: Installation, move: str) -> str | None:
    """Who has claimed the move."""
    with site.lab.journal.read() as session:
        return session.scalar(sa.select(Claim.owner).where(Claim.move_id == move))


def test_a_job_is_on_the_board_while_it_may_run_and_locked_while_it_is_claimed(site: Installation) -> None:
    """RC-03: any client of ZooKeeper sees it."""
    site.worker("host2")
    move = to(site, "web", "host2")
    flow = read_move(site.lab, move).flow_uuid
    assert site.session.children(BOARD) == []
    conductor = site.conductor()
    until(lambda: set(site.session.children(BOARD)) == {flow, f"{flow}.lock"}, "the job and its claim", LONG)
    owner = until(lambda: owner_of(site, move), "the claim in the journal", LONG)
    lock = site.session.get(f"{BOARD}/{flow}.lock")
    assert lock is not None
    assert owner.encode() in lock[0]
    conductor.stop()
    assert site.session.children(BOARD) == [flow], "given back, not taken away"
    site.conductor("second")
    site.worker("host1")
    assert site.await_rest(move) == State.VERIFYING
    assert site.session.children(BOARD) == []


def test_only_the_steps_of_a_host_whose_worker_is_stopped_wait(site: Installation) -> None:
    """RC-04: workers carry out what is done on hosts, each on its own."""
    workers = unhurried(site, 60)
    site.conductor(OS_CONDUCTOR__HOST_AWAY="600")
    workers["host3"].process.send_signal(signal.SIGSTOP)
    blocked, free = to(site, "web", "host3"), to(site, "db", "host2")
    assert site.await_rest_of(free) == State.VERIFYING
    until(lambda: waits_for(site, blocked, "host3"), "the step that waits for host3", LONG)
    workers["host3"].process.send_signal(signal.SIGCONT)
    assert site.await_rest(blocked) == State.VERIFYING
    assert_balanced(site.lab)


def test_workers_need_neither_databases_nor_placement_nor_neutron(site: Installation) -> None:
    """R3-03: conductors alone write allocations and bindings; a worker could not if it wanted to."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(site.configuration)
    for group in ("journal", "api_database", "placement", "neutron"):
        settings.remove_section(group)
    own = site.folder / "worker.conf"
    with own.open("w") as file:
        settings.write(file)
    for host in site.lab.identity.hosts:
        site.worker(host, configuration=own)
    site.conductor()
    move = to(site, "web", "host2")
    assert site.await_rest(move) == State.VERIFYING
    move_requests.file_request(site.lab, move, move_requests.confirm)
    assert site.await_rest(move) == State.DONE
    assert_balanced(site.lab)


def test_what_is_undone_says_why_and_leaves_what_others_have_changed(site: Installation) -> None:
    """R1-39: the move names its first error; a row is read again before an undo writes it."""
    workers = unhurried(site, 8)
    site.conductor(OS_CONDUCTOR__HOST_AWAY="1")
    workers["host2"].process.send_signal(signal.SIGSTOP)
    move = to(site, "web", "host2")
    until(lambda: waits_for(site, move, "host2"), "the step that waits for host2", LONG)
    with site.lab.cell_databases["cell1"].write() as session:
        row = session.scalars(sa.select(Instance).where(Instance.display_name == "web")).one()
        assert row.task_state == TaskState.RESIZE_MIGRATED
        row.display_name = "renamed"
    until(lambda: State(read_move(site.lab, move).state) in ENDED, "the end of the move", LONG)
    workers["host2"].process.send_signal(signal.SIGCONT)
    assert site.await_rest(move) == State.FAILED
    code, said, _ = site.droveway("move", "show", move, "-f", "value", "-c", "error")
    first = next(row.error for row in history(site.lab, move) if row.error)
    assert (code, said.strip()) == (0, first["message"])
    assert "host2" in said
    with site.lab.cell_databases["cell1"].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.display_name == "renamed")).one()
    assert (row.host, row.vm_state, row.task_state) == ("host1", "active", None)
    until(lambda: not debt_views.listing(site.lab.journal), "what host2 owed", LONG)
    assert_balanced(site.lab)


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "free"])
def test_a_conductor_that_is_told_to_stop_while_it_sleeps_beyond_its_session_ends_in_order(
    site: Installation, taken: bool
) -> None:
    """It awakes to its end: what others have taken is left to them, and what nobody has taken can be taken at once."""
    workers = unhurried(site, 120)
    sleeper = site.conductor("sleeper")
    workers["host2"].process.send_signal(signal.SIGSTOP)
    move = to(site, "web", "host2")
    until(lambda: waits_for(site, move, "host2"), "the step that waits for host2", LONG)
    owner, lock = owner_of(site, move), f"{BOARD}/{read_move(site.lab, move).flow_uuid}.lock"
    first = until(lambda: asked_under(site, "host2"), "its command", LONG)
    put_to_sleep(sleeper)
    until(lambda: site.session.get(lock) is None, "the end of its session", LONG)
    others = [site.conductor("other", OS_ZOOKEEPER__SESSION_TIMEOUT="120")] if taken else []
    if taken:
        until(lambda: asked_under(site, "host2") not in (None, first), "the command under the other's claim", LONG)
    for other in others:
        other.process.send_signal(signal.SIGSTOP)
    before, epoch = seen(site), epoch_of(site, move)
    sleeper.process.send_signal(signal.SIGCONT)
    assert sleeper.process.wait(LONG) == 0, sleeper.text()
    assert " ERROR droveway" not in sleeper.log.read_text()
    assert changed_since(site, before) <= {"journal.sqlite"}, "it has had no effect on a host or on Nova's rows"
    if taken:
        assert epoch_of(site, move) == epoch
        assert owner_of(site, move) != owner
    assert (site.session.get(lock) is not None) == taken, "it holds nothing, whatever it took up when it awoke"
    for other in others:
        other.process.send_signal(signal.SIGCONT)
    if not taken:
        site.conductor("other")
    workers["host2"].process.send_signal(signal.SIGCONT)
    assert site.await_rest(move) == State.VERIFYING
    assert_balanced(site.lab)


def test_a_worker_that_is_told_to_stop_while_it_sleeps_beyond_its_session_ends_in_order(site: Installation) -> None:
    """What it was in the middle of has gone on without it: it has no further effect, and the next one settles it."""
    workers = {host: site.worker(host) for host in sorted(site.lab.identity.hosts)}
    site.conductor(OS_CONDUCTOR__HOST_AWAY="1")
    move = to(site, "web", "host2")
    until(lambda: waits_for(site, move, "host2"), "a step of host2", LONG)
    put_to_sleep(workers["host2"])
    until(lambda: State(read_move(site.lab, move).state) in ENDED, "the end of the move without it", LONG)
    site.await_rest(move)
    until(lambda: site.session.get(worker_path("host2")) is None, "the end of its session", LONG)
    before = seen(site)
    workers["host2"].process.send_signal(signal.SIGCONT)
    assert workers["host2"].process.wait(LONG) == 0, workers["host2"].text()
    assert " ERROR droveway" not in workers["host2"].log.read_text()
    # Its own journal may tell how the command ended that it slept in; the folder has other files once that is closed.
    its_own = {"hosts/host2", "hosts/host2/worker.sqlite"}
    # Nobody can exclude a sleep between the look at the fence and the one system call behind it.  Then the probe of the
    # shared directory is made or removed late, and the next worker clears it up.
    probes = {"hosts/host2/instances", f"hosts/host2/instances/.droveway-probe-{move}-1"}
    assert changed_since(site, before) <= {"journal.sqlite", *its_own, *probes}, "what it slept over is as it was"
    assert site.session.get(worker_path("host2")) is None
    site.worker("host2")
    until(lambda: not debt_views.listing(site.lab.journal), "what host2 owed", LONG)
    assert read_move(site.lab, move).state == State.FAILED
    assert_balanced(site.lab)


def seen(site: Installation) -> dict[str, object]:
    """All of the lab, but for fences: who gives a move up takes its own one away."""
    found = picture(site.lab.layout)
    return {
        key: [row for row in rows if "'droveway_epoch'" not in row] if isinstance(rows, list) else rows
        for key, rows in found.items()
    }


def changed_since(site: Installation, before: dict[str, object]) -> set[str]:
    """The databases and files of the lab that are no longer as they were."""
    return {line.partition(":")[0] for line in differences(before, seen(site))}


def asked_under(site: Installation, host: str) -> int | None:
    """The epoch of what the host is asked for; None when it is asked for nothing."""
    for key in site.session.children(command_path(host)):
        found = site.session.get(command_path(host, key))
        if found is not None:
            return codec.decode_command(found[0]).epoch
    return None


def put_to_sleep(daemon: Daemon) -> None:
    """Stop it in its tracks, and tell it to end, which it hears when it awakes."""
    daemon.process.send_signal(signal.SIGSTOP)
    daemon.process.terminate()


def epoch_of(site: Installation, move: str) -> int | None:
    """The epoch that the move stands at in ZooKeeper."""
    found = site.session.get(epoch_path(move))
    return None if found is None else epoch_in(found[0])
