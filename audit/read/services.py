"""Reads Placement, ports, volumes and images into records."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from droveway.audit.records import AttachmentView, Consumer, ImageView, PortView
from droveway.clients.image import ImageRecord, Images
from droveway.clients.network import COMPUTE_OWNER, Network, PortRecord
from droveway.clients.placement import Placement
from droveway.clients.volume import Volumes

MOVE_PROPERTY: Final = "droveway_move"
"""The property of an image that names the move which made it."""
_SNAPSHOT_SUFFIX: Final = "-resize-temp"
_SHELVED_SUFFIX: Final = "-shelved"
_SERVER_PROPERTY: Final = "instance_uuid"


def placement(client: Placement) -> tuple[dict[str, str | None], dict[str, dict[str, dict[str, int]]]]:
    """Return each provider's parent, and each consumer's amounts of each provider.

    They are read provider by provider, so that consumers which no database names are found too.
    """
    providers: dict[str, str | None] = {}
    held: dict[str, dict[str, dict[str, int]]] = {}
    for provider in client.providers():
        providers[provider.uuid] = provider.parent
        for consumer, amounts in client.provider_allocations(provider.uuid).items():
            held.setdefault(consumer, {})[provider.uuid] = amounts
    return providers, held


def reserved(client: Placement, provider: str) -> dict[str, int]:
    """Return for each resource class the amount that the provider's host reserves for itself."""
    inventories = client.provider_inventories(provider)
    return {name: int(each["reserved"]) for name, each in inventories.items() if each.get("reserved")}


def consumers(client: Placement, known: Iterable[str]) -> dict[str, Consumer]:
    """Return the type, project and user of each of these consumers."""
    found = {}
    for consumer in known:
        holds = client.allocations(consumer)
        if holds.allocations:
            found[consumer] = Consumer(kind=holds.consumer_type, project=holds.project_id, user=holds.user_id)
    return found


def ports(client: Network, servers: Container[str]) -> tuple[PortView, ...]:
    """Return the ports of servers, without those of routers and DHCP agents."""
    return tuple(
        port_view(port)
        for port in client.all_ports()
        # A port whose device is a known server is that server's, whatever its owner says.
        if port.server and (port.device_owner.startswith(COMPUTE_OWNER) or port.server in servers)
    )


def port_view(port: PortRecord) -> PortView:
    """Return the part of a port that is compared."""
    return PortView(
        id=port.id,
        server=port.server,
        bindings=dict(port.bindings),
        profile=dict(port.profile),
        vnic_type=port.vnic_type,
        owner=port.device_owner,
        resources=port.resources,
    )


def attachments(client: Volumes) -> tuple[AttachmentView, ...]:
    """Return the attachments of servers."""
    return tuple(
        AttachmentView(id=row.id, volume=row.volume, server=row.server, host=row.host or None, status=row.status)
        for row in client.all_attachments()
        if row.server
    )


def images(client: Images, named: Container[str]) -> tuple[ImageView, ...]:
    """Return the images that moves and shelves made, and those that servers name as their root disks.

    An image of a move has a property that names the move, or the name that Nova gives to the image of a cross-cell
    move. An image of a shelve has the name that Nova gives to it, and a property that names the server.
    """
    return tuple(
        ImageView(
            id=image.id,
            name=image.name,
            move=image.properties.get(MOVE_PROPERTY, ""),
            server=_shelved(image),
            status=image.status,
        )
        for image in client.images()
        if MOVE_PROPERTY in image.properties
        or image.name.endswith(_SNAPSHOT_SUFFIX)
        or _shelved(image)
        or image.id in named
    )


def _shelved(image: ImageRecord) -> str:
    """Return the server whose root disk a shelve put into the image; empty for any other image."""
    return image.properties.get(_SERVER_PROPERTY, "") if image.name.endswith(_SHELVED_SUFFIX) else ""
