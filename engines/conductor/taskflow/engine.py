"""The engine: TaskFlow's serial one, without the writes that nobody reads, and able to take a failed undo up again.

The undo of a flow that may have gone further than its journal knows covers the steps that it may have come to.
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
    """In the place of TaskFlow's lock of readers and writers: a seventh of a step's time, for nothing."""

    def read_lock(self) -> contextlib.AbstractContextManager[None]:
        """TaskFlow's entry."""
        return _NO_LOCK

    write_lock = read_lock


_NO_LOCK: Final = contextlib.nullcontext()


class MoveStorage(storage.Storage):
    """TaskFlow's storage for one thread.

    Without the implicit 0.0 and 1.0 of each step's progress, which cost a commit each.
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
        """Nothing: how far a step is, workers say in ZooKeeper."""


class LinearSelector(selector.Selector):
    """TaskFlow's choice of what comes next, for flows in which that is one atom.

    It would look at all later ones, and at all that was done before each; but what has just ended was ready to run.
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
    """TaskFlow's answer to a failed atom, which undoes what stands as done.

    Of a flow whose journal was put back more may be done than stands there.
    """

    def __init__(self, runtime: Any, backend: FlowBackend, may_be_done: Callable[[str], Sequence[str]]) -> None:
        super().__init__(runtime)
        self._store = backend
        self._may_be_done = may_be_done

    def _process_atom_failure(self, atom: Any, failure: Any) -> None:
        """Let everything that may be done be undone: each undo is safe for a step that did not run."""
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
        """``may_be_done`` names the steps that may be done beyond what the journal knows, when this one fails."""
        super().__init__(flow, flow_detail, backend, dict(OPTIONS))
        self._store = backend
        self._may_be_done = may_be_done

    @misc.cachedproperty  # type: ignore[untyped-decorator]
    def storage(self) -> MoveStorage:
        """TaskFlow's entry; see `taskflow.engines.action_engine.engine.ActionEngine.storage`."""
        return MoveStorage(
            self._flow_detail,
            backend=self._backend,
            scope_fetcher=lambda name: self._runtime.fetch_scopes_for(name) if self._compiled else None,
        )

    def compile(self) -> None:
        """TaskFlow's entry."""
        if not self._compiled:
            super().compile()
            self._runtime._selector = LinearSelector(self._runtime)
            self._runtime._completer = MoveCompleter(self._runtime, self._store, self._may_be_done)

    def take_up_failed_undos(self) -> None:
        """Set undos that failed back to begun: left as they are, TaskFlow calls the flow undone and does nothing."""
        self.compile()
        self.prepare()
        for atom in self._runtime.iterate_nodes(compiler.ATOMS):
            if self.storage.get_atom_state(atom.name) == states.REVERT_FAILURE:
                self.storage.set_atom_state(atom.name, states.REVERTING)

    def _change_state(self, state: str) -> None:
        # A parked or fenced flow keeps the state that it had: the engine's own FAILURE is none of the flow's.
        if self._store.closed is None:
            super()._change_state(state)


def journal_was_away(error: Exception) -> bool:
    """Whether a flow stopped because the journal was away: nothing is known to be wrong with the flow."""
    if isinstance(error, exceptions.WrappedFailure):
        return error.check(exceptions.StorageFailure) is not None
    return isinstance(error, exceptions.StorageFailure)


class _Expected(logging.Filter):
    """Keeps TaskFlow from reporting parking and fencing as something bad that must have happened."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (Parked, Fenced))


for _name in ("engine", "builder"):
    logging.getLogger(f"taskflow.engines.action_engine.{_name}").addFilter(_Expected())
