"""Defines the steps of a forward flow that write the journal, the cell or the API database.

Each step writes one database, in one transaction.
"""

from __future__ import annotations

import platform
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from droveway.errors import StepError
from droveway.flows.before import Before, ImageBefore, PortBefore, VolumeBefore, as_json, before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING, Flavor, Leaves, Power, Side, Vm
from droveway.flows.step import Step
from droveway.flows.steps import overtaken
from droveway.flows.steps.records import leaving
from droveway.flows.steps.rows import (
    Place,
    Rows,
    api_rows,
    availability_zone,
    begin_action,
    cell_rows,
    changed_flavors,
    compute_node,
    fail_action,
    fail_event,
    failure,
    new_migration,
    power_state,
    request_spec_after,
    reserved_on,
    same_or_encoded,
    source_place,
    switch,
    task,
)
from droveway.flows.steps.scheduling import check_group
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.tables import MoveAttempt
from droveway.persistence.nova import actions, evacuations, objects, servers, usage
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.vm_states import MOVABLE, MigrationStatus, PowerState, TaskState, VmState
from droveway.persistence.times import to_json, utcnow
from droveway.wire.commands import GuestState, NoDetails

_TRIED: Final = sa.select(MoveAttempt.host, MoveAttempt.node).where(MoveAttempt.move_id == sa.bindparam("move"))
_NODES: Final = sa.select(ComputeNode.id).where(ComputeNode.host.in_(sa.bindparam("hosts", expanding=True)))

_ACCEPTED: Final = OneOf((TaskState.RESIZE_MIGRATED, TaskState.RESIZE_PREP))
"""The task_states of an accepted move; an earlier release wrote `resize_prep`, as nova-api does."""

CONDUCTOR_EVENTS = ("conductor_migrate_server", "cold_migrate")
PREP_EVENT = "compute_prep_resize"
RESIZE_EVENT = "compute_resize_instance"
FINISH_EVENT = "compute_finish_resize"


class RecordBefore(Step):
    """Records what revert and the undos need, before anything is touched; the guest is read from its host."""

    does = "record the server as it is now"
    no_undo = "only the journal's own record, which is kept as evidence"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write `moves.before`, unless it is written already."""
        if ctx.move.before is None:
            overtaken.require_record(ctx, lost="what the server was before the move")
            record = self._read(ctx)
            with ctx.run.write() as session:
                moves.get(session, ctx.move.id, lock=True).before = as_json(record)
        return {}

    def _read(self, ctx: Context) -> Before:
        move, run = ctx.move, ctx.run
        image = self.image(ctx)
        guest = self.guest(ctx, image)
        with run.api.read() as session:
            spec = servers.request_spec(session, move.server).spec or ""
            wanted = servers.flavor(session, move.new_flavor) if kinds.of(move.kind).changes_flavor else None
        ports = [
            PortBefore(
                port=port.id,
                mac=port.mac,
                profile=port.profile,
                device_owner=port.device_owner,
                resources=port.resources,
            )
            for port in run.cloud.network.listed_ports(move.server)
        ]
        with run.cells.database(ctx.cell).read() as session:
            row = servers.live(session, move.server)
            flavor = servers.flavors(servers.extra_row(session, move.server))["cur"]
            volumes = [
                VolumeBefore(volume=each.volume, attachment=each.attachment, device=each.device, boot=each.boot)
                for each in servers.attached(session, move.server) or ()
            ]
            return Before(
                user_id=row.user_id or "",
                project_id=row.project_id or "",
                vm_state=row.vm_state or "",
                power_state=row.power_state,
                availability_zone=row.availability_zone,
                node=row.node or "",
                compute_id=row.compute_id,
                image_ref=row.image_ref or "",
                boot_from_volume=any(volume.boot for volume in volumes),
                launched_at=to_json(row.launched_at),
                old_flavor=flavor,
                new_flavor=wanted or flavor,
                request_spec=spec,
                volumes=volumes,
                ports=ports,
                guest=guest,
                last_migration=evacuations.last_migration(session, move.server),
                image=image,
            )

    def guest(self, ctx: Context, image: ImageBefore | None) -> GuestState:  # noqa: ARG002 - an unshelve needs it
        """Ask the source for the guest."""
        found = ctx.command(ctx.move.source_host, "describe_guest", NoDetails(), deadline=self.deadline)
        return msgspec.convert(found, type=GuestState)

    def image(self, ctx: Context) -> ImageBefore | None:  # noqa: ARG002 - only a shelved server has one
        """Return the image that holds the server's data; None for a server that is on a host."""
        return None


