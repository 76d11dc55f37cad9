"""Settles Cinder's database after it was put back from an older copy: makes the attachments anew that it lacks.

Each volume of the server gets an attachment on the host to which the move's last step had attached it.  The server's
row in its cell then names this attachment.  The guest may not run meanwhile: it would go on using an attachment that
Cinder is about to replace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from droveway.clients.volume import ATTACHED, Attachment
from droveway.engines.operations import left, settling_copies
from droveway.engines.operations.left import Left
from droveway.engines.operations.settling_copies import Writing
from droveway.engines.site.site import Site
from droveway.errors import Refused
from droveway.flows.stands import Side
from droveway.persistence.nova import cell, devices, objects, servers
from droveway.printable import SHORT

CINDER: Final = "cinder"
"""The name under which Cinder's database is given."""


def write(site: Site, found: Left, connectors: Mapping[str, Mapping[str, Any]], epoch: int, *, runs: bool) -> list[str]:
    """Attach what is not attached as the move left it, and return what was done.

    ``runs`` says whether the guest runs.  ``connectors`` has the connector of each host that answered: host →
    connector.  Where an attachment is not right, raises `droveway.errors.Refused` if the guest runs, or if the host of
    the volumes did not answer.
    """
    where, server, writing = found.mapped_cell, found.move.server, Writing()
    host = found.host_of(found.stands.attachments)
    with contextlib.ExitStack() as claim, site.cells.transaction(where, server, epoch) as session:
        left.require_own(session, found, servers.live(session, server, deleting=True))
        for row in servers.volumes(session, server):
            if row.attachment_id and not _is_right(site, found, row, host):
                if runs:
                    raise Refused(
                        f"the guest of server {found.move.server_name} runs, and volume {row.volume_id} is not "
                        f"attached to {host}: once the move is over, stop the guest and do what droveway audit names"
                    )
                _attach(site, found, row, host, connectors, writing)
        settling_copies.hold(claim, session, site, found.move, epoch)
    return writing.written


def _held(site: Site, found: Left, row: cell.BlockDeviceMapping) -> dict[str, Attachment]:
    """Return the server's attachments of the volume, by id."""
    every = site.cloud.volumes.attachments(row.volume_id or "")
    return {each.id: each for each in every if each.server == found.move.server}


def _is_right(site: Site, found: Left, row: cell.BlockDeviceMapping, host: str) -> bool:
    """Tell whether the attachment that the row names is there, and is connected to the right host, or to none."""
    named = _held(site, found, row).get(row.attachment_id or "")
    if named is None:
        return False
    return _leads_to(named, host) if found.stands.attachments is not Side.NOWHERE else not named.connected


def _leads_to(attachment: Attachment, host: str) -> bool:
    return attachment.status == ATTACHED and attachment.host in ("", host)


def _attach(
    site: Site,
    found: Left,
    row: cell.BlockDeviceMapping,
    host: str,
    connectors: Mapping[str, Mapping[str, Any]],
    writing: Writing,
) -> None:
    volumes, held, volume = site.cloud.volumes, _held(site, found, row), row.volume_id or ""
    nowhere = found.stands.attachments is Side.NOWHERE
    if not nowhere and not connectors.get(host):
        raise Refused(
            f"host {host}, to which volume {volume} belongs, does not say by which connector it gets volumes, so "
            f"nothing more of move {found.move.id[:SHORT]} is written: start its worker, then ask again"
        )
    whole = [] if nowhere else sorted(each.id for each in held.values() if _leads_to(each, host))
    # Attachments that a flow under way has reserved are left to it.
    new = whole[0] if whole else volumes.create_attachment(volume, found.move.server, known=held.keys())
    for other in sorted(held.values(), key=lambda each: each.id):
        if other.id != new and (other.connected or found.rests):
            volumes.delete_attachment(other.id)
            writing.written.append(f"attachment {other.id} of volume {volume}: deleted")
    if not nowhere:
        volumes.connect(new, connectors[host], row.device_name or "")
        volumes.complete(new)
        info = devices.connection_info(volumes.shown(new), previous=objects.decode(row.connection_info or "{}"))
        row.connection_info = objects.encode(info)
    writing.set(row, attachment_id=new)
