"""Holds what the steps on a server's rows share: fenced transactions, and changes of its host and flavor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa

from droveway.errors import Cancelled, DestinationFault, Evacuated, ServerDeleted
from droveway.flows import evacuation
from droveway.flows.before import Before, before
from droveway.flows.run import Context, Run
from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.database import absence
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import actions, evacuations, faults, objects, servers, swap_devices, usage
from droveway.persistence.nova.cell import Instance, Migration
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.vm_states import PowerState, TaskState
from droveway.scheduler.hosts import zone_of
from droveway.wire.values import LONGEST_ERROR

if TYPE_CHECKING:
    from sqlalchemy import orm


_NODE: Final = sa.select(ComputeNode.id, ComputeNode.uuid, ComputeNode.hypervisor_hostname, ComputeNode.host_ip).where(
    ComputeNode.host == sa.bindparam("host"), ComputeNode.deleted == 0
)
_NODE_LOCKED: Final = _NODE.with_for_update()
_HOST: Final = sa.select(Instance.host).where(Instance.uuid == sa.bindparam("server"), Instance.deleted == 0)
_MIGRATION_HOSTS: Final = sa.select(Migration.source_compute, Migration.dest_compute).where(
    Migration.uuid == sa.bindparam("move"), Migration.deleted == 0
)
_NODE_IDS: Final = sa.select(ComputeNode.host, ComputeNode.uuid).where(
    ComputeNode.host.in_(sa.bindparam("hosts", expanding=True)), ComputeNode.deleted == 0
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Holds the rows of the move's server inside one fenced cell transaction."""

    session: orm.Session
    instance: servers.ServerColumns
    action: actions.ActionRef
    move: str
    found_migration: servers.MigrationColumns | None = None
    """The move's migration, as `cell_rows` has read it.

    None in an undo, for which `cell_rows` reads none, and in a move that has no migration, or none yet.
    """

    @functools.cached_property
    def extra(self) -> servers.ExtraColumns:
        """Return the server's instance_extra row."""
        return servers.extra_columns(self.session, self.instance.uuid)

    @functools.cached_property
    def migration(self) -> servers.MigrationColumns:
        """Return the move's migration row; raises NotFound."""
        return self.found_migration or servers.migration_columns(self.session, self.move)

    def change(self, **columns: tuple[Any, Any]) -> None:
        """Compare and swap columns of the server's row in `instances`: column=(old, new); raises Conflict."""
        compare_and_swap(self.session, self.instance, **columns)

    def change_status(self, old: str, new: str) -> None:
        """Compare and swap the status of the move's migration; raises Conflict."""
        compare_and_swap(self.session, self.migration, status=(old, new))


@contextlib.contextmanager
def cell_rows(ctx: Context, cell: str = "") -> Iterator[Rows]:
    """Open one fenced transaction on the server's rows.

    The rows are those of the cell that the server lives in, or of ``cell``, where a move between cells writes the other
    copy.

    Raises Evacuated when Nova has evacuated the server, but not in an undo.  Raises ServerDeleted when the server is
    gone.  While somebody deletes the server, a step of a forward flow up to the point of no return raises ServerDeleted
    too.  An undo, a later step, a confirm and a revert write all the same: the delete waits for them.
    """
    move = ctx.move
    deleting = ctx.must_go_on or not kinds.of(ctx.run.kind).needs_live_server
    other = cell not in ("", ctx.cell)
    with ctx.run.cells.transaction(cell or ctx.cell, move.server, ctx.run.epoch, other=other) as session:
        action = actions.ActionRef(move.server, request_id(ctx))
        instance = servers.live_columns(session, move.server, deleting=deleting)
        migration, evacuated = None, False
        if not kinds.of(ctx.run.kind).has_migration:
            evacuated = ctx.direction == "execute" and evacuation.has_come(ctx, session, instance.task_state)
        elif ctx.direction == "execute":
            migration, evacuated = evacuations.of_move(session, move.id, instance.task_state)
        if evacuated:
            raise Evacuated(
                evacuation.sentence(move.server_name, instance.host, instance.task_state, "so its rows stay")
            )
        yield Rows(session, instance, action, move.id, migration)


