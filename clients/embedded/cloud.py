"""Makes the clients of a lab's services, by the same classes as those of a real cloud."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from droveway.clients.cloud import Cloud
from droveway.clients.embedded.image import image_service
from droveway.clients.embedded.network import network_service
from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.embedded.services import LocalService, services_engine
from droveway.clients.embedded.volume import volume_service
from droveway.clients.image import Images
from droveway.clients.network import Network
from droveway.clients.placement import Placement
from droveway.clients.volume import Volumes

NO_DEVICES: Final[Mapping[str, Mapping[str, Any]]] = types.MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class EmbeddedCloud(Cloud):
    """Placement, Neutron, Cinder and Glance of a lab."""

    images: Images
    network_root: LocalService
    """The network service as a lab's administrator uses it; ``network`` is the client by which moves use it."""

    def add_network_host(self, host: str, devices: Mapping[str, Mapping[str, Any]] = NO_DEVICES) -> None:
        """Let ports be bound on the host; a real Neutron learns this from the host's agent.

        ``devices`` maps the name of each bridge to a mapping with two keys. ``physical_network`` is the network that
        the bridge reaches. ``reported`` says whether the agent has reported the bridge's resources. The agent itself
        has such an entry too, under an empty name.
        """
        self.network_root.request(f"/hosts/{host}", "PUT", json={"devices": devices})

    def tell_legacy(self, port: str) -> None:
        """Show what the port asks for in the legacy format, as a Neutron without port-resource-request-groups does."""
        self.network_root.request(f"/ports/{port}/format", "PUT", json={"legacy": True})

    def set_extension(self, name: str, *, missing: bool) -> None:
        """Let Neutron lack an extension, or have it again."""
        self.network_root.request(f"/extensions/{name}", "PUT", json={"missing": missing})

    def close(self) -> None:
        """Close every connection."""
        self.network_root.close()


def embedded_cloud(
    *,
    placement: Path,
    database: Path,
    volumes: Path,
    images: Path,
    on_request: Callable[[str, str], None] | None = None,
) -> EmbeddedCloud:
    """Make the services over a lab's files; ``on_request`` is called with method and path before each request.

    ``placement``: the database of Placement; ``database``: that of the other services.  Both are made when missing.
    ``volumes`` and ``images``: the folders that hold their bytes.
    """
    engine = services_engine(database)
    session = embedded_placement(placement)
    network = network_service(engine, Placement(session))
    return EmbeddedCloud(
        placement=Placement(session, on_request=on_request),
        network=Network(network, on_request=on_request),
        volumes=Volumes(volume_service(engine, volumes), on_request=on_request),
        images=Images(image_service(engine, images), on_request=on_request),
        network_root=network,
    )
