"""Defines the steps of the forward flow and of revert that a worker carries out.

An undo sends the worker the same action with the direction `revert`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
from oslo_utils import units

from droveway.errors import DestinationFault, ServerDeleted, StepError
from droveway.flows.before import before, shows_disks
from droveway.flows.run import DECLARED_DOWN, OWED, UNREACHABLE, Context
from droveway.flows.step import Where
from droveway.flows.steps.attached import ids, ids_before, port_refs, to_disconnect, volume_refs
from droveway.flows.steps.hosts import clearing, kept_copies, redefining, starting
from droveway.flows.steps.hosts.command import (
    HostStep,
    describe,
    has_disks,
    never_started,
    new_flavor,
    probe_name,
    same_directory,
)
from droveway.flows.steps.rows import is_deleted
from droveway.persistence.journal.debts import RENAME
from droveway.wire import commands

_NO_CONNECTIONS: Final = commands.Connections(volumes=[], ports=[])


class CheckDestination(HostStep):
    """Checks that the destination can run the guest, before the source is touched."""

    where = Where.DESTINATION
    does = "check CPU, machine type, space and volumes' connector; write the storage probe"
    undoes = "remove the storage probe and the files of an unfinished copy"
    gives = "destination_check"

    def details(self, ctx: Context) -> commands.CheckDestination:
        """Describe the guest as it was before the move, and the sizes that it will have."""
        record, flavor = before(ctx.move), new_flavor(ctx)
        wanted = sum(disk.allocated for disk in record.guest.disks)
        return commands.CheckDestination(
            definition=record.guest.definition,
            vcpus=flavor["vcpus"],
            memory_mb=flavor["memory_mb"],
            disk_bytes=wanted,
            probe=probe_name(ctx),
        )


class FindStorage(HostStep):
    """Finds out whether both hosts keep their servers in one directory, by the destination's probe file."""

    where = Where.SOURCE
    does = "look for the destination's probe: is the storage shared?"
    no_undo = "it only reads"
    gives = "storage"

    def passed_by(self, ctx: Context) -> dict[str, Any]:
        """Return what was found out before the journal was put back."""
        return {"shared": same_directory(ctx), "variant": ctx.move.storage}

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Look for the probe, and record the variant of the storage in the move.

        A source that cannot look fails the step: that does not mean that the storage is not shared.
        """
        if ctx.same_host:
            shared, variant = True, "same-host"
        else:
            shared = bool(self.command(ctx, commands.FindStorage(probe=probe_name(ctx)))["shared"])
            apart = "copy" if has_disks(ctx) else "volume"
            variant = "shared" if shared else apart
        with ctx.run.write() as session:
            session.get_one(type(ctx.move), ctx.move.id).storage = variant
        return {"shared": shared, "variant": variant}


class StopGuest(HostStep):
    """Shuts the guest down, which begins the downtime."""

    where = Where.SOURCE
    deadline = 180.0
    extra_actions = ("prepare_start",)
    starts = "revert"
    states = starting.FORWARD_UNDO
    does = "shut the guest down"
    undoes = "start it if it ran and the destination is proved off"

    def other(self, ctx: Context) -> str:
        """Name the host whose guest must be proved off before this one's is started again."""
        return ctx.destination.host

    def ran(self, ctx: Context) -> bool:
        """Tell whether the guest ran before the step."""
        return before(ctx.move).guest.running

    def details(self, ctx: Context) -> commands.StopGuest:
        """Say how many seconds the guest has for its own shutdown, and whether an undo starts it."""
        return commands.StopGuest(grace=ctx.run.options.shutdown_timeout, restart=self.ran(ctx))

    def undo(self, ctx: Context) -> None:
        """Start the guest again if it ran, the other host's guest is off, and the server is still this move's.

        It stays off where the server is deleted or the host is declared down.
        """
        if is_deleted(ctx) or ctx.run.declared_down(self.host(ctx)):
            self._leave_off(ctx)
            return
        if self._is_off_and_changed(ctx):
            # The guest could not start with a volume or port that was detached while the host connected it again.
            redefining.disconnect_gone(ctx, self.host(ctx))
            self.redefine(ctx)
        if not self.ran(ctx):
            super().undo(ctx)
            return
        details = self.details(ctx)

        def send(permission: str) -> dict[str, Any]:
            return self.command(ctx, msgspec.structs.replace(details, permission=permission))

        sent = starting.permitted(ctx, self.host(ctx), self.states, lambda: self.prove_off(ctx), send)
        if sent is None:
            self._leave_off(ctx)

    def undo_evacuated(self, ctx: Context) -> None:
        """Leave the guest off: have the host give up the step's command if it is still carrying that out.

        Does nothing if the host is away or declared down.
        """
        try:
            self.command(ctx, self.owed_undo(ctx))
        except StepError as error:
            if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
                raise

    def _is_off_and_changed(self, ctx: Context) -> bool:
        changed = self.attached_before(ctx) != ids(ctx)
        return changed and not describe(ctx, self.host(ctx), part="own").running

    def attached_before(self, ctx: Context) -> list[str]:
        """Return the ids of the volumes and ports that the guest is defined with."""
        return ids_before(ctx)

    def redefine(self, ctx: Context) -> None:
        """Define the guest, which is off, with what is attached by now."""
        redefining.on_source(ctx, self.host(ctx))

    def prove_off(self, ctx: Context) -> None:
        """Raise StepError unless the other host's guest is proved off.

        One of these proves it:

        * The other host says that its guest is off.
        * A person has declared the other host down.
        * The other host is away, and this flow never asked it to start the guest.
        """
        never = never_started(ctx)
        if never and self.other(ctx) not in ctx.run.workers():
            return
        try:
            starting.prove_off(ctx, self.host(ctx), self.other(ctx))
        except StepError as error:
            if error.error_code == DECLARED_DOWN or (never and error.error_code == UNREACHABLE):
                return
            raise

    def owed_undo(self, ctx: Context) -> commands.StopGuest:
        """Ask only to leave the guest off: when the debt is paid, the server may run elsewhere."""
        return commands.StopGuest(grace=ctx.run.options.shutdown_timeout, restart=False)

    def _leave_off(self, ctx: Context) -> None:
        owed = self.owed_when_down and ctx.run.void(ctx.step, host=self.host(ctx))
        try:
            self.command(ctx, self.owed_undo(ctx))
        except StepError as error:
            if error.error_code != DECLARED_DOWN:
                raise
            if not owed:
                self.owe(ctx, self.owed_undo(ctx))


