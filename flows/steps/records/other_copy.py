"""The copy of a server's rows in the cell that its mapping does not name: what it must be, and how it goes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa

from droveway.errors import Fenced, ServerDeleted, StepError
from droveway.flows.steps.rows import Rows, cell_rows, claimed_rows, holding_claim, reserved_on
from droveway.persistence.compare_and_swap import OneOf
from droveway.persistence.nova import (
    carried_actions,
    copies,
    copy_removal,
    evacuations,
    late_writes,
    mappings,
    servers,
    usage,
)
from droveway.persistence.nova.cell import ConsoleAuthToken, Instance, InstanceSystemMetadata, Migration
from droveway.persistence.nova.cells import FENCE_KEY, GOING, MOVE_KEY
from droveway.persistence.nova.vm_states import TaskState

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.flows.run import Context

ROWS: Final = 500
"""So many rows one transaction removes at most."""

UNREAD: Final = "unread"
"""In the results of steps that carry: which copy could not be read, as its cell is declared down."""

DIGESTS: Final = "digests"
"""In the results of steps that compare both copies: what users may write, each as a digest."""

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_ROW: Final = sa.select(Instance).where(Instance.uuid == _SERVER).with_for_update()
_MARKS: Final = (
    sa.select(InstanceSystemMetadata.key, InstanceSystemMetadata.value)
    .where(
        InstanceSystemMetadata.instance_uuid == _SERVER,
        InstanceSystemMetadata.key.in_((FENCE_KEY, MOVE_KEY)),
    )
    # A late delete may have taken the marks with the row; one that lives comes last.
    .order_by(InstanceSystemMetadata.deleted.desc())
)
_MADE_BY: Final = sa.select(sa.exists().where(Migration.uuid == sa.bindparam("move")))
"""Whether the cell has the migration of a move, soft-deleted with its server too."""

_LATE: Final = sa.select(Instance.deleted, Instance.task_state).where(Instance.uuid == _SERVER)
_HIDE: Final = sa.update(Instance).where(Instance.uuid == _SERVER).values(hidden=True)
_TOKENS: Final = sa.delete(ConsoleAuthToken).where(ConsoleAuthToken.instance_uuid == _SERVER)


class Standing(NamedTuple):
    """What a cell has of a server, behind a lock."""

    hidden: bool
    deleted: bool
    epoch: str | None
    move: str
    """The move that made the copy, as long as a flow of it runs; else empty."""
    known: bool
    """Whether the copy has the migration of the move that asks."""
    going: bool
    """Whether its removal has begun, so that what is missing in it was not removed by a user."""


def find(session: orm.Session, server: str, move: str) -> Standing | None:
    """Read and lock what the cell has of the server; None where it has nothing."""
    row = session.scalar(_ROW, {"server": server})
    if row is None:
        return None
    marks = {row.key: row.value for row in session.execute(_MARKS, {"server": server})}
    known, made_by = bool(session.scalar(_MADE_BY, {"move": move})), str(marks.get(MOVE_KEY) or "")
    return Standing(
        bool(row.hidden),
        bool(row.deleted),
        marks.get(FENCE_KEY),
        made_by.removesuffix(GOING),
        known,
        going=made_by.endswith(GOING),
    )


def stands(ctx: Context, cell: str, other: str) -> bool:
    """Tell whether the cell has a copy; raises StepError (``last-copy``) for none, unless ``other`` is mapped."""
    if ctx.run.cells.has(cell, ctx.move.server):
        return True
    _require_other(ctx, cell, other)
    return False


def is_own(ctx: Context, found: Standing) -> bool:
    """Tell whether that is the hidden copy of this move, or one of it that the user of the server has deleted."""
    return (found.hidden or found.deleted) and (found.move == ctx.move.id or found.known)


def require_own(ctx: Context, found: Standing, cell: str, *, goes: bool = False) -> None:
    """Raise StepError (``second-copy``) unless that is the hidden copy of this move, under this claim's fence.

    One that ``goes`` may have been deleted by a user's late request.
    """
    if is_own(ctx, found) and (goes or not found.deleted):
        if found.epoch != str(ctx.run.epoch):
            raise Fenced(f"epoch {ctx.run.epoch} no longer stands for server {ctx.move.server} in cell {cell}")
        return
    what = "soft-deleted" if found.deleted else "hidden" if found.hidden else "visible"
    whose = f" of move {found.move}" if found.move else ""
    raise StepError(
        f"cell {cell} has rows of server {ctx.move.server_name} already, {what}{whose}, which this move did not make: "
        "droveway audit says what they are and how they go",
        code="second-copy",
    )


def carry(ctx: Context, source: str, target: str) -> dict[str, Any]:
    """Bring what users wrote in the source cell's copy alone over to the target cell's.

    Returns the digests by which the next carry tells which copy was changed, and the keys that were in both.  A cell
    that has no copy any more has nothing to bring, and an undo brings nothing to one whose copy a user has deleted.
    Nothing is read in a cell that is declared down, nor written: the history then says so.
    """
    if ctx.run.cells.is_down(source):
        return unread(source)
    if ctx.run.cells.is_down(target):
        return {}
    with ctx.run.cells.database(source).read() as session:
        if servers.is_gone(session, ctx.move.server):
            return {}
        theirs = copies.read(session, ctx.move.server)
    if ctx.direction == "revert":
        with ctx.run.cells.database(target).read() as session:
            if servers.is_gone(session, ctx.move.server):
                return {}
    with claimed_rows(ctx, target) as rows:
        return _carry_into(ctx, rows, theirs, mapped=target == ctx.cell)


def unread(cell: str) -> dict[str, Any]:
    """Return what the history says of late writes in a cell that is declared down."""
    return {UNREAD: f"what users wrote last in cell {cell}, which is declared down, was not read"}


def read(ctx: Context, cell: str) -> copies.Copy | None:
    """Read the copy in the cell; None where that is declared down."""
    if ctx.run.cells.is_down(cell):
        return None
    with ctx.run.cells.database(cell).read() as session:
        return copies.read(session, ctx.move.server)


def complete(ctx: Context, rows: Rows, theirs: copies.Copy | None, *, of: str) -> dict[str, Any]:
    """Let the copy that is about to be shown have all that the other one has, the flow's own action too.

    That is the one ``of`` a cell; where it could not be read nothing is brought.  Returns as `carry` does.
    """
    if theirs is None:
        return unread(of)
    carried = _carry_into(ctx, rows, theirs, mapped=False, action=rows.action.request_id)
    copies.give_attachments(rows.session, theirs)
    return carried


def _carry_into(
    ctx: Context, rows: Rows, theirs: copies.Copy, *, mapped: bool, action: str | None = None
) -> dict[str, Any]:
    """Write what is to go over; ``mapped``: whether the server is mapped to that copy, which then wins."""
    ours = copies.read(rows.session, ctx.move.server)
    values = (late_writes.values(theirs), late_writes.values(ours))
    found = late_writes.carry(*values, _known(ctx), target_is_mapped=mapped)
    late_writes.write(rows.session, ctx.move.server, late_writes.changes(theirs, ours, found.takes))
    carried_actions.carry(rows.session, theirs, action)
    return {DIGESTS: found.known, **({"clashes": list(found.clashes)} if found.clashes else {})}


def _known(ctx: Context) -> dict[str, str]:
    """Find the digests that the last carry of the move left, or its first copy."""
    for run in reversed(ctx.run.step_runs()):
        if run.result is not None and DIGESTS in run.result:
            return dict(run.result[DIGESTS])
    return {}


def remove(ctx: Context, cell: str, other: str, *, undo: bool = False) -> None:
    """Remove this move's copy from the cell, row by row and for good; done when none is there.

    What users wrote there late is brought over first.  An ``undo`` leaves a copy alone that this move did not make.

    Raises StepError (``last-copy``) unless the mapping names the ``other`` cell, which has the server whole, or the
    server was deleted.
    """
    move = ctx.move
    reserved = reserved_on(ctx)
    if undo and not _made_by(ctx, cell):
        return
    _heed_late_delete(ctx, cell, other)
    # Before anything is written: a copy that may be the only one is not marked as going either.
    _require_other(ctx, cell, other)
    _carry_last(ctx, cell, other)
    left = True
    while left:
        _require_other(ctx, cell, other)
        with holding_claim(ctx, ctx.run.cells.database(cell).write()) as session:
            found = find(session, move.server, move.id)
            if found is None:
                return
            require_own(ctx, found, cell, goes=True)
            _require_no_evacuation(ctx, session, cell)
            left = copy_removal.remove(session, move.server, at_most=ROWS)
            if not left:
                usage.recompute(session, move.source_host, ctx.destination.host, reserved=reserved)


def leave_evacuated(ctx: Context) -> None:
    """Remove the copy in the cell that the mapping does not name, of a server that Nova has evacuated in the other.

    It is hidden first, where the flow has not come to that.  What the mapped cell has is Nova's: nothing is carried.
    """
    move, home = ctx.move, ctx.cell
    if ctx.attempt is None or ctx.destination.cell == move.source_cell:
        return
    cell = ctx.destination.cell if home == move.source_cell else move.source_cell
    if ctx.run.cells.is_down(cell):
        return
    _require_other(ctx, cell, home)
    with holding_claim(ctx, ctx.run.cells.database(cell).write()) as session:
        found = find(session, move.server, move.id)
        if found is None:
            return
        if not found.hidden and (found.move == move.id or found.known):
            session.execute(_HIDE, {"server": move.server})
            found = found._replace(hidden=True)
        require_own(ctx, found, cell, goes=True)
        servers.set_system_metadata(session, move.server, MOVE_KEY, f"{move.id}{GOING}")
    remove(ctx, cell, home)


def mark_again(ctx: Context, cell: str) -> None:
    """Let the hidden copy in the cell name this move again, whose flow took the mark with it when it ended.

    Only for what the cell owes: until that is paid no other move of the server enters it.  A copy of which the flow
    never compared anything is not known to be its own.
    """
    server, flow = ctx.move.server, (ctx.run.flow_uuid, ctx.move.attempt)
    if not any((run.flow_uuid, run.attempt) == flow and DIGESTS in (run.result or {}) for run in ctx.run.step_runs()):
        return
    with holding_claim(ctx, ctx.run.cells.database(cell).write()) as session:
        found = find(session, server, ctx.move.id)
        if found is not None and found.hidden and not found.move:
            servers.set_system_metadata(session, server, MOVE_KEY, ctx.move.id)


def pass_deletion_on(ctx: Context, rows: Rows, other: str) -> None:
    """Let the copy in the ``other`` cell say that the server is being deleted, where the one to be hidden says so."""
    if rows.instance.task_state != TaskState.DELETING:
        return
    # A copy that is gone there was deleted already.
    _pass_on(ctx, other)


def take_deletion_over(ctx: Context, rows: Rows, other: str) -> None:
    """Let the mapped copy, in the ``other`` cell, have a delete that a late request has left in the hidden one.

    The hidden one then stands as the forward flow left it, and the server is deleted once the flow has ended: that is
    asked for before the mark is gone here.
    """
    if rows.instance.task_state != TaskState.DELETING:
        return
    pass_deletion_on(ctx, rows, other)
    rows.change(task_state=(TaskState.DELETING, TaskState.RESIZE_MIGRATED))


def _heed_late_delete(ctx: Context, cell: str, other: str) -> None:
    """Let a delete count that a request which read the mapping before the switch has left in the copy that goes.

    The mapped copy says so then, and the server is deleted there once the flow has ended.
    """
    with ctx.run.cells.database(cell).read() as session:
        row = session.execute(_LATE, {"server": ctx.move.server}).first()
    if row is None or not (row.deleted or row.task_state == TaskState.DELETING):
        return
    _pass_on(ctx, other)


def _pass_on(ctx: Context, cell: str) -> None:
    with contextlib.suppress(ServerDeleted), cell_rows(ctx, cell) as there:
        there.change(task_state=(OneOf((there.instance.task_state,)), TaskState.DELETING))
    ctx.run.note_deleted()


def forget_consoles(rows: Rows) -> None:
    """Remove the rights to open the server's console: they name a host that the guest leaves."""
    rows.session.execute(_TOKENS, {"server": rows.instance.uuid})


