"""What a host carries while a server is on its way, there and back."""

from __future__ import annotations

from typing import Any

import pytest

from droveway.persistence.nova.usage import Held, Usage, reserved_of, usage_of


def flavor(vcpus: int, swap: int = 1024) -> dict[str, Any]:
    return {"vcpus": vcpus, "memory_mb": 512 * vcpus, "root_gb": 1, "ephemeral_gb": 0, "swap": swap}


SMALL, LARGE = flavor(1), flavor(4)
BEFORE = {"cur": SMALL, "old": None, "new": LARGE}
SWITCHED = {"cur": LARGE, "old": SMALL, "new": LARGE}
BACK = {"cur": SMALL, "old": SMALL, "new": LARGE}


@pytest.mark.parametrize(
    ("host", "flavors", "source", "destination"),
    [
        pytest.param("host1", BEFORE, 1, 4, id="on the source, the destination claimed"),
        pytest.param("host2", SWITCHED, 1, 4, id="on the destination, the source kept"),
        pytest.param("host1", BACK, 1, 4, id="back on the source, the destination not yet clean"),
    ],
)
def test_both_hosts_count_while_a_server_moves(
    host: str, flavors: dict[str, Any], source: int, destination: int
) -> None:
    """R3-04: a provider's usage is never below what is really held, in either direction."""
    held = [Held(host, flavors, "host1", "host2")]
    assert usage_of("host1", held).vcpus == source
    assert usage_of("host2", held).vcpus == destination
    assert usage_of("host3", held) == Usage()


@pytest.mark.parametrize("flavors", [BEFORE, SWITCHED, BACK])
def test_one_host_counts_both_flavors_of_a_move_within_it(flavors: dict[str, Any]) -> None:
    assert usage_of("host1", [Held("host1", flavors, "host1", "host1")]).vcpus == 5


def test_a_server_at_rest_counts_once_with_its_swap() -> None:
    at_rest = Held("host1", {"cur": SMALL, "old": None, "new": None})
    assert usage_of("host1", [at_rest, at_rest]) == Usage(vcpus=2, memory_mb=1024, disk_gb=4, servers=2)


def test_a_root_disk_that_is_a_volume_takes_nothing_of_either_host_of_a_move() -> None:
    held = [Held("host2", SWITCHED, "host1", "host2", from_volume=True)]
    assert (usage_of("host1", held).disk_gb, usage_of("host2", held).disk_gb) == (1, 1)


def test_of_swap_only_whole_gib_count_for_each_server_as_in_nova() -> None:
    """Nova adds ``swap / 1024`` to an IntegerField, which drops the fraction at once."""
    held = Held("host1", {"cur": flavor(1, swap=1536), "old": None, "new": None})
    assert usage_of("host1", [held, held]).disk_gb == 4
    assert usage_of("host1", [Held("host1", {"cur": flavor(1, swap=64), "old": None, "new": None})]).disk_gb == 1


def test_what_a_host_keeps_for_itself_counts_as_used() -> None:
    kept = reserved_of(
        {"VCPU": {"reserved": 2}, "MEMORY_MB": {"reserved": 512}, "DISK_GB": {"reserved": 3}, "VGPU": {"reserved": 9}}
    )
    assert kept == Usage(vcpus=2, memory_mb=512, disk_gb=3, servers=0)
    at_rest = Held("host1", {"cur": SMALL, "old": None, "new": None})
    assert usage_of("host1", [at_rest], kept) == Usage(vcpus=3, memory_mb=1024, disk_gb=5, servers=1)
    assert usage_of("host1", [], reserved_of({})) == Usage()
