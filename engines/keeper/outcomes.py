"""Finds moves that wait for verification and that Nova has ended already.

A user may confirm, revert or delete a server through Nova's API, and nova-compute may confirm it by itself.  Nobody
tells Droveway of that.  So the keeper that leads looks at the migrations of all waiting moves, and files the flow that
takes the end as it is (`droveway.flows.outcome`).

Nova may also evacuate a server that waits: after its host failed, an operator resets the server's state and evacuates
it.  A confirm is filed for such a move.  It finds the evacuation, and leaves the server as Nova has it
(`droveway.flows.evacuation`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import log_context
from droveway.engines.conductor.loop_guard import one_round
from droveway.outages import Outage
from droveway.persistence.database import Database
from droveway.persistence.journal import kinds, moves, requests
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.journal.states import State
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import evacuations
from droveway.persistence.nova.api import InstanceMapping
from droveway.persistence.nova.cell import Instance, Migration
from droveway.persistence.nova.vm_states import VmState
from droveway.printable import printable

LOG = logging.getLogger(__name__)

EVERY: Final = 2.0
"""Seconds between two looks."""

NOT_YET: Final = 0.1
"""Seconds between two looks at whether this process leads, while it does not or nobody knows."""

CONFIRM: Final = kinds.Way.CONFIRM.value
DELETE: Final = kinds.DELETE.name

_LEADS_TO_WAIT: Final = [kind.name for kind in kinds.KINDS if kind.leads_to_wait]
_WAYS: Final = {kind.end_status: str(kind.ends) for kind in kinds.KINDS if kind.end_status}
_BEGUN: Final = {kind.begun_status: str(kind.ends) for kind in kinds.KINDS if kind.begun_status}
_CHUNK: Final = 200

_HOME: Final = sa.func.coalesce(Move.dest_cell, Move.source_cell)
"""The cell of a server that waits for confirm or revert."""
_WAITING: Final = sa.select(Move.id, Move.server, _HOME.label("cell"), Move.source_cell).where(
    Move.state == State.VERIFYING.value, Move.hold.is_(False), Move.delete_requested.is_(False)
)
_ENDED: Final = (
    sa.select(Migration.uuid, Migration.status)
    .join(Instance, Instance.uuid == Migration.instance_uuid)
    .where(
        Migration.uuid.in_(sa.bindparam("moves", expanding=True)),
        Migration.deleted == 0,
        Migration.status.in_([*_WAYS]),
        Instance.deleted == 0,
        # Nova writes the status first.  While the server is still in this state, Nova has not finished.
        Instance.vm_state != VmState.RESIZED,
    )
)
_REBUILT: Final = orm.aliased(Migration)
_EVACUATED: Final = (
    sa.select(Migration.uuid)
    .join(Instance, Instance.uuid == Migration.instance_uuid)
    .join(_REBUILT, _REBUILT.instance_uuid == Migration.instance_uuid)
    .where(
        Migration.uuid.in_(sa.bindparam("moves", expanding=True)),
        Migration.deleted == 0,
        Instance.deleted == 0,
        Instance.vm_state != VmState.RESIZED,
        _REBUILT.id > Migration.id,
        _REBUILT.migration_type == "evacuation",
        _REBUILT.status.in_(evacuations.OVER),
        _REBUILT.deleted == 0,
    )
)
"""The moves whose server Nova has evacuated since their migration was made; the evacuation is over."""
_PRESENT: Final = sa.select(Instance.uuid).where(
    Instance.uuid.in_(sa.bindparam("servers", expanding=True)), Instance.deleted == 0
)
_SHOWN: Final = sa.select(Instance.uuid).where(
    Instance.uuid == sa.bindparam("server"),
    Instance.deleted == 0,
    sa.or_(Instance.hidden.is_(False), Instance.hidden.is_(None)),
)
_MAPPED: Final = sa.select(InstanceMapping.instance_uuid).where(
    InstanceMapping.instance_uuid.in_(sa.bindparam("servers", expanding=True)),
    sa.or_(InstanceMapping.queued_for_delete.is_(False), InstanceMapping.queued_for_delete.is_(None)),
)


@dataclasses.dataclass(frozen=True)
class Nova:
    """Nova's databases; without cells nothing is looked for."""

    api: Database | None = None
    cells: Mapping[str, Database] = dataclasses.field(default_factory=dict)


def of_move(cells: Mapping[str, Database], move: Move, *, final: bool = False) -> str | None:
    """Return the way of ending, confirm or revert, that Nova's rows show for the move; None when they show none.

    With ``final`` the way counts only when Nova has finished it: None while the server is still in the state RESIZED.
    """
    found = sa.select(Migration.status, Instance.vm_state).join(Instance, Instance.uuid == Migration.instance_uuid)
    with cells[_home(cells, move)].read() as session:
        row = session.execute(found.where(Migration.uuid == move.id, Migration.deleted == 0)).first()
        status, vm_state = row if row is not None else (None, None)
        if status not in _WAYS and session.scalar(_EVACUATED, {"moves": [move.id]}) is not None:
            return CONFIRM
    return None if final and vm_state == VmState.RESIZED else _WAYS.get(status or "")


