"""Workers that sleep beyond their sessions while moves go on without them: awake, they do none of it any more."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support.daemons import caught
from support.daemons.daemons import LONG, Installation, installation
from support.daemons.sleeper import PATIENCE, Sleeper
from support.labs.small_lab import assert_balanced, in_child, is_idle, picture, read_move, until
from support.rows import left_over
from support.servers import zookeeper_server

from droveway.clients.zookeeper import BOARD
from droveway.engines.operations import move_requests, settling
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab import build, cloud
from droveway.lab.session import Lab
from droveway.persistence.journal import debt_views, freezes, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Daemon as DaemonRow
from droveway.persistence.nova import catalog
from droveway.workers.hypervisors import guests_log

DESTINATION: Final = "host2"
"""The larger host, so that it is tried first of all."""

SOURCE: Final = "host4"
TO_IT: Final = tuple(f"a{number}" for number in range(20))
FROM_IT: Final = tuple(f"b{number}" for number in range(14))
"""Servers that move to the one, and from the other; the first of each shows the places at which a worker may sleep."""

CONDUCTOR: Final = {
    "OS_CONDUCTOR__THREADS": str(len(TO_IT + FROM_IT)),
    "OS_KEEPER__MAX_RUNNING": str(len(TO_IT + FROM_IT)),
    "OS_CONDUCTOR__HOST_AWAY": "0.5",
    "OS_CONDUCTOR__RETRY_FOR": "3",
}

_HOST: Final = "{{vcpus: {0}, memory_mb: {0}000, disk_gb: {0}0}}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
_CLOUD: Final = f"""
hypervisor: sandbox
cells:
  cell1:
    hosts:
      host1: {_HOST.format(99)}
      {DESTINATION}: {_HOST.format(999)}
      host3: {_HOST.format(99)}
      {SOURCE}: {_HOST.format(99)}
flavors:
  small: {{vcpus: 1, memory_mb: 64, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 128, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 1}}}}
