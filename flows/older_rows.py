"""Whether a cell was put back from a copy in the middle of a move: before a step acts, its server's rows are compared.

The rows have to stand where the steps that the journal knows left them, or one step further: a step may have died
behind its commit.  Rows that stand where another step of the same move had left them are older than the move.  Any
other rows are somebody else's doing, a user's or Nova's, and those are met by the steps themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from droveway.errors import NotFound, StepError
from droveway.flows.before import Before, before
from droveway.flows.put_back import Ran, after
from droveway.flows.run import Run
from droveway.flows.stands import START, Flavor, Side, Stands, Vm
from droveway.flows.steps import overtaken
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.journal.moves import PASSED_ON
from droveway.persistence.nova import objects
from droveway.persistence.nova.vm_states import MOVABLE, TaskState, VmState
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.flows.observed import Observed
    from droveway.flows.run import Context
    from droveway.persistence.journal.step_runs import StepRun
    from droveway.persistence.journal.tables import Move

_RESERVES: Final = "reserve_volumes"
_MOVES: Final = "move_volumes"

_SETTLED: Final = "settled"
_DONE: Final = "done"
"""What a person said of a step: any other word leaves it as it was."""

_VM_STATES: Final = {Vm.RESIZED: VmState.RESIZED, Vm.FOUND: VmState.ACTIVE, Vm.DELETED: VmState.DELETED}


class _Rows(NamedTuple):
    """What is compared: all of `Stands` but what Nova writes at any time."""

    task_state: str | None
    vm_state: str
    host: str | None
    status: str | None
    destination: str | None
    cur: str | None
    old: str | None
    new: str | None
    traces: bool


@dataclasses.dataclass(frozen=True)
class _Volume:
    """One volume's attachment, as far as the journal knows it."""

    named: frozenset[str]
    """The ids of which the rows may name one."""
    other: bool = False
    """Whether it may also be one whose id the journal has not learnt: an undo made it."""
    known: frozenset[str] = frozenset()
    """Every id that a step has met."""
    reserved: str = ""


@dataclasses.dataclass
class _Walk:
    """A move's history, as far as it has ended, and what may stand after it."""

    volumes: dict[str, _Volume]
    behind: int = 0
    stands: frozenset[Stands] = frozenset({START})
    earlier: set[Stands] = dataclasses.field(default_factory=lambda: {START})
    hosts: dict[int, str] = dataclasses.field(default_factory=dict)
    """Of the alternates, by their numbers."""

    def go(self, row: StepRun) -> None:
        """Take one row of the history; of a run that did not end well nobody knows whether it wrote the rows."""
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

    def copy(self) -> _Walk:
        """One that goes on by itself."""
        return dataclasses.replace(self, volumes=dict(self.volumes), earlier=set(self.earlier))

    def _reserve(self, result: Mapping[str, Any]) -> None:
        # What an alternate before had reserved is given up; on the server's own host nothing is reserved.
        self.volumes = {name: dataclasses.replace(each, reserved="") for name, each in self.volumes.items()}
        for name, ids in result.items():
            if not isinstance(ids, dict):
                continue
            found = self.volumes.get(name, _Volume(frozenset(), other=True))
            named, other = (frozenset({ids["old"]}), False) if found.other else (found.named, False)
            known = found.known | {ids["old"], ids["new"]}
            self.volumes[name] = _Volume(named, other, known, ids["new"])


def _moved(found: _Volume, direction: str, *, done: bool) -> _Volume:
    """The volume's attachment after its move, or after the undo of that, which makes a new one where it has to."""
    if direction == "execute":
        if not found.reserved:
            return dataclasses.replace(found, other=True)
        new = frozenset({found.reserved})
        return dataclasses.replace(found, named=new, other=False) if done else _either(found, new)
    if done and found.named == {found.reserved}:
        return dataclasses.replace(found, named=frozenset(), other=True, reserved="")
    return dataclasses.replace(found, named=found.named - ({found.reserved} if done else set()), other=True)


def _either(found: _Volume, new: frozenset[str]) -> _Volume:
    return dataclasses.replace(found, named=found.named | new)


_WALKS: Final[weakref.WeakKeyDictionary[Run, _Walk]] = weakref.WeakKeyDictionary()
"""Run → its move's history up to the first run of a step that has not ended."""


