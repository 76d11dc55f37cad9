"""Defines the steps on the rows of a move into another cell.

A hidden copy of the server's rows is made in the target's cell, shown, and then takes over when the mapping is switched
to it.  Each transaction writes one database.  Between `show_target` and `hide_source` both copies are visible, and the
mapping names a visible one at every instant.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final

from droveway.errors import DestinationFault, Evacuated
from droveway.flows.before import before
from droveway.flows.run import Context
from droveway.flows.stands import NOTHING, Between, Flavor, Leaves, Power, Side, Stands
from droveway.flows.step import Step
from droveway.flows.steps import attached, volumes
from droveway.flows.steps.records import forward, other_copy
from droveway.flows.steps.rows import (
    Place,
    Rows,
    api_rows,
    availability_zone,
    cell_rows,
    changed_flavors,
    claimed_rows,
    compute_node,
    fail_event,
    failure,
    holding_claim,
    reserved_on,
    source_place,
    switch,
)
from droveway.flows.steps.scheduling import check_group
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.journal import debts
from droveway.persistence.nova import actions, copies, evacuations, late_writes, mappings, usage
from droveway.persistence.nova.cells import FENCE_KEY, MOVE_KEY
from droveway.persistence.nova.vm_states import MOVABLE, MigrationStatus, PowerState, TaskState

AT_REST: Final = OneOf(tuple(MOVABLE))
"""The vm_states that a copy may have had before the move.

A user may have stopped the server after an administrator reset its state.  Nova writes `stopped` only into the mapped
copy, and the other copy may still say `active`.  So both values are accepted in either copy.
"""

SHOWN: Final = (False, None)
"""The values of `instances.hidden` in a visible copy."""

GOES: Final = {"here": False, "hidden": False, "power_state": Power.BEFORE}
"""What `Stands` says of a copy that was removed."""

COPIED: Final = tuple(
    field.name
    for field in dataclasses.fields(Stands)
    # Traces are not copied: the migration context has an id that is valid only in its own cell.
    if field.name not in (*GOES, "traces")
)
"""The fields of `Stands` that a new copy takes from the other one."""

_ARRIVED: Final = {
    "task_state": TaskState.RESIZE_FINISH,
    "side": Side.DESTINATION,
    "zone": Side.DESTINATION,
    "cur": Flavor.NEW,
    "old": Flavor.OLD,
}
_LEFT: Final = {
    "task_state": TaskState.RESIZE_MIGRATED,
    "side": Side.SOURCE,
    "zone": Side.SOURCE,
    "cur": Flavor.OLD,
    "old": None,
}


class CopyRecords(Step):
    """Copies all rows of the server into the target's cell, hidden, in one transaction."""

    does = "copy the server's rows into the other cell, hidden"
    undoes = "remove the copy"
    leaves = NOTHING
    between = Between(target=Leaves({"here": True, "hidden": True, "power_state": Power.OFF}, GOES), takes=COPIED)
    cell_debt = debts.REMOVE
    task: ClassVar[str] = TaskState.RESIZE_MIGRATED
    """The task_state of the hidden copy."""

    def place(self, ctx: Context) -> tuple[str | None, str | None]:
        """Name the host and node that the hidden copy has: those of the source."""
        return ctx.move.source_host, before(ctx.move).node

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Insert the copy, unless this move has made one already.

        Returns digests of the values that users may write.  A later `other_copy.carry` tells by them which of the two
        copies a user has changed since.
        """
        move, cells, target = ctx.move, ctx.run.cells, ctx.destination.cell
        if (why := ctx.run.owing_cells().get(target)) is not None:
            raise DestinationFault(
                f"cell {target} takes no copy of the server: {why}", code="cell-owes", host=ctx.destination.host
            )
        with cells.database(move.source_cell).read() as session:
            copy = copies.read(session, move.server)
        if ctx.cell == move.source_cell:
            with holding_claim(ctx, cells.database(target).write()) as session:
                found = other_copy.find(session, move.server, move.id)
                if found is not None:
                    other_copy.require_own(ctx, found, target)
                    # The source's rows may be newer than the copy; the digests have to be those of the copy.
                    copy = copies.read(session, move.server)
                else:
                    host, node = self.place(ctx)
                    copies.insert(
                        session,
                        copy,
                        host=host,
                        node=node,
                        task_state=self.task,
                        markers={FENCE_KEY: str(ctx.run.epoch), MOVE_KEY: move.id},
                    )
        return {other_copy.DIGESTS: late_writes.values(copy)}

    def undo(self, ctx: Context) -> None:
        """Remove the copy for good: for a soft-deleted row Nova's archiver would remove the server's mapping too."""
        other_copy.remove(ctx, ctx.destination.cell, ctx.move.source_cell, undo=True)

    def undo_evacuated(self, ctx: Context) -> None:
        """Remove the copy that the mapping does not name; the other one is Nova's."""
        other_copy.remove_evacuated(ctx)