class Accept(Step):
    """Shows the move in Nova's rows."""

    does = "mark the server as being moved"
    undoes = "clear the mark; the action ends with Error"
    leaves = Leaves({"task_state": TaskState.RESIZE_MIGRATED}, {"task_state": None})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Change task_state from NULL to `resize_migrated`, and begin action and events, as Nova's `API.resize`.

        A nova-compute that restarts clears Nova's own first state, `resize_prep`, and leaves this one alone.  What
        `record_before` found must still hold now that others see the move; raises `droveway.errors.Conflict` or
        StepError when somebody changed the server in between.
        """
        record = before(ctx.move)
        with cell_rows(ctx) as rows:
            if rows.found_migration is not None:
                # A later step has inserted the migration already: the journal was put back and does not know it.
                return {}
            require_recorded(rows, record)
            rows.change(
                host=(ctx.move.source_host, ctx.move.source_host),
                vm_state=(record.vm_state, record.vm_state),
                task_state=(OneOf((None, TaskState.RESIZE_PREP)), TaskState.RESIZE_MIGRATED),
                progress=(OneOf((None, 0)), 0),
            )
            if record.image_ref:
                servers.set_system_metadata(rows.session, ctx.move.server, "image_base_image_ref", record.image_ref)
            begin_action(rows, record, ctx.move.kind)
            actions.turn(rows.session, rows.action, begun=CONDUCTOR_EVENTS, host=platform.node())
        require_ports(ctx, record)
        return {}

    def undo(self, ctx: Context) -> None:
        """Change task_state back to NULL."""
        fault = failure(ctx)
        with cell_rows(ctx) as rows:
            if fail_action(rows, fault):
                rows.change(task_state=task(rows, _ACCEPTED, None))

    def undo_evacuated(self, ctx: Context) -> None:
        """End the move's own migration and action with error, and remove its traces; the other rows are Nova's."""
        run = ctx.run
        leaving.close_rows(run.cells, ctx.cell, run.cloud.placement, ctx.move, run.asked_as, run.epoch)


def require_ports(ctx: Context, record: Before) -> None:
    """Raise StepError (``changed``) when the server has a port that `record_before` did not find.

    It is called once the task_state is written: from then on Nova attaches no port.
    """
    known = {port.port for port in record.ports}
    for port in ctx.run.cloud.network.listed_ports(ctx.move.server):
        if port.id not in known:
            raise _changed(ctx.move.server, f"port {port.id} was attached")


def require_recorded(rows: Rows, record: Before) -> None:
    """Raise StepError (``changed``) unless the server's volumes are those that `record_before` found."""
    attached = servers.attached(rows.session.connection(), rows.instance.uuid) or ()
    found = {(each.volume, each.attachment) for each in attached}
    if found != {(volume.volume, volume.attachment) for volume in record.volumes}:
        raise _changed(rows.instance.uuid, "its volumes were changed")


def _changed(server: str, what: str) -> StepError:
    return StepError(
        f"{what} while the move of server {server} began: nothing was touched, so ask for the move again",
        code="changed",
    )


