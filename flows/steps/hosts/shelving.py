"""Defines the host steps of a shelve: stop the guest, upload its root disk into an image, and remove the guest."""

from __future__ import annotations

from typing import Any

from droveway.errors import Conflict, ServerDeleted, StepError
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.step import Where
from droveway.flows.steps import images
from droveway.flows.steps.hosts import host, starting
from droveway.flows.steps.hosts.command import HostStep
from droveway.flows.steps.hosts.copying import DEADLINE
from droveway.flows.steps.rows import cell_rows
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.wire import commands


class StopGuest(host.StopGuest):
    """Stops the guest; the server is off until somebody unshelves it."""

    states = starting.SHELVE_UNDO
    undoes = "start it if it ran"

    def other(self, ctx: Context) -> str:
        """Name the source: no other host has anything of the server."""
        return ctx.move.source_host

    def prove_off(self, ctx: Context) -> None:
        """Prove nothing: the rows, which are read before each start, name this host, so no other can run the guest."""


class UploadDisks(HostStep):
    """Uploads the root disk into the image, and compares what the image service has then."""

    where = Where.SOURCE
    deadline = DEADLINE
    does = "upload the root disk, flattened; compare what the image service has then"
    undoes = "remove the flattened disk"
    gives = "uploaded"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Upload the root disk; a server whose root disk is a volume has nothing to upload."""
        return {"disks": []} if before(ctx.move).boot_from_volume else super().perform(ctx)

    def undo(self, ctx: Context) -> None:
        """Have the host remove what it flattened for the upload; the undo of `create_images` deletes the image."""
        if not before(ctx.move).boot_from_volume:
            super().undo(ctx)

    def details(self, ctx: Context) -> commands.UploadDisks:
        """Name the disk and the image that it goes into."""
        root = commands.ImageOfDisk(disk=images.ROOT, image=images.image_of(ctx.move.id))
        return commands.UploadDisks(disks=[root])


class ReleaseSource(host.ReleaseSource):
    """Has the source disconnect; a source that is declared down owes it, since the image has the root disk."""

    owed_when_down = True


class DiscardSource(HostStep):
    """Removes the guest and its disks: the point of no return, after which only the image has the root disk."""

    action = "remove_guest"
    destroys = True
    where = Where.SOURCE
    deadline = 600.0
    owed_when_down = True
    needs = ("uploaded",)
    does = "undefine the guest, delete its disks"
    no_undo = "the point of no return"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Remove the guest, once the image is whole and the rows stand as this move left them.

        Both are checked only until the host was first asked; after that the host is simply asked again.
        """
        if not ctx.run.may_have_begun(ctx.step):
            try:
                self._require_shelved(ctx)
            except (Conflict, ServerDeleted) as error:
                raise StepError(str(error), code="not-begun") from None
            except StepError as error:
                raise type(error)(error.message, code="not-begun", host=error.host) from None
        return super().perform(ctx)

    def _require_shelved(self, ctx: Context) -> None:
        for disk in ctx.inputs["uploaded"]["disks"]:
            images.require_whole(ctx, disk["image"], size=disk["size"], checksum=disk["checksum"])
        record, here = before(ctx.move), ctx.move.source_host
        state, task = (
            (record.vm_state, TaskState.SHELVING)
            if record.boot_from_volume
            else (VmState.SHELVED, TaskState.SHELVING_OFFLOADING)
        )
        with cell_rows(ctx) as rows:
            rows.change(host=(here, here), vm_state=(state, state), task_state=(task, task))