class RecordDestination(forward.RecordDestination):
    """Names the destination in the source's cell, without ids, which are valid only in the target's cell."""

    def named(self, ctx: Context, rows: Rows) -> forward.Named:  # noqa: ARG002 - its node is in the other cell
        """Return the destination's address, and no compute_id: that is an id of the other cell."""
        with ctx.run.cells.database(ctx.destination.cell).read() as session:
            return forward.Named(None, compute_node(session, ctx.destination.host).host_ip)


class RecordDestinationCopy(Step):
    """Names the destination in the target's copy, with the ids of that cell, and counts the server there."""

    does = "name the destination in the copy"
    no_undo = "undone with the copy"
    leaves = NOTHING
    between = Between(target=Leaves({"new": Flavor.NEW, "traces": True}, names_alternate=True))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Check the server's group under the lock of the host's compute node, and write as `record_destination`."""
        reserved = reserved_on(ctx, ctx.destination.host)
        with cell_rows(ctx, ctx.destination.cell) as rows:
            check_group(ctx, rows.session)
            node = compute_node(rows.session, ctx.destination.host)
            forward.name_destination(ctx, rows, forward.Named(node.id, node.host_ip))
            usage.recompute(rows.session, ctx.destination.host, reserved=reserved)
        return {}


class HandOverSource(Step):
    """Compares the source's rows a last time before the copy is shown: they must say what this move left there."""

    does = "compare the source's rows, and let their migration say that the data has arrived"
    undoes = "let it say that the data is on its way"
    leaves = Leaves({"status": MigrationStatus.POST_MIGRATING}, {"status": MigrationStatus.MIGRATING})
    skipped_when_gone = True

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Set the source's migration to `post-migrating`; raises Conflict where somebody changed the rows."""
        attached.require_on(ctx, ctx.destination.host)
        with cell_rows(ctx, ctx.move.source_cell) as rows:
            require_at_source(ctx, rows)
            rows.change_status(MigrationStatus.MIGRATING, MigrationStatus.POST_MIGRATING)
            actions.close_event(rows.session, rows.action, forward.RESIZE_EVENT)
            actions.open_event(rows.session, rows.action, forward.FINISH_EVENT, ctx.destination.host)
        return {}

    def undo(self, ctx: Context) -> None:
        """Set the source's migration to `migrating` again."""
        fault = failure(ctx)
        with cell_rows(ctx, ctx.move.source_cell) as rows:
            rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.MIGRATING)
            fail_event(rows, forward.FINISH_EVENT, fault)


class ShowTarget(Step):
    """Completes the target's copy and makes it visible, in one transaction."""

    does = "let the copy name the destination, and show it"
    undoes = "hide it again, once what was written there was brought back"
    leaves = NOTHING
    between = Between(
        target=Leaves(
            {**_ARRIVED, "status": MigrationStatus.POST_MIGRATING, "hidden": False},
            {**_LEFT, "status": MigrationStatus.PRE_MIGRATING, "hidden": True},
        ),
        takes=("attachments",),
    )
    cell_debt = debts.HIDE

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the destination's host, flavor and zone, `resize_finish`, `post-migrating`, and what users wrote."""
        record, chosen = before(ctx.move), ctx.destination
        reserved = reserved_on(ctx, chosen.host)
        source = other_copy.read(ctx, ctx.move.source_cell)
        if source is None:
            volumes.name_moved(ctx)
        with claimed_rows(ctx, chosen.cell) as rows:
            carried = other_copy.complete(ctx, rows, source, cell=ctx.move.source_cell)
            if source is None:
                actions.close_event(rows.session, rows.action, forward.RESIZE_EVENT)
                actions.open_event(rows.session, rows.action, forward.FINISH_EVENT, chosen.host)
            switch(rows, record, hidden_place(ctx), target_place(ctx, rows), record.old_flavor, record.new_flavor)
            changed_flavors(rows, cur=record.new_flavor, old=record.old_flavor)
            rows.change(
                task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_FINISH), hidden=(OneOf((True, *SHOWN)), False)
            )
            rows.change_status(MigrationStatus.PRE_MIGRATING, MigrationStatus.POST_MIGRATING)
            usage.recompute(rows.session, chosen.host, reserved=reserved)
        return carried

    def undo(self, ctx: Context) -> None:
        """Hide the copy again, naming the source's host; first carry what users wrote in it to the source's copy."""
        record, chosen = before(ctx.move), ctx.destination
        reserved = reserved_on(ctx, chosen.host)
        other_copy.carry(ctx, chosen.cell, ctx.move.source_cell)
        with claimed_rows(ctx, chosen.cell) as rows:
            other_copy.pass_deletion_on(ctx, rows, ctx.move.source_cell)
            switch(rows, record, target_place(ctx, rows), hidden_place(ctx), record.new_flavor, record.old_flavor)
            changed_flavors(rows, cur=record.old_flavor, old=None)
            rows.change(
                task_state=(OneOf((TaskState.RESIZE_FINISH, TaskState.DELETING)), TaskState.RESIZE_MIGRATED),
                hidden=(OneOf((True, *SHOWN)), True),
            )
            rows.change_status(MigrationStatus.POST_MIGRATING, MigrationStatus.PRE_MIGRATING)
            usage.recompute(rows.session, chosen.host, reserved=reserved)


