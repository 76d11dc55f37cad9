"""A conductor that sleeps beyond its session: woken up, it changes nothing of what another one has finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from support.daemons import caught
from support.daemons.daemons import LONG, Installation, installation
from support.daemons.sleeper import PATIENCE, Sleeper
from support.labs.small_lab import assert_balanced, differences, in_child, is_idle, picture, read_move, until
from support.rows import left_over
from support.servers import postgres_server, zookeeper_server

from droveway.clients.zookeeper import BOARD, ROOT
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.lab import build, cloud
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Daemon as DaemonRow
from droveway.persistence.nova import catalog
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2")
PILOT: Final = "pilot"
SERVERS: Final = tuple(f"server{number}" for number in range(55))
"""One for each place at which a conductor may fall asleep in a resize, or more."""

_HOST: Final = "{vcpus: 299, memory_mb: 99000, disk_gb: 900}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
_CLOUD: Final = f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {_HOST}" for host in HOSTS)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 64, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 128, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 1}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % 2]}, {_SERVER}}}\n" for number, name in enumerate((PILOT, *SERVERS)))


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


@pytest.mark.timeout(600)
def test_a_conductor_that_slept_beyond_its_session_changes_nothing(
    site: Installation, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """It sleeps in every step of a resize: before its effect, once a host is asked, and at each call to a service."""
    for host in HOSTS:
        # So many guests are started at once that on a busy machine half of two seconds passes before each start.
        site.worker(host, OS_ZOOKEEPER__SESSION_TIMEOUT="20")
    many = {"OS_CONDUCTOR__THREADS": str(len(SERVERS)), "OS_KEEPER__MAX_RUNNING": str(len(SERVERS))}
    sleeper = Sleeper("conductor", tmp_path / "sleeper")
    sleeper.daemon = site.conductor("sleeper", **sleeper.environment, **many)
    request.addfinalizer(sleeper.close)
    assert site.await_rest(_resize(site, PILOT)) == State.VERIFYING
    # What comes after a step's effect is the same for all: what it found is stored, behind the journal's fence.
    wanted = [place for place in sleeper.passed() if place.split()[1] not in ("after", "stored")]
    places = dict(zip(SERVERS, wanted, strict=False))
    assert len(places) == len(wanted), "more servers are needed"
    assert {place.split()[0] for place in places.values()} >= set(registry.latest("resize").names())
    ids = {name: catalog.find_server(site.lab.api, site.lab.cell_databases, name).id for name in places}
    sleeper.want({ids[name]: place for name, place in places.items()})
    moves = {name: _resize(site, name) for name in places}
    sleeper.await_sleep(is_unfit=lambda: caught.has_open_transactions(site))
    other = site.conductor("other", **many)
    until(lambda: is_idle(site.lab), "the end of the moves", PATIENCE)
    assert {read_move(site.lab, move).state for move in moves.values()} == {State.VERIFYING}, other.text()
    until(lambda: site.session.children(BOARD) == [], "that the other has cleared up", LONG)
    before = until(lambda: _at_rest(site), "that all is at rest", LONG)
    assert_balanced(site.lab)
    sleeper.wake()
    sleeper.daemon.stop()
    assert differences(before, _all(site)) == []
    left_over.await_none(site.lab, site.session)
    assert_balanced(site.lab)
    assert guests_log.overlaps(site.lab.layout.guests_log) == []
    record_property("figure", f"split brain of daemons: a conductor slept at {len(places)} places, 0 effects")


def _resize(site: Installation, name: str) -> str:
    return submit(site.lab, MoveSpec(server=name, flavor="large")).id


def _at_rest(site: Installation) -> dict[str, object] | None:
    """All that there is, once nothing of it changes any more."""
    before = _all(site)
    threading.Event().wait(0.5)
    return before if differences(before, _all(site)) == [] else None


def _all(site: Installation) -> dict[str, object]:
    """Every row of every database and service, every file of the hosts, and what ZooKeeper has of moves and commands.

    An intent that is open counts as late.  What daemons say of themselves is their own: that a conductor is up says
    nothing of a move.
    """
    lab = site.lab
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
    for path in [*site.nodes(f"{ROOT}/moves"), *site.nodes(f"{ROOT}/hosts")]:
        if "/worker" not in path:
            seen[path] = site.session.get(path)
    return seen