class ReleaseSource(HostStep):
    """Has the source disconnect interfaces and volumes."""

    action = "disconnect"
    where = Where.SOURCE
    does = "disconnect interfaces and volumes on the source"
    undoes = "connect them again"

    def details(self, ctx: Context) -> commands.Connections:
        """Name what is attached now, and what was attached before the move."""
        return to_disconnect(ctx)

    def undo_details(self, ctx: Context) -> commands.Connections:
        """Name what to connect again, by its present attachments: an undo may have made new ones.

        For a deleted server nothing is connected; the command only ends a disconnect that is still under way.
        """
        if is_deleted(ctx):
            return _NO_CONNECTIONS
        return commands.Connections(volumes=volume_refs(ctx), ports=port_refs(ctx))


class ReleaseDestination(ReleaseSource):
    """Revert: has the destination disconnect interfaces and volumes."""

    where = Where.DESTINATION
    owed_when_down = True
    does = "disconnect interfaces and volumes on the destination"


class ConnectDestination(HostStep):
    """Has the destination connect interfaces and volumes."""

    action = "connect"
    where = Where.DESTINATION
    does = "connect volumes and interfaces on the destination"
    undoes = "disconnect them"

    def details(self, ctx: Context) -> commands.Connections:
        """Name what to connect, by the new attachments."""
        return commands.Connections(volumes=volume_refs(ctx), ports=port_refs(ctx))

    def undo_details(self, ctx: Context) -> commands.Connections:
        """Name what is attached now, and what was attached before the move."""
        return to_disconnect(ctx)


class SetAside(HostStep):
    """Gives the server's directory on the source Nova's ``_resize`` name; its disks stay unchanged until confirm."""

    where = Where.SOURCE
    does = "set the source's disks aside"
    undoes = "put them back"