class SwitchMapping(Step):
    """Maps the server to the other cell, in which it lives from then on."""

    back: ClassVar[bool] = False
    """Whether the step maps the server back to the source's cell, even a server that is being deleted."""
    does = "map the server to the other cell"
    undoes = "map it to its own cell again"
    leaves = Leaves(_ARRIVED, _LEFT)
    between = Between(maps=(Side.DESTINATION, Side.SOURCE))

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the mapping in the API database; raises Evacuated where Nova has evacuated the server."""
        if why := ctx.run.evacuated(ctx):
            raise Evacuated(why)
        with api_rows(ctx) as session:
            mappings.switch(session, ctx.move.server, *_from_to(ctx, back=self.back), deleting=self.back)
        return {}

    def undo(self, ctx: Context) -> None:
        """Write the old mapping back."""
        with api_rows(ctx) as session:
            mappings.switch(session, ctx.move.server, *_from_to(ctx, back=not self.back), deleting=True)


class CarryLateWrites(Step):
    """Carries over what users wrote in the source's copy after this move had read it.

    A request that read the mapping before the switch may still write there.
    """

    back: ClassVar[bool] = False
    """Whether the server goes back into the source's cell."""
    does = "bring what users wrote late in the source's cell over to the target's"
    undoes = "bring what they wrote in the target's back"
    leaves = NOTHING

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Carry what users wrote only in the copy that the server has left into the copy that took over."""
        return other_copy.carry(ctx, *_from_to(ctx, back=self.back))

    def undo(self, ctx: Context) -> dict[str, Any] | None:
        """Carry what users wrote the other way.

        Returns a result, for the history, only if the copy could not be read.
        """
        carried = other_copy.carry(ctx, *_from_to(ctx, back=not self.back))
        return carried if other_copy.UNREAD in carried else None


class HideSource(Step):
    """Hides the source's copy, which then names no host of its own cell, so that no nova-compute there acts on it."""

    does = "hide the source's rows"
    undoes = "show them again"
    leaves = NOTHING
    debt_when_gone = debts.HIDE
    between = Between(
        source=Leaves(
            {"side": Side.DESTINATION, "old": Flavor.OLD, "hidden": True},
            {"side": Side.SOURCE, "old": None, "hidden": False},
        )
    )

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Hide the copy, and let it name the destination's host.

        It also sets flavor.old, so that Nova still counts the server's usage on the source host.

        If the cell owed this step, `hand_over_source` may have been left out too, since the same cell was away.  Then
        the migration status that `hand_over_source` writes is written here.
        """
        record = before(ctx.move)
        reserved = reserved_on(ctx)
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            if ctx.must_go_on and rows.migration.status == MigrationStatus.MIGRATING:
                rows.change_status(MigrationStatus.MIGRATING, MigrationStatus.POST_MIGRATING)
                actions.close_event(rows.session, rows.action, forward.RESIZE_EVENT)
            hide_source(ctx, rows)
            changed_flavors(rows, old=record.old_flavor)
            other_copy.forget_consoles(rows)
            usage.recompute(rows.session, ctx.move.source_host, reserved=reserved)
        return {}

    def undo(self, ctx: Context) -> None:
        """Show the copy again, on the source; leave it alone where Nova has evacuated the server meanwhile."""
        reserved = reserved_on(ctx)
        with claimed_rows(ctx, ctx.move.source_cell) as rows:
            if evacuations.of_move(rows.session, rows.move, rows.instance.task_state)[1]:
                return
            show_source(ctx, rows)
            changed_flavors(rows, old=None)
            usage.recompute(rows.session, ctx.move.source_host, reserved=reserved)


class FinishSourceRecords(Step):
    """Closes the move's events in the source's copy too, and carries over what users wrote there late."""

    does = "close the move's events in the source's cell, and bring over what users wrote there late"
    no_undo = "past the point of no return"
    leaves = NOTHING
    cell_debt = debts.CLOSE_EVENTS

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Close the open event; where a late request deletes the server there, the mapped copy is deleted too."""
        carried = other_copy.carry(ctx, ctx.move.source_cell, ctx.destination.cell)
        with cell_rows(ctx, ctx.move.source_cell) as rows:
            other_copy.take_deletion_over(ctx, rows, ctx.destination.cell)
            actions.close_event(rows.session, rows.action, forward.FINISH_EVENT)
        return carried