def _carry_last(ctx: Context, cell: str, other: str) -> None:
    """Bring over what users wrote late in a copy that is about to go, and mark that it goes.

    A copy of which a part is gone says of what it lacks no more whether a user removed it.
    """
    server = ctx.move.server
    with ctx.run.cells.database(cell).write() as session:
        found = find(session, server, ctx.move.id)
    if found is None or found.going:
        return
    with ctx.run.cells.database(other).read() as session:
        lives = not servers.is_gone(session, server)
    if lives:
        carry(ctx, cell, other)
    with holding_claim(ctx, ctx.run.cells.database(cell).write()) as session:
        found = find(session, server, ctx.move.id)
        if found is not None:
            require_own(ctx, found, cell, goes=True)
            servers.set_system_metadata(session, server, MOVE_KEY, f"{ctx.move.id}{GOING}")


def _require_no_evacuation(ctx: Context, session: orm.Session, cell: str) -> None:
    """Raise StepError (``second-copy``) where Nova evacuates the server by a copy that is about to go.

    It had read the mapping before that was switched: the guest that it builds has no other rows.
    """
    if evacuations.of_move(session, ctx.move.id, None)[1]:
        raise StepError(
            f"Nova evacuates server {ctx.move.server_name} by its rows in cell {cell}, which it is not mapped to, so "
            "they are not removed: droveway audit says what they are",
            code="second-copy",
        )