_KEPT: Final[weakref.WeakKeyDictionary[Run, dict[str, usage.Usage]]] = weakref.WeakKeyDictionary()
"""Run → host → what the host reserves for itself, as Placement said when the run first asked."""


def reserved_on(ctx: Context, *hosts: str) -> dict[str, usage.Usage]:
    """Return what these hosts and those of the migration reserve for themselves, by their inventories in Placement.

    Placement is asked before any row is locked, and once in each run.
    """
    run, move = ctx.run, ctx.move
    known = _KEPT.setdefault(run, {})
    with run.cells.database(ctx.cell).reading() as connection:
        named = {move.source_host, move.dest_host, *hosts}
        named.update(*connection.execute(_MIGRATION_HOSTS, {"move": move.id}))
    wanted = {host for host in named if host} - known.keys()
    nodes, outage = _nodes(run, wanted) if wanted else ({}, None)
    for host in wanted:
        node = nodes.get(host)
        if node is not None:
            known[host] = usage.reserved_of(run.cloud.placement.provider_inventories(node))
        elif outage is None:
            known[host] = usage.NOTHING
    return known if outage is None else _Lacking(known, outage)


class _Lacking(dict[str, usage.Usage]):
    """Holds what hosts reserve for themselves while a cell is away, whose hosts are not known."""

    def __init__(self, known: dict[str, usage.Usage], outage: Exception) -> None:
        super().__init__(known)
        self._outage = outage

    def get(self, host: str, default: Any = None) -> Any:
        """Raise the cell's outage for a host that is not known."""
        if host not in self:
            raise self._outage
        return super().get(host, default)


def _nodes(run: Run, hosts: set[str]) -> tuple[dict[str, str], Exception | None]:
    """Return the uuids of the hosts' compute nodes in both cells of the move, and the outage of a cell that is away."""
    found: dict[str, str] = {}
    outage: Exception | None = None
    for cell in {run.row.source_cell, run.row.dest_cell or run.row.source_cell}:
        try:
            with run.cells.database(cell).read() as session:
                found |= {each.host: each.uuid for each in session.execute(_NODE_IDS, {"hosts": list(hosts)})}
        except Exception as error:
            if absence(error) is None:
                raise
            outage = error
    return found, outage


def task(rows: Rows, old: str | OneOf | None, new: str | None) -> tuple[str | OneOf | None, str | None]:
    """Return the change of task_state for `compare_and_swap`; `deleting`, which a delete wrote, stays."""
    deleting = rows.instance.task_state == TaskState.DELETING
    return (TaskState.DELETING, TaskState.DELETING) if deleting else (old, new)


def power_state(record: Before) -> int:
    """Return the power_state of a server that the move has started again: shut down if it was stopped, else running."""
    return PowerState.RUNNING if record.powered_on else PowerState.SHUTDOWN


def is_deleted(ctx: Context) -> bool:
    """Tell whether the server is deleted; in a forward flow, a server that is being deleted counts as deleted.

    An undo gives nothing back to a deleted server, such as a volume or a port.
    """
    with ctx.run.cells.database(ctx.cell).reading() as connection:
        return servers.is_deleted_or_deleting(
            connection, ctx.move.server, deleting=not kinds.of(ctx.run.kind).needs_live_server
        )


def lives_on(ctx: Context, host: str) -> bool:
    """Tell whether the server's rows name the host as the one that it lives on."""
    with ctx.run.cells.database(ctx.cell).reading() as connection:
        return connection.scalar(_HOST, {"server": ctx.move.server}) == host


def request_id(ctx: Context) -> str:
    """Return the request id of the flow's instance action; a flow that continues another one has the same."""
    return f"req-{ctx.run.asked_as}"


