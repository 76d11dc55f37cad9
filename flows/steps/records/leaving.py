"""Closes the rows and allocations of a move that ends where it is: no guest is started, nothing undone or deleted.

A move ends like this when Nova has evacuated its server, or when a person decides to leave it as it is.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from droveway.persistence.compare_and_swap import OneOf, compare_and_swap
from droveway.persistence.nova import actions, evacuations, objects, servers, usage
from droveway.persistence.nova.actions import ActionRef
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState, VmState

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.clients.placement import Allocations, Placement
    from droveway.persistence.journal.tables import Move
    from droveway.persistence.nova.cell import Instance, Migration
    from droveway.persistence.nova.cells import Cells

_OVER: Final = frozenset(
    {MigrationStatus.CONFIRMED, MigrationStatus.REVERTED, MigrationStatus.ERROR, MigrationStatus.FAILED}
)
_OURS: Final = frozenset(
    {
        *(TaskState.RESIZE_PREP, TaskState.RESIZE_MIGRATED, TaskState.RESIZE_FINISH, TaskState.RESIZE_REVERTING),
        *(TaskState.SHELVING, TaskState.SHELVING_OFFLOADING, TaskState.UNSHELVING),
    }
)
"""The task_states that the steps of a move write."""

_NODES: Final = sa.select(ComputeNode.host, ComputeNode.uuid).where(
    ComputeNode.host.in_(sa.bindparam("hosts", expanding=True)), ComputeNode.deleted == 0
)


@dataclasses.dataclass(frozen=True)
class Left:
    """Says how a server was left by its move."""

    host: str
    """The host that its rows name; empty: none."""
    evacuated: bool
    in_error: bool
    """Whether its rows were still the move's, so that they say ERROR now."""
    found: Allocations | None = None
    """What it held before its rows were read; what Nova claims for an evacuation after that is not overwritten."""


def close_rows(
    cells: Cells, cell: str, placement: Placement, move: Move, flow_uuid: str, epoch: int, *, back: str = ""
) -> Left:
    """End the migration with `error` and remove the move's traces from the server's rows, in one fenced transaction.

    ``cell`` is the cell that the server lives in.  ``back`` is the host to which it was being brought back.

    Rows that still have the state of this move get vm_state `error`, as in Nova after a failed migration, since nobody
    knows the state of the server.  A state that Nova or a person has written since stays.  May be repeated.
    """
    hosts = sorted({move.source_host, move.dest_host or "", back} - {""})
    found = placement.allocations(move.server)
    with cells.database(cell).read() as session:
        nodes = {row.host: row.uuid for row in session.execute(_NODES, {"hosts": hosts})}
    reserved = {host: usage.reserved_of(placement.provider_inventories(node)) for host, node in nodes.items()}
    with cells.transaction(cell, move.server, epoch) as session:
        row = servers.live(session, move.server, deleting=True)
        migration = servers.migration(session, move.id)
        evacuated = migration is not None and evacuations.has_taken(session, row.uuid, row.task_state, migration.id)
        held = not evacuated and _is_held(row, migration)
        if migration is not None:
            _clear_traces(session, row, migration)
            if migration.status not in _OVER:
                compare_and_swap(session, migration, status=(migration.status, MigrationStatus.ERROR))
        if held:
            compare_and_swap(session, row, vm_state=(row.vm_state, VmState.ERROR), task_state=(row.task_state, None))
        actions.fail(session, ActionRef(move.server, f"req-{flow_uuid}"), None)
        usage.recompute(session, *hosts, reserved=reserved)
        return Left(row.host or "", evacuated, held, found)


def close_allocations(placement: Placement, move: Move, left: Left) -> None:
    """Empty the migration's consumer, or give what it holds back to the server if its rows still name the source."""
    if left.host == move.source_host != move.dest_host and not left.evacuated:
        if placement.allocations(move.id).allocations:
            placement.return_move(server=move.server, migration=move.id, found=left.found)
    else:
        placement.release(move.id)


def _is_held(row: Instance, migration: Migration | None) -> bool:
    """Tell whether the server is still as a step of the move left it."""
    waits = row.vm_state == VmState.RESIZED and row.task_state is None
    over = migration is not None and migration.status in _OVER
    return row.task_state in _OURS or (waits and not over)


def _clear_traces(session: orm.Session, row: Instance, migration: Migration) -> None:
    """Set flavor.old and flavor.new to null, and remove old_vm_state and the context of this migration."""
    extra = servers.extra_row(session, row.uuid)
    present = servers.flavors(extra)
    if present["old"] is not None or present["new"] is not None:
        cleared = objects.encode(objects.change_server_flavors(present, {"old": None, "new": None}))
        compare_and_swap(session, extra, flavor=(extra.flavor, cleared))
    if extra.migration_context is not None:
        context = objects.decode(extra.migration_context)
        if context["nova_object.data"].get("migration_id") == migration.id:
            compare_and_swap(session, extra, migration_context=(OneOf((extra.migration_context,)), None))
    servers.set_system_metadata(session, row.uuid, "old_vm_state", None)
