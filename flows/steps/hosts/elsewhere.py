"""Defines the host steps of a revert whose source is dead: another host of its cell gets the server's disks and guest.

That host takes the disks that the source has set aside, if it keeps its servers in the same directory.  Else it takes
the images that the move has kept.  What the source has set aside stays where it is; the source owes its deletion.
"""

from __future__ import annotations

from typing import Any, Final

from oslo_utils import units

from droveway.errors import DestinationFault, StepError
from droveway.flows.before import before
from droveway.flows.run import DECLARED_DOWN, Context
from droveway.flows.step import Where
from droveway.flows.steps import images, moved_images, reverting
from droveway.flows.steps.attached import port_refs, to_disconnect, volume_refs
from droveway.flows.steps.hosts import copying, host, keeping, kept_copies, redefining, starting, transferring
from droveway.flows.steps.hosts.command import (
    HostStep,
    describe,
    forget_probe,
    has_disks,
    new_flavor,
    old_flavor,
    probe_name,
    query_host,
)
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.journal import transfers
from droveway.persistence.journal.debts import RENAME
from droveway.persistence.journal.moves import GONE
from droveway.persistence.journal.step_runs import DISKS_UNREACHABLE
from droveway.wire import commands

LOCAL: Final = "local"
"""The variant in which the disks come from what was set aside in the host's own directory, not from images."""

_COPY: Final = copying.CopyDisks.action_name()


class CheckSource(HostStep):
    """Checks that the host in the source's place can run the guest, before the destination's guest is touched."""

    action = "check_destination"
    where = Where.RETURN
    extra_actions = ("check_set_aside", "find_storage")
    does = "check CPU, machine type, space and how the disks are reached; look at the guest on the destination"
    undoes = "remove the storage probe and the files of an unfinished copy"
    gives = "source_check"
    finds = True

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Return that host's connector, how it gets the disks, and what the undo needs of the destination's guest.

        Raises DestinationFault for a host that does not reach the disks.  Raises it also for a host that keeps its
        servers in one directory with the destination: the disks that this host would get need the directory name that
        the destination's disks have.
        """
        if is_deleted(ctx):
            return {**GONE, **reverting.stopped_on_destination(ctx)}
        found = {"variant": _way(ctx, self.host(ctx)), **self.command(ctx, self.details(ctx))}
        self._require_apart(ctx)
        return {**found, **reverting.on_destination(ctx)}

    def _require_apart(self, ctx: Context) -> None:
        """Raise DestinationFault unless the host keeps its servers in another directory than the destination."""
        here, there = self.host(ctx), ctx.destination.host
        try:
            details = commands.FindStorage(probe=probe_name(ctx))
            shared = query_host(ctx, there, "find_storage", part="shared", details=details)["shared"]
        except StepError as error:
            if error.error_code != DECLARED_DOWN:
                raise
            # A dead destination cannot look, but in a shared directory its copy would be seen here.  After a journal
            # was put back that proves nothing: the disks seen may be this host's own copy.
            shared = not ctx.run.is_behind() and bool(describe(ctx, here, part="room").disks)
        if shared:
            raise DestinationFault(
                f"host {here} keeps its servers in one directory with {there}, and the disks that server "
                f"{ctx.move.server_name} uses are in that directory",
                code="in-the-way",
                host=here,
            )

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Return what the undo needs of the guest, which the revert has stopped by now, and the host's connector."""
        connector = describe(ctx, self.host(ctx), part="connector").connector
        return {"connector": connector, **reverting.stopped_on_destination(ctx)}

    def details(self, ctx: Context) -> commands.CheckDestination:
        """Describe the guest as it was before the move."""
        flavor = old_flavor(ctx)
        return commands.CheckDestination(
            definition=before(ctx.move).guest.definition,
            vcpus=flavor["vcpus"],
            memory_mb=flavor["memory_mb"],
            disk_bytes=sum(disk.allocated for disk in before(ctx.move).guest.disks),
            probe=probe_name(ctx),
        )


