"""Defines the steps on the volumes of a server that is shelved or unshelved.

A server on no host keeps each volume by an empty attachment, which the volume's row names.
"""

from __future__ import annotations

from typing import Any

from droveway.clients.volume import Attachment
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import Leaves, Side
from droveway.flows.step import Step
from droveway.flows.steps import attached
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import is_deleted
from droveway.flows.steps.volumes import connect, held, name_attachment


class FreeVolumes(Step):
    """Shelve: deletes the host's attachments, and lets the rows name the empty ones."""

    does = "free the volumes from the host, keep them reserved"
    undoes = "attach them to the host again"
    needs = ("reserved",)
    leaves = Leaves({"attachments": Side.NOWHERE}, {"attachments": Side.SOURCE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Delete each old attachment, then let the row name the empty one; its connection_info stays, as in Nova."""
        starting.require_not_evacuated(ctx)
        volumes, reserved = attached.volumes(ctx), ctx.inputs["reserved"]
        for volume in volumes:
            known, service = reserved.get(volume.volume, {}), ctx.run.cloud.volumes
            if volume.attachment == known.get("new"):
                continue
            with ctx.run.intent("volume", f"free {volume.volume}"):
                # A volume that was attached since the reservation has no empty attachment yet.
                new = known.get("new") or service.create_attachment(
                    volume.volume, ctx.move.server, known=(volume.attachment,)
                )
                for old in sorted({known.get("old", volume.attachment), volume.attachment} - {new}):
                    service.delete_attachment(old)
                name_attachment(ctx, volume, new)
        return {"volumes": len(volumes)}

    def undo(self, ctx: Context) -> None:
        """Attach each volume to the host by its empty attachment, unless the old attachment is still there."""
        if is_deleted(ctx):
            return
        starting.require_not_evacuated(ctx)
        connector, reserved = before(ctx.move).guest.connector, ctx.inputs["reserved"]
        for volume in attached.volumes(ctx):
            found = held(ctx, volume)
            if _is_on(found.get(volume.attachment), str(connector.get("host"))):
                continue
            known = reserved.get(volume.volume, {})
            new = known.get("new", volume.attachment)
            if _is_on(found.get(known.get("old", "")), str(connector.get("host"))):
                # Cinder had deleted the old attachment, and has it again since its database was put back.
                new = known["old"]
            elif new not in found:
                new = ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server)
            with ctx.run.intent("volume", f"attach {volume.volume} as before"):
                connect(ctx, volume, new, connector)


class AttachVolumes(Step):
    """Unshelve: attaches each volume to the destination by the attachment that its row names."""

    does = "attach the volumes to the destination"
    undoes = "free them from it, keep them reserved"
    needs = ("destination_check",)
    leaves = Leaves({"attachments": Side.DESTINATION}, {"attachments": Side.NOWHERE})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Connect, complete and record each attachment."""
        volumes, connector = attached.volumes(ctx), ctx.inputs["destination_check"]["connector"]
        for volume in volumes:
            with ctx.run.intent("volume", f"attach {volume.volume}"):
                connect(ctx, volume, volume.attachment, connector)
        return {"volumes": len(volumes)}

    def undo(self, ctx: Context) -> None:
        """Make an empty attachment, which keeps the volume, delete the old one, and let the row name the new one."""
        if is_deleted(ctx):
            return
        for volume in attached.volumes(ctx):
            found = held(ctx, volume).get(volume.attachment)
            if found is not None and not found.connected:
                continue
            with ctx.run.intent("volume", f"free {volume.volume}"):
                empty = ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server)
                ctx.run.cloud.volumes.delete_attachment(volume.attachment)
                name_attachment(ctx, volume, empty)


def _is_on(found: Attachment | None, host: str) -> bool:
    """Tell whether the attachment is on the host; Cinder names no host for an attachment that is not complete."""
    return found is not None and found.host == host
