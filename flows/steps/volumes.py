"""Steps on volume attachments.

An attachment cannot be pointed at another host: a new one is made, then the old one deleted, so that a volume is never
free in between.  "As before" means attached to the host as before, not the same attachment id.  On the same host an
attachment says nothing new, so both steps find nothing to do there.
"""

from __future__ import annotations

from typing import Any, ClassVar

from droveway.errors import StepError
from droveway.flows.before import VolumeBefore, before
from droveway.flows.step import Context, Step
from droveway.flows.steps.rows import cell_rows, is_deleted
from droveway.persistence import devices, objects, servers
from droveway.persistence.swap import OneOf, swap


class ReserveVolumes(Step):
    """An empty attachment for each volume: it keeps the volume ours while the old attachment goes."""

    title: ClassVar[str] = "reserve_volumes"
    does = "reserve a new attachment for each volume"
    undoes = "delete the reservations"
    gives = "reserved"

    def perform(self, ctx: Context) -> dict[str, Any]:
        """By volume: the attachment that stands (``old``) and the empty one (``new``), adopted or created."""
        reserved: dict[str, Any] = {}
        for volume in _volumes(ctx):
            old = _recorded(ctx, volume)
            with ctx.run.intent("volume", f"reserve {volume.volume}"):
                new = ctx.run.volumes.create_attachment(volume.volume, ctx.move.server, known=(old,))
            reserved[volume.volume] = {"old": old, "new": new}
        return reserved

    def undo(self, ctx: Context) -> None:
        """Delete what was reserved; when no result was stored, whatever is empty and not the recorded one."""
        for volume in _volumes(ctx):
            recorded = _standing(ctx, volume)
            for attachment in ctx.run.volumes.attachments(volume.volume):
                ours = attachment.server == ctx.move.server and attachment.id != recorded
                if ours and attachment.host is None:
                    with ctx.run.intent("volume", f"free {volume.volume}"):
                        ctx.run.volumes.delete_attachment(attachment.id)


class MoveVolumes(Step):
    """Deletes the old host's attachments, exports the volumes to the new host and completes them: one step."""

    title: ClassVar[str] = "move_volumes"
    does = "attach the volumes to the destination"
    undoes = "attach them to the source again"
    needs = ("reserved", "destination_check")

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Of the host that the volumes go to."""
        found: dict[str, Any] = ctx.inputs["destination_check"]["connector"]
        return found

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """Of the host that they leave."""
        return before(ctx.move).guest.connector

    def perform(self, ctx: Context) -> dict[str, Any]:
        """To the new host, volume by volume."""
        volumes = _volumes(ctx)
        for volume in volumes:
            ids = ctx.inputs["reserved"][volume.volume]
            with ctx.run.intent("volume", f"attach {volume.volume} anew"):
                ctx.run.volumes.delete_attachment(ids["old"])
                _connect(ctx, volume, ids["new"], self.new_connector(ctx))
        return {"volumes": len(volumes)}

    def undo(self, ctx: Context) -> None:
        """To the old host: nothing when its attachment still stands, else a new one before the other goes.

        Nothing for a deleted server either: its attachments are about to go.
        """
        if is_deleted(ctx):
            return
        for volume in _volumes(ctx):
            ids = ctx.inputs["reserved"][volume.volume]
            present = [each.id for each in ctx.run.volumes.attachments(volume.volume) if each.server == ctx.move.server]
            if ids["old"] in present:
                continue
            with ctx.run.intent("volume", f"attach {volume.volume} as before"):
                others = [attachment for attachment in present if attachment != ids["new"]]
                again = others[0] if others else self._reserve_again(ctx, volume, ids["new"])
                ctx.run.volumes.delete_attachment(ids["new"])
                _connect(ctx, volume, again, self.old_connector(ctx))

    def _reserve_again(self, ctx: Context, volume: VolumeBefore, known: str) -> str:
        return ctx.run.volumes.create_attachment(volume.volume, ctx.move.server, known=(known,))


class MoveVolumesBack(MoveVolumes):
    """Revert's: the source is the new host."""

    does = "attach the volumes to the source"
    undoes = "attach them to the destination again"
    needs = ("reserved", "source_check")

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """The source's."""
        found: dict[str, Any] = ctx.inputs["source_check"]["connector"]
        return found

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """The destination's."""
        found: dict[str, Any] = ctx.inputs["source_check"]["destination"]["connector"]
        return found


def _volumes(ctx: Context) -> list[VolumeBefore]:
    return [] if ctx.same_host else before(ctx.move).volumes


def _recorded(ctx: Context, volume: VolumeBefore) -> str:
    """The attachment that the server's block device mapping names now; raises StepError when there is none."""
    standing = _standing(ctx, volume)
    if standing is None:
        raise _detached(ctx, volume)
    return standing


def _standing(ctx: Context, volume: VolumeBefore) -> str | None:
    with ctx.run.cells.database(ctx.move.source_cell).read() as session:
        for row in servers.volumes(session, ctx.move.server):
            if row.volume_id == volume.volume and row.attachment_id:
                return row.attachment_id
    return None


def _connect(ctx: Context, volume: VolumeBefore, attachment: str, connector: dict[str, Any]) -> None:
    """Export, complete and record one attachment; each call finds out whether it was done already."""
    ctx.run.volumes.connect(attachment, connector, volume.device)
    ctx.run.volumes.complete(attachment)
    shown = ctx.run.volumes.shown(attachment)
    with cell_rows(ctx) as rows:
        found = servers.volumes(rows.session, ctx.move.server)
        row = next((row for row in found if row.volume_id == volume.volume), None)
        if row is None:
            raise _detached(ctx, volume)
        info = devices.connection_info(shown, previous=objects.decode(row.connection_info or "{}"))
        swap(
            rows.session,
            row,
            attachment_id=(OneOf((row.attachment_id,)), attachment),
            connection_info=(OneOf((row.connection_info,)), objects.encode(info)),
        )


def _detached(ctx: Context, volume: VolumeBefore) -> StepError:
    return StepError(f"volume {volume.volume} is no longer attached to server {ctx.move.server}", code="detached")