class MoveVolumes(reverting.MoveVolumes):
    """Attaches the volumes to the host in the source's place, by that host's own connector."""

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the connector that the host told in its check."""
        found: dict[str, Any] = ctx.inputs["source_check"]["connector"]
        return found


class CopyDisks(HostStep):
    """Has the host in the source's place make its own verified copy of the disks."""

    action = transferring.DOWNLOAD
    where = Where.RETURN
    deadline = copying.DEADLINE
    needs = ("source_check",)
    does = "copy the disks, from what was set aside or from their images; verify them"
    undoes = "delete the copy; the disks or images from which it was made stay"
    extra_actions = (_COPY, "check_copy", RENAME)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Copy what the source has set aside, if the host's check found it; else download the images."""
        if ctx.inputs["source_check"].get("variant") == LOCAL:
            details = commands.CopyDisks(variant=LOCAL, source=ctx.move.source_host, address="", probe=probe_name(ctx))
            return ctx.command(self.host(ctx), _COPY, details, deadline=self.deadline)
        return super().perform(ctx)

    def details(self, ctx: Context) -> commands.DownloadDisks:
        """Name the images that the move has uploaded."""
        return transferring.downloaded(ctx, uploaded(ctx))

    def undo_details(self, ctx: Context) -> commands.DownloadDisks:
        """Name no images: none is needed to delete a copy."""
        return commands.DownloadDisks(disks=[], probe=probe_name(ctx))

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Remove the storage probe, which the host's check has written again.

        A copy removes the probe when it is done, but the disks are copied already and are not copied again.
        """
        forget_probe(ctx, self.host(ctx))
        return {}

    def undo(self, ctx: Context) -> None:
        """Delete the copy once the destination, on which the server lives, has shown its own.

        A destination that is declared down shows nothing: a whole copy is then renamed, and its deletion is owed.
        """
        if not is_deleted(ctx):
            try:
                self._require_destination(ctx)
            except StepError as error:
                if error.error_code != DECLARED_DOWN:
                    raise
                if ctx.result is not None:
                    kept_copies.rename(ctx, self.host(ctx))
                    self.owe(ctx, self.undo_details(ctx), after=ctx.destination.host)
                    return
        super().undo(ctx)

    def _require_destination(self, ctx: Context) -> None:
        """Raise StepError (``last-copy``) unless the destination shows the server's disks whole."""
        flavor, other = new_flavor(ctx), ctx.destination.host
        details = commands.CheckCopy(vcpus=flavor["vcpus"], memory_mb=flavor["memory_mb"])
        try:
            query_host(ctx, other, "check_copy", part="copy", details=details)
        except StepError as error:
            if error.error_code not in copying.NOT_WHOLE:
                raise
            raise StepError(
                f"host {other} does not hold the disks of server {ctx.move.server_name} whole, so the copy on "
                f"{self.host(ctx)} is not deleted: it may be the only one ({error.message})",
                code="last-copy",
                host=other,
            ) from None


class FitDisks(host.FitDisks):
    """Makes swap, which is never copied; the other disks keep the sizes that they had before the move."""

    where = Where.RETURN
    does = "make swap anew"

    def details(self, ctx: Context) -> commands.FitDisks:
        """Name the size of swap in bytes; no other disk grows."""
        swap = int(old_flavor(ctx)["swap"] or 0)
        return commands.FitDisks(root_bytes=0, ephemeral_bytes=0, swap_bytes=swap * units.Mi)


class _ConnectGuest(HostStep):
    """Connects volumes and interfaces, as a part of `PrepareSourceGuest`."""

    action = "connect"
    where = Where.RETURN
    does = "connect volumes and interfaces"
    undoes = "disconnect them"

    def command(self, ctx: Context, details: Any) -> dict[str, Any]:
        """Send the command under a name of its own, since the step sends two."""
        return ctx.command(self.host(ctx), self.action, details, deadline=self.deadline, part=self.action)

    def details(self, ctx: Context) -> commands.Connections:
        """Name what to connect, by the new attachments."""
        return commands.Connections(volumes=volume_refs(ctx), ports=port_refs(ctx))

    def undo_details(self, ctx: Context) -> commands.Connections:
        """Name what is attached now, and what was attached before the move."""
        return to_disconnect(ctx)


