"""A conductor that sleeps beyond its session: woken up, it changes nothing of what another one has finished."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from support import caught, postgres_server, zookeeper_server
from support.daemons import Daemon, Installation, installation
from support.small_lab import assert_balanced, differences, in_child, is_released, picture, read_move, until

from droveway.clients.zookeeper import BOARD
from droveway.engines.submit import Wish, submit
from droveway.flows import registry
from droveway.lab import build, cloud
from droveway.lab.session import Lab
from droveway.persistence.journal import Daemon as DaemonRow
from droveway.persistence.states import State
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2")
AT_ONCE: Final = 6
"""Moves that one conductor is stopped in."""

ROUNDS: Final = 6
SERVERS: Final = tuple(f"server{number}" for number in range(ROUNDS * AT_ONCE))

_HOST: Final = "{vcpus: 99, memory_mb: 99000, disk_gb: 900}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
_CLOUD: Final = f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {_HOST}" for host in HOSTS)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 64, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 128, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 1}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % 2]}, {_SERVER}}}\n" for number, name in enumerate(SERVERS))

VOLUMES: Final = "volumes"
"""The steps that call Cinder, which has nothing by which a late call could be refused: docs/guarantees.rst says what
is promised of one that was on its way.
"""

KINDS: Final = {caught.subject("resize", step.step_name()) for step in registry.latest("resize").walk()} - {VOLUMES}


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Installation]:
    in_child(lambda: build.create(tmp_path / "lab", cloud.parse_cloud(_CLOUD, "brains")).close())
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


def test_a_conductor_that_slept_beyond_its_session_changes_nothing(
    site: Installation, record_property: Callable[[str, object], None]
) -> None:
    """Stopped in several moves at once, at other steps each time, until it was stopped in every subject of a resize."""
    site.workers()
    numbers = itertools.count(1)
    met: set[str] = set()
    found: set[str] = set()
    conductor = _begin(site, next(numbers))
    for first in range(0, len(SERVERS), AT_ONCE):
        moves = [submit(site.lab, Wish(server=name, flavor="large")).id for name in SERVERS[first : first + AT_ONCE]]
        steps = _stop(site, conductor, met)
        other = _begin(site, next(numbers))
        until(lambda ours=moves: all(is_released(site.lab, move) for move in ours), "the end of the moves", 60)
        assert {read_move(site.lab, move).state for move in moves} == {State.VERIFYING}, other.text()
        until(lambda: site.session.children(BOARD) == [], "that the other has cleared up", 60)
        before = until(lambda: _at_rest(site.lab), "that all is at rest", 60)
        conductor.process.send_signal(signal.SIGCONT)
        until(lambda ours=conductor, lost=steps: _gave_up(ours) >= len(lost), f"that it gives {steps} up", 30)
        conductor.stop()
        assert differences(before, _all(site.lab)) == [], f"the conductor that slept in {steps}"
        met |= set(steps)
        conductor = other
        found = {caught.subject("resize", step) for step in met}
        if found >= KINDS:
            break
    record_property("figure", f"split brain of daemons: a conductor slept in {len(met)} steps of a resize, 0 effects")
    assert found >= KINDS, sorted(met)
    assert_balanced(site.lab)
    assert guests_log.overlaps(site.lab.layout.guests_log) == []


def _begin(site: Installation, number: int) -> Daemon:
    return site.conductor(f"conductor{number}", OS_CONDUCTOR__THREADS=str(AT_ONCE))


def _stop(site: Installation, conductor: Daemon, met: set[str]) -> list[str]:
    """Stop it where it is in the middle of steps, best of all of such as it was never stopped in."""
    ends = time.monotonic() + 30
    subjects = {caught.subject("resize", step) for step in met}
    tries = 0
    pause = threading.Event()
    while True:
        assert time.monotonic() < ends, "the conductor was never in the middle of a step"
        conductor.process.send_signal(signal.SIGSTOP)
        steps = caught.standing(site, conductor)
        new = [step for step in steps or () if caught.subject("resize", step) not in subjects]
        subjects_now = {caught.subject("resize", step) for step in steps or ()}
        if steps and VOLUMES not in subjects_now and (new or (tries > 25 and set(steps) - met) or tries > 50):
            return steps
        conductor.process.send_signal(signal.SIGCONT)
        tries += bool(steps)
        pause.wait(0.01)


def _gave_up(conductor: Daemon) -> int:
    """How many flows it noticed it had lost."""
    said = conductor.log.read_text()
    return said.count("was lost") + said.count("lost what it writes to")


def _at_rest(lab: Lab) -> dict[str, object] | None:
    """All that there is, once nothing of it changes any more."""
    before = _all(lab)
    threading.Event().wait(0.5)
    return before if differences(before, _all(lab)) == [] else None


def _all(lab: Lab) -> dict[str, object]:
    """Every row of every database and service, every file of the hosts; an intent that is open counts as late.

    What daemons say of themselves is their own: that a conductor is up says nothing of a move.
    """
    seen = picture(lab.layout)
    for name, database in {"journal": lab.journal, "api": lab.api, **lab.cell_databases}.items():
        with database.engine.connect() as connection:
            tables = sa.MetaData()
            tables.reflect(connection)
            for table in tables.sorted_tables:
                if table.name == DaemonRow.__tablename__:
                    continue
                rows = sorted(map(repr, connection.execute(sa.select(table))))
                seen[f"{name}:{table.name}"] = [row.replace("'open'", "'late'") for row in rows]
    return seen
