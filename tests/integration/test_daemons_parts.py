"""What each part of an installation does, and what it does without: the board, workers, conductors, undoing."""

from __future__ import annotations

import configparser
import signal
from typing import Final

import pytest
import sqlalchemy as sa
from support.daemons import Daemon, Installation
from support.small_lab import assert_balanced, history, read_move, until

from droveway.clients.zookeeper import BOARD
from droveway.engines import asking
from droveway.engines.submit import Wish, submit
from droveway.lab import cloud
from droveway.persistence import debt_views
from droveway.persistence.cell import Instance
from droveway.persistence.journal import Claim
from droveway.persistence.states import ENDED, State
from droveway.persistence.vm_states import TaskState

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

LONG: Final = 60.0


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(CLOUD, "parts")


def to(site: Installation, server: str, host: str | None) -> str:
    """Migrate the server to the host; the move."""
    return submit(site.lab, Wish(server=server, host=host)).id


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
    asking.ask(site.lab, move, asking.confirm)
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
        assert row.task_state == TaskState.RESIZE_PREP
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
