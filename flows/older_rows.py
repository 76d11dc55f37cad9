"""Finds out whether a cell or API database was put back in the middle of a move: each step first compares the rows.

The rows have to say what the steps in the journal left in them, or what one more step leaves: a conductor may have died
after the commit.  Rows that say what an earlier step of the same move left are older than the move.  Any other rows
were written by a user or Nova, and the steps themselves deal with those.

In a move between cells each claim also compares the mapping, which nobody but the move writes, and the copy that the
server is not mapped to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from droveway.clients.volume import ATTACHED
from droveway.errors import NotFound, StepError
from droveway.flows import outcome, paying, put_back
from droveway.flows.before import Before, before
from droveway.flows.observed import observe
from droveway.flows.put_back import Copies, Ran, after
from droveway.flows.run import Run
from droveway.flows.stands import Flavor, Side, Stands, Vm
from droveway.flows.steps import overtaken
from droveway.persistence.database import absence
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.journal.moves import PASSED_ON
from droveway.persistence.nova import mappings, objects
from droveway.persistence.nova.vm_states import MOVABLE, TaskState, VmState
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.flows.observed import Observed
    from droveway.flows.run import Context
    from droveway.persistence.journal.step_runs import StepRun
    from droveway.persistence.journal.tables import Move

_RESERVES: Final = "reserve_volumes"
_MOVES: Final = "move_volumes"
_FREES: Final = "free_volumes"
_COPIES: Final = "copy_records"

_SETTLED: Final = "settled"
"""The key, in a step's result, of what a person said of the step (``droveway move settle``)."""

_DONE: Final = "done"
"""The person's word for a step that was done; with any other word the step has left the rows as they were."""

_VM_STATES: Final = {
    Vm.RESIZED: VmState.RESIZED,
    Vm.FOUND: VmState.ACTIVE,
    Vm.DELETED: VmState.DELETED,
    Vm.SHELVED: VmState.SHELVED,
    Vm.OFFLOADED: VmState.SHELVED_OFFLOADED,
    Vm.ACTIVE: VmState.ACTIVE,
}


class _Rows(NamedTuple):
    """Holds what is compared: all of `Stands` except what Nova may write at any time."""

    task_state: str | None
    vm_state: str
    host: str | None
    status: str | None
    destination: str | None
    cur: str | None
    old: str | None
    new: str | None
    traces: bool
    hidden: bool


@dataclasses.dataclass(frozen=True)
class _Volume:
    """Holds what the journal knows of one volume's attachments."""

    named: frozenset[str]
    """The attachments of which the rows may name one, by id."""
    other: bool = False
    """Whether the rows may also name an attachment that the journal does not know, since an undo made it."""
    known: frozenset[str] = frozenset()
    """Every attachment that a step has seen, by id."""
    reserved: str = ""
    """The empty attachment that the move made for the volume; empty: none."""


@dataclasses.dataclass
class _Walk:
    """Holds what a move's rows may say, as worked out along the move's history.

    A walk takes the runs of steps in the history one by one, oldest first, up to the first run that has not ended.  For
    each comparison a copy of the walk takes the later runs too.
    """

    volumes: dict[str, _Volume]
    stands: frozenset[Copies]
    """What the rows may say now; more than one where a step failed, since it may or may not have written them."""
    earlier: set[Copies]
    """What the rows said before."""
    seen: int = 0
    """The number (``seq``) of the last run in the history that was taken."""
    compared: bool = False
    """Whether this claim has compared the mapping, and the copy in the cell that the mapping does not name.

    The flow compares them once in each claim.
    """
    hosts: dict[int, str] = dataclasses.field(default_factory=dict)
    """The hosts of the alternates, by the alternate's number."""
    copied: set[int] = dataclasses.field(default_factory=set)
    """The alternates to whose cell the rows were copied."""

    def go(self, row: StepRun) -> None:
        """Take one run of the history; a run that failed may or may not have written the rows."""
        result = row.result or {}
        if result.get(_SETTLED, _DONE) != _DONE or result == PASSED_ON:
            return
        ran = Ran(row.flow, row.step, "execute" if row.direction == "execute" else "revert", row.attempt)
        done = row.ended_at is not None and row.error is None
        became = frozenset(after(each, ran) for each in self.stands)
        self.stands = became if done else self.stands | became
        self.earlier |= self.stands
        if row.step == _RESERVES:
            self._reserve(result if row.direction == "execute" and done else {})
        elif row.step == _MOVES:
            self.volumes = {name: _moved(each, row.direction, done=done) for name, each in self.volumes.items()}
        elif row.step == _COPIES and row.direction == "execute" and done:
            self.copied.add(row.attempt)
        elif row.step == _FREES:
            self.volumes = {name: _freed(each, row.direction, done=done) for name, each in self.volumes.items()}

    def copy(self) -> _Walk:
        """Return an independent copy, which may take later runs."""
        return dataclasses.replace(self, volumes=dict(self.volumes), earlier=set(self.earlier), copied=set(self.copied))

    def _reserve(self, result: Mapping[str, Any]) -> None:
        # What an earlier alternate had reserved was given up; on the server's own host nothing is reserved.
        self.volumes = {name: dataclasses.replace(each, reserved="") for name, each in self.volumes.items()}
        for name, ids in result.items():
            if not isinstance(ids, dict):
                continue
            found = self.volumes.get(name, _Volume(frozenset(), other=True))
            named, other = (frozenset({ids["old"]}), False) if found.other else (found.named, False)
            known = found.known | {ids["old"], ids["new"]}
            self.volumes[name] = _Volume(named, other, known, ids["new"])


