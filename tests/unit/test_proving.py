"""What was copied is proved by what its medium holds, while the rest is on its way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.transfer_site import ASIDE, Site, at, chunks_of, flip, set_aside
from support.rigs.worker_rig import MIB, SERVER, Killed

from droveway.errors import DestinationFault, StepError
from droveway.workers.transfer import copying, extents, proving
from droveway.workers.transfer.sources import LocalSource


@pytest.fixture
def single(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server with one disk, whose effects come one after the other."""
    with set_aside(tmp_path, monkeypatch, root_mib=8, swap=False) as site:
        yield site


@pytest.mark.parametrize("offset", [70 * 1024, 3 * MIB + 77, 5 * MIB], ids=["first", "middle", "hole"])
def test_a_byte_flipped_on_the_destinations_medium_fails_the_step(single: Site, offset: int) -> None:
    flips = at("verify", lambda: flip(single.part_disk(), offset))
    with pytest.raises(DestinationFault, match=r"disk of server .*: beta gives back other data") as caught:
        single.copy(probe=flips)
    assert (caught.value.error_code, caught.value.host) == ("checksum", "beta")
    assert not single.cloud.hosts["beta"].directories.exists(SERVER)
    single.copy()
    assert single.same_bytes()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_byte_that_flips_early_in_a_long_copy_ends_it(
    single: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What was kept from an earlier run is proved too, and none of a copy that differs is kept."""
    monkeypatch.setattr(copying, "SYNC_BYTES", 1)
    chunks = list(chunks_of(single.source_disk()))
    assert len(chunks) >= 4
    flips = at("verify", lambda: flip(single.part_disk(), chunks[number - 1][0]), count=number)
    with pytest.raises(DestinationFault):
        single.copy(probe=flips)
    single.served.clear()
    single.copy()
    assert len(single.served) == len(chunks)
    assert single.same_bytes()


def test_a_copy_that_differs_is_not_carried_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SYNC_BYTES", 1)
    with set_aside(tmp_path, monkeypatch, root_mib=40, swap=False) as site:
        with pytest.raises(DestinationFault):
            site.copy(probe=at("verify", lambda: flip(site.part_disk(), 70 * 1024)))
        # The lots that wait to be proved, the one that waits for them, and the chunks on their way.
        assert len(site.served) <= proving.AHEAD + 1 + copying.READERS < len(list(chunks_of(site.source_disk()))) - 4


def test_what_an_earlier_run_left_is_proved(single: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        single.copy(probe=at("verify", kill))
    flip(single.part_disk(), 3 * MIB + 77)
    with pytest.raises(DestinationFault, match="beta gives back other data"):
        single.copy()
    single.copy()
    assert single.same_bytes()


def test_a_source_proves_what_its_medium_holds_now(single: Site) -> None:
    """As it is asked where a clone shares its blocks."""
    there = single.cloud.hosts["alpha"].directories
    manifest = there.manifest(ASIDE)
    assert manifest is not None
    with contextlib.closing(LocalSource("alpha", there, ASIDE, manifest)) as source:
        (offset, length), *_ = chunks_of(single.source_disk())
        memory = extents.memory()
        sent = source.read("disk", offset, length, memory)[1]
        assert source.proof("disk", offset, length) == sent
        flip(single.source_disk(), offset + length - 1)
        assert source.proof("disk", offset, length) == source.read("disk", offset, length, memory)[1] != sent
        os.truncate(single.source_disk(), offset + length - 1)
        with pytest.raises(StepError, match="it was cut") as caught:
            source.proof("disk", offset, length)
        assert caught.value.error_code == "source-changed"
