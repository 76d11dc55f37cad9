"""Steps on volume attachments.

An attachment cannot be pointed at another host: a new one is made, then the old one deleted, so that a volume is never
free in between.  "As before" means attached to the host as before, not the same attachment id.  On the same host an
attachment says nothing new, so both steps find nothing to do there.
"""

from __future__ import annotations

from typing import Any

from droveway.clients.volume import Attachment
from droveway.errors import Evacuated
from droveway.flows.before import VolumeBefore, before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING, Leaves, Side
from droveway.flows.step import Step
from droveway.flows.steps import attached
from droveway.flows.steps.hosts import starting
from droveway.flows.steps.rows import cell_rows, is_deleted
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.nova import devices, objects, servers


class ReserveVolumes(Step):
    """An empty attachment for each volume: it keeps the volume ours while the old attachment goes."""

    does = "reserve a new attachment for each volume"
    undoes = "delete the reservations"
    gives = "reserved"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """By volume: the attachment that stands (``old``) and the empty one (``new``), adopted or created."""
        reserved: dict[str, Any] = {}
        for volume in _volumes(ctx):
            old = volume.attachment
            with ctx.run.intent("volume", f"reserve {volume.volume}"):
                new = ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server, known=(old,))
            reserved[volume.volume] = {"old": old, "new": new}
        return reserved

    def undo(self, ctx: Context) -> None:
        """Delete what is empty and not named by the server's rows, also of volumes that were detached meanwhile."""
        if ctx.same_host:
            return
        attached.free_reserved(ctx, (ctx.result or {}).keys())

    def undo_evacuated(self, ctx: Context) -> None:
        """Only what is empty and named nowhere goes, so that nothing of Nova's does."""
        self.undo(ctx)


class MoveVolumes(Step):
    """Deletes the old host's attachments, exports the volumes to the new host and completes them: one step."""

    does = "attach the volumes to the destination"
    undoes = "attach them to the source again"
    needs = ("reserved", "destination_check")
    leaves = Leaves({"attachments": Side.DESTINATION}, {"attachments": Side.SOURCE})

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Of the host that the volumes go to."""
        found: dict[str, Any] = ctx.inputs["destination_check"]["connector"]
        return found

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """Of the host that they leave."""
        return before(ctx.move).guest.connector

    def perform(self, ctx: Context) -> dict[str, Any]:
        """To the new host, volume by volume; what was reserved of a volume that was detached since is given back."""
        starting.require_not_evacuated(ctx)
        volumes, reserved, connector = _volumes(ctx), ctx.inputs["reserved"], self.new_connector(ctx)
        for volume in volumes:
            ids = reserved.get(volume.volume)
            if ids is None and _is_on(held(ctx, volume), volume, connector):
                continue
            with ctx.run.intent("volume", f"attach {volume.volume} anew"):
                new = ids["new"] if ids else _another(ctx, volume, but={volume.attachment})
                for old in {ids["old"] if ids else volume.attachment, volume.attachment} - {new}:
                    ctx.run.cloud.volumes.delete_attachment(old)
                connect(ctx, volume, new, connector)
        for volume in sorted(reserved.keys() - {each.volume for each in volumes}):
            with ctx.run.intent("volume", f"free {volume}"):
                ctx.run.cloud.volumes.delete_attachment(reserved[volume]["new"])
        return {"volumes": len(volumes)}

    def undo(self, ctx: Context) -> None:
        """To the old host: nothing when its attachment still stands, else a new one before the other goes.

        Nothing for a deleted server either: its attachments are about to go.
        """
        if is_deleted(ctx):
            return
        starting.require_not_evacuated(ctx)
        connector = self.old_connector(ctx)
        for volume in _volumes(ctx):
            ids = ctx.inputs["reserved"].get(volume.volume)
            present = held(ctx, volume)
            # What was reserved again, after an adoption, has for the old one what this step had made before.
            old = present.get(ids["old"]) if ids is not None else None
            if (old is not None and old.host in (None, connector.get("host"))) or _is_on(present, volume, connector):
                # Where Cinder lacks the one that the rows name, its database was put back since.
                if old is not None and volume.attachment not in present:
                    with ctx.run.intent("volume", f"name attachment {old.id} of {volume.volume} again"):
                        connect(ctx, volume, old.id, connector)
                continue
            gone = {volume.attachment, ids["new"]} if ids is not None else {volume.attachment}
            with ctx.run.intent("volume", f"attach {volume.volume} as before"):
                again = _another(ctx, volume, but=gone)
                for attachment in sorted(gone):
                    ctx.run.cloud.volumes.delete_attachment(attachment)
                connect(ctx, volume, again, connector)


def _volumes(ctx: Context) -> list[VolumeBefore]:
    return [] if ctx.same_host else attached.volumes(ctx)


def held(ctx: Context, volume: VolumeBefore) -> dict[str, Attachment]:
    """The server's attachments of the volume, by id."""
    found = ctx.run.cloud.volumes.attachments(volume.volume)
    return {each.id: each for each in found if each.server == ctx.move.server}


