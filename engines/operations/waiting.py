"""Lets a move wait again for its confirm or revert, after somebody else has brought its server into another state.

Nova's reset-state, a confirm or revert of Nova's that died, and a task that never ended leave rows with which neither a
confirm nor a revert may begin.  None of these states ends by itself.  A person says that nobody is at work on the
server any more; then the rows are written as the move's last step left them.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines
from droveway.engines.conductor import fencing
from droveway.engines.operations.settling import LAST, overtaken, seen
from droveway.engines.site.site import Site
from droveway.errors import Refused
from droveway.persistence.compare_and_swap import compare_and_swap
from droveway.persistence.database import database_time
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveFlow
from droveway.persistence.nova import mappings, servers
from droveway.persistence.nova.cell import Instance, Migration
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState, VmState
from droveway.printable import SHORT
from droveway.scheduler.server_rules import SETTLEABLE_MIGRATIONS, SETTLEABLE_VM_STATES

RESET: Final = "openstack server set --state active SERVER"
"""The command that ends a task of Nova's that never ends by itself."""

_FLOW: Final = (
    sa.select(MoveFlow)
    .where(
        MoveFlow.move_id == sa.bindparam("move"),
        MoveFlow.kind.in_([kind.name for kind in kinds.KINDS if kind.leads_to_wait]),
    )
    .order_by(MoveFlow.created_at.desc())
    .limit(1)
)


def settle(site: Site, move: Move, step: str, *, done: bool, who: str, reason: str) -> Move:
    """Write the rows of a waiting server as the forward flow left them, and let its policy's time begin anew.

    After a revert that was undone the move still waits for a person.

    Raises `droveway.errors.Refused` for any step but `LAST`.  Also where the rows say that the server waits already,
    that it lives on another host, or that something is being done to it.
    """
    short = move.id[:SHORT]
    if not reason.strip():
        raise Refused("settling a step needs a reason: say with --reason what was found, and how")
    if step != LAST or not done:
        raise Refused(
            f"move {short} waits for confirm or revert and rests at no step; only its wait can be settled, with "
            f"droveway move settle {short} {LAST} --as done --reason TEXT"
        )
    with site.journal.read() as session:
        claim = session.get(Claim, move.id)
    if claim is not None and claim.released_at is None:
        raise Refused(f"conductor {claim.owner} is still clearing up after move {short}: ask again when it has")
    with site.cell_databases[_cell(site, move)].read() as session:
        _require_barred(move, *_rows(session, move))
    with overtaken(move):
        epoch = fencing.claim(site.journal, move.id, f"{OPERATOR}{who}", seen=seen(move, claim))
    try:
        _write(site, move, epoch)
        return _note(site, move, epoch, who=who, reason=reason)
    finally:
        fencing.release(site.journal, move.id, epoch)


def _write(site: Site, move: Move, epoch: int) -> None:
    with deadlines.running("settle_wait", site.conf.conductor.step_deadline):
        cell = _cell(site, move)
        site.cells.raise_fence(cell, move.server, epoch)
        try:
            with site.cells.transaction(cell, move.server, epoch) as session:
                row, migration = _rows(session, move)
                _require_barred(move, row, migration)
                found = {"vm_state": (row.vm_state, VmState.RESIZED), "task_state": (row.task_state, None)}
                compare_and_swap(session, row, **found)
                compare_and_swap(session, migration, status=(migration.status, MigrationStatus.FINISHED))
        finally:
            site.cells.drop_fence(cell, move.server, epoch)


def _cell(site: Site, move: Move) -> str:
    return mappings.home_cell(site.api, move.server, move.source_cell, move.dest_cell)


def _note(site: Site, move: Move, epoch: int, *, who: str, reason: str) -> Move:
    with site.journal.write() as session:
        fencing.check(session, move.id, epoch)
        row, now = moves.get(session, move.id, lock=True), database_time(session)
        if row.deadline is not None:
            row.deadline = now + dt.timedelta(seconds=row.confirm_seconds)
        row.error = row.error_code = row.waits_for = None
        row.updated_at = now
        flow = session.scalars(_FLOW, {"move": move.id}).one()
        session.add(
            moves.intervention(
                move, flow, LAST, at=now, epoch=epoch, result={"settled": "done", "by": who, "reason": reason}
            )
        )
    return row


def _rows(session: orm.Session, move: Move) -> tuple[Instance, Migration]:
    return servers.find(session, move.server), servers.the_migration(session, move.id)


def _require_barred(move: Move, row: Instance, migration: Migration) -> None:
    """Raise Refused unless the rows bar both a confirm and a revert, in a way that a person may take back."""
    short, name = move.id[:SHORT], move.server_name
    if State(move.state) is not State.VERIFYING:
        raise Refused(f"move {short} of {name} is {move.state} and waits for nothing that could be settled")
    if row.host != move.dest_host:
        raise Refused(
            f"by its rows server {name} lives on {row.host or 'no host'}, not on {move.dest_host}, where move {short} "
            "brought it: droveway audit says what else somebody changed"
        )
    stands = (row.vm_state, row.task_state, migration.status)
    if stands == (VmState.RESIZED, None, MigrationStatus.FINISHED):
        raise Refused(f"server {name} waits for confirm or revert, so nothing bars either: ask for the one you want")
    reverting = row.task_state == TaskState.RESIZE_REVERTING and migration.status == MigrationStatus.REVERTING
    if row.task_state is not None and not reverting:
        raise Refused(
            f"server {name} has task {row.task_state}: wait until it ends, or end it with  {RESET}  and ask again"
        )
    if row.vm_state not in SETTLEABLE_VM_STATES or migration.status not in SETTLEABLE_MIGRATIONS:
        raise Refused(
            f"server {name} is {row.vm_state} and the migration of move {short} {migration.status}, which does not "
            "come from a wait for confirm or revert: droveway audit says what else somebody changed"
        )