def begin_action(rows: Rows, record: Before, name: str) -> None:
    """Insert the instance action of the flow."""
    actions.begin(rows.session, rows.action, name, user_id=record.user_id, project_id=record.project_id)


def failure(ctx: Context) -> faults.Fault | None:
    """Return why the flow is being undone; None when it was cancelled or its server deleted, which is no failure."""
    with ctx.run.journal.read() as session:
        failed = moves.failure(session, ctx.run.flow_uuid)
    if failed is None or failed.error is None or failed.error["code"] in (Cancelled.code, ServerDeleted.code):
        return None
    # Nova's columns are bounded, and a row that cannot be written would keep the undo from ever ending.
    message, tried = failed.error["message"][:LONGEST_ERROR], f", attempt {failed.attempt}" if failed.attempt else ""
    return faults.Fault(
        message=message,
        details=f"{failed.flow} of move {ctx.move.id}{tried}, step {failed.step}: {message}",
        host=failed.error.get("host") or platform.node(),
        step=failed.step,
    )


def fail_action(rows: Rows, fault: faults.Fault | None) -> bool:
    """End the flow's action with Error and let the server show why.

    Returns False when the action never began or has failed already.  The caller then leaves the rows alone.  A step
    that begins an action writes the task_state in the same transaction.  So if the action never began, the task_state
    was not written either, and the caller has none to take back.
    """
    began = actions.fail(rows.session, rows.action, fault.message if fault else None)
    if began and fault is not None:
        faults.record(rows.session, rows.instance.uuid, fault)
    return began


def fail_event(rows: Rows, event: str, fault: faults.Fault | None) -> None:
    """End the open event with Error and let the server show why."""
    actions.fail_event(rows.session, rows.action, event, fault.message if fault else None)
    if fault is not None:
        faults.record(rows.session, rows.instance.uuid, fault)


@dataclasses.dataclass(frozen=True)
class Place:
    """Says where a server lives, as `instances` has it; node and compute_id are always written together."""

    host: str
    node: str
    compute_id: int | None
    zone: str | None


def source_place(ctx: Context, record: Before) -> Place:
    """Return the source, as it was before the move."""
    return Place(ctx.move.source_host, record.node, record.compute_id, record.availability_zone)


def switch(
    rows: Rows, record: Before, old: Place, new: Place, old_flavor: dict[str, Any], new_flavor: dict[str, Any]
) -> None:
    """Change the place and the sizes of the server from old to new; raises Conflict where they are not the old ones."""
    was, becomes = objects.flavor_data(old_flavor), objects.flavor_data(new_flavor)
    rows.change(
        host=(old.host, new.host),
        node=(old.node, new.node),
        compute_id=(old.compute_id, new.compute_id),
        availability_zone=(OneOf((old.zone, record.availability_zone)), new.zone),
        instance_type_id=(was["id"], becomes["id"]),
        memory_mb=(was["memory_mb"], becomes["memory_mb"]),
        vcpus=(was["vcpus"], becomes["vcpus"]),
        root_gb=(was["root_gb"], becomes["root_gb"]),
        ephemeral_gb=(was["ephemeral_gb"], becomes["ephemeral_gb"]),
    )
    if was["swap"] != becomes["swap"]:
        back = new_flavor == record.old_flavor
        swap_devices.follow_flavor(rows.session, rows.instance.uuid, was["swap"], becomes["swap"], back=back)


def availability_zone(ctx: Context, host: str) -> str:
    """Return the availability zone of a host, which the server gets there."""
    with ctx.run.api.read() as session:
        return zone_of(session, host)


def changed_flavors(rows: Rows, **slots: dict[str, Any] | None) -> None:
    """Replace slots (cur, old, new) of instance_extra.flavor."""
    changed = objects.change_server_flavors(servers.flavors(rows.extra), slots)
    compare_and_swap(
        rows.session,
        rows.extra,
        flavor=(OneOf((rows.extra.flavor,)), same_or_encoded(rows.extra.flavor, changed)),
    )