def begun_before(journal: Database, cells: Mapping[str, Database], move: Move) -> str | None:
    """Find the confirm or revert that had begun before an older copy of the journal was put back; None if none had.

    In that copy the move still waits for verification, but the server's rows show what had begun.  The rows count only
    if no flow except the forward one has run since the journal was adopted.  A forward flow never leaves rows that look
    like those of a confirm or revert.
    """
    with journal.read() as session:
        ours = sa.select(MoveStep.step).where(MoveStep.move_id == move.id, MoveStep.flow.not_in(_LEADS_TO_WAIT))
        last = session.scalar(ours.order_by(MoveStep.seq.desc()).limit(1))
    if last != ADOPTED:
        return None
    with cells[_home(cells, move)].read() as session:
        status = session.scalar(sa.select(Migration.status).where(Migration.uuid == move.id, Migration.deleted == 0))
    return _BEGUN.get(status or "")


def _home(cells: Mapping[str, Database], move: Move) -> str:
    """Name the cell that shows the server: the destination's, or the source's if a revert removed the rows there."""
    home = move.dest_cell or move.source_cell
    if home != move.source_cell:
        for cell in (home, move.source_cell):
            with cells[cell].read() as session:
                if session.scalar(_SHOWN, {"server": move.server}) is not None:
                    return cell
    return home


class Outcomes:
    """Looks every `EVERY` seconds while this process leads; in a thread, since a cell may take long to answer."""

    def __init__(
        self,
        journal: Database,
        nova: Nova,
        flow_of: Callable[[str], FlowRef],
        *,
        leads: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """``flow_of`` returns the graph by which a new flow of a kind runs; ``wake`` is called when one was filed."""
        self._journal = journal
        self._nova = nova
        self._flow_of = flow_of
        self._leads = leads
        self._wake = wake
        self._wakeup = threading.Event()
        self._outages: dict[str, Outage] = {}
        self._thread = threading.Thread(target=self._run, name="outcomes", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        if self._nova.cells:
            self._thread.start()

    def stop(self) -> None:
        """End, and return when it has."""
        self._wakeup.set()
        if self._thread.ident is not None:
            self._thread.join()

    def file_ended(self) -> bool:
        """Look at each cell that answers, and file what was found; return whether anything was filed."""
        with self._journal.read() as session:
            waiting = sorted(session.execute(_WAITING), key=lambda row: str(row.cell))
        filed = False
        for cell, rows in itertools.groupby(waiting, key=lambda row: str(row.cell)):
            outage = self._outages.setdefault(
                cell, Outage(LOG, f"The look for what Nova ended in cell {cell} waits for a database")
            )
            with one_round(outage, LOG, f"The look for what Nova ended in cell {cell} failed"):
                left = list(rows)
                while chunk := left[:_CHUNK]:
                    left = left[_CHUNK:]
                    filed |= self._file(self._found(cell, chunk))
                outage.over()
        return filed

    def _run(self) -> None:
        outage = Outage(LOG, "The look for what Nova ended waits for ZooKeeper or a database")
        while not self._wakeup.wait(EVERY if self._leads() else NOT_YET):
            if not self._leads():
                continue
            with one_round(outage, LOG, "The look for what Nova ended failed"):
                if self.file_ended():
                    self._wake()
                outage.over()

    def _found(self, cell: str, rows: Sequence[Any]) -> dict[str, str]:
        """Return what to file, by move: confirm or revert if the rows show that end, delete if the server is gone."""
        waiting = {str(row.id): str(row.server) for row in rows}
        with self._nova.cells[cell].read() as session:
            ends = {str(move): CONFIRM for move in session.scalars(_EVACUATED, {"moves": [*waiting]})}
            ends |= {row.uuid: _WAYS[row.status] for row in session.execute(_ENDED, {"moves": [*waiting]})}
            standing = set(session.scalars(_PRESENT, {"servers": [*waiting.values()]}))
        lost = set(waiting.values()) - standing
        # A missing row proves no deletion: the row may have been lost with its database.  Nova also writes a deletion
        # into the server's mapping (queued_for_delete).  So a server is gone if no live mapping names it either.
        gone = lost - self._mapped(lost) if lost else set()
        for row in rows:
            if row.server in lost - gone and row.source_cell != cell:
                ends |= self._gone_back(row)
        return ends | {move: DELETE for move, server in waiting.items() if server in gone}

    def _gone_back(self, row: Any) -> dict[str, str]:
        """Return the end that the source's cell shows, if a revert has removed the rows in the other cell."""
        with self._nova.cells[row.source_cell].read() as session:
            if session.scalar(_SHOWN, {"server": row.server}) is None:
                return {}
            return {row.uuid: _WAYS[row.status] for row in session.execute(_ENDED, {"moves": [row.id]})}

    def _mapped(self, servers: Collection[str]) -> set[str]:
        if self._nova.api is None:
            return set(servers)
        with self._nova.api.read() as session:
            return set(session.scalars(_MAPPED, {"servers": [*servers]}))

    def _file(self, ends: Mapping[str, str]) -> bool:
        """File each end, unless the move has left its wait since; return whether any was filed."""
        filed = False
        for move_id, kind in ends.items():
            with log_context.of_move(move_id), self._journal.write() as session:
                move = moves.get(session, move_id, lock=True)
                log_context.name_server(move.server)
                if move.state != State.VERIFYING or move.hold or move.delete_requested:
                    continue
                LOG.info("Move %s of %s was ended by Nova (%s)", move_id, printable(move.server_name), kind)
                if kind == DELETE:
                    requests.delete(session, move)
                else:
                    requests.end_wait(session, move, self._flow_of(kinds.ending(move.kind, kind).name))
                filed = True
        return filed
