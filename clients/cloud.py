"""Holds the clients of one cloud's services together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Without this, commands that only draw a graph would import the libraries that send requests.
    from droveway.clients.image import Images
    from droveway.clients.network import Network
    from droveway.clients.placement import Placement
    from droveway.clients.volume import Volumes


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Holds one client for each service. Code that needs a single service takes that client alone."""

    placement: Placement
    """Placement: what hosts have to give, and what servers and moves hold of it."""
    network: Network
    """Neutron: the servers' ports and where they are bound."""
    volumes: Volumes
    """Cinder: the servers' volumes and their attachments."""
    images: Images | None = None
    """Glance; None when the configuration does not say how it is reached."""
