"""Between steps too: after every single write, usage covers what is held and no consumer holds two hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.labs.operations import Stage, faults_cleared, stage
from support.labs.sampler import Sampler

from droveway.clients.placement import Placement

CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}, host3: {}}}
  cell2: {hosts: {host4: {shared: nfs1}, host5: {shared: nfs1}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  large: {vcpus: 2, memory_mb: 768, root_gb: 2, ephemeral_gb: 1, swap_mb: 8}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  shop: {flavor: small, host: host2, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  boot: {flavor: small, host: host2, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  pair: {flavor: small, host: host4, image: base}
  twin: {flavor: small, host: host5, image: base}
  unlucky: {flavor: small, host: host1, image: base, ports: [{}]}
  undone: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  doomed: {flavor: small, host: host3, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  early: {flavor: small, host: host2, image: base}
  doubled: {flavor: small, host: host2, image: base}
"""
ALONE = """
options: {allow_resize_to_same_host: true}
cells: {cell1: {hosts: {host1: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  large: {vcpus: 2, memory_mb: 768, root_gb: 2}
images: {base: {size_mb: 1}}
servers: {stays: {flavor: small, host: host1, image: base}}
"""
LEAST = {"Placement requests": 2, "commits": 50, "effects on hosts": 15, "points between two effects": 20}
"""How many writes of each sort a move and its end make at least."""

Watched = Callable[[Stage], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("between") / "lab", CLOUD) as made:
        yield made


@pytest.fixture
def watched(record_property: Callable[[str, object], None]) -> Watched:
    """Every write of a block is looked at; both promises were kept, after at least so many writes of each sort."""

    @contextlib.contextmanager
    def watch(lab: Stage) -> Iterator[None]:
        sampler = Sampler(lab.lab)
        with sampler.watching(), lab.running():
            yield
        record_property("writes", sampler.writes.total())
        record_property("writes out of balance", len(sampler.wrong))
        assert sampler.wrong == []
        assert {sort: sampler.writes[sort] for sort, many in LEAST.items() if sampler.writes[sort] < many} == {}
        lab.assert_balanced()

    return watch


@pytest.mark.parametrize(
    ("name", "words", "ending"),
    [
        ("web", ("resize", "web", "--flavor", "large"), "revert"),
        ("shop", ("resize", "shop", "--flavor", "large"), "confirm"),
        ("boot", ("migrate", "boot"), "revert"),
        ("idle", ("resize", "idle", "--flavor", "large"), "confirm"),
        ("pair", ("migrate", "pair"), "revert"),
        ("twin", ("resize", "twin", "--flavor", "large"), "confirm"),
    ],
)
def test_a_move_to_another_host_and_its_end(
    lab: Stage, watched: Watched, name: str, words: tuple[str, ...], ending: str
) -> None:
    with watched(lab):
        lab.cli("server", *words)
        lab.cli("server", ending, name)


def test_a_resize_on_the_same_host(tmp_path_factory: pytest.TempPathFactory, watched: Watched) -> None:
    with stage(tmp_path_factory.mktemp("same") / "lab", ALONE) as alone, watched(alone):
        for ending in ("revert", "confirm"):
            alone.cli("server", "resize", "stays", "--flavor", "large")
            alone.cli("server", ending, "stays")


def test_a_move_whose_first_destination_fails(lab: Stage, watched: Watched) -> None:
    with watched(lab), faults_cleared(lab) as arm:
        arm("define_guest", "fail", phase="after", fault="destination")
        lab.cli("server", "resize", "unlucky", "--flavor", "large")
        assert max(step.attempt for step in lab.history(lab.move("unlucky").id)) == 2
        lab.cli("server", "confirm", "unlucky")


@pytest.mark.parametrize("step", ["copy_disks", "switch_records"])
def test_a_move_that_is_undone(lab: Stage, watched: Watched, step: str) -> None:
    with watched(lab), faults_cleared(lab) as arm:
        arm(step, "fail", phase="after")
        lab.cli("server", "resize", "undone", "--flavor", "large", code=3)


def test_a_server_that_is_deleted_while_its_move_verifies(lab: Stage, watched: Watched) -> None:
    with watched(lab):
        lab.cli("server", "resize", "doomed", "--flavor", "large")
        lab.cli("lab", "server", "delete", "doomed")


class TestBrokenOrder:
    """What the sampler has to see: a claim after which a promise is broken between two steps."""

    def test_a_source_s_share_that_is_released_too_early(self, lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        def release(placement: Placement, migration: str, **_: Any) -> None:
            placement.release(migration)

        wrong = self.moved(lab, monkeypatch, "early", release)
        assert any("host2 hold 1 of VCPU" in text and "Placement knows of 0" in text for text in wrong)
        assert any("host2 hold 1 of DISK_GB" in text for text in wrong)

    def test_a_server_that_holds_two_hosts_for_a_moment(self, lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        def double(placement: Placement, server: str, migration: str, **owner: Any) -> None:
            alone, source = (placement.allocations(consumer).allocations for consumer in (server, migration))
            for held in ({**alone, **source}, alone):
                owners = {key: owner[key] for key in ("project_id", "user_id")}
                placement.ensure_allocation(server, held, **owners)

        wrong = self.moved(lab, monkeypatch, "doubled", double)
        assert len(wrong) == 1
        assert f"consumer {lab.id_of('doubled')} holds host" in wrong[0]

    def moved(
        self, lab: Stage, monkeypatch: pytest.MonkeyPatch, name: str, after_claim: Callable[..., None]
    ) -> list[str]:
        """Move the server with something done right after the claim; what was found wrong by then."""
        claim = Placement.claim_move

        def claimed(placement: Placement, **facts: Any) -> None:
            claim(placement, **facts)
            after_claim(placement, **facts)

        sampler = Sampler(lab.lab)
        with lab.running():
            with monkeypatch.context() as patched, sampler.watching():
                patched.setattr(Placement, "claim_move", claimed)
                lab.cli("server", "migrate", name)
            lab.cli("server", "confirm", name)
        lab.assert_balanced()
        return sampler.wrong