class FitDisks(HostStep):
    """Gives the copied disks the sizes of the new flavor."""

    where = Where.DESTINATION
    does = "grow root and ephemeral disks, make swap anew"
    no_undo = "undone with the copy that it changed"

    def details(self, ctx: Context) -> commands.FitDisks:
        """Name the sizes in bytes; a server that boots from a volume has no local root disk."""
        flavor = new_flavor(ctx)
        return commands.FitDisks(
            root_bytes=0 if before(ctx.move).boot_from_volume else flavor["root_gb"] * units.Gi,
            ephemeral_bytes=flavor["ephemeral_gb"] * units.Gi,
            swap_bytes=int(flavor["swap"] or 0) * units.Mi,
        )


class DefineGuest(HostStep):
    """Has the destination define the guest, marked with the move."""

    where = Where.DESTINATION
    does = "define the guest, marked with the move"
    undoes = "undefine it if it is off"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Define the guest, once the host has disconnected what was detached from the server meanwhile."""
        if not ctx.same_host:
            redefining.disconnect_gone(ctx, self.host(ctx))
        return super().perform(ctx)

    def details(self, ctx: Context) -> commands.DefineGuest:
        """Make the definition: the source's own, with the new sizes and what is attached now."""
        record, flavor = before(ctx.move), new_flavor(ctx)
        return commands.DefineGuest(
            definition=record.guest.definition,
            vcpus=flavor["vcpus"],
            memory_mb=flavor["memory_mb"],
            volumes=volume_refs(ctx),
            ports=port_refs(ctx),
            previous=record.guest.definition if ctx.same_host else "",
        )


class StartGuest(HostStep):
    """Starts the guest: the point of no return.

    Afterwards the guest has been started, or the host has proved that it never started the guest, or nobody knows.  The
    flow is undone only after such a proof.
    """

    where = Where.DESTINATION
    deadline = 120.0
    does = "start the guest"
    undoes = "leave it off, if the host proves that it never started; else stop for an operator"
    extra_actions = ("prepare_start",)
    starts = "execute"
    states = starting.FORWARD
    defined_by: ClassVar[str] = DefineGuest.step_name()
    """The step whose result says how often the guest had been started on the host before."""

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Start the guest, once its worker said that it is ready and the other host's guest was then proved off.

        The guest stays off if the server is being deleted or was stopped before the move.  No guest is started on a
        host that is declared down.  If an earlier run of this step may have started the guest on such a host, the flow
        goes on: the host is off, and the user's confirm or revert decides where the server is to be.
        """
        host, details = self.host(ctx), self.details(ctx)
        off = commands.StartGuest(power_on=False)
        if ctx.run.declared_down(host):
            return self._without_host(ctx)
        try:
            redefining.without_gone(ctx, host, self.redefine)
            if not details.power_on:
                starting.may_start(ctx, host, self.states)
                return self._send(ctx, off)
            sent = starting.permitted(
                ctx,
                host,
                self.states,
                lambda: self.prove_off(ctx),
                lambda permission: self._send(ctx, msgspec.structs.replace(details, permission=permission)),
            )
        except ServerDeleted:
            sent = None
        return self._send(ctx, off) if sent is None else sent

    def prove_off(self, ctx: Context) -> None:
        """Raise StepError unless the other host says that its guest is off, or a person has declared that host down."""
        starting.prove_off(ctx, self.host(ctx), self.other(ctx))

    def other(self, ctx: Context) -> str:
        """Name the host whose guest must be proved off before this one's is started."""
        return ctx.move.source_host

    def redefine(self, ctx: Context) -> None:
        """Define the guest, which is off, with what is attached by now."""
        redefining.on_destination(ctx, self.host(ctx), before(ctx.move).guest.definition)

    def _send(self, ctx: Context, details: commands.StartGuest) -> dict[str, Any]:
        try:
            return self.command(ctx, details)
        except StepError as error:
            if error.error_code == DECLARED_DOWN:
                return self._without_host(ctx)
            # The worker answers by the journal on its host.  If that journal was lost and the worker began a new one,
            # the new one does not know of a start.  So the host is asked whether the guest was ever started.
            if isinstance(error, DestinationFault) or error.error_code == "not-begun":
                starting.require_never_started(ctx, self.host(ctx), self.defined_by)
            raise

    def _without_host(self, ctx: Context) -> dict[str, Any]:
        host = self.host(ctx)
        if ctx.run.may_have_begun(ctx.step):
            return {"declared_down": host}
        tries = self.where is Where.RETURN or (self.where is Where.DESTINATION and not ctx.same_host)
        kind = DestinationFault if tries else StepError
        raise kind(f"host {host} is declared down, so no guest is started there", code="not-begun", host=host)

    def may_have_begun(self, ctx: Context) -> bool:
        """Tell whether the guest may have been started: not if `starting.require_never_started` finds no start."""
        try:
            starting.require_never_started(ctx, self.host(ctx), self.defined_by)
        except StepError:
            return super().may_have_begun(ctx)
        return False

    def undo(self, ctx: Context) -> None:
        """Leave the guest off, once the host shows that it never started the guest.

        The host is asked here because a flow that was cancelled at this step has not asked it yet.
        """
        if not ctx.run.declared_down(self.host(ctx)):
            starting.require_never_started(ctx, self.host(ctx), self.defined_by)
        super().undo(ctx)

    def details(self, ctx: Context) -> commands.StartGuest:
        """Say whether to start the guest: if the server was stopped, the guest stays off, but the step is done."""
        return commands.StartGuest(power_on=before(ctx.move).powered_on)


