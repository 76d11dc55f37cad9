"""The host steps of a revert whose source is dead: another host of its cell gets the server's disks and guest.

The disks come from what the source has set aside, where that host keeps its servers in the same directory, else from
the images that the move has kept.  What the source has set aside is left where it is, and owed.
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
from droveway.wire import commands

LOCAL: Final = "local"
"""The disks come from what was set aside in the host's own directory; else they come from images."""

_COPY: Final = copying.CopyDisks.action_name()


DISKS_UNREACHABLE: Final = "disks-unreachable"
"""The code of the fault of a host that finds what the source has set aside nowhere."""


class CheckSource(HostStep):
    """The host in the source's place has to be able to run the guest, before the destination's is touched."""

    action = "check_destination"
    where = Where.RETURN
    extra_actions = ("check_set_aside", "find_storage")
    does = "check CPU, machine type, space and how the disks are reached; look at the guest on the destination"
    undoes = "remove what the host was asked to leave behind"
    gives = "source_check"
    finds = True

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """The connector of that host, how it gets the disks, and what the undo has to know of the destination's guest.

        Raises DestinationFault for a host that does not reach the disks, or whose copy would lie where the other is.
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
            # It tells nothing, but what it has left would be seen here; so would this host's own copy by then.
            shared = not ctx.run.is_behind() and bool(describe(ctx, here, part="room").disks)
        if shared:
            raise DestinationFault(
                f"host {here} keeps its servers in one directory with {there}, where the copy is that server "
                f"{ctx.move.server_name} uses",
                code="in-the-way",
                host=here,
            )

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """What the undo would read, of a guest that the revert has stopped by now."""
        connector = describe(ctx, self.host(ctx), part="connector").connector
        return {"connector": connector, **reverting.stopped_on_destination(ctx)}

    def details(self, ctx: Context) -> commands.CheckDestination:
        """The guest as it was before the move."""
        flavor = old_flavor(ctx)
        return commands.CheckDestination(
            definition=before(ctx.move).guest.definition,
            vcpus=flavor["vcpus"],
            memory_mb=flavor["memory_mb"],
            disk_bytes=sum(disk.allocated for disk in before(ctx.move).guest.disks),
            probe=probe_name(ctx),
        )


class MoveVolumes(reverting.MoveVolumes):
    """To the host in the source's place: what the source's own connector was says nothing of it."""

    def new_connector(self, ctx: Context) -> dict[str, Any]:
        """Return the connector that the host told."""
        found: dict[str, Any] = ctx.inputs["source_check"]["connector"]
        return found


class CopyDisks(HostStep):
    """The host in the source's place makes its own verified copy."""

    action = transferring.DOWNLOAD
    where = Where.RETURN
    deadline = copying.DEADLINE
    needs = ("source_check",)
    does = "copy the disks, from what was set aside or from their images; verify them"
    undoes = "delete the copy; what it was made of stays"
    extra_actions = (_COPY, "check_copy", RENAME)

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """From what the source has set aside where this host reaches it, as its check found."""
        if ctx.inputs["source_check"].get("variant") == LOCAL:
            details = commands.CopyDisks(variant=LOCAL, source=ctx.move.source_host, address="", probe=probe_name(ctx))
            return ctx.command(self.host(ctx), _COPY, details, deadline=self.deadline)
        return super().perform(ctx)

    def details(self, ctx: Context) -> commands.DownloadDisks:
        """What the move has uploaded."""
        return transferring.downloaded(ctx, uploaded(ctx))

    def undo_details(self, ctx: Context) -> commands.DownloadDisks:
        """No image is needed to delete a copy."""
        return commands.DownloadDisks(disks=[], probe=probe_name(ctx))

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """The storage probe, which the check of the host wrote anew, goes as it does after a copy."""
        forget_probe(ctx, self.host(ctx))
        return {}

    def undo(self, ctx: Context) -> None:
        """Delete the copy once the destination, on which the server lives, has shown its own, now."""
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
    """The copy has the sizes that it had: only swap, which is in no image, is made."""

    where = Where.RETURN
    does = "make swap anew"

    def details(self, ctx: Context) -> commands.FitDisks:
        """Nothing grows."""
        swap = int(old_flavor(ctx)["swap"] or 0)
        return commands.FitDisks(root_bytes=0, ephemeral_bytes=0, swap_bytes=swap * units.Mi)