def _moved(found: _Volume, direction: str, *, done: bool) -> _Volume:
    """Return the volume's attachments after `move_volumes`, or after its undo, which may make a new one."""
    if direction == "execute":
        if not found.reserved:
            return dataclasses.replace(found, other=True)
        new = frozenset({found.reserved})
        return dataclasses.replace(found, named=new, other=False) if done else _either(found, new)
    if done and found.named == {found.reserved}:
        return dataclasses.replace(found, named=frozenset(), other=True, reserved="")
    return dataclasses.replace(found, named=found.named - ({found.reserved} if done else set()), other=True)


def _freed(found: _Volume, direction: str, *, done: bool) -> _Volume:
    """Return the volume's attachments after `free_volumes` of a shelve, or after its undo.

    The undo attaches the volume by the empty attachment, or by a new one.
    """
    return _moved(found, direction, done=done) if direction == "execute" else dataclasses.replace(found, other=True)


def _either(found: _Volume, new: frozenset[str]) -> _Volume:
    return dataclasses.replace(found, named=found.named | new)


_WALKS: Final[weakref.WeakKeyDictionary[Run, _Walk]] = weakref.WeakKeyDictionary()
"""Run → what its move's rows may say after the history up to the first step that has not ended."""


def require_own(ctx: Context) -> None:
    """Park the move (``cell-put-back``) where the rows say what an earlier step of this move left in them.

    Nothing is compared in a flow whose journal was adopted, since there the rows tell how far the move has come.  The
    rows of a server that is being deleted or evacuated are not compared.  A server without rows counts as deleted, but
    in a move between cells the move is parked if a cell has not even soft-deleted rows.  A database that is away is
    compared later, when a step needs it.
    """
    move, run = ctx.move, ctx.run
    between = kinds.of(run.kind).crosses_cells
    if between and (owing := run.owing_cells().keys() & {move.source_cell, move.dest_cell}):
        # These cells owe some steps.  The history records these steps as done, but the rows in the cells lack what the
        # steps would have written.  A later step compares the rows, once the cells have paid.
        paying.pay(ctx, owing)
        return
    if kinds.of(run.kind).deletes or move.before is None or overtaken.was_adopted(run):
        return
    if between:
        with _unless_away():
            _compare(ctx, _walked(ctx))
    elif ctx.observed is not None:
        _compare(ctx, _walked(ctx))


@contextlib.contextmanager
def _unless_away() -> Iterator[None]:
    """Ignore a database that is away: the step may not need it, and fails by itself if it does."""
    try:
        yield
    except Exception as error:
        if absence(error) is None:
            raise


def _compare(ctx: Context, walk: _Walk) -> None:
    move, side = ctx.move, _mapped(ctx)
    between = kinds.of(ctx.run.kind).crosses_cells
    ran = Ran(ctx.run.kind, ctx.step, ctx.direction, move.attempt)
    allowed = walk.stands | {after(each, ran) for each in walk.stands}
    if between and side not in {each.mapped for each in allowed}:
        if not _WALKS[ctx.run].compared and _is_mapped(ctx):
            _park_mapping(ctx, {each.mapped for each in walk.stands})
        return
    row = ctx.observed
    if row is None:
        if between and all(each.of(side).here for each in allowed) and _was_lost(ctx, ctx.cell) and _is_mapped(ctx):
            _park_older(ctx, ctx.cell, "the cell has none")
        return
    if row.task_state == TaskState.DELETING or row.evacuated:
        return
    attached = {} if ctx.step in (_MOVES, _FREES) else row.attached
    if why := _older(ctx, walk, allowed, row, side) or _stale(ctx, walk, attached):
        _park_older(ctx, ctx.cell, why)
    if between and not _WALKS[ctx.run].compared:
        _compare_other(ctx, walk, allowed, Side.SOURCE if side is Side.DESTINATION else Side.DESTINATION)
        _WALKS[ctx.run].compared = True


