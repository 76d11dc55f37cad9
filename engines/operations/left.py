"""Works out what the databases should say of a move's server, after the last step that the journal knows.

These are the databases of the move's cells, Nova's API database and Placement.  Only steps that ended well count.  A
step that was under way is entered again, and finds its work undone or done.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Refused
from droveway.flows import evacuation, put_back
from droveway.flows.before import Before, before
from droveway.flows.put_back import Copies, Ran
from droveway.flows.put_back import left as walked
from droveway.flows.stands import CLEARED, OFFLOADED, START, Flavor, Power, Side, Stands, Vm
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.journal.kinds import Carries, Kind
from droveway.persistence.journal.moves import GONE, PASSED_ON
from droveway.persistence.journal.states import UNDONE, State
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import Move, MoveAttempt, MoveFlow, MoveStep
from droveway.persistence.nova import cell, evacuations, servers
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState, VmState
from droveway.printable import SHORT


class Books(enum.StrEnum):
    """The *books* of a move: which allocations in Placement belong to its server and which to its migration."""

    SOURCE = "the server holds its old flavor on the source"
    BOTH = "the server holds the destination's share, the migration the source's"
    DESTINATION = "the server holds the destination's share"
    NOTHING = "nobody holds anything"


RESTS: Final = (State.VERIFYING, State.DONE, State.REVERTED, State.FAILED, State.CANCELLED)
"""The states of a move between its flows and after them."""

TASKS: Final = frozenset(
    {
        None,
        TaskState.RESIZE_PREP,
        TaskState.RESIZE_MIGRATED,
        TaskState.RESIZE_FINISH,
        TaskState.RESIZE_REVERTING,
        TaskState.SHELVING,
        TaskState.SHELVING_OFFLOADING,
        TaskState.UNSHELVING,
    }
)
"""The tasks that moves write, one of which an older copy of the rows may show.

Any other task means that somebody else is at work on the server.
"""

_CLAIM: Final = "claim"
_HOLDS: Final = {
    (_CLAIM, "execute"): Books.BOTH,
    (_CLAIM, "revert"): Books.SOURCE,
    ("release_source_allocation", "execute"): Books.DESTINATION,
    ("return_allocation", "execute"): Books.SOURCE,
    ("release_allocation", "execute"): Books.NOTHING,
}
_RESTING_BOOKS: Final = {State.VERIFYING: Books.BOTH, State.DONE: Books.DESTINATION}
_NAMES_FLAVOR: Final = {("save_request_spec", "execute"): True, ("restore_request_spec", "execute"): False}
_ACTIONS: Final = {"mark_confirming": "confirmResize", "mark_reverting": "revertResize"}
FIRST_MARKS: Final = {"accept": "", "mark_shelving": "shelve", "mark_unshelving": "unshelve"}
"""Step that begins a move's action in Nova → the action's name; empty where the name follows from the move's kind.

