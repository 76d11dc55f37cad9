"""What a host carries while a server is on its way, there and back."""

from __future__ import annotations

from typing import Any

import pytest

from droveway.persistence.usage import Held, Usage, usage_of


def flavor(vcpus: int) -> dict[str, Any]:
    return {"vcpus": vcpus, "memory_mb": 512 * vcpus, "root_gb": 1, "ephemeral_gb": 0, "swap": 1024}


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
