"""What is left of a server anywhere in a lab: nothing may be, once it was deleted."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from droveway.errors import DrovewayError
from droveway.lab.session import Lab
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.api import InstanceMapping
from droveway.persistence.nova.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceExtra,
    InstanceSystemMetadata,
    Migration,
)
from droveway.persistence.nova.cells import FENCE_KEY
from droveway.workers.stores import STORE


def of(lab: Lab, server: str) -> list[str]:
    """One phrase for each thing that is left of the server with this uuid, live rows included."""
    return [*_rows(lab, server), *_books(lab, server), *_hosts(lab, server)]


def require_unmarked(lab: Lab, server: str) -> None:
    """Raise DrovewayError when disks or guest of the server, which no move holds, still bear a move's mark."""
    for host in sorted(lab.identity.hosts):
        hypervisor = lab.hypervisor(host)
        marked = [path.name for path in (hypervisor.instances / server).glob("droveway*")]
        guest = hypervisor.guest(server)
        if guest is not None and guest.mark is not None:
            marked.append("its guest's")
        if marked:
            raise DrovewayError(f"a mark of a move that ended is left on {host}: {', '.join(marked)}")


def _rows(lab: Lab, server: str) -> Iterator[str]:
    for name, cell in lab.cell_databases.items():
        with cell.read() as session:
            if session.scalar(sa.select(Instance.id).where(Instance.uuid == server, Instance.deleted == 0)):
                yield f"a live row of instances in {name}"
            for model in (InstanceExtra, InstanceSystemMetadata, BlockDeviceMapping, Migration):
                live = sa.select(model.id).where(model.instance_uuid == server, model.deleted == 0)
                if session.scalar(live.limit(1)):
                    yield f"a live row of {model.__tablename__} in {name}"
            if session.scalar(
                sa.select(InstanceSystemMetadata.id).where(
                    InstanceSystemMetadata.instance_uuid == server, InstanceSystemMetadata.key == FENCE_KEY
                )
            ):
                yield f"a fence in {name}"
    with lab.api.read() as session:
        mapped = sa.select(InstanceMapping.id).where(
            InstanceMapping.instance_uuid == server, InstanceMapping.queued_for_delete.is_(False)
        )
        if session.scalar(mapped):
            yield "its mapping"


def _books(lab: Lab, server: str) -> Iterator[str]:
    with lab.journal.read() as session:
        moves = list(session.scalars(sa.select(Move.id).where(Move.server == server)))
    for consumer in (server, *moves):
        if lab.cloud.placement.allocations(consumer).allocations:
            yield f"an allocation of {consumer}"
    yield from (f"port {port.id}" for port in lab.cloud.network.ports(server))
    yield from (f"attachment {attachment.id}" for attachment in lab.cloud.volumes.for_server(server))


def _hosts(lab: Lab, server: str) -> Iterator[str]:
    for host in sorted(lab.identity.hosts):
        hypervisor = lab.hypervisor(host)
        if hypervisor.guest(server) is not None:
            yield f"its guest on {host}"
        yield from (f"volume {volume} on {host}" for owner, volume in hypervisor.connections() if owner == server)
        yield from (f"port {port} on {host}" for owner, port in hypervisor.plugged() if owner == server)
        yield from (str(path) for path in sorted(hypervisor.instances.glob(f"{server}*")))
        left = sorted(hypervisor.instances.glob(".droveway-*"))
        yield from (str(path) for path in left if path.name != STORE)