def _is_on(held: dict[str, Attachment], volume: VolumeBefore, connector: dict[str, Any]) -> bool:
    """Whether the attachment that the rows name is complete on the connector's host: the rows name no other kind."""
    found = held.get(volume.attachment)
    return found is not None and bool(found.host) and found.host == connector.get("host")


def _another(ctx: Context, volume: VolumeBefore, *, but: set[str]) -> str:
    """An attachment besides these, which an earlier try may have begun to connect, or a new empty one.

    Raises `droveway.errors.Evacuated` where it may be one that Nova made.
    """
    others = sorted(held(ctx, volume).keys() - but)
    # Behind the look at the attachments: Nova's evacuation has its own row before it makes any.
    starting.require_not_evacuated(ctx)
    return others[0] if others else ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server, known=but)


def connect(ctx: Context, volume: VolumeBefore, attachment: str, connector: dict[str, Any]) -> None:
    """Export, complete and record one attachment; each call finds out whether it was done already.

    A volume that was detached meanwhile needs none.
    """
    ctx.run.cloud.volumes.connect(attachment, connector, volume.device)
    ctx.run.cloud.volumes.complete(attachment)
    shown = ctx.run.cloud.volumes.shown(attachment)
    try:
        found = _record(ctx, volume, attachment, shown)
    except Evacuated:
        # Nova has one of its own by now; while it has none, this one keeps the volume the server's.
        named = {each.attachment for each in _volumes(ctx) if each.volume == volume.volume}
        if attachment not in named and named & held(ctx, volume).keys():
            ctx.run.cloud.volumes.delete_attachment(attachment)
        raise
    if not found:
        ctx.run.cloud.volumes.delete_attachment(attachment)


def name_attachment(ctx: Context, volume: VolumeBefore, attachment: str) -> None:
    """Let the volume's row name an empty attachment, and keep what it says of the connection."""
    if not _record(ctx, volume, attachment, None):
        ctx.run.cloud.volumes.delete_attachment(attachment)


def name_moved(ctx: Context) -> None:
    """Let the rows of the copy that takes over name the attachments that were made, once the others' cell is gone."""
    for volume in attached.volumes(ctx):
        _record(ctx, volume, volume.attachment, ctx.run.cloud.volumes.shown(volume.attachment))


def _record(ctx: Context, volume: VolumeBefore, attachment: str, shown: dict[str, Any] | None) -> bool:
    """Let the volume's row name the attachment; False when there is none any more."""
    with cell_rows(ctx) as rows:
        starting.refuse_evacuated(ctx, rows, "so its volumes stay")
        found = servers.volumes(rows.session, ctx.move.server)
        row = next((row for row in found if row.volume_id == volume.volume), None)
        if row is not None:
            present = row.connection_info
            info = None if shown is None else devices.connection_info(shown, previous=objects.decode(present or "{}"))
            compare_and_swap(
                rows.session,
                row,
                attachment_id=(OneOf((row.attachment_id,)), attachment),
                connection_info=(OneOf((present,)), present if info is None else objects.encode(info)),
            )
        return row is not None