class _ConnectGuest(HostStep):
    """The part of `PrepareSourceGuest` that connects."""

    action = "connect"
    where = Where.RETURN
    does = "connect volumes and interfaces"
    undoes = "disconnect them"

    def command(self, ctx: Context, details: Any) -> dict[str, Any]:
        """One command of a step that has two."""
        return ctx.command(self.host(ctx), self.action, details, deadline=self.deadline, part=self.action)

    def details(self, ctx: Context) -> commands.Connections:
        """By the new attachments."""
        return commands.Connections(volumes=volume_refs(ctx), ports=port_refs(ctx))

    def undo_details(self, ctx: Context) -> commands.Connections:
        """What is attached, and what was."""
        return to_disconnect(ctx)


class PrepareSourceGuest(HostStep):
    """The host in the source's place gets the guest as it was before the move, marked until the revert ends."""

    action = "define_guest"
    where = Where.RETURN
    extra_actions = (_ConnectGuest.action,)
    does = "connect volumes and interfaces, define the guest as it was, marked with the move"
    undoes = "undefine it if it is off, disconnect them"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Connect first: a definition names what is connected."""
        _ConnectGuest(self.run_).perform(ctx)
        return super().perform(ctx)

    def undo(self, ctx: Context) -> None:
        """Each of both for itself: a host that is away owes it."""
        super().undo(ctx)
        _ConnectGuest(self.run_).undo(ctx)

    def details(self, ctx: Context) -> commands.DefineGuest:
        """The old definition, with the old sizes and what is attached by now."""
        return guest_as_it_was(ctx)


class StartGuest(host.StartGuest):
    """The point of no return: the guest of the host in the source's place."""

    where = Where.RETURN
    states = starting.REVERT
    defined_by = PrepareSourceGuest.step_name()

    def other(self, ctx: Context) -> str:
        """The destination."""
        return ctx.destination.host

    def redefine(self, ctx: Context) -> None:
        """As it was before the move, but with what is attached by now."""
        redefining.anew(ctx, self.host(ctx), guest_as_it_was(ctx))


class DiscardDestination(host.DiscardDestination):
    """Nothing of the server stays on the destination, and what the dead source holds is a debt of that."""

    does = "undefine the guest and delete its disks on the destination; let the dead source owe the same"
    extra_actions = (*host.DiscardDestination.extra_actions, "discard_source")

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """The debt is compared with the server's rows when it is paid, as each is."""
        details = commands.DiscardSource(undefine=True, keep=False)
        ctx.owe(ctx.move.source_host, "discard_source", details, deadline=self.deadline)
        return super().perform(ctx)


class KeepCopy(keeping.KeepCopy):
    """The mark of the move ends on the host in the source's place: the server is its own."""

    where = Where.RETURN


def _way(ctx: Context, host: str) -> str:
    """How the host gets the disks, where it does; nothing of what was set aside is taken that is not whole."""
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
    """Return what the move has uploaded of each disk, on the alternate that the server is on; empty where nothing was.

    A journal that was put back may not know.  The source has compared each image before the forward flow could end, and
    nobody can write to one since: what it says of itself is what was uploaded.
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
    """The guest as it was before the move, with what is attached by now."""
    flavor = old_flavor(ctx)
    return commands.DefineGuest(
        definition=before(ctx.move).guest.definition,
        vcpus=flavor["vcpus"],
        memory_mb=flavor["memory_mb"],
        volumes=volume_refs(ctx),
        ports=port_refs(ctx),
    )
