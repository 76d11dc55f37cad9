"""Runs one flow with TaskFlow's serial engine, without the writes that nobody reads.

It can also take a failed undo up again.  The undo of a flow covers every step that may have been done, also those that
the flow has not stored as done.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from taskflow import exceptions, states, storage
from taskflow.engines.action_engine import compiler, completer, deciders, selector, traversal
from taskflow.engines.action_engine.engine import SerialActionEngine
from taskflow.utils import misc

from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.errors import Fenced, Parked

OPTIONS: Final = {
    # Without it an exhausted retry ends REVERTED and leaves the steps before its sub-flow done.
    "defer_reverts": True,
    "gather_statistics": False,
}


class _OneThread:
    """Replaces TaskFlow's lock of readers and writers, which takes a seventh of a step's time and is not needed."""

    def read_lock(self) -> contextlib.AbstractContextManager[None]:
        """Return a lock that locks nothing, for TaskFlow."""
        return _NO_LOCK

    write_lock = read_lock


_NO_LOCK: Final = contextlib.nullcontext()


class MoveStorage(storage.Storage):
    """TaskFlow's storage for one thread.

    It does not store that each step's progress is 0.0 and later 1.0, which would take a commit each.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = _OneThread()

    def _save_atom_detail(self, connection: Any, original: Any, detail: Any) -> Any:
        # TaskFlow's retries take longer to set up than most saves take.
        try:
            original.update(connection.update_atom_details(detail))
        except exceptions.StorageFailure:
            return super()._save_atom_detail(connection, original, detail)
        return original

    def set_task_progress(self, task_name: str, progress: float, details: Any = None) -> None:
        """Do nothing, for TaskFlow: workers say in ZooKeeper how far a step is."""


class LinearSelector(selector.Selector):
    """Chooses the atom that runs next, in flows where only one can come next.

    TaskFlow's own selector looks at all later atoms, and for each at everything before it.  Here the atom that has just
    ended could only run because everything before it was done.  So it is enough to look at the one after it.
    """

    def _browse_atoms_for_execute(self, atom: Any = None) -> Iterator[tuple[Any, Any]]:
        if atom is None:
            yield from super()._browse_atoms_for_execute()
            return
        later = traversal.breadth_first_iterate(self._execution_graph, atom, traversal.Direction.FORWARD)
        for successor in itertools.islice(later, 1):
            ready, decider = self._get_maybe_ready(
                successor, states.RUNNING, (states.EXECUTE,), tuple, lambda _before: True, deciders.NoOpDecider
            )
            if ready:
                yield successor, decider


class MoveCompleter(completer.Completer):
    """Undoes a flow when an atom fails, as TaskFlow's own completer does: every atom that is stored as done.

    More steps may be done than this flow has stored as done: an earlier flow of the move may have done them, or the
    journal was put back from an older copy.  The completer undoes those too.
    """

    def __init__(self, runtime: Any, backend: FlowBackend, may_be_done: Callable[[str], Sequence[str]]) -> None:
        super().__init__(runtime)
        self._store = backend
        self._may_be_done = may_be_done

    def _process_atom_failure(self, atom: Any, failure: Any) -> None:
        """Store every step that may be done as done, so that it is undone: undoing one that never ran does no harm."""
        for name in self._may_be_done(atom.name):
            if self._storage.get_atom_state(name) == states.PENDING:
                self._store.assume(name)
                self._storage.save(name, {}, states.SUCCESS)
        super()._process_atom_failure(atom, failure)


class MoveEngine(SerialActionEngine):
    """Runs one claimed flow in the caller's thread."""

    def __init__(
        self, flow: Any, flow_detail: Any, backend: FlowBackend, *, may_be_done: Callable[[str], Sequence[str]]
    ) -> None:
        """``may_be_done`` takes the step that failed, and names steps that may be done but are not stored so."""
        super().__init__(flow, flow_detail, backend, dict(OPTIONS))
        self._store = backend
        self._may_be_done = may_be_done

    @misc.cachedproperty  # type: ignore[untyped-decorator]
    def storage(self) -> MoveStorage:
        """Make the storage as `taskflow.engines.action_engine.engine.ActionEngine.storage` does, for TaskFlow."""
        return MoveStorage(
            self._flow_detail,
            backend=self._backend,
            scope_fetcher=lambda name: self._runtime.fetch_scopes_for(name) if self._compiled else None,
        )

    def compile(self) -> None:
        """Compile the flow and put our selector and completer in, for TaskFlow."""
        if not self._compiled:
            super().compile()
            self._runtime._selector = LinearSelector(self._runtime)
            self._runtime._completer = MoveCompleter(self._runtime, self._store, self._may_be_done)

    def take_up_failed_undos(self) -> None:
        """Set failed undos back to begun.  Otherwise TaskFlow would take the flow for undone and do nothing."""
        self.compile()
        self.prepare()
        for atom in self._runtime.iterate_nodes(compiler.ATOMS):
            if self.storage.get_atom_state(atom.name) == states.REVERT_FAILURE:
                self.storage.set_atom_state(atom.name, states.REVERTING)

    def _change_state(self, state: str) -> None:
        # A parked or fenced flow keeps its state: the FAILURE is the engine's and not the flow's.
        if self._store.closed is None:
            super()._change_state(state)


def journal_was_away(error: Exception) -> bool:
    """Tell whether a flow stopped because the journal was away: the flow itself may be sound."""
    if isinstance(error, exceptions.WrappedFailure):
        return error.check(exceptions.StorageFailure) is not None
    return isinstance(error, exceptions.StorageFailure)


class _Expected(logging.Filter):
    """Keeps TaskFlow from logging parking and fencing as errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (Parked, Fenced))


for _name in ("engine", "builder"):
    logging.getLogger(f"taskflow.engines.action_engine.{_name}").addFilter(_Expected())