class RecordMigration(Step):
    """Inserts the migration row whose uuid is the move's."""

    does = "record the migration"
    undoes = "mark it failed; it stays as evidence"
    leaves = Leaves({"status": MigrationStatus.PRE_MIGRATING}, {"status": MigrationStatus.ERROR})

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Insert the row as `pre-migrating`, as Nova's `MigrationTask._preallocate_migration` does."""
        record, move = before(ctx.move), ctx.move
        with cell_rows(ctx) as rows:
            if rows.found_migration is None:
                # Before this row is there, only `instances.host` shows that Nova has evacuated the server.
                rows.change(host=(move.source_host, move.source_host))
                rows.session.add(new_migration(move, record, MigrationStatus.PRE_MIGRATING))
        return {}

    def undo(self, ctx: Context) -> None:
        """Set the migration to `error`."""
        reserved = reserved_on(ctx)
        with cell_rows(ctx) as rows:
            row = servers.migration(rows.session, ctx.move.id)
            if row is not None:
                compare_and_swap(rows.session, row, status=(MigrationStatus.PRE_MIGRATING, MigrationStatus.ERROR))
                usage.recompute(rows.session, row.source_compute, row.dest_compute, reserved=reserved)


class Named(NamedTuple):
    """Holds the values that are written when a cell's rows name a destination (`name_destination`), except its name."""

    compute_id: int | None
    """The id of its compute node; None in another cell than its own."""
    address: str | None