def _made_by(ctx: Context, cell: str) -> bool:
    """Tell whether the cell has a copy that this move made."""
    with ctx.run.cells.database(cell).write() as session:
        found = find(session, ctx.move.server, ctx.move.id)
    return found is not None and is_own(ctx, found)


def _require_other(ctx: Context, cell: str, other: str) -> None:
    """Raise StepError (``last-copy``) unless the ``other`` copy is the server's, or its user has deleted that one."""
    server = ctx.move.server
    with ctx.run.api.read() as session:
        mapped = mappings.cell_of(session, server)
    with ctx.run.cells.database(other).read() as session:
        gone = servers.is_gone(session, server)
        hidden = not gone and bool(servers.find(session, server).hidden)
        late = session.execute(_LATE, {"server": server}).first()
    deleted = ctx.move.delete_requested or (gone and late is not None)
    if mapped != cell and deleted and not ctx.move.delete_requested:
        # Nova leaves the row of a server that was deleted, and no step has met it since.
        ctx.run.note_deleted()
    if mapped == cell or hidden or (gone and not deleted):
        raise StepError(
            f"the rows of server {ctx.move.server_name} in cell {cell} may be the only ones, so they are not removed: "
            f"it is mapped to cell {mapped or 'none'}, and cell {other} has "
            f"{'none of it' if gone else 'a hidden copy' if hidden else 'a visible copy'}",
            code="last-copy",
        )
