"""Daemons that are killed in every kind of step of every operation: all moves end, and nothing is left behind.

No daemon offers a place to kill it at.  So several servers move at once, a daemon is stopped in its tracks, the journal
and ZooKeeper tell what it is in the middle of, and it is killed there when that is a kind which is still wanted.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.daemons import caught
from support.daemons.daemons import Daemon, Installation, installation
from support.labs.small_lab import assert_balanced, in_child, until
from support.rows import left_over
from support.servers import postgres_server, zookeeper_server

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import Refused
from droveway.lab import build, cloud, operations
from droveway.lab.session import Lab
from droveway.persistence.journal import requests
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import catalog
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2", "host3")
SERVERS: Final = tuple(f"server{number}" for number in range(1, 23))
MOVERS: Final = 6
"""How many of them move; the others are deleted."""

DELETED_AT_ONCE: Final = 2

AT_ONCE: Final = 6
"""Moves that run side by side: as many as one conductor takes."""

KILLS_FOR: Final = 150.0
"""Seconds within which every kind has to have been met; what is rare is looked for again and again."""

_HOST: Final = "{vcpus: 32, memory_mb: 16384, disk_gb: 200}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
_CLOUD: Final = f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {_HOST}" for host in HOSTS)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 4}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % 3]}, {_SERVER}}}\n" for number, name in enumerate(SERVERS))


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Installation]:
    in_child(lambda: build.create(tmp_path / "lab", cloud.parse_cloud(_CLOUD, "kills")).close())
    lab = Lab.open(tmp_path / "lab")
    try:
        with (
            zookeeper_server.running_server(tmp_path / "zookeeper") as zookeeper,
            postgres_server.running_server() as databases,
            installation(lab, tmp_path, zookeeper.hosts, databases) as made,
        ):
            yield made
    finally:
        lab.close()
        build.destroy(tmp_path / "lab")


class Matrix:
    """Moves that go on for ever, in daemons that are killed."""

    def __init__(self, site: Installation) -> None:
        self.site = site
        self.wanted = caught.wanted()
        self.all = len(self.wanted)
        self.kills = 0
        self.deleted: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._workers = site.workers()
        self._conductor = self._begin()

    def run(self) -> None:
        """Kill them until every kind of step was met, then let all moves end."""
        ends = time.monotonic() + KILLS_FOR
        victims = itertools.cycle(("", *HOSTS))
        while self.wanted and time.monotonic() < ends:
            self._ask()
            self._catch(next(victims))
        until(self._is_over, "the end of all moves", 270)

    def _begin(self) -> Daemon:
        return self.site.conductor(f"conductor{next(self._numbers)}", OS_CONDUCTOR__THREADS=str(AT_ONCE))

    def _catch(self, host: str) -> None:
        daemon = self._workers[host] if host else self._conductor
        met = caught.stopped_in(self.site, daemon, host) & self.wanted
        if not met:
            caught.go_on(daemon)
            return
        daemon.kill()
        self.wanted -= met
        self.kills += 1
        if host:
            self._workers[host] = self.site.worker(host)
        else:
            self._conductor = self._begin()

    def _ask(self) -> None:
        """Ask for what meets a kind that is still wanted, of every server that rests."""
        flows = [spot.flow for spot in sorted(self.wanted)]
        lab = self.site.lab
        with lab.journal.read() as session:
            moving = {
                move.server_name: move for move in session.scalars(sa.select(Move).where(Move.ended_at.is_(None)))
            }
        busy = sum(move.state != State.VERIFYING for move in moving.values())
        deleting = sum(move.kind == "delete" for move in moving.values())
        for number, name in enumerate(SERVERS):
            move = moving.get(name)
            if name in self.deleted or busy >= AT_ONCE:
                continue
            with contextlib.suppress(Refused):
                if move is not None and move.state == State.NEEDS_OPERATOR:
                    move_requests.file_request(lab, move.id, requests.retry)
                elif move is not None and move.state == State.VERIFYING:
                    back = "revert" in flows and ("confirm" not in flows or number % 2)
                    move_requests.file_request(lab, move.id, move_requests.revert if back else move_requests.confirm)
                    busy += 1
                elif move is None and self._may_go(flows, number, deleting):
                    self._move(name, flows, number)
                    deleting += number >= MOVERS
                    busy += 1

    def _may_go(self, flows: list[str], number: int, deleting: int) -> bool:
        if number < MOVERS:
            return set(flows) != {"delete"}
        return "delete" in flows and deleting < DELETED_AT_ONCE

    def _move(self, name: str, flows: list[str], number: int) -> None:
        lab = self.site.lab
        if number >= MOVERS:
            self.deleted[name] = catalog.find_server(lab.api, lab.cell_databases, name).id
            operations.request_delete(lab, name)
        else:
            resized = "migrate" not in flows or ("resize" in flows and number % 2)
            has = catalog.find_server(lab.api, lab.cell_databases, name).flavor
            other = "small" if has == "large" else "large"
            submit(lab, MoveSpec(server=name, flavor=other if resized else None))

    def _is_over(self) -> bool:
        with self.site.lab.journal.read() as session:
            found = list(session.scalars(sa.select(Move).where(Move.ended_at.is_(None))))
        for move in found:
            with contextlib.suppress(Refused):
                if move.state == State.VERIFYING:
                    move_requests.file_request(self.site.lab, move.id, move_requests.confirm)
                elif move.state == State.NEEDS_OPERATOR:
                    move_requests.file_request(self.site.lab, move.id, requests.retry)
        return all(State(move.state) in ENDED for move in found)


def _repeated(lab: Lab) -> list[str]:
    """Steps that ran anew, in one direction for one alternate of one flow, after they had been stored as done."""
    done: set[tuple[str, str, str, int]] = set()
    again = []
    with lab.journal.read() as session:
        for row in session.scalars(sa.select(MoveStep).order_by(MoveStep.seq)):
            run = (row.flow_uuid, row.step, row.direction, row.attempt)
            if run in done:
                again.append(f"{row.flow} {row.step} {row.direction} of {row.move_id}")
            if row.ended_at is not None and row.error is None:
                done.add(run)
    return again


def test_daemons_killed_in_every_kind_of_step_leave_nothing(
    site: Installation, record_property: Callable[[str, object], None]
) -> None:
    """RC-05: every flow goes on where it was, in another process, and no step runs again that was done."""
    matrix = Matrix(site)
    matrix.run()
    met = matrix.all - len(matrix.wanted)
    record_property("figure", f"kill matrix of daemons: {met} kinds of steps met by {matrix.kills} kills")
    assert sorted(matrix.wanted) == []
    left_over.await_none(site.lab, site.session)
    assert _repeated(site.lab) == []
    assert_balanced(site.lab)
    assert guests_log.overlaps(site.lab.layout.guests_log) == []
    assert {name: found for name, uuid in matrix.deleted.items() if (found := leftovers.of(site.lab, uuid))} == {}
