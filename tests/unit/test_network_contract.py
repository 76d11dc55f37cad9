"""The embedded network service keeps the contract of Neutron."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("network_contract")

from network_contract import (  # noqa: E402 - the asserts of what it imports are rewritten first
    BRIDGE,
    ELSEWHERE,
    HERE,
    REACHED,
    SILENT,
    THERE,
    UNREACHED,
    NetworkContract,
    Tampered,
    World,
)

from droveway.clients.embedded.cloud import embedded_cloud  # noqa: E402 - as above


class TestEmbeddedNetwork(NetworkContract):
    """Each case of the contract, on the service of a lab."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[World]:
        """Make a lab's services in a folder."""
        cloud = embedded_cloud(
            placement=tmp_path / "placement.sqlite",
            database=tmp_path / "services.sqlite",
            volumes=tmp_path,
            images=tmp_path,
        )
        agent = {"physical_network": "", "reported": True}
        for host, physical in ((HERE, REACHED), (THERE, REACHED), (ELSEWHERE, UNREACHED), (SILENT, REACHED)):
            bridge = {"physical_network": physical, "reported": host != SILENT}
            cloud.add_network_host(host, {BRIDGE: bridge, "": agent})
        network_id = cloud.network.create_network("net1", REACHED)
        yield World(Tampered(cloud.network_root), network_id)
        cloud.close()
