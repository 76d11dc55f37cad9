"""Compares volume attachments with the block device mappings that name them."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.audit.findings import Finding, Kind, update
from droveway.audit.records import AttachmentView, BlockDevice, MoveRow
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.clients.volume import ATTACHED, RESERVED
from droveway.persistence.journal import kinds
from droveway.persistence.nova.vm_states import VmState


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find attachments of no server, extra, left reserved or on a wrong host, and volumes without their attachment."""
    by_server: dict[str, list[AttachmentView]] = {}
    for attachment in snapshot.attachments:
        by_server.setdefault(attachment.server, []).append(attachment)
    for server in sorted(by_server.keys() - snapshot.standings.keys()):
        for attachment in by_server[server]:
            yield _extra(attachment, f"the server {server} does not exist", server=server)
    for standing in snapshot.standings.values():
        found = by_server.get(standing.server, [])
        last = snapshot.last_moves.get(standing.server)
        yield from _moving(standing, found) if standing.phase is Phase.MOVING else _at_rest(standing, found, last)


def _at_rest(standing: Standing, attachments: list[AttachmentView], last: MoveRow | None) -> Iterator[Finding]:
    """Compare the attachments of a server that no flow is moving; ``last`` is the server's last move."""
    row = standing.row
    if row is not None and row.vm_state == VmState.SHELVED_OFFLOADED and not standing.offloaded:
        # Nova is unshelving the server. Its volumes may be exported to the new host already, or to no host yet.
        return
    devices = row.volumes if row is not None else ()
    found = {attachment.id: attachment for attachment in attachments}
    for device in devices:
        if device.attachment is None:
            # A volume that was attached in the old way has no attachment to compare.
            continue
        attachment = found.get(device.attachment)
        if attachment is None:
            yield _missing(standing, device, last)
        elif standing.offloaded:
            if (attachment.status, attachment.host) != (RESERVED, None):
                where = f" on {attachment.host}" if attachment.host is not None else ""
                yield _wrong(standing, attachment, f"is {attachment.status}{where}, but the server is on no host", last)
        elif attachment.status != ATTACHED:
            yield _wrong(standing, attachment, f"is {attachment.status}, not attached")
        elif attachment.host not in (None, standing.host):
            yield _wrong(
                standing, attachment, f"is on {attachment.host}, but the server lives on {standing.host or 'no host'}"
            )
    named = {device.attachment for device in devices}
    for attachment in attachments:
        if attachment.id not in named:
            why = f"no block device mapping of {standing.name} names it"
            yield _extra(attachment, why, server=standing.server, move=standing.move_id)


def _moving(standing: Standing, attachments: list[AttachmentView]) -> Iterator[Finding]:
    if standing.is_being_deleted or standing.row is None:
        return
    volumes = {device.volume: device for device in standing.row.volumes}
    for volume, device in volumes.items():
        # A step replaces one attachment by another. But a volume without any attachment can be given to another server.
        if device.attachment is not None and not any(each.volume == volume for each in attachments):
            yield _missing(standing, device)
    for attachment in attachments:
        if attachment.volume not in volumes:
            why = f"the volume does not belong to {standing.name}"
            yield _extra(attachment, why, server=standing.server, move=standing.move_id)
        elif attachment.host is not None and attachment.host not in standing.hosts:
            yield _wrong(standing, attachment, f"is on {attachment.host}, where no move of the server goes")


def _missing(standing: Standing, device: BlockDevice, last: MoveRow | None = None) -> Finding:
    return Finding(
        Kind.ATTACHMENT,
        device.volume,
        f"the server {standing.name} names attachment {device.attachment} of volume {device.volume}, which does not "
        f"exist",
        _renewal(standing, device.volume, last),
        standing.host or "",
        standing.server,
        standing.move_id,
    )


def _wrong(standing: Standing, attachment: AttachmentView, what: str, last: MoveRow | None = None) -> Finding:
    return Finding(
        Kind.ATTACHMENT,
        attachment.id,
        f"attachment {attachment.id} of volume {attachment.volume} to {standing.name} {what}",
        _renewal(standing, attachment.volume, last, attachment.id),
        attachment.host or standing.host or "",
        standing.server,
        standing.move_id,
    )


def _renewal(standing: Standing, volume: str, last: MoveRow | None, left: str = "") -> str:
    """Return the command that makes the server's row name a right attachment of the volume again.

    ``left`` is a wrong attachment, which is then deleted; empty when there is none.
    """
    if standing.offloaded and last is not None and not kinds.of(last.kind).has_migration:
        return f"droveway move settle {last.short} --cell cinder --reason TEXT"
    if standing.offloaded:
        rows: dict[str, str | int] = {"instance_uuid": standing.server, "volume_id": volume, "deleted": 0}
        named = update("block_device_mapping", rows, {"attachment_id": "ID-OF-THE-NEW-ONE"})
        gone = f", then openstack volume attachment delete {left}" if left else ""
        made = f"openstack volume attachment create --no-connect {volume} {standing.server}"
        return f"{made}, then {named.removesuffix(';')} in cell {standing.cell}{gone}"
    if standing.host is None:
        return f"droveway server show {standing.server}, then droveway move list --server {standing.server}"
    return f"nova-manage volume_attachment refresh {standing.server} {volume} connector-of-{standing.host}.json"


def _extra(attachment: AttachmentView, why: str, *, server: str, move: str = "") -> Finding:
    return Finding(
        Kind.ATTACHMENT,
        attachment.id,
        f"attachment {attachment.id} ({attachment.status}) of volume {attachment.volume} is left over: {why}",
        f"openstack volume attachment delete {attachment.id}",
        attachment.host or "",
        server,
        move,
    )