def _compare_other(ctx: Context, walk: _Walk, allowed: frozenset[Copies], side: Side) -> None:
    """Compare the copy that the server is not mapped to.

    The move parks if the copy is older than the move, or if the cell has a copy that the move had removed.  Nothing is
    compared if the copy may or may not be there, or if the move never made it.
    """
    move, run = ctx.move, ctx.run
    cell = ctx.destination.cell if side is Side.DESTINATION and ctx.attempt is not None else move.source_cell
    here = {each.of(side).here for each in allowed}
    removed = here == {False} and move.attempt in walk.copied
    if not (here == {True} or removed):
        return
    if removed:
        if not _was_lost(ctx, cell):
            _park_older(ctx, cell, "this move had removed them, and they are there again")
        return
    with run.cells.database(cell).reading() as connection:
        row = observe(connection, move.server, move.id, f"req-{run.asked_as}")
    if row is None:
        # A confirm is to remove this copy anyway; and a late request of the user may have deleted its rows.
        if kinds.of(run.kind).ends is not kinds.Way.CONFIRM and _was_lost(ctx, cell):
            _park_older(ctx, cell, "the cell has none")
        return
    # The move may have begun to remove this copy: then a part of it, such as instance_extra, is gone.
    if row.task_state == TaskState.DELETING or row.extra is None:
        return
    if why := _older(ctx, walk, allowed, row, side):
        _park_older(ctx, cell, why)


def _mapped(ctx: Context) -> Side:
    return Side.SOURCE if ctx.cell == ctx.move.source_cell else Side.DESTINATION


def _is_mapped(ctx: Context) -> bool:
    """Tell whether the server has a mapping that is not marked as `queued_for_delete`."""
    with ctx.run.api.read() as session:
        return mappings.stands(session, ctx.move.server)


def _was_lost(ctx: Context, cell: str) -> bool:
    """Tell whether the cell has no row of the server, not even one that was deleted."""
    return not ctx.run.cells.has(cell, ctx.move.server)


def _older(ctx: Context, walk: _Walk, allowed: frozenset[Copies], row: Observed, side: Side) -> str:
    """Return how a copy shows that it is older than the move; empty when it is not."""
    record, found = before(ctx.move), _found(ctx.move, row)

    def shown(each: Stands) -> _Rows:
        return _wanted(each, ctx, walk.hosts, record)

    now = [each.of(side) for each in walk.stands]
    if found in {shown(each.of(side)) for each in allowed}:
        return ""
    if found.status is None and all(each.status is not None for each in now):
        return f"they have no migration {ctx.move.id}"
    if found not in {shown(each.of(side)) for each in walk.earlier if each.of(side).here}:
        return ""
    if row.begun and found.task_state is None and any(each.task_state for each in now):
        # The flow's instance action is there, so its task_state was there too: somebody has reset the server's state.
        reset = {shown(dataclasses.replace(each, task_state=None)) for each in now}
        if found.vm_state in outcome.RESET:
            reset |= {each._replace(vm_state=found.vm_state) for each in reset}
        if found in reset:
            return ""
    how = "hidden, they" if found.hidden else "they"
    where = f"host {found.host}" if found.host else "no host"
    migration = f" with migration {found.status or 'none'}" if kinds.of(ctx.run.kind).has_migration else ""
    return f"{how} name {where} in task {found.task_state or 'none'}{migration}"


def _stale(ctx: Context, walk: _Walk, attached: Mapping[str, str]) -> str:
    """Return which volume's row names an attachment that an earlier step had left; empty when none does.

    An attachment that Cinder shows as attached does not count: then Cinder's database was put back, and not the cell's.
    """
    for name, attachment in sorted(attached.items()):
        known = walk.volumes.get(name)
        if known is None or attachment not in known.known or attachment in known.named:
            continue
        held = {each.id: each.status for each in ctx.run.cloud.volumes.attachments(name)}
        if held.get(attachment) != ATTACHED:
            return f"they name attachment {attachment} of volume {name}, which is no longer the server's"
    return ""


