"""Workers that sleep beyond their sessions while their steps are given to others: awake, they do none of it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support import zookeeper_server
from support.daemons import LONG, Installation, installation
from support.sleeper import Sleeper
from support.small_lab import assert_balanced, in_child, is_released, picture, read_move, until

from droveway.engines import asking, settling
from droveway.engines.submit import Wish, submit
from droveway.flows import registry
from droveway.flows.step import Where
from droveway.lab import build, cloud
from droveway.lab.session import Lab
from droveway.persistence import catalog, debt_views, freezes, requests
from droveway.persistence.states import State
from droveway.workers.hypervisors import guests_log

DESTINATION: Final = "host2"
"""The larger host, so that it is tried first of all."""

SOURCE: Final = "host4"
TO_IT: Final = tuple(f"a{number}" for number in range(40))
FROM_IT: Final = tuple(f"b{number}" for number in range(20))
"""Servers that move to the one, and from the other; the first of each shows the places at which a worker may sleep."""

_HOST: Final = "{{vcpus: 99, memory_mb: {}, disk_gb: 900}}"
_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
_CLOUD: Final = f"""
hypervisor: sandbox
cells:
  cell1:
    hosts:
      host1: {_HOST.format(20000)}
      {DESTINATION}: {_HOST.format(90000)}
      host3: {_HOST.format(20000)}
      {SOURCE}: {_HOST.format(20000)}
flavors:
  small: {{vcpus: 1, memory_mb: 64, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 128, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 1}}}}
servers:
""" + "".join(
    f"  {name}: {{host: {host}, {_SERVER}}}\n" for names, host in ((TO_IT, "host1"), (FROM_IT, SOURCE)) for name in names
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


def test_workers_that_slept_beyond_their_sessions_do_nothing_of_what_was_given_to_others(
    site: Installation, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """They sleep before every effect of a move on its destination, and on its source."""
    lab = site.lab
    for host in ("host1", "host3"):
        site.worker(host)
    sleepers = {host: Sleeper("worker", tmp_path / f"sleeper-{host}") for host in (DESTINATION, SOURCE)}
    for host, sleeper in sleepers.items():
        sleeper.daemon = site.worker(host, **sleeper.environment)
    conductor = site.conductor(
        OS_CONDUCTOR__THREADS="99", OS_KEEPER__MAX_RUNNING="99", OS_CONDUCTOR__HOST_AWAY="0.5", OS_CONDUCTOR__RETRY_FOR="3"
    )
    ids: dict[str, str] = {}
    places: dict[str, str] = {}
    for sleeper, (pilot, *names), wish, where in (
        (sleepers[DESTINATION], TO_IT, {"flavor": "large"}, Where.DESTINATION),
        (sleepers[SOURCE], FROM_IT, {"host": "host3"}, Where.SOURCE),
    ):
        assert site.await_rest(submit(lab, Wish(server=pilot, **wish)).id) == State.VERIFYING
        found = dict(zip(names, sleeper.passed(), strict=False))
        assert len(found) == len(sleeper.passed()), "more servers are needed"
        steps = {step.step_name() for step in registry.latest("resize").walk() if step.where is where}
        assert {place.split()[0] for place in found.values()} >= steps
        ids |= {name: catalog.find_server(lab.api, lab.cell_databases, name).id for name in found}
        sleeper.want({ids[name]: place for name, place in found.items()})
        places |= found
    moves = {
        name: submit(lab, Wish(server=name, **({"flavor": "large"} if name in TO_IT else {"host": "host3"}))).id
        for name in places
    }
    for sleeper in sleepers.values():
        sleeper.await_sleep()
    until(lambda: all(is_released(lab, move) or read_move(lab, move).state == State.NEEDS_OPERATOR for move in moves.values()), "the end of the moves", LONG)
    for name, move in moves.items():
        row = read_move(lab, move)
        print(name, places[name], row.state, row.dest_host, row.error_code, row.step)
    record_property("figure", "x")
    with lab.journal.write() as session:
        freezes.freeze(session, "all", "", who="test", reason=None)
    before = picture(lab.layout)
    for host, sleeper in sleepers.items():
        sleeper.wake()
        site.await_worker(host)
    after = picture(lab.layout)
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            if key == "guests":
                print("GUESTS", after[key][len(before[key]):])
            else:
                print(key, str(before.get(key))[:300], "->", str(after.get(key))[:300])
    assert 0