def require_own(ctx: Context) -> None:
    """Park the move (``cell-put-back``) where the cell's rows stand as another step of this move had left them.

    A flow whose journal was adopted is led by the rows, and is not compared.  A server that is gone, being deleted or
    evacuated is not either.  Neither is one between two cells, or one that is shelved or unshelved: their steps compare
    what they left.
    """
    move, run = ctx.move, ctx.run
    record = kinds.of(run.kind)
    knows = record.has_migration and not (record.deletes or record.crosses_cells)
    if not knows or move.before is None or overtaken.was_adopted(run):
        return
    row = ctx.observed
    if row is None or row.task_state == TaskState.DELETING or row.evacuated:
        return
    was, walk = before(move), _walked(ctx)
    attached = {} if ctx.step == _MOVES else row.attached
    found = _found(move, row)
    if why := _older(ctx, walk, found, was, begun=row.begun) or _stale(walk, attached):
        _park(ctx, why)


def _older(ctx: Context, walk: _Walk, found: _Rows, record: Before, *, begun: bool) -> str:
    """Say what the server's rows show of an earlier step; empty when they may stand where they do."""
    ran = Ran(ctx.run.kind, ctx.step, ctx.direction, ctx.move.attempt)
    allowed = walk.stands | {after(each, ran) for each in walk.stands}

    def shown(each: Stands) -> _Rows:
        return _wanted(each, ctx.move, walk.hosts, record)

    if found in {shown(each) for each in allowed}:
        return ""
    if found.status is None and all(each.status is not None for each in walk.stands):
        return f"they have no migration {ctx.move.id}"
    if found not in {shown(each) for each in walk.earlier}:
        return ""
    if begun and found.task_state is None and any(each.task_state for each in walk.stands):
        # The flow's own action is there, so that its mark was: somebody has reset the server's state.
        reset = {shown(dataclasses.replace(each, task_state=None)) for each in walk.stands}
        if found in reset:
            return ""
    return f"they name host {found.host} in task {found.task_state or 'none'} with migration {found.status or 'none'}"


def _stale(walk: _Walk, attached: Mapping[str, str]) -> str:
    """Say which volume's row names an attachment that an earlier step had left; empty when none does."""
    for name, attachment in sorted(attached.items()):
        known = walk.volumes.get(name)
        if known is not None and attachment in known.known and attachment not in known.named:
            return f"they name attachment {attachment} of volume {name}, which is no longer the server's"
    return ""


def _park(ctx: Context, why: str) -> None:
    move = ctx.move
    short, cell = move.id[:SHORT], move.source_cell
    ctx.run.park(
        ctx.step,
        ctx.direction,
        StepError(
            f"the rows of server {move.server_name} in cell {cell} stand where an earlier step of this move had left "
            f"them ({why}), so nothing was done: was the database of cell {cell} put back from a copy, "
            f"droveway move settle {short} --cell {cell} --reason TEXT writes what the move left there, and then "
            f"droveway move retry {short} goes on",
            code="cell-put-back",
        ),
    )


def _walked(ctx: Context) -> _Walk:
    """The history without the run that is being begun now."""
    run = ctx.run
    kept = _WALKS.get(run)
    if kept is None:
        record = before(ctx.move)
        ids = {each.volume: frozenset({each.attachment}) for each in record.volumes}
        kept = _WALKS[run] = _Walk({name: _Volume(mine, known=mine) for name, mine in ids.items()})
    if ctx.move.attempt and ctx.move.attempt not in kept.hosts:
        with run.journal.read() as session:
            kept.hosts = {each.attempt: each.host for each in attempts.tried(session, ctx.move.id)}
    rows = [row for row in run.step_runs() if row.seq > kept.behind]
    ended = list(itertools.takewhile(lambda row: row.ended_at is not None, rows))
    for row in ended:
        kept.go(row)
        kept.behind = row.seq
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
    )


def _wanted(stands: Stands, move: Move, hosts: Mapping[int, str], record: Before) -> _Rows:
    flavors = {
        None: None,
        Flavor.OLD: _flavor_name(record.old_flavor),
        Flavor.NEW: _flavor_name(record.new_flavor),
    }
    destination = hosts.get(stands.attempt)
    return _Rows(
        stands.task_state,
        _vm_state(_VM_STATES.get(stands.vm_state, record.vm_state)),
        move.source_host if stands.side is Side.SOURCE else destination,
        stands.status,
        destination,
        flavors[stands.cur],
        flavors[stands.old],
        flavors[stands.new],
        traces=stands.traces,
    )


def _vm_state(state: str | None) -> str:
    """Active and stopped are told apart by what the guest does, and are one here."""
    return VmState.ACTIVE if state in MOVABLE else str(state)


def _flavor_name(flavor: dict[str, Any] | None) -> str | None:
    return None if flavor is None else str(objects.flavor_data(flavor)["id"])
