"""Defines the steps on volume attachments.

An attachment cannot be changed to another host.  So a new one is made before the old one is deleted, and the volume is
never free in between.  An undo attaches a volume to the same host as before, perhaps by an attachment with a new id.
Where source and destination are one host, the attachments stay and both steps have nothing to do.
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
    """Makes an empty attachment for each volume, which keeps the volume for the server once the old one is deleted."""

    does = "reserve a new attachment for each volume"
    undoes = "delete the reservations"
    gives = "reserved"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Return for each volume its present attachment (``old``) and the empty one (``new``), made or found."""
        reserved: dict[str, Any] = {}
        for volume in _volumes(ctx):
            old = volume.attachment
            with ctx.run.intent("volume", f"reserve {volume.volume}"):
                new = ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server, known=(old,))
            reserved[volume.volume] = {"old": old, "new": new}
        return reserved

    def undo(self, ctx: Context) -> None:
        """Delete the empty attachments that no row of the server names.

        Those of volumes that were detached meanwhile are deleted too.
        """
        if ctx.same_host:
            return
        attached.free_reserved(ctx, (ctx.result or {}).keys())

    def undo_evacuated(self, ctx: Context) -> None:
        """Undo as always: it deletes only empty attachments that no row names, so none of Nova's."""
        self.undo(ctx)


class MoveVolumes(Step):
    """Deletes the old host's attachments, and connects and completes the new host's."""

    does = "attach the volumes to the destination"
    undoes = "attach them to the source again"
    needs = ("reserved", "destination_check")
    leaves = Leaves({"attachments": Side.DESTINATION}, {"attachments": Side.SOURCE})

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the connector of the host that the volumes go to."""
        found: dict[str, Any] = ctx.inputs["destination_check"]["connector"]
        return found

    def old_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the connector of the host that the volumes leave."""
        return before(ctx.move).guest.connector

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Attach each volume to the new host; delete the empty attachment of a volume that was detached since."""
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
        """Attach each volume to the old host, unless its old attachment is still there.

        The new attachment is made before the other is deleted.  Does nothing for a deleted server, whose attachments
        are deleted with it.
        """
        if is_deleted(ctx):
            return
        starting.require_not_evacuated(ctx)
        connector = self.old_connector(ctx)
        for volume in _volumes(ctx):
            ids = ctx.inputs["reserved"].get(volume.volume)
            present = held(ctx, volume)
            # Usually ``old`` is the attachment of before the move.  After the journal was adopted, `reserve_volumes`
            # may have run a second time, although this step was done already.  The rows then named the attachment that
            # this step had made, and `reserve_volumes` recorded that attachment as ``old``.
            old = present.get(ids["old"]) if ids is not None else None
            if (old is not None and old.host in (None, connector.get("host"))) or _is_on(present, volume, connector):
                # Cinder lacks the attachment that the rows name only if its database was put back since.
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
    """Return the server's attachments of the volume, by id."""
    found = ctx.run.cloud.volumes.attachments(volume.volume)
    return {each.id: each for each in found if each.server == ctx.move.server}


def _is_on(held: dict[str, Attachment], volume: VolumeBefore, connector: dict[str, Any]) -> bool:
    """Tell whether the attachment that the rows name is on the connector's host; rows name only complete ones."""
    found = held.get(volume.attachment)
    return found is not None and bool(found.host) and found.host == connector.get("host")


def _another(ctx: Context, volume: VolumeBefore, *, but: set[str]) -> str:
    """Return an attachment that is not in ``but``: one that an earlier try has made, or a new empty one.

    Raises `droveway.errors.Evacuated` where Nova evacuates the server, since Nova may have made the attachment that is
    found.
    """
    others = sorted(held(ctx, volume).keys() - but)
    # Only after the attachments were read: Nova writes the row of its evacuation before it makes any attachment.
    starting.require_not_evacuated(ctx)
    return others[0] if others else ctx.run.cloud.volumes.create_attachment(volume.volume, ctx.move.server, known=but)


def connect(ctx: Context, volume: VolumeBefore, attachment: str, connector: dict[str, Any]) -> None:
    """Connect and complete one attachment, and let the volume's row name it; a repeated call does only what is missing.

    Where the volume was detached meanwhile, the attachment is deleted.
    """
    ctx.run.cloud.volumes.connect(attachment, connector, volume.device)
    ctx.run.cloud.volumes.complete(attachment)
    shown = ctx.run.cloud.volumes.shown(attachment)
    try:
        found = _record(ctx, volume, attachment, shown)
    except Evacuated:
        # Once Nova has made its own attachment this one can go.  Before that it keeps the volume for the server.
        named = {each.attachment for each in _volumes(ctx) if each.volume == volume.volume}
        if attachment not in named and named & held(ctx, volume).keys():
            ctx.run.cloud.volumes.delete_attachment(attachment)
        raise
    if not found:
        ctx.run.cloud.volumes.delete_attachment(attachment)


def name_attachment(ctx: Context, volume: VolumeBefore, attachment: str) -> None:
    """Let the volume's row name an empty attachment, and keep its connection_info."""
    if not _record(ctx, volume, attachment, None):
        ctx.run.cloud.volumes.delete_attachment(attachment)


def name_moved(ctx: Context) -> None:
    """Write the ids of the attachments that this move made into the copy of the rows that is to be shown.

    The caller needs this if only the rows in the other cell had these ids, and that cell was declared down since.
    """
    for volume in attached.volumes(ctx):
        _record(ctx, volume, volume.attachment, ctx.run.cloud.volumes.shown(volume.attachment))


def _record(ctx: Context, volume: VolumeBefore, attachment: str, shown: dict[str, Any] | None) -> bool:
    """Let the volume's row name the attachment; return False when the volume has no row any more."""
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