class RecordDestination(Step):
    """Names the destination and the new flavor in the cell (the rows of Nova's `resize_claim`)."""

    does = "name the destination in the server's rows"
    undoes = "take the name back; the migration keeps it as evidence"
    leaves = Leaves(
        {"new": Flavor.NEW, "traces": True},
        {"new": None, "traces": False},
        names_alternate=True,
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the dest columns, flavor.new, old_vm_state, migration context and the destination's usage.

        Before that the server's group is checked again, as Nova's `prep_resize` does: the next move to this host counts
        the rows that are written here.  Raises DestinationFault where the group's policy forbids the host by now.
        """
        chosen = ctx.destination
        reserved = reserved_on(ctx, chosen.host)
        with cell_rows(ctx) as rows:
            name_destination(ctx, rows, self.named(ctx, rows))
            usage.recompute(rows.session, chosen.host, reserved=reserved)
            actions.turn(rows.session, rows.action, over=CONDUCTOR_EVENTS, begun=[PREP_EVENT], host=chosen.host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Take back all that was written but the migration's dest columns."""
        fault = failure(ctx)
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            cleared = objects.change_server_flavors(servers.flavors(rows.extra), {"new": None})
            compare_and_swap(
                rows.session,
                rows.extra,
                flavor=(OneOf((rows.extra.flavor,)), same_or_encoded(rows.extra.flavor, cleared)),
                migration_context=(OneOf((rows.extra.migration_context,)), None),
            )
            servers.set_system_metadata(rows.session, ctx.move.server, "old_vm_state", None)
            if ctx.crosses_cells:
                compare_and_swap(rows.session, rows.migration, cross_cell_move=(True, False))
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
            fail_event(rows, PREP_EVENT, fault)

    def named(self, ctx: Context, rows: Rows) -> Named:
        """Return what the rows are to say of the destination; raises DestinationFault if the group forbids it."""
        check_group(ctx, rows.session)
        node = compute_node(rows.session, ctx.destination.host)
        return Named(node.id, node.host_ip)


def name_destination(ctx: Context, rows: Rows, named: Named) -> None:
    """Write the dest columns, flavor.new, old_vm_state and the migration context."""
    record, chosen = before(ctx.move), ctx.destination
    migration, earlier = rows.migration, _earlier(ctx, rows)
    compare_and_swap(
        rows.session,
        migration,
        dest_compute=(earlier["host"], chosen.host),
        dest_node=(earlier["node"], chosen.node),
        dest_compute_id=(earlier["id"], named.compute_id),
        dest_host=(OneOf((migration.dest_host,)), named.address),
        cross_cell_move=(OneOf((False, None)), ctx.crosses_cells),
    )
    present = servers.flavors(rows.extra)
    changed = objects.change_server_flavors(present, {"new": record.new_flavor})
    context = objects.migration_context(ctx.move.server, migration.id)
    compare_and_swap(
        rows.session,
        rows.extra,
        flavor=(OneOf((rows.extra.flavor,)), same_or_encoded(rows.extra.flavor, changed)),
        migration_context=(None, same_or_encoded(rows.extra.migration_context, context)),
    )
    servers.set_system_metadata(rows.session, ctx.move.server, "old_vm_state", record.vm_state)


def _earlier(ctx: Context, rows: Rows) -> dict[str, OneOf]:
    """Return what the dest columns may hold: NULL, or an alternate that was tried before, with its id in this cell."""
    with ctx.run.journal.read() as session:
        tried = session.execute(_TRIED, {"move": ctx.move.id}).all()
    known = tuple(rows.session.scalars(_NODES, {"hosts": [row.host for row in tried]}))
    return {
        "host": OneOf((None, *(row.host for row in tried))),
        "node": OneOf((None, *(row.node for row in tried))),
        "id": OneOf((None, *known)),
    }


_FINISHING: Final = ("connect_destination", "define_guest")
"""The steps that belong to Nova's `finish_resize`, but run before the step that opens its event."""


class MarkMigrating(Step):
    """Says in Nova's rows that the guest is off, before it is: else a nova-compute that restarts would start it."""

    does = "mark the guest as about to be shut down"
    undoes = "mark the migration as preparing again"
    leaves = Leaves(
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.MIGRATING,
            "power_state": Power.OFF,
        },
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.PRE_MIGRATING,
            "power_state": Power.BEFORE,
        },
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write status `migrating` and power_state 4: a nova-compute that resumes guests on boot leaves it off.

        A flow that an earlier release began may still stand at `resize_prep`.
        """
        with cell_rows(ctx) as rows:
            rows.change_status(MigrationStatus.PRE_MIGRATING, MigrationStatus.MIGRATING)
            rows.change(
                task_state=(_ACCEPTED, TaskState.RESIZE_MIGRATED),
                power_state=(OneOf((rows.instance.power_state,)), PowerState.SHUTDOWN),
            )
            host = ctx.move.source_host
            actions.turn(rows.session, rows.action, over=[PREP_EVENT], begun=[RESIZE_EVENT], host=host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write status `pre-migrating`, and power_state and vm_state as recorded before the move.

        An administrator may have reset the server's state during the move, and its user may then have stopped the
        server.  Such a server counts as stopped before the move.  In a move between cells Nova wrote `stopped` only
        into the copy in the target's cell.  So this undo writes the recorded vm_state into the source's copy.
        """
        fault, record = failure(ctx), before(ctx.move)
        with cell_rows(ctx) as rows:
            if rows.instance.vm_state in MOVABLE:
                rows.change(vm_state=(rows.instance.vm_state, record.vm_state))
            rows.change_status(MigrationStatus.MIGRATING, MigrationStatus.PRE_MIGRATING)
            rows.change(
                task_state=task(rows, _ACCEPTED, TaskState.RESIZE_MIGRATED),
                power_state=(OneOf((rows.instance.power_state,)), record.power_state),
            )
            if fault is not None and fault.step in _FINISHING:
                # All went well on the source: the destination's part failed, whose event is not open yet.
                if actions.close_event(rows.session, rows.action, RESIZE_EVENT):
                    actions.open_event(rows.session, rows.action, FINISH_EVENT, ctx.destination.host)
                fail_event(rows, FINISH_EVENT, fault)
            else:
                fail_event(rows, RESIZE_EVENT, fault)


