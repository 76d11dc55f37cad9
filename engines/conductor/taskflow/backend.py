"""Stores in the journal what TaskFlow persists: fenced, in one transaction for each step, and only what changed.

The end of a step is stored together with the beginning of the next one, or with the flow's end.  Nothing happens
between the two.  If the conductor dies there, the step runs again, as if its end had never been reached.  A failure is
stored at once.

While a step runs for the first time, only its open row in the history shows it.  Its atom gets a row when the step has
ended.  If the conductor dies before, TaskFlow takes the step for one that never ran.

Everything else that TaskFlow writes (intentions, resets, the flow states RESUMING and SUSPENDED) waits for the next
transaction.  A crash before it does no harm: a resumed engine writes the same again, and works intentions out from the
failed atom.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc, orm
from taskflow import exceptions as taskflow_errors
from taskflow import states
from taskflow.persistence import models

from droveway import clocks
from droveway.engines.conductor import fencing
from droveway.engines.conductor.fencing import Standing
from droveway.engines.conductor.history import History, Run
from droveway.engines.conductor.story import Steps
from droveway.engines.conductor.taskflow import details
from droveway.errors import DrovewayError, Fenced, Parked
from droveway.persistence.database import Database, Executor, WriteFailed
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Intent, JournalBase, Move

_BEGINS: Final = {states.RUNNING: "execute", states.REVERTING: "revert"}
_ENDS: Final = {
    states.SUCCESS: "execute",
    states.FAILURE: "execute",
    states.REVERTED: "revert",
    states.REVERT_FAILURE: "revert",
}
_WITHOUT_ROW: Final = frozenset({states.PENDING, states.RUNNING})
"""States in which an atom that has no row gets none: a step that has not ended has nothing to store."""
_AT_ONCE: Final = frozenset({*_BEGINS, states.FAILURE, states.REVERT_FAILURE, states.RETRYING})
"""Atom states that make a transaction at once; for an atom without a row, RUNNING makes only a row of the history."""

_KNOWN_FLOW: Final = sa.select(details.FLOWS).where(details.FLOWS.c.uuid == sa.bindparam("flow"))
_KNOWN_ATOMS: Final = sa.select(details.ATOMS).where(details.ATOMS.c.parent_uuid == sa.bindparam("flow"))
_KNOWN_BOOK: Final = sa.select(details.LOGBOOKS.c.uuid).where(details.LOGBOOKS.c.uuid == sa.bindparam("book"))
_NEW_BOOK: Final = details.LOGBOOKS.insert()
_NEW_FLOW: Final = details.FLOWS.insert()
_NEW_ATOM: Final = details.ATOMS.insert()
_NEW_INTENT: Final = sa.insert(Intent)
_INTENTS: Final = JournalBase.metadata.tables[Intent.__tablename__]
# This updates the table and not the class Intent.  With the class and a list of parameters, a session would make a bulk
# update, which has no WHERE.
_CALLED: Final = (
    sa.update(_INTENTS).where(_INTENTS.c.id == sa.bindparam("intent"), _INTENTS.c.state == "open").values(state="done")
)


class JournalWriteFailed(WriteFailed, taskflow_errors.StorageFailure):
    """A transaction failed.  TaskFlow tries it again, so that a short outage of the database does no harm."""


class FlowBackend:
    """Loads and saves one claimed flow; it is both the backend and the connection of TaskFlow's interface."""

    def __init__(
        self,
        journal: Database,
        history: History,
        *,
        on_stored: Callable[[str, str], None] | None = None,
        without_undo: Collection[str] = (),
    ) -> None:
        """``on_stored`` is called once a step's end is committed; ``without_undo`` names the steps without an undo."""
        self._journal = journal
        self._history = history
        self._on_stored = on_stored
        self._story = Steps(history.move_id, without_undo)
        self._stored: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, dict[str, Any]] = {}
        self._flow_row: dict[str, Any] = {}
        self._flow_waiting: dict[str, Any] = {}
        self._states: dict[str, str | None] = {}
        self._ends: dict[Run, dict[str, Any]] = {}
        self._called: list[int] = []
        self._assumed: set[str] = set()
        self._begun: tuple[Run, dict[str, Any]] | None = None
        self._unsure = False
        """Whether the last transaction may be committed although its answer never came."""
        self.closed: DrovewayError | None = None
        """Why nothing more may be written: parked or fenced."""
        self.ended = False
        """Whether the flow's end is committed."""

    def get_connection(self) -> FlowBackend:
        """Return itself, for TaskFlow."""
        return self

    def close(self) -> None:
        """Do nothing, for TaskFlow."""

    def begun(self, step: str, direction: str) -> dict[str, Any] | None:
        """Return the move's row as `fencing.update_claimed` gave it when this run of the step was stored as begun.

        Only the first call after that returns the row.  Any later call returns None, and so does a call for another
        run than the one that was stored last.
        """
        begun, self._begun = self._begun, None
        return begun[1] if begun is not None and begun[0] == (step, direction) else None

    def detach(self, reason: DrovewayError) -> None:
        """Refuse every later write with ``reason``: what the engine still does leaves no trace."""
        if self.closed is None:
            self.closed = reason

    def load(self) -> Any:
        """Read the flow's detail, or make it when the flow never ran.

        A step that was left midway goes on with its open row in the history.
        """
        with self._transaction() as session:
            flow_uuid = self._history.flow_uuid
            row = session.execute(_KNOWN_FLOW, {"flow": flow_uuid}).mappings().first()
            atoms = session.execute(_KNOWN_ATOMS, {"flow": flow_uuid}).mappings() if row is not None else ()
            flow = models.FlowDetail.from_dict(row or self._make(session))
            self._flow_row = flow.to_dict()
            self._history.load(session)
            for atom_row in atoms:
                detail = details.atom_detail(atom_row)
                flow.add(detail)
                self._stored[detail.uuid] = details.atom_row(detail, flow_uuid)
                self._states[detail.uuid] = detail.state
                if detail.state in _BEGINS:
                    direction = _BEGINS[detail.state]
                    standing = self._history.enter(session, detail.name, direction)
                    self._history.begin(session, standing, detail.name, direction)
        return flow

    def update_flow_details(self, flow_detail: Any, ignore_missing: bool = False) -> Any:  # noqa: ARG002 - TaskFlow's
        """Take new atoms or the flow's new state, for TaskFlow.  An end is stored at once with the move's new state."""
        self._refuse_when_closed()
        flow_uuid = self._history.flow_uuid
        for detail in flow_detail:
            if detail.uuid not in self._stored and detail.uuid not in self._waiting:
                self._waiting[detail.uuid] = details.atom_row(detail, flow_uuid)
        self._flow_waiting = flow_detail.to_dict()
        if flow_detail.state in details.ENDED_FLOW or flow_detail.state == states.FAILURE:
            with self._transaction() as session:
                if flow_detail.state in details.ENDED_FLOW:
                    done = flow_detail.state == states.SUCCESS
                    moves.end_flow(session, self._history.move_id, flow_uuid, done=done)
            self.ended = flow_detail.state in details.ENDED_FLOW
        return flow_detail

    def update_atom_details(self, atom_detail: Any) -> Any:
        """Take an atom's new state, stored together with its row of the history, for TaskFlow."""
        self._refuse_when_closed()
        self._refuse_parking(atom_detail)
        name, state = atom_detail.name, atom_detail.state
        self._waiting[atom_detail.uuid] = details.atom_row(atom_detail, self._history.flow_uuid)
        if state != self._states.get(atom_detail.uuid):
            if state in _ENDS and not (state == states.SUCCESS and name in self._assumed):
                outcome = _outcome(atom_detail)
                self._ends[name, _ENDS[state]] = {"at": clocks.now(), **outcome}
                if "error" not in outcome:
                    self._story.end(name, _ENDS[state], outcome["result"])
            if state in _AT_ONCE:
                self._store(name, state)
        self._states[atom_detail.uuid] = state
        return atom_detail

    def assume(self, step: str) -> None:
        """Let the step count as done without a run: its history has no row that could end."""
        self._assumed.add(step)

    @contextlib.contextmanager
    def write(self) -> Iterator[orm.Session]:
        """Open a journal transaction that holds the claim, for writes about the move that are not TaskFlow's."""
        self._refuse_when_closed()
        with self._transaction() as session:
            yield session

    def forget(self) -> None:
        """Drop the states of atoms and flow that wait to be stored, since the database may refuse them again.

        The steps whose new states are dropped run once more when a conductor takes up the flow again.
        """
        self._waiting, self._flow_waiting, self._ends = {}, {}, {}

    @contextlib.contextmanager
    def intent(self, service: str, call: str) -> Iterator[None]:
        """Record a cloud write before it is sent; that it returned is stored with the next transaction.

        If the claim is lost before that, the record stays open.  The next claim sets it to late, and audits look at it.
        """
        self._refuse_when_closed()
        row = {"service": service, "call": call[:255], "state": "open", "created_at": clocks.now()}
        with self._outages(), self._journal.begin() as connection:
            self._check(connection)
            self._flush(connection)
            facts = {"move_id": self._history.move_id, "epoch": self._history.epoch}
            made: Any = connection.execute(_NEW_INTENT, row | facts)
        self._flushed()
        try:
            yield
        finally:
            self._called.append(made.inserted_primary_key[0])

    def store_called(self) -> None:
        """Store which cloud calls have returned.

        This is called where the claim ends and perhaps no later transaction would store them.
        During an outage nothing is stored, and the next claim sets the calls to late.
        """
        if self.closed is None and self._called:
            with contextlib.suppress(taskflow_errors.StorageFailure), self.write():
                pass

    def _store(self, name: str, state: str) -> None:
        begins, standing = _BEGINS.get(state), None
        with self._outages(), self._journal.begin() as connection:
            if begins is None:
                self._check(connection)
                self._flush(connection)
            else:
                standing = self._begin(connection, name, state, begins)
        self._flushed()
        if begins is not None and standing is not None:
            self._story.begin(name, begins, attempt=standing.attempt, host=self._history.host_of(standing, name))

    def _begin(self, connection: sa.Connection, name: str, state: str, direction: str) -> Standing:
        if self._unsure:
            # This check reads the history back from the journal.  `enter` needs it: it has to know whether an earlier
            # run of the step is still open.
            self._check(connection)
        standing = self._history.enter(connection, name, direction)
        self._flush(connection)
        columns = self._note_undoing(connection, standing, state)
        self._history.begin(connection, standing, name, direction)
        self._begun = (name, direction), {**(standing.claimed or {}), **columns}
        return standing

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[orm.Session]:
        with self._outages(), self._journal.write() as session:
            self._check(session)
            self._flush(session)
            yield session
        self._flushed()

    def _check(self, transaction: Executor) -> None:
        fencing.check(transaction, self._history.move_id, self._history.epoch)
        if self._unsure:
            self._read_back(transaction)

    @contextlib.contextmanager
    def _outages(self) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            self.detach(error)
            raise
        except exc.DBAPIError as error:
            self._unsure = True
            raise JournalWriteFailed(f"the journal refused a write: {type(error.orig).__name__}") from error

    def _make(self, session: orm.Session) -> dict[str, Any]:
        move_id, flow_uuid = self._history.move_id, self._history.flow_uuid
        if session.scalar(_KNOWN_BOOK, {"book": move_id}) is None:
            session.execute(_NEW_BOOK, {"uuid": move_id, "name": move_id, "meta": {}})
        row: dict[str, Any] = {"uuid": flow_uuid, "name": self._history.flow, "state": None, "meta": {}}
        session.execute(_NEW_FLOW, {"parent_uuid": move_id, **row})
        return row

    def _read_back(self, transaction: Executor) -> None:
        """Read what is stored, after a transaction whose answer never came: what to write next depends on it."""
        flow_uuid = self._history.flow_uuid
        row = transaction.execute(_KNOWN_FLOW, {"flow": flow_uuid}).mappings().one()
        self._flow_row = models.FlowDetail.from_dict(row).to_dict()
        rows = transaction.execute(_KNOWN_ATOMS, {"flow": flow_uuid}).mappings()
        atoms = [details.atom_detail(row) for row in rows]
        self._stored = {atom.uuid: details.atom_row(atom, flow_uuid) for atom in atoms}
        self._history.load(transaction)

    def _flush(self, transaction: Executor) -> None:
        if new := self._new_atoms():
            transaction.execute(_NEW_ATOM, new)
        for uuid, row in self._waiting.items():
            if values := details.changed(self._stored.get(uuid, row), row):
                columns = frozenset(name.removeprefix("new_") for name in values)
                transaction.execute(details.update_of(details.ATOMS, columns), {"key": uuid, **values})
        if self._flow_waiting and (values := details.changed(self._flow_row, self._flow_waiting)):
            columns = frozenset(name.removeprefix("new_") for name in values)
            transaction.execute(details.update_of(details.FLOWS, columns), {"key": self._history.flow_uuid, **values})
        for (step, direction), outcome in self._ends.items():
            self._history.end(transaction, step, direction, **outcome)
        if self._called:
            transaction.execute(_CALLED, [{"intent": number} for number in self._called])

    def _new_atoms(self) -> list[dict[str, Any]]:
        """Return the new rows for atoms that have none."""
        return [
            row for uuid, row in self._waiting.items() if uuid not in self._stored and row["state"] not in _WITHOUT_ROW
        ]

    def _flushed(self) -> None:
        self._unsure = False
        new = {row["uuid"] for row in self._new_atoms()}
        self._stored.update({uuid: row for uuid, row in self._waiting.items() if uuid in self._stored or uuid in new})
        self._waiting = {}
        self._flow_row, self._flow_waiting = self._flow_waiting or self._flow_row, {}
        self._called = []
        ended, self._ends = list(self._ends), {}
        for step, direction in ended:
            self._history.forget(step, direction)
        for step, direction in ended:
            if self._on_stored is not None:
                self._on_stored(step, direction)

    def _note_undoing(self, connection: sa.Connection, standing: Standing, state: str) -> dict[str, Any]:
        """Set a forward move to undoing at its first undo, and return the columns of the move that this changed.

        The state stays when steps are undone only for the next alternate, or when another flow takes over.
        """
        if state != states.REVERTING or standing.state != State.RUNNING:
            return {}
        rows = (self._stored | self._waiting).values()
        if any(row["intention"] == states.RETRY for row in rows):
            return {}
        if moves.following(connection, self._history.move_id, self._history.flow_uuid):
            return {}
        with orm.Session(connection) as session:
            move = session.get_one(Move, self._history.move_id)
            moves.change_state(session, move, State.UNDOING)
        return {"state": State.UNDOING.value}

    def _refuse_when_closed(self) -> None:
        if self.closed is not None:
            raise self.closed

    def _refuse_parking(self, atom_detail: Any) -> None:
        """Refuse to store parking or fencing as the outcome of a step: as a failure they would undo the move."""
        for failure in (atom_detail.failure, atom_detail.revert_failure):
            if failure is not None and failure.check(Fenced, Parked):
                self.detach(failure.exception or Parked(failure.exception_str))
                self._refuse_when_closed()


def _outcome(atom_detail: Any) -> dict[str, Any]:
    """Return what the history keeps of how an atom ended."""
    if atom_detail.state == states.FAILURE:
        return {"error": details.error_of(atom_detail.failure)}
    if atom_detail.state == states.REVERT_FAILURE:
        return {"error": details.error_of(atom_detail.revert_failure)}
    undone = atom_detail.state == states.REVERTED
    result = atom_detail.revert_results if undone else atom_detail.last_results
    return {"result": result if isinstance(result, dict) else None}
