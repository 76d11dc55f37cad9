"""Two faults at once with ports that are guaranteed bandwidth and packet rates: a fixed sample; and the judge.

Each point stops at a step that writes what ports are guaranteed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.two_faults import audited, deaths, other_points, others, restores, sleeps, world
from support.two_faults.other_points import Point
from support.two_faults.others import Bench, Planted

pytestmark = pytest.mark.usefixtures("guaranteed_ports")

SAMPLE: dict[ModuleType, tuple[str, ...]] = {
    restores: (
        "apart:resize-undone:execute.move_ports.after:placement-execute.reserve_ports:cancelled:up:revert",
        "apart:resize-undone:revert.claim.after:placement-revert.find_storage:resumed:host1:revert",
        "apart:resize-undone:execute.move_ports.after:execute.choose_destinations:retried:up:revert",
    ),
    sleeps: (
        "writer:apart:resize:execute:again:execute.claim.placement-POST.1",
        "writer:apart:resize:execute:again:execute.reserve_ports.network-POST.1",
        "writer:apart:resize:execute:again:execute.move_ports.network-PUT.1",
        "writer:apart:resize:execute:again:execute.move_ports.network-DELETE.1",
    ),
    others: (
        "revert:after-execute.move_ports:delete-port",
        "revert:after-execute.return_allocation:reset-error",
        "resize:execute.move_ports:delete",
        "resize:revert.claim:rebind-ports",
    ),
    deaths: ("cells-bare:cross_cell_migrate:execute.claim.before:source+destination:on:confirm",),
}
"""The points of each kind: few, since each lab has to be built and each operation recorded."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SAMPLE, ids=lambda kind: kind.KIND)
def test_a_sample_of_the_points_holds(
    tmp_path: Path, record_property: Callable[[str, object], None], kind: ModuleType
) -> None:
    """The audit is clean at the end, and the bindings name providers of the host where the server is."""
    verdicts = list(kind.run(tmp_path, SAMPLE[kind]))
    bad = [f"{verdict.point}: {verdict.trouble}" for verdict in verdicts if verdict.trouble]
    record_property("two faults", (kind.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert {verdict.point for verdict in verdicts} == {*SAMPLE[kind]}
    assert bad == []


@pytest.fixture(scope="module", name="bench")
def fixture_bench(tmp_path_factory: pytest.TempPathFactory, guaranteed_ports: None) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("others")) as made:
        yield made


BRIDGE = "(SELECT id FROM resource_providers WHERE name = 'host2:Open vSwitch agent:br-g')"
SHARE = f"resource_provider_id = {BRIDGE} AND consumer_id = ?"
MINE = "port IN (SELECT id FROM ports WHERE server = ?)"
BROKEN = {
    "holds {'host2'": ("placement", f"DELETE FROM allocations WHERE {SHARE}"),
    "PER_SEC': 7": ("placement", f"UPDATE allocations SET used = 7 WHERE {SHARE}"),
    "and names []": ("services", f"UPDATE port_bindings SET profile = '{{}}' WHERE {MINE}"),
}
"""What the judge says → the database and what is done there."""


@pytest.mark.parametrize("told", BROKEN)
def test_a_world_that_was_broken_by_hand_is_rejected(bench: Bench, told: str) -> None:
    """The judge and the audit are both asked: they share nothing."""
    planted = bench.carry(Point("resize", "rest", "confirm", "lock"))
    assert isinstance(planted, Planted)
    assert planted.judge(bench.watch) == ""
    assert audited.trouble(bench.lab) == ""
    database, statement = BROKEN[told]
    with world.opened(bench.lab.root / f"{database}.sqlite") as connection, connection:
        assert connection.execute(statement, (bench.server,)).rowcount > 0
    assert told in planted.judge(bench.watch)
    assert audited.trouble(bench.lab) != ""


def test_each_point_is_one_of_all() -> None:
    assert {*SAMPLE[others]} <= {*other_points.points()}
    assert {*SAMPLE[restores]} <= {*restores.points()}
    assert {*SAMPLE[deaths]} <= {*deaths.points()}
