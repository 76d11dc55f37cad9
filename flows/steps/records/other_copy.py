"""Checks, carries and removes the copy of a server's rows in the cell that its mapping does not name."""

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
"""How many rows one transaction removes at most."""

UNREAD: Final = "unread"
"""The key, in a step's result, of the sentence that says which copy could not be read."""

DIGESTS: Final = "digests"
"""The key, in a step's result, of the digests of all values that users may write."""

_SERVER: Final[sa.BindParameter[str]] = sa.bindparam("server")
_ROW: Final = sa.select(Instance).where(Instance.uuid == _SERVER).with_for_update()
_MARKS: Final = (
    sa.select(InstanceSystemMetadata.key, InstanceSystemMetadata.value)
    .where(
        InstanceSystemMetadata.instance_uuid == _SERVER,
        InstanceSystemMetadata.key.in_((FENCE_KEY, MOVE_KEY)),
    )
    # A late delete may have soft-deleted the marks with the row; a live mark comes last, and counts.
    .order_by(InstanceSystemMetadata.deleted.desc())
)
_MADE_BY: Final = sa.select(sa.exists().where(Migration.uuid == sa.bindparam("move")))
"""Whether the cell has the migration of a move; a soft-deleted one counts too."""

_LATE: Final = sa.select(Instance.deleted, Instance.task_state).where(Instance.uuid == _SERVER)
_HIDE: Final = sa.update(Instance).where(Instance.uuid == _SERVER).values(hidden=True)
_TOKENS: Final = sa.delete(ConsoleAuthToken).where(ConsoleAuthToken.instance_uuid == _SERVER)


class Standing(NamedTuple):
    """Says what a cell has of a server, whose row is locked."""

    hidden: bool
    deleted: bool
    epoch: str | None
    move: str
    """The id of the move whose mark the copy has; empty if the copy has none.

    It is the move that made the copy.  The mark stays in the copy while a flow of that move runs.
    """
    known: bool
    """Whether the cell has the migration of this move."""
    going: bool
    """Whether this move has begun to remove the copy.

    Nothing is carried over from such a copy: rows that it lacks were removed by the move, and not by a user.
    """


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


def has_copy(ctx: Context, cell: str, other: str) -> bool:
    """Tell whether the cell has a copy of the server's rows.

    Raises StepError (``last-copy``) where the cell has no copy and the server is not safely in the ``other`` cell
    either.
    """
    if ctx.run.cells.has(cell, ctx.move.server):
        return True
    _require_other(ctx, cell, other)
    return False


def is_own(ctx: Context, found: Standing) -> bool:
    """Tell whether this move made the copy that was ``found``, and the copy is hidden or was deleted by a user."""
    return (found.hidden or found.deleted) and (found.move == ctx.move.id or found.known)


def require_own(ctx: Context, found: Standing, cell: str, *, goes: bool = False) -> None:
    """Raise StepError (``second-copy``) unless what was ``found`` is this move's hidden copy.

    A copy that ``goes`` may also have been deleted by a user's late request.  Raises Fenced where a newer claim has
    fenced the copy.
    """
    if is_own(ctx, found) and (goes or not found.deleted):
        if found.epoch != str(ctx.run.epoch):
            raise Fenced(f"epoch {ctx.run.epoch} no longer stands for server {ctx.move.server} in cell {cell}")
        return
    what = "soft-deleted" if found.deleted else "hidden" if found.hidden else "visible"
    whose = f" and marked by move {found.move}" if found.move else ""
    raise StepError(
        f"cell {cell} has rows of server {ctx.move.server_name} already, {what}{whose}, which this move did not make: "
        "droveway audit says what they are and how they go",
        code="second-copy",
    )