Such a step marks the server: it is the first that writes the server's rows in Nova.  It has nothing to do with the
marks in ZooKeeper (`droveway.engines.conductor.step_marks`).
"""
_MARKS: Final = (*FIRST_MARKS, *_ACTIONS)
_IS_GONE: Final = (kinds.DELETE.name, "settle_records")
"""The step after which the cell has no such server."""

_VM_STATES: Final = {
    Vm.RESIZED: VmState.RESIZED,
    Vm.SHELVED: VmState.SHELVED,
    Vm.OFFLOADED: VmState.SHELVED_OFFLOADED,
    Vm.ACTIVE: VmState.ACTIVE,
}

_LATER: Final = sa.select(cell.Migration.uuid).where(
    cell.Migration.instance_uuid == sa.bindparam("server"),
    cell.Migration.uuid != sa.bindparam("move"),
    cell.Migration.id > sa.bindparam("after"),
    cell.Migration.deleted == 0,
)
_SINCE: Final = sa.select(cell.Migration.uuid).where(
    cell.Migration.instance_uuid == sa.bindparam("server"),
    cell.Migration.uuid != sa.bindparam("move"),
    cell.Migration.created_at > sa.bindparam("begun"),
    cell.Migration.deleted == 0,
)
_STEPS: Final = sa.select(MoveStep).where(MoveStep.move_id == sa.bindparam("move")).order_by(MoveStep.seq)
_KIND: Final = sa.select(MoveFlow.kind).where(MoveFlow.uuid == sa.bindparam("flow"))


@dataclasses.dataclass(frozen=True)
class Left:
    """What the databases should say of a move's server, by the history of the move."""

    move: Move
    record: Before
    stands: Stands
    """What the rows of one copy of the server should say.

    `of` chooses the copy in the cell that the server is mapped to, and `in_cell` the copy in a given cell.
    """
    destination: MoveAttempt | None
    """The attempt whose host the migration names as destination; None while it names none.

    An attempt is a host that was tried: the first destination or an alternate.
    """
    claimed: MoveAttempt | None
    """The last attempt for which the step `claim` was done; if there is none, the move's present attempt."""
    books: Books
    new_spec: bool
    """Whether the request spec has the new flavor."""
    action: str
    """The action in Nova's list that the flow under way has begun; empty at a rest, and before it has begun one."""
    copies: Copies = dataclasses.field(default_factory=lambda: Copies(START))
    """What the rows should say in each cell of the move."""
    returning: MoveAttempt | None = None
    """The host to which a revert has brought the server in the place of a dead source."""
    forward: bool = False
    """Whether the flow under way is the first of the move.

    The rows that such a flow makes in another cell have the move's id in them.
    """

    @property
    def between(self) -> bool:
        """Tell whether the move leads from one cell into another."""
        return kinds.of(self.move.kind).crosses_cells

    def side_of(self, cell: str) -> Side:
        """Say whether the cell is the source's or the destination's."""
        return Side.DESTINATION if self.between and cell != self.move.source_cell else Side.SOURCE

    def cell_of(self, side: Side) -> str:
        """Name the cell of one of the two hosts."""
        there = side is Side.DESTINATION and self.between
        return (self.move.dest_cell or "") if there else self.move.source_cell

    @property
    def mapped_cell(self) -> str:
        """Name the cell that the server is to be mapped to."""
        return self.cell_of(self.copies.mapped)

    def in_cell(self, cell: str) -> Left:
        """Return the same, with ``stands`` for the copy in that cell."""
        return dataclasses.replace(self, stands=self.copies.of(self.side_of(cell)))

    @property
    def in_source(self) -> bool:
        """Tell whether ``stands`` is about the copy in the source's cell."""
        return self.stands is self.copies.source

    @property
    def is_mapped(self) -> bool:
        """Tell whether ``stands`` is about the copy that the server is mapped to."""
        return self.stands is self.copies.home

    @property
    def rests(self) -> bool:
        """Tell whether no flow is under way: then the server's disks are whole where it lives."""
        return self.move.state in RESTS

    @property
    def home(self) -> str:
        """Name the host that the rows should name; empty for none."""
        return self.host_of(self.stands.side)

    @property
    def flavor(self) -> dict[str, Any]:
        """Return the flavor that the server should have."""
        return self.flavor_of(self.stands.cur) or self.record.old_flavor

    def host_of(self, side: Side) -> str:
        """Name the host of a side; empty for none."""
        if side is Side.NOWHERE:
            return ""
        if side is Side.RETURN and self.returning is not None:
            return self.returning.host
        if side in (Side.SOURCE, Side.RETURN):
            return self.move.source_host
        return self.destination.host if self.destination is not None else self.move.dest_host or ""

    def node_of(self, side: Side) -> str:
        """Name the node of a side's host as the rows do."""
        if side is Side.DESTINATION:
            return self.destination.node if self.destination is not None else ""
        return self.returning.node if side is Side.RETURN and self.returning is not None else self.record.node

    def flavor_of(self, which: str | None) -> dict[str, Any] | None:
        """Return the move's old or new flavor; None for a slot of the rows that should be empty."""
        return {"old": self.record.old_flavor, "new": self.record.new_flavor}.get(which or "")

    def vm_state(self, *, running: bool) -> str:
        """Return the vm_state that the row should have; ``running``: whether the guest runs."""
        known = {Vm.BEFORE: self.record.vm_state, **_VM_STATES}
        if self._shelves_without_image:
            known[Vm.SHELVED] = self.record.vm_state
        return known.get(self.stands.vm_state) or ("active" if running else "stopped")

    @property
    def task_state(self) -> str | None:
        """Return the task_state that the row should have."""
        return TaskState.SHELVING if self._shelves_without_image else self.stands.task_state

    @property
    def _shelves_without_image(self) -> bool:
        """Tell whether a shelve of a server that boots from a volume has not offloaded the server yet.

        Such a shelve makes no image.  It leaves vm_state and task_state alone until the server is on no host.
        """
        return self.stands.vm_state is Vm.SHELVED and self.record.boot_from_volume

    def power_state(self, *, running: bool) -> int | None:
        """Return the power_state that the row should have; at a rest, whether the guest runs decides."""
        if self.stands.power_state is Power.OFF:
            return 4
        if self.stands.power_state is Power.BEFORE and not self.rests:
            return self.record.power_state
        if self.stands.power_state is Power.AGAIN and not self.rests:
            return 1 if self.record.powered_on else 4
        return 1 if running else 4