class PrepareSourceGuest(HostStep):
    """Revert: defines the source's guest as it was before the move, and connects its volumes and interfaces."""

    where = Where.SOURCE
    does = "define the guest as it was, connect volumes and interfaces"
    undoes = "disconnect them; on the same host, define the destination's guest again"

    needs = ("source_check",)

    def details(self, ctx: Context) -> commands.PrepareSourceGuest:
        """Name the definition that the guest had before the move, and what is attached now.

        If source and destination are one host, name the destination's definition too: an undo puts it back.
        """
        record = before(ctx.move)
        return commands.PrepareSourceGuest(
            definition=record.guest.definition,
            volumes=volume_refs(ctx),
            ports=port_refs(ctx),
            previous=ctx.inputs["source_check"]["destination"]["definition"] if ctx.same_host else "",
        )

    def undo_details(self, ctx: Context) -> commands.PrepareSourceGuest:
        """Name what to disconnect: what is attached now, and what was attached before the move.

        If source and destination are one host, the undo defines the destination's guest again: name only what is
        attached now, which that guest needs.
        """
        details = self.details(ctx)
        if ctx.same_host:
            return details
        held = to_disconnect(ctx)
        return msgspec.structs.replace(details, volumes=held.volumes, ports=held.ports)


class DiscardDestination(HostStep):
    """Revert: removes the guest and its disks from the destination."""

    destroys = True
    where = Where.DESTINATION
    extra_actions: ClassVar[tuple[str, ...]] = (RENAME,)
    owed_when_down = True
    does = "undefine the guest and delete its disks on the destination"
    no_undo = "past the point of no return"

    def perform(self, ctx: Context) -> dict[str, Any] | None:
        """Remove them once the source has shown the server's disks, now.

        A source that is declared down shows nothing: the copy is then renamed, and its removal is owed.  The result
        then has that source as ``after``.
        """
        source = ctx.return_host
        if not (ctx.same_host or is_deleted(ctx)):
            try:
                self._require_source(ctx)
            except StepError as error:
                if error.error_code != DECLARED_DOWN:
                    raise
                kept_copies.rename(ctx, self.host(ctx))
                self.owe(ctx, self.details(ctx), after=source)
                return {**OWED, "after": source}
        return super().perform(ctx)

    def _require_source(self, ctx: Context) -> None:
        source = ctx.return_host
        if not shows_disks(describe(ctx, source, part="source"), before(ctx.move)):
            raise StepError(
                f"host {source} does not hold the disks of server {ctx.move.server_name} whole, so the copy on "
                f"{ctx.destination.host} is not deleted: it may be the only one",
                code="last-copy",
                host=source,
            )

    def details(self, ctx: Context) -> commands.DiscardDestination:
        """Say whether both hosts share the directory.

        In a shared directory the destination's copy was renamed to make room for the server's own disks, and only that
        copy is deleted.
        """
        return commands.DiscardDestination(same_directory=same_directory(ctx))

    def perform_ended(self, ctx: Context) -> dict[str, Any]:
        """Delete what Nova's revert has left on the destination, once the source has shown its disks."""
        return clearing.discard_left_copy(ctx)
