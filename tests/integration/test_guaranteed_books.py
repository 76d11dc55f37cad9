"""Between steps too: after every single write, what ports are guaranteed is held, whole, and on one host each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.labs.guaranteed import EGRESS, tables
from support.labs.guaranteed_sampler import GuaranteedSampler
from support.labs.operations import Stage, faults_cleared, stage

from droveway.clients.placement import Placement

BRIDGES = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 20000, ingress_kbps: 20000},"
    " br-b: {physical_network: net-b, egress_kbps: 20000, ingress_kbps: 20000}}, kpps: 200"
)
PORTS = "ports: [{network: a, qos: gold}, {network: a, qos: old}, {network: b, qos: old, format: legacy}, {}]"
CLOUD = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {{{BRIDGES}}}, host2: {{{BRIDGES}}}}}}}
  cell2: {{hosts: {{host3: {{{BRIDGES}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}, b: {{physical_network: net-b}}}}
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}, old: {{egress_kbps: 500, ingress_kbps: 600}}}}
servers:
  fast: {{flavor: small, host: host1, image: base, {PORTS}, volumes: [{{size_gb: 1}}]}}
  far: {{flavor: small, host: host2, image: base, {PORTS}}}
  back: {{flavor: small, host: host2, image: base, {PORTS}}}
  shelf: {{flavor: small, host: host1, image: base, {PORTS}}}
  stored: {{flavor: small, host: host1, image: base, {PORTS}}}
  broken: {{flavor: small, host: host1, image: base, {PORTS}}}
"""
ALONE = CLOUD.replace("cross_cell", "allow_resize_to_same_host").replace(f", host2: {{{BRIDGES}}}", "")
ALONE = ALONE.replace(f"  cell2: {{hosts: {{host3: {{{BRIDGES}}}}}}}\n", "").replace("host2", "host1")
LEAST = {"Placement requests": 2, "commits": 50, "effects on hosts": 10, "points between two effects": 10}
"""How many writes of each sort each of the tests makes at least."""

CLAIM = Placement.claim_move

Watched = Callable[[Stage], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("guaranteed") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="watched")
def fixture_watched(record_property: Callable[[str, object], None]) -> Watched:
    """Look at every write of a block; all promises were kept, after at least so many writes of each sort."""

    @contextlib.contextmanager
    def watch(lab: Stage) -> Iterator[None]:
        sampler = GuaranteedSampler(lab.lab)
        with sampler.watching(), lab.running():
            yield
        record_property("writes", sampler.writes.total())
        record_property("writes out of balance", len(sampler.wrong))
        assert sampler.wrong == []
        assert {sort: sampler.writes[sort] for sort, many in LEAST.items() if sampler.writes[sort] < many} == {}
        lab.assert_balanced()

    return watch


@pytest.mark.parametrize("ending", ["revert", "confirm"])
def test_a_move_to_another_host_and_its_end(lab: Stage, watched: Watched, ending: str) -> None:
    with watched(lab):
        lab.cli("server", "migrate", "fast", "--wait")
        lab.cli("server", ending, "fast")


@pytest.mark.parametrize(("name", "ending"), [("back", "revert"), ("far", "confirm")])
def test_a_move_into_another_cell_and_its_end(lab: Stage, watched: Watched, name: str, ending: str) -> None:
    with watched(lab):
        lab.cli("server", "resize", name, "--flavor", "large", "--to-cell", "cell2", "--wait")
        lab.cli("server", ending, name)


@pytest.mark.parametrize(("name", "where"), [("shelf", ["--host", "host2"]), ("stored", ["--to-cell", "cell2"])])
def test_a_shelve_and_an_unshelve(lab: Stage, watched: Watched, name: str, where: list[str]) -> None:
    with watched(lab):
        lab.cli("server", "shelve", name, "--wait")
        assert _used(lab, lab.id_of(name)) == 0
        lab.cli("server", "unshelve", name, *where, "--wait")
        assert _used(lab, lab.id_of(name)) == 2000


@pytest.mark.parametrize("step", ["move_ports", "switch_records"])
def test_a_move_that_is_undone_late(lab: Stage, watched: Watched, step: str) -> None:
    with watched(lab), faults_cleared(lab) as arm:
        arm(step, "fail", phase="after")
        lab.cli("server", "resize", "broken", "--flavor", "large", code=3)


def test_a_resize_on_the_same_host(tmp_path_factory: pytest.TempPathFactory, watched: Watched) -> None:
    with stage(tmp_path_factory.mktemp("same") / "lab", ALONE) as alone, watched(alone):
        for ending in ("revert", "confirm"):
            alone.cli("server", "resize", "fast", "--flavor", "large")
            # Both consumers hold it, below one host.
            assert [_used(alone, each) for each in (alone.id_of("fast"), alone.move("fast").id)] == [2000, 2000]
            alone.cli("server", ending, "fast")


class TestBroken:
    """What the sampler has to see: a claim after which a promise is broken between two steps."""

    def test_bridges_that_are_dropped_from_the_destination_s_request(
        self, lab: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dropped(placement: Placement, *, destination: dict[str, Any], **facts: Any) -> None:
            whole = destination["allocations"]
            root = {provider: each for provider, each in whole.items() if "VCPU" in each["resources"]}
            assert len(root) < len(whole)
            CLAIM(placement, destination=destination | {"allocations": root}, **facts)

        wrong = self.migrated(lab, monkeypatch, dropped, "revert")
        assert any("holds {} below" in text for text in wrong)
        assert any("that are active lack" in text for text in wrong)

    def test_a_source_s_share_that_is_released_too_early(self, lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        def released(placement: Placement, *, migration: str, **facts: Any) -> None:
            CLAIM(placement, migration=migration, **facts)
            placement.release(migration)

        wrong = self.migrated(lab, monkeypatch, released, "confirm")
        assert any("that are active lack" in text for text in wrong)
        assert not any("holds {} below" in text for text in wrong)

    def migrated(
        self, lab: Stage, monkeypatch: pytest.MonkeyPatch, claim: Callable[..., None], ending: str
    ) -> list[str]:
        """Return what was found wrong while the server was migrated with another claim; then its move is ended."""
        sampler = GuaranteedSampler(lab.lab)
        with lab.running():
            with monkeypatch.context() as patched, sampler.watching():
                patched.setattr(Placement, "claim_move", claim)
                lab.cli("server", "migrate", "broken", "--wait")
            lab.cli("server", ending, "broken")
        lab.assert_balanced()
        return sampler.wrong


def _used(lab: Stage, consumer: str) -> int:
    """Return how much egress bandwidth a consumer holds."""
    query = (
        "SELECT sum(used) FROM allocations JOIN resource_classes ON resource_classes.id = resource_class_id"
        " WHERE consumer_id = ? AND name = ?"
    )
    with tables(lab, "placement.sqlite") as found:
        return int(found.execute(query, (consumer, EGRESS)).fetchone()[0] or 0)