class SwitchRecords(Step):
    """Lets the server's rows name the destination: host, flavor, zone and swap disk in one transaction."""

    does = "let the server's rows name the destination"
    undoes = "let them name the source again"
    leaves = Leaves(
        {
            "task_state": TaskState.RESIZE_FINISH,
            "status": MigrationStatus.POST_MIGRATING,
            "side": Side.DESTINATION,
            "zone": Side.DESTINATION,
            "cur": Flavor.NEW,
            "old": Flavor.OLD,
        },
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.MIGRATING,
            "side": Side.SOURCE,
            "zone": Side.SOURCE,
            "cur": Flavor.OLD,
            "old": None,
        },
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write host, node and flavor of the destination, `post-migrating` and `resize_finish`."""
        record, chosen = before(ctx.move), ctx.destination
        reserved = reserved_on(ctx, chosen.host)
        with cell_rows(ctx) as rows:
            node = compute_node(rows.session, chosen.host)
            place = Place(chosen.host, chosen.node, node.id, availability_zone(ctx, chosen.host))
            switch(rows, record, source_place(ctx, record), place, record.old_flavor, record.new_flavor)
            changed_flavors(rows, cur=record.new_flavor, old=record.old_flavor)
            rows.change(task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_FINISH))
            rows.change_status(MigrationStatus.MIGRATING, MigrationStatus.POST_MIGRATING)
            usage.recompute(rows.session, ctx.move.source_host, chosen.host, reserved=reserved)
            actions.turn(rows.session, rows.action, over=[RESIZE_EVENT], begun=[FINISH_EVENT], host=chosen.host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write the source's host, node, flavor and zone back, with status `migrating` and `resize_migrated`."""
        record, chosen = before(ctx.move), ctx.destination
        fault = failure(ctx)
        reserved = reserved_on(ctx, chosen.host)
        with cell_rows(ctx) as rows:
            node = compute_node(rows.session, chosen.host)
            place = Place(chosen.host, chosen.node, node.id, availability_zone(ctx, chosen.host))
            switch(rows, record, place, source_place(ctx, record), record.new_flavor, record.old_flavor)
            changed_flavors(rows, cur=record.old_flavor, old=None)
            rows.change(task_state=task(rows, TaskState.RESIZE_FINISH, TaskState.RESIZE_MIGRATED))
            rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.MIGRATING)
            usage.recompute(rows.session, ctx.move.source_host, chosen.host, reserved=reserved)
            fail_event(rows, FINISH_EVENT, fault)


class SaveRequestSpec(Step):
    """Saves the new flavor in the request spec, from which Nova schedules the server next."""

    does = "save the new flavor in the request spec"
    no_undo = "past the point of no return"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write request_specs.spec with the new flavor and the rest unchanged, as Nova's conductor does."""
        with api_rows(ctx) as session:
            row = servers.request_spec(session, ctx.move.server)
            compare_and_swap(session, row, spec=(before(ctx.move).request_spec, request_spec_after(ctx)))
        return {}


class FinishRecords(Step):
    """Puts the server into VERIFY_RESIZE, where it waits for confirm or revert."""

    does = "let the server wait for confirm or revert"
    no_undo = "past the point of no return"
    leaves = Leaves(
        {
            "task_state": None,
            "vm_state": Vm.RESIZED,
            "status": MigrationStatus.FINISHED,
            "power_state": Power.AGAIN,
        }
    )

    def expected_vm_state(self, ctx: Context) -> Any:
        """Return what the server's vm_state has to be before this step."""
        return before(ctx.move).vm_state

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write status `finished`, vm_state `resized`, task_state NULL, and power_state by whether the guest runs."""
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx) as rows:
            rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.FINISHED)
            if rows.instance.vm_state != VmState.RESIZED:
                rows.change(
                    vm_state=(self.expected_vm_state(ctx), VmState.RESIZED),
                    task_state=task(rows, TaskState.RESIZE_FINISH, None),
                    power_state=(OneOf((rows.instance.power_state,)), power_state(before(ctx.move))),
                    launched_at=(OneOf((rows.instance.launched_at,)), utcnow()),
                )
            usage.recompute(rows.session, ctx.move.source_host, ctx.destination.host, reserved=reserved)
            actions.close_event(rows.session, rows.action, FINISH_EVENT)
        return {}