def of(session: orm.Session, move: Move) -> Left:
    """Work out from the move's history what it has left.

    Raises `droveway.errors.Refused` for a move that never recorded its server, and for one whose server was deleted.
    """
    short = move.id[:SHORT]
    if move.before is None:
        raise Refused(f"move {short} never recorded what server {move.server_name} was, so it left nothing anywhere")
    rows = list(session.scalars(_STEPS, {"move": move.id}))
    state = State(move.state)
    done = list(_done(rows))
    if any((row.flow, row.step) == _IS_GONE for row in done):
        raise Refused(f"server {move.server_name} was deleted with move {short}, so nothing of it is written")
    tried = {each.attempt: each for each in attempts.tried(session, move.id)}
    copies = _copies(move, state, done)
    stands, returns = copies.home, attempts.returns(session, move.id)
    went = next((kinds.of(row.flow) for row in reversed(rows) if kinds.of(row.flow).carries is Carries.BACK), None)
    has_migration = kinds.of(move.kind).has_migration
    return Left(
        move=move,
        record=before(move),
        stands=stands,
        # The row of a migration may still name an alternate that was given up.  ``stands.attempt`` is the number of the
        # alternate that the row names.  A move without a migration has no such row, so its present alternate counts.
        destination=tried.get(stands.attempt if has_migration else move.attempt),
        claimed=tried.get(_claimed(done) or move.attempt),
        books=_RESTING_BOOKS.get(state, Books.SOURCE) if state in RESTS else _last(done, _HOLDS, Books.SOURCE),
        new_spec=state in (State.VERIFYING, State.DONE) if state in RESTS else _last(done, _NAMES_FLAVOR, False),
        action="" if state in RESTS else _action(move, done),
        copies=copies,
        returning=returns[-1] if returns and went is not None and went.elsewhere else None,
        forward=state not in RESTS and _goes_forward(session, move),
    )


def _goes_forward(session: orm.Session, move: Move) -> bool:
    # Not by the history: a flow that has begun no step has no row there, and the row of an adoption names no kind.
    kind = session.scalar(_KIND, {"flow": move.flow_uuid})
    return kind is not None and not (kinds.of(kind).ends_wait or kinds.of(kind).deletes)