@contextlib.contextmanager
def claimed_rows(ctx: Context, cell: str) -> Iterator[Rows]:
    """Open a transaction as `cell_rows` does, which commits before anybody else can claim the move."""
    with contextlib.ExitStack() as claim, cell_rows(ctx, cell) as rows:
        yield rows
        rows.session.flush()
        claim.enter_context(ctx.run.write())


@contextlib.contextmanager
def api_rows(ctx: Context) -> Iterator[orm.Session]:
    """Open a transaction on the API database that commits before anybody else can claim the move.

    A comparison of old values would not be enough: a conductor that lost its claim could write again what a later
    revert has taken back.
    """
    with holding_claim(ctx, ctx.run.api.write()) as session:
        yield session


@contextlib.contextmanager
def holding_claim(ctx: Context, transaction: AbstractContextManager[orm.Session]) -> Iterator[orm.Session]:
    """Let the transaction commit before anybody else can claim the move; for databases whose rows have no fence.

    The claim in the journal is compared and locked after the writes, while their rows are still locked.  If another
    conductor claims the move before the comparison, this one finds its claim lost and writes nothing.  After the
    comparison the claim stays locked until the commit, so no other conductor can claim the move.
    """
    with contextlib.ExitStack() as claim, transaction as session:
        yield session
        session.flush()
        claim.enter_context(ctx.run.write())


def request_spec_after(ctx: Context) -> str:
    """Return the server's request spec with the new flavor and the rest unchanged, as `save_request_spec` leaves it."""
    record = before(ctx.move)
    requests = objects.pci_requests(instance_uuid=ctx.move.server)
    found = objects.decode(record.request_spec)
    return objects.encode(objects.change_request_spec(found, {"flavor": record.new_flavor, "pci_requests": requests}))


def same_or_encoded(present: str | None, wanted: dict[str, Any]) -> str:
    """Return the present text if it says the same as ``wanted``, so that a repeat changes nothing; else new text."""
    if present is not None and objects.decode(present) == wanted:
        return present
    return objects.encode(wanted)


def new_migration(move: Move, record: Before, status: str) -> Migration:
    """Make the migration row of a move as it is inserted, still without a destination."""
    return Migration(
        uuid=move.id,
        source_compute=move.source_host,
        source_node=record.node,
        status=status,
        instance_uuid=move.server,
        old_instance_type_id=objects.flavor_data(record.old_flavor)["id"],
        new_instance_type_id=objects.flavor_data(record.new_flavor)["id"],
        migration_type=kinds.of(move.kind).migration_type,
        hidden=False,
        cross_cell_move=False,
        user_id=record.user_id,
        project_id=record.project_id,
        deleted=0,
    )


class Node(NamedTuple):
    """Holds what a server's rows take from the compute node of a host."""

    id: int
    uuid: str | None
    hypervisor_hostname: str | None
    host_ip: str | None


def compute_node(session: orm.Session, host: str, *, lock: bool = False) -> Node:
    """Return the host's compute node in this cell; raises DestinationFault where it has none."""
    row = session.connection().execute(_NODE_LOCKED if lock else _NODE, {"host": host}).first()
    if row is None:
        raise DestinationFault(f"host {host} has no compute node in this cell", code="no-compute-node", host=host)
    return Node(*row)


def clear_traces(rows: Rows, ctx: Context) -> None:
    """Remove the traces of the move: flavor.old and flavor.new become null, migration context and old_vm_state go."""
    present = servers.flavors(rows.extra)
    if present["old"] is not None or present["new"] is not None:
        cleared = objects.encode(objects.change_server_flavors(present, {"old": None, "new": None}))
        compare_and_swap(rows.session, rows.extra, flavor=(rows.extra.flavor, cleared))
    compare_and_swap(rows.session, rows.extra, migration_context=(OneOf((rows.extra.migration_context,)), None))
    servers.set_system_metadata(rows.session, ctx.move.server, "old_vm_state", None)