class FinishRecords(forward.FinishRecords):
    """Finishes the target's rows.

    If the target's cell is declared down, the cell owes this step.  The server may then be brought back to the source's
    cell with ``droveway move revert``.
    """

    debt_when_gone = debts.FINISH

    def expected_vm_state(self, ctx: Context) -> Any:  # noqa: ARG002 - the same for every server
        """Return the vm_states that the copy may have: the user may have stopped the server since the copy was made."""
        return AT_REST

    def perform(self, ctx: Context) -> dict[str, Any]:
        """Write the target's rows; raises where that cell is gone, so that the source's copy is not written instead."""
        ctx.run.cells.database(ctx.destination.cell)
        return super().perform(ctx)


def _from_to(ctx: Context, *, back: bool) -> tuple[str, str]:
    """Name the cell that the server leaves and the one that it goes to."""
    cells = (ctx.move.source_cell, ctx.destination.cell)
    return cells[::-1] if back else cells


def require_at_source(ctx: Context, rows: Rows) -> None:
    """Raise Conflict unless the source's rows are as this move left them: on its host, off, `resize_migrated`."""
    source = ctx.move.source_host
    rows.change(
        host=(source, source),
        task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_MIGRATED),
        power_state=(PowerState.SHUTDOWN, PowerState.SHUTDOWN),
    )


def hide_source(ctx: Context, rows: Rows) -> None:
    """Hide the source's rows, and let them name the destination, which is a host of the other cell."""
    place, chosen = own_place(ctx, rows), ctx.destination
    rows.change(
        host=(place.host, chosen.host),
        node=(place.node, chosen.node),
        compute_id=(place.compute_id, None),
        availability_zone=(OneOf((rows.instance.availability_zone,)), before(ctx.move).availability_zone),
        task_state=(TaskState.RESIZE_MIGRATED, TaskState.RESIZE_MIGRATED),
        power_state=(PowerState.SHUTDOWN, PowerState.SHUTDOWN),
        hidden=(OneOf((True, *SHOWN)), True),
    )


def show_source(ctx: Context, rows: Rows) -> None:
    """Show the source's rows again, on the source or on the host in its place."""
    place, chosen = own_place(ctx, rows), ctx.destination
    rows.change(
        host=(chosen.host, place.host),
        node=(chosen.node, place.node),
        compute_id=(None, place.compute_id),
        availability_zone=(OneOf((rows.instance.availability_zone,)), place.zone),
        hidden=(OneOf((True, *SHOWN)), False),
    )


def own_place(ctx: Context, rows: Rows) -> Place:
    """Return where the server is in the source's cell: on its source, or on the host that takes the source's place."""
    if ctx.returning is None:
        return source_place(ctx, before(ctx.move))
    host, node = ctx.returning.host, ctx.returning.node
    return Place(host, node, compute_node(rows.session, host).id, availability_zone(ctx, host))


def hidden_place(ctx: Context) -> Place:
    """Return the place that the hidden copy in the target's cell names: the source's, without compute_id."""
    record = before(ctx.move)
    node = record.node if ctx.returning is None else ctx.returning.node
    return Place(ctx.return_host, node, None, record.availability_zone)


def target_place(ctx: Context, rows: Rows) -> Place:
    """Return the place that the visible copy in the target's cell names: the destination."""
    chosen = ctx.destination
    node = compute_node(rows.session, chosen.host)
    return Place(chosen.host, chosen.node, node.id, availability_zone(ctx, chosen.host))