def carry(ctx: Context, from_cell: str, to_cell: str) -> dict[str, Any]:
    """Carry what users wrote only in the copy in ``from_cell`` into the copy in ``to_cell``.

    The two are the cells of the move, in either order.  Nothing is carried from a cell that has no copy any more.  An
    undo carries nothing into a cell whose copy a user has deleted.  A cell that is declared down is neither read nor
    written; the result says what was not read.

    Returns the digests by which the next carry tells which copy was changed, and the keys that users changed in both
    copies (``clashes``).
    """
    if ctx.run.cells.is_down(from_cell):
        return unread(from_cell)
    if ctx.run.cells.is_down(to_cell):
        return {}
    with ctx.run.cells.database(from_cell).read() as session:
        if servers.is_gone(session, ctx.move.server):
            return {}
        theirs = copies.read(session, ctx.move.server)
    if ctx.direction == "revert":
        with ctx.run.cells.database(to_cell).read() as session:
            if servers.is_gone(session, ctx.move.server):
                return {}
    with claimed_rows(ctx, to_cell) as rows:
        return _carry_into(ctx, rows, theirs, mapped=to_cell == ctx.cell)


def unread(cell: str) -> dict[str, Any]:
    """Return the result of a carry that could not read a cell, since that is declared down."""
    return {UNREAD: f"what users wrote last in cell {cell}, which is declared down, was not read"}


def read(ctx: Context, cell: str) -> copies.Copy | None:
    """Read the copy in the cell; None where the cell is declared down."""
    if ctx.run.cells.is_down(cell):
        return None
    with ctx.run.cells.database(cell).read() as session:
        return copies.read(session, ctx.move.server)


def complete(ctx: Context, rows: Rows, theirs: copies.Copy | None, *, cell: str) -> dict[str, Any]:
    """Carry into the copy that is about to be shown all that the other one has, the flow's own action too.

    ``theirs`` is the other copy, from ``cell``; None where it could not be read: then nothing is carried.  Returns
    what `carry` does.
    """
    if theirs is None:
        return unread(cell)
    carried = _carry_into(ctx, rows, theirs, mapped=False, action=rows.action.request_id)
    copies.give_attachments(rows.session, theirs)
    return carried


def _carry_into(
    ctx: Context, rows: Rows, theirs: copies.Copy, *, mapped: bool, action: str | None = None
) -> dict[str, Any]:
    """Write what is to be carried; with ``mapped`` the server is mapped to the written copy, which wins a clash."""
    ours = copies.read(rows.session, ctx.move.server)
    values = (late_writes.values(theirs), late_writes.values(ours))
    found = late_writes.carry(*values, _known(ctx), target_is_mapped=mapped)
    late_writes.write(rows.session, ctx.move.server, late_writes.changes(theirs, ours, found.takes))
    carried_actions.carry(rows.session, theirs, action)
    return {DIGESTS: found.known, **({"clashes": list(found.clashes)} if found.clashes else {})}


def _known(ctx: Context) -> dict[str, str]:
    """Return the digests that the last carry of the move, or the first copy, has left; empty for none."""
    for run in reversed(ctx.run.step_runs()):
        if run.result is not None and DIGESTS in run.result:
            return dict(run.result[DIGESTS])
    return {}


def remove(ctx: Context, cell: str, other: str, *, undo: bool = False) -> None:
    """Remove this move's copy from the cell for good, in several transactions; does nothing where there is none.

    What users wrote there late is carried over first.  An ``undo`` leaves a copy alone that this move did not make.

    Raises StepError (``last-copy``) if the copy may be the only one, as `_require_other` says.
    """
    move = ctx.move
    reserved = reserved_on(ctx)
    if undo and not _made_by(ctx, cell):
        return
    _heed_late_delete(ctx, cell, other)
    # Before anything is written: a copy that may be the only one is not to be marked as going.
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