def require_own(session: orm.Session, found: Left, row: cell.Instance) -> None:
    """Raise `droveway.errors.Refused` where somebody else is at work on the server, or has moved it since."""
    move, name = found.move, found.move.server_name
    going = {TaskState.DELETING} if found.stands.task_state == TaskState.DELETING else set()
    if row.task_state not in TASKS | going:
        raise Refused(f"server {name} has task {row.task_state}: wait until that ends, then ask again")
    migration = servers.migration(session, move.id)
    mine = {"server": row.uuid, "move": move.id}
    if migration is None:
        later = session.scalar(_SINCE.limit(1), {**mine, "begun": move.created_at})
    else:
        later = session.scalar(_LATER.limit(1), {**mine, "after": migration.id})
    if later is not None:
        raise Refused(f"server {name} was moved since by another than Droveway (migration {later}): its rows stay")
    if migration is not None and evacuations.has_taken(session, row.uuid, row.task_state, migration.id):
        raise Refused(evacuation.sentence(name, row.host, row.task_state, "so its rows stay"))


def _done(rows: Iterable[MoveStep]) -> Iterator[MoveStep]:
    """Yield the runs that ended well, in their order.

    After a journal was adopted, the flow repeats steps that had ended well before.  These repetitions are left out.
    The first run of a step that had not ended well before is the end of them: from that run on, every run counts again.
    """
    known: set[tuple[str, str, str]] = set()
    again: set[tuple[str, str, str]] = set()
    for row in rows:
        result, run = row.result or {}, (row.flow_uuid, row.step, row.direction)
        if row.step == ADOPTED:
            again = set(known)
        if row.ended_at is None or row.error is not None or result.get("settled", "done") != "done":
            continue
        if result in (GONE, PASSED_ON) or run in again:
            continue
        again = set()
        known.add(run)
        yield row


def _copies(move: Move, state: State, done: list[MoveStep]) -> Copies:
    kind = kinds.of(move.kind)
    found = walked(
        kind,
        (
            Ran(row.flow, row.step, row.direction, row.attempt)  # type: ignore[arg-type]
            for row in done
            if not kinds.of(row.flow).deletes
        ),
    )
    if state is State.VERIFYING:
        found = put_back.waiting(move.attempt, between=kind.crosses_cells)
    elif state is State.DONE:
        found = _done_with(kind, move.attempt)
    elif state is State.REVERTED:
        back = Side.RETURN if kind.crosses_cells else Side.SOURCE
        found = Copies(
            dataclasses.replace(START, side=back, zone=back, status=MigrationStatus.REVERTED, attempt=move.attempt)
        )
    elif state in UNDONE:
        first = put_back.begun(kind).source
        status = None if found.source.status is None else MigrationStatus.ERROR
        found = Copies(dataclasses.replace(first, status=status, attempt=found.source.attempt))
    if move.delete_requested or state is State.DELETING:
        found = found.change(found.mapped, dataclasses.replace(found.home, task_state=TaskState.DELETING))
    return found


def _done_with(kind: Kind, attempt: int) -> Copies:
    """Return what the rows should say after a move that has ended with its server where it was to be."""
    if kind.carries is Carries.NOWHERE:
        return Copies(OFFLOADED)
    there = put_back.waiting(attempt, between=False).source
    there = dataclasses.replace(there, **CLEARED, vm_state=Vm.FOUND, power_state=Power.FOUND)
    if kind.has_migration:
        there = dataclasses.replace(there, status=MigrationStatus.CONFIRMED)
    else:
        there = dataclasses.replace(there, vm_state=Vm.ACTIVE, status=None, attempt=0, cur=Flavor.OLD)
    return Copies(Stands(here=False), there, Side.DESTINATION) if kind.crosses_cells else Copies(there)


def _claimed(done: list[MoveStep]) -> int:
    return max((row.attempt for row in done if (row.step, row.direction) == (_CLAIM, "execute")), default=0)


def _last(done: list[MoveStep], known: dict[tuple[str, str], Any], first: Any) -> Any:
    """Return the value in ``known`` of the last step that has a value there; ``first`` when no step has one."""
    found = [known[row.step, row.direction] for row in done if (row.step, row.direction) in known]
    return found[-1] if found else first


def _action(move: Move, done: list[MoveStep]) -> str:
    marks = [row for row in done if row.flow_uuid == move.flow_uuid and row.step in _MARKS]
    if not marks or marks[-1].direction != "execute":
        return ""
    step = marks[-1].step
    return _ACTIONS.get(step) or FIRST_MARKS.get(step) or move.kind
