"""The host steps of a shelve: the guest goes off, its root disk goes up into an image, and then all of it goes."""

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
    """The server is off from here until somebody unshelves it."""

    states = starting.SHELVE_UNDO
    undoes = "start it if it ran"

    def other(self, ctx: Context) -> str:
        """No other host has anything of the server."""
        return ctx.move.source_host

    def prove_off(self, ctx: Context) -> None:
        """Nobody else could run it: its rows, which are read before each start, name this host alone."""


class UploadDisks(HostStep):
    """The image gets the root disk, and says what it got."""

    where = Where.SOURCE
    deadline = DEADLINE
    does = "upload the root disk, flattened; compare what the image service has then"
    undoes = "remove what was flattened for it"
    gives = "uploaded"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Nothing to upload of a server whose root disk is a volume."""
        return {"disks": []} if before(ctx.move).boot_from_volume else super().perform(ctx)

    def undo(self, ctx: Context) -> None:
        """The image itself goes with `create_images`."""
        if not before(ctx.move).boot_from_volume:
            super().undo(ctx)

    def details(self, ctx: Context) -> commands.UploadDisks:
        """Which disk goes into which image."""
        root = commands.ImageOfDisk(disk=images.ROOT, image=images.image_of(ctx.move.id))
        return commands.UploadDisks(disks=[root])


class ReleaseSource(host.ReleaseSource):
    """Lets the source go; one that is dead by now owes it, since the image has the root disk."""

    owed_when_down = True


class DiscardSource(HostStep):
    """The point of no return: from here on the image is all that there is of the root disk."""

    action = "remove_guest"
    destroys = True
    where = Where.SOURCE
    deadline = 600.0
    owed_when_down = True
    needs = ("uploaded",)
    does = "undefine the guest, delete its disks"
    no_undo = "the point of no return"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """The image is asked for first, and the rows are compared; once the host was asked, it is asked again."""
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