def remove_evacuated(ctx: Context) -> None:
    """Remove the copy that the mapping does not name, after Nova has evacuated the server by the other copy.

    The copy is hidden first if it was still visible.  Nothing is carried over, since the mapped copy is Nova's.
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
    """Mark the hidden copy in the cell with this move again: the flow took the mark off when it ended.

    The keeper calls this function before it pays a debt by which the cell owes the removal of the copy.  It does so
    only if the move has no migration, since only the mark then proves that this move made the copy.  Until the debt is
    paid, no other move of the server uses the cell.  If the flow never compared the copy, another move may have made
    it, so it is left alone.
    """
    server, flow = ctx.move.server, (ctx.run.flow_uuid, ctx.move.attempt)
    if not any((run.flow_uuid, run.attempt) == flow and DIGESTS in (run.result or {}) for run in ctx.run.step_runs()):
        return
    with holding_claim(ctx, ctx.run.cells.database(cell).write()) as session:
        found = find(session, server, ctx.move.id)
        if found is not None and found.hidden and not found.move:
            servers.set_system_metadata(session, server, MOVE_KEY, ctx.move.id)


def pass_deletion_on(ctx: Context, rows: Rows, other: str) -> None:
    """Write task_state `deleting` into the copy in the ``other`` cell where the copy that is to be hidden has it."""
    if rows.instance.task_state != TaskState.DELETING:
        return
    # Where the other cell has no copy any more, the server was deleted there already.
    _pass_on(ctx, other)


def take_deletion_over(ctx: Context, rows: Rows, other: str) -> None:
    """Pass a delete that a late request has written into the hidden copy on to the mapped copy in the ``other`` cell.

    The mapped copy gets task_state `deleting`, and the move records that the server is deleted once the flow has ended.
    Only then does the hidden copy get back the task_state that the forward flow left.
    """
    if rows.instance.task_state != TaskState.DELETING:
        return
    pass_deletion_on(ctx, rows, other)
    rows.change(task_state=(TaskState.DELETING, TaskState.RESIZE_MIGRATED))


def _heed_late_delete(ctx: Context, cell: str, other: str) -> None:
    """Pass a delete in the copy that is to be removed on to the mapped copy.

    A request that read the mapping before the switch may have written it.  The server is deleted once the flow has
    ended.
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
    """Delete the tokens that open the server's console: they name the host that the guest leaves."""
    rows.session.execute(_TOKENS, {"server": rows.instance.uuid})


def _carry_last(ctx: Context, cell: str, other: str) -> None:
    """Carry over what users wrote late in a copy that is about to be removed, and mark it as going.

    Once the move has removed a part of the copy, a missing row no longer proves that a user has removed it.
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
    """Raise StepError (``second-copy``) where Nova evacuates the server by a copy that is about to be removed.

    Nova had read the mapping before it was switched.  The guest that it builds has its rows only in that copy.
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
    """Raise StepError (``last-copy``) unless the server can do without the copy in the cell.

    The server must not be mapped to the cell.  In addition, the ``other`` cell must have a visible copy, or the server
    must have been deleted: by this move's request, or by a user in the ``other`` cell.
    """
    server = ctx.move.server
    with ctx.run.api.read() as session:
        mapped = mappings.cell_of(session, server)
    with ctx.run.cells.database(other).read() as session:
        gone = servers.is_gone(session, server)
        hidden = not gone and bool(servers.find(session, server).hidden)
        late = session.execute(_LATE, {"server": server}).first()
    deleted = ctx.move.delete_requested or (gone and late is not None)
    if mapped != cell and deleted and not ctx.move.delete_requested:
        # The server was deleted in the other cell, and no step has noticed it since.
        ctx.run.note_deleted()
    if mapped == cell or hidden or (gone and not deleted):
        raise StepError(
            f"the rows of server {ctx.move.server_name} in cell {cell} may be the only ones, so they are not removed: "
            f"it is mapped to cell {mapped or 'none'}, and cell {other} has "
            f"{'none of it' if gone else 'a hidden copy' if hidden else 'a visible copy'}",
            code="last-copy",
        )