servers:
""" + "".join(
    f"  {name}: {{host: {host}, {_SERVER}}}\n"
    for names, host in ((TO_IT, "host1"), (FROM_IT, SOURCE))
    for name in names
)


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Installation]:
    in_child(lambda: build.create(tmp_path / "lab", cloud.parse_cloud(_CLOUD, "brains")).close())
    lab = Lab.open(tmp_path / "lab")
    try:
        with (
            zookeeper_server.running_server(tmp_path / "zookeeper") as zookeeper,
            installation(lab, tmp_path, zookeeper.hosts, None) as made,
        ):
            yield made
    finally:
        lab.close()
        build.destroy(tmp_path / "lab")


@pytest.mark.timeout(600)
def test_workers_that_slept_beyond_their_sessions_do_nothing_of_what_was_given_to_others(
    site: Installation, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """They sleep right before each effect of a move, the one on its destination and the other on its source."""
    lab = site.lab
    with contextlib.ExitStack() as stack:
        sleepers = {host: Sleeper("worker", tmp_path / host) for host in (DESTINATION, SOURCE)}
        for host in sorted(lab.identity.hosts):
            environment = sleepers[host].environment if host in sleepers else {}
            worker = site.worker(host, **environment)
            if host in sleepers:
                sleepers[host].daemon = worker
                stack.callback(sleepers[host].close)
        site.conductor(**CONDUCTOR)
        there = _put_to_sleep(site, sleepers[DESTINATION], TO_IT, Where.DESTINATION)
        here = _put_to_sleep(site, sleepers[SOURCE], FROM_IT, Where.SOURCE)
        for sleeper in sleepers.values():
            sleeper.await_sleep()
        assert _refused_second_worker(site, DESTINATION).endswith("stop it first\n")
        _go_on_without(site, there, here)
        with lab.journal.write() as session:
            freezes.freeze(session, "all", "", who="test", reason=None)
        before = picture(lab.layout)
        for host, sleeper in sleepers.items():
            sleeper.wake()
            site.await_worker(host)
            until(lambda at=host: not caught.unanswered(site, at), "that it has answered whatever is asked now", LONG)
        _assert_nothing_irreversible(site, before, picture(lab.layout))
        with lab.journal.write() as session:
            freezes.thaw(session, "all", "")
        until(lambda: debt_views.listing(lab.journal) == [], "that what is owed is undone", LONG)
        for ours in (there, here):
            _end(site, ours)
        left_over.await_none(lab, site.session)
        assert_balanced(lab)
        assert guests_log.overlaps(lab.layout.guests_log) == []
    record_property("figure", f"split brain of workers: asleep at {len(there) + len(here)} places, 0 effects")


@dataclasses.dataclass(frozen=True)
class Asleep:
    """A move in which a worker sleeps, at its place."""

    move: str
    place: str


def _wish(name: str) -> MoveSpec:
    return MoveSpec(server=name, flavor="large") if name in TO_IT else MoveSpec(server=name, host="host3")


def _put_to_sleep(site: Installation, sleeper: Sleeper, names: tuple[str, ...], where: Where) -> list[Asleep]:
    """Learn the places from a move that nothing happens to, then begin one for each of them."""
    lab = site.lab
    pilot, *others = names
    # Those that were put to sleep before go to other hosts first: on a busy machine that takes its time.
    until(lambda: site.session.children(BOARD) == [], "an empty board", PATIENCE)
    assert site.await_rest(submit(lab, _wish(pilot)).id) == State.VERIFYING
    places = dict(zip(others, sleeper.passed(), strict=False))
    assert len(places) == len(sleeper.passed()), "more servers are needed"
    steps = {step.step_name() for step in registry.latest("resize").walk() if step.where is where}
    assert {place.split()[0] for place in places.values()} >= steps
    ids = {name: catalog.find_server(lab.api, lab.cell_databases, name).id for name in places}
    sleeper.want({ids[name]: place for name, place in places.items()})
    return [Asleep(submit(lab, _wish(name)).id, place) for name, place in places.items()]


def _refused_second_worker(site: Installation, host: str) -> str:
    """What is said to somebody who starts another worker of the host."""
    code, _, complained = site.droveway("worker", "run", "--host", host)
    assert code == 2, complained
    return complained


def _go_on_without(site: Installation, there: list[Asleep], here: list[Asleep]) -> None:
    """No destination is waited for before its guest is to start: an operator says then that it did.  A source is."""
    lab = site.lab
    until(lambda: is_idle(lab), "that all moves rest", PATIENCE)
    for each in there:
        if each.place.startswith("start_guest "):
            with lab.journal.write() as session:
                settling.settle(session, each.move, "start_guest", done=True, who="test", reason="it was looked at")
    until(lambda: is_idle(lab), "that they go on", LONG)
    assert {read_move(lab, each.move).state for each in there} == {State.VERIFYING}
    assert {read_move(lab, each.move).state for each in here} <= {State.NEEDS_OPERATOR, State.FAILED}
    for each in there:
        elsewhere = not each.place.startswith("start_guest ")
        assert (read_move(lab, each.move).dest_host != DESTINATION) == elsewhere
    until(lambda: site.session.children(BOARD) == [], "an empty board", LONG)


def _assert_nothing_irreversible(site: Installation, before: dict[str, object], after: dict[str, object]) -> None:
    """No guest started or stopped, nothing renamed or deleted; what the undo on the source did was asked of it."""
    lab = site.lab
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    changed -= {f"journal.sqlite:{DaemonRow.__tablename__}", "guests"}
    assert {key for key in changed if not key.startswith((f"hosts/{DESTINATION}/", f"hosts/{SOURCE}/"))} == set()
    assert _directories(before, DESTINATION) == _directories(after, DESTINATION)
    assert [name for name in _directories(after, SOURCE) - _directories(before, SOURCE) if "_" in name] == []
    events = guests_log.events(lab.layout.guests_log)[str(before["guests"]).count("\n") :]
    assert {(event.event, event.host) for event in events} <= {("start", SOURCE)}


def _directories(seen: dict[str, object], host: str) -> set[str]:
    """The names of all that lies among the host's servers, but for probes of its storage."""
    folder = f"hosts/{host}/instances/"
    return {key.removeprefix(folder).partition("/")[0] for key in seen if key.startswith(folder) and "/." not in key}


def _end(site: Installation, asleep: list[Asleep]) -> None:
    """Retry what rests for the want of its source, and revert what was said to be started."""
    lab = site.lab
    ends = {}
    for each in asleep:
        if read_move(lab, each.move).state == State.NEEDS_OPERATOR:
            move_requests.file_request(lab, each.move, requests.retry)
            ends[each.move] = State.FAILED
        elif each.place.startswith("start_guest "):
            move_requests.file_request(lab, each.move, move_requests.revert)
            ends[each.move] = State.REVERTED
    assert ends
    until(lambda: is_idle(lab), "the ends of the moves", LONG)
    assert {move: read_move(lab, move).state for move in ends} == ends
