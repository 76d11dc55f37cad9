"""What a worker has answered survives a power cut, and whatever it was doing then is done when it is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.power_cut import Medium
from support.rigs.worker_rig import SERVER, Cloud, cloud
from support.rigs.worker_stages import VARIANTS, Stage, Variant, backward, forward, killed_at

from droveway.wire.values import Direction


@pytest.fixture(params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture
def site(tmp_path: Path, variant: Variant) -> Iterator[Cloud]:
    with cloud(tmp_path, shared=variant.shared) as made:
        made.make_server(root_mib=1)
        made.serve("alpha")
        yield made


@pytest.fixture
def medium(site: Cloud, tmp_path: Path) -> Iterator[Medium]:
    tops = {site.folder / "hosts", *(host.hypervisor.instances for host in site.hosts.values())}
    made = Medium([top for top in tops if not tops & set(top.parents)], tmp_path / "vault")
    with made.watching():
        yield made


def pass_through(site: Cloud, medium: Medium, stage: Stage, *, names: bool) -> None:
    """Cut the power at each effect of a stage and after it, both ways; it ends done."""

    def run(direction: Direction = "execute", **parts: object) -> None:
        site.run(stage.host, stage.action, stage.details, direction=direction, **parts)  # type: ignore[arg-type]

    before = site.snapshot()
    for number in killed_at(lambda probe: run(probe=probe)) if stage.undone else ():
        medium.cut(names=names)
        run("revert")
        medium.cut(names=names)
        assert site.snapshot() == before, f"{stage.action}: cut at effect {number}, undone, cut"
    run()
    after = site.snapshot()
    medium.cut(names=names)
    assert site.snapshot() == after, f"{stage.action}: done, cut"
    if stage.undone:
        for _ in killed_at(lambda probe: run("revert", probe=probe)):
            medium.cut(names=names)
        medium.cut(names=names)
        assert site.snapshot() == before, f"{stage.action}: cut at each effect of its undo, undone, cut"
    run()
    assert site.snapshot() == after, f"{stage.action}: done again"


@pytest.mark.parametrize("names", [False, True], ids=["names-lost", "names-kept"])
def test_a_power_cut_takes_nothing_that_was_answered(
    site: Cloud, medium: Medium, variant: Variant, names: bool
) -> None:
    """Forward, then back, through every action of a worker."""
    text = site.definition()
    for stage in forward(site, variant):
        pass_through(site, medium, stage, names=names)
    for stage in backward(site, variant, text):
        pass_through(site, medium, stage, names=names)
    assert site.hosts["alpha"].directories.disks(SERVER) == ["disk", "disk.swap"]