def _park_older(ctx: Context, cell: str, why: str) -> None:
    move = ctx.move
    short = move.id[:SHORT]
    ctx.run.park(
        ctx.step,
        ctx.direction,
        StepError(
            f"the rows of server {move.server_name} in cell {cell} stand where an earlier step of this move had left "
            f"them ({why}), so nothing was done: if the database of cell {cell} was put back from a copy, "
            f"droveway move settle {short} --cell {cell} --reason TEXT writes what the move left there, and then "
            f"droveway move retry {short} goes on",
            code="cell-put-back",
        ),
    )


def _park_mapping(ctx: Context, left: set[Side]) -> None:
    move = ctx.move
    short = move.id[:SHORT]
    wanted = " or ".join(
        sorted(ctx.destination.cell if side is Side.DESTINATION else move.source_cell for side in left)
    )
    ctx.run.park(
        ctx.step,
        ctx.direction,
        StepError(
            f"server {move.server_name} is mapped to cell {ctx.cell}, and this move had left it mapped to {wanted}, so "
            f"nothing was done: if the API database was put back from a copy, droveway move settle {short} --cell api "
            f"--reason TEXT writes what the move left there, and then droveway move retry {short} goes on",
            code="cell-put-back",
        ),
    )


def _walked(ctx: Context) -> _Walk:
    """Return what the rows may say after the whole history, without the run that begins now."""
    run = ctx.run
    kept = _WALKS.get(run)
    if kept is None:
        record = before(ctx.move)
        ids = {each.volume: frozenset({each.attachment}) for each in record.volumes}
        first = put_back.begun(kinds.of(ctx.move.kind))
        volumes = {name: _Volume(mine, known=mine) for name, mine in ids.items()}
        kept = _WALKS[run] = _Walk(volumes, frozenset({first}), {first})
    if ctx.move.attempt and ctx.move.attempt not in kept.hosts:
        with run.journal.read() as session:
            kept.hosts = {each.attempt: each.host for each in attempts.tried(session, ctx.move.id)}
    rows = [row for row in run.step_runs() if row.seq > kept.seen]
    ended = list(itertools.takewhile(lambda row: row.ended_at is not None, rows))
    for row in ended:
        kept.go(row)
        kept.seen = row.seq
    found = kept.copy()
    for row in rows[len(ended) :]:
        if row.ended_at is not None or (row.step, row.direction) != (ctx.step, ctx.direction):
            found.go(row)
    return found


def _found(move: Move, row: Observed) -> _Rows:
    if row.extra is None:
        raise NotFound(f"server {move.server} has no instance_extra row: restore it before the server is moved")
    slots = objects.decode(row.flavor or "{}")
    return _Rows(
        row.task_state,
        _vm_state(row.vm_state),
        row.host,
        row.status,
        row.destination,
        _flavor_name(slots.get("cur")),
        _flavor_name(slots.get("old")),
        _flavor_name(slots.get("new")),
        traces=row.traces,
        hidden=bool(row.hidden),
    )


def _wanted(stands: Stands, ctx: Context, hosts: Mapping[int, str], record: Before) -> _Rows:
    flavors = {
        None: None,
        Flavor.OLD: _flavor_name(record.old_flavor),
        Flavor.NEW: _flavor_name(record.new_flavor),
    }
    named = hosts.get(stands.attempt)
    places = {
        Side.SOURCE: ctx.move.source_host,
        Side.RETURN: ctx.return_host,
        # A move without a migration, such as an unshelve, has no attempt in ``stands``: it is on the move's alternate.
        Side.DESTINATION: named or hosts.get(ctx.move.attempt),
        Side.NOWHERE: None,
    }
    task, vm_state = stands.task_state, _VM_STATES.get(stands.vm_state, record.vm_state)
    if stands.vm_state is Vm.SHELVED and record.boot_from_volume:
        # Such a server has no image, so the shelve writes nothing into its rows before the server is on no host.
        task, vm_state = TaskState.SHELVING, record.vm_state
    return _Rows(
        task,
        _vm_state(vm_state),
        places[stands.side],
        stands.status,
        named,
        flavors[stands.cur],
        flavors[stands.old],
        flavors[stands.new],
        traces=stands.traces,
        hidden=stands.hidden,
    )


def _vm_state(state: str | None) -> str:
    """Treat active and stopped as one: which of them the rows say depends on the guest."""
    return VmState.ACTIVE if state in MOVABLE else str(state)


def _flavor_name(flavor: dict[str, Any] | None) -> str | None:
    return None if flavor is None else str(objects.flavor_data(flavor)["id"])