class PrepareSourceGuest(HostStep):
    """Has the host in the source's place define the guest as it was, marked with the move until the revert ends."""

    action = "define_guest"
    where = Where.RETURN
    extra_actions = (_ConnectGuest.action,)
    does = "connect volumes and interfaces, define the guest as it was, marked with the move"
    undoes = "undefine it if it is off, disconnect them"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Connect, then define the guest: the definition names what is connected."""
        _ConnectGuest(self.run_).perform(ctx)
        return super().perform(ctx)

    def undo(self, ctx: Context) -> None:
        """Undefine the guest, then disconnect; a host that is away owes each of the two."""
        super().undo(ctx)
        _ConnectGuest(self.run_).undo(ctx)

    def details(self, ctx: Context) -> commands.DefineGuest:
        """Make the old definition, with the old sizes and what is attached now."""
        return guest_as_it_was(ctx)


class StartGuest(host.StartGuest):
    """Starts the guest on the host in the source's place: the point of no return."""

    where = Where.RETURN
    states = starting.REVERT
    defined_by = PrepareSourceGuest.step_name()

    def other(self, ctx: Context) -> str:
        """Name the destination."""
        return ctx.destination.host

    def redefine(self, ctx: Context) -> None:
        """Define the guest as it was before the move, but with what is attached now."""
        redefining.anew(ctx, self.host(ctx), guest_as_it_was(ctx))


class DiscardDestination(host.DiscardDestination):
    """Removes guest and disks from the destination; the dead source owes the same for what it has set aside."""

    does = "undefine the guest and delete its disks on the destination; let the dead source owe the same"
    extra_actions = (*host.DiscardDestination.extra_actions, "discard_source")

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Clear the destination, then record the source's debt.

        If the host in the source's place could not show the server's disks, the source too waits until it has.  As with
        every debt, the keeper compares the server's rows before the source is asked to delete anything.
        """
        done = super().perform(ctx) or {}
        details = commands.DiscardSource(undefine=True, keep=False)
        after = done.get("after", "")
        ctx.owe(ctx.move.source_host, "discard_source", details, deadline=self.deadline, after=after)
        return done


class KeepCopy(keeping.KeepCopy):
    """Takes the move's mark off disks and guest on the host in the source's place."""

    where = Where.RETURN


def _way(ctx: Context, host: str) -> str:
    """Return how the host gets the disks; disks that were set aside are taken only if they are whole.

    Raises DestinationFault (``disks-unreachable``) where it cannot get them.
    """
    if describe(ctx, host, part="reach").set_aside:
        try:
            query_host(ctx, host, "check_set_aside", part="reach-whole")
        except StepError as error:
            if error.error_code not in copying.NOT_WHOLE:
                raise
        else:
            return LOCAL
    if ctx.move.keep_image or not has_disks(ctx):
        transferring.downloaded(ctx, uploaded(ctx))
        return transfers.IMAGE
    raise DestinationFault(
        f"host {host} reaches the disks of server {ctx.move.server_name} neither in the directory of "
        f"{ctx.move.source_host}, which is declared down, nor as images, since the move kept none",
        code=DISKS_UNREACHABLE,
        host=host,
    )


def uploaded(ctx: Context) -> list[dict[str, Any]]:
    """Return what the move has uploaded of each disk, on the present alternate; empty where nothing was uploaded.

    A journal that was put back may not know that.  Then the images themselves are asked.  The source has compared each
    image with its disk before the forward flow ended, and an image with data cannot be written again.
    """
    for run in reversed(ctx.run.step_runs()):
        known = (run.step, run.direction, run.attempt) == (transferring.UPLOAD, "execute", ctx.move.attempt)
        if known and run.result is not None and "disks" in run.result:
            return list(run.result["disks"])
    if not ctx.move.keep_image:
        return []
    return [_found(ctx, *each) for each in moved_images.of_disks(ctx.move, ctx.move.attempt).items()]


def _found(ctx: Context, disk: str, image: str) -> dict[str, Any]:
    found = images.find(ctx, image)
    return {
        "disk": disk,
        "image": image,
        "size": found.size,
        "checksum": found.checksum,
        "format": found.disk_format,
    }


def guest_as_it_was(ctx: Context) -> commands.DefineGuest:
    """Describe the guest as it was before the move, but with what is attached now."""
    flavor = old_flavor(ctx)
    return commands.DefineGuest(
        definition=before(ctx.move).guest.definition,
        vcpus=flavor["vcpus"],
        memory_mb=flavor["memory_mb"],
        volumes=volume_refs(ctx),
        ports=port_refs(ctx),
    )
