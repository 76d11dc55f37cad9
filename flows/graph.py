"""Defines a graph: the declared order of an operation's steps, and the digest that is made of it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from droveway.flows.alternates import Alternates
from droveway.flows.stands import Leaves, Shown, Stands
from droveway.persistence.journal.moves import FlowRef
from droveway.persistence.nova.vm_states import MigrationStatus

if TYPE_CHECKING:
    from droveway.flows.run import Run
    from droveway.flows.step import Step
    from droveway.persistence.journal.kinds import Kind

NO_RETURN = "PONR"

_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Stands))


@dataclasses.dataclass(frozen=True)
class Graph:
    """Holds the steps of an operation: ``steps``, then ``tried`` once for each alternate, then ``after``.

    ``no_return`` is the step beyond which a move only goes forward; steps after it have no undo.
    """

    kind_record: Kind
    version: int
    steps: tuple[type[Step], ...]
    no_return: type[Step]
    tried: tuple[type[Step], ...] = ()
    after: tuple[type[Step], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a step whose facts contradict one another."""
        for step in self.walk():
            _check(step)

    @property
    def kind(self) -> str:
        """Return the name of its kind."""
        return self.kind_record.name

    def walk(self) -> Iterator[type[Step]]:
        """Yield every step in order, without the retry (`Alternates`)."""
        yield from self.steps
        yield from self.tried
        yield from self.after

    def names(self) -> list[str]:
        """Return the names of all atoms in order, that of the retry (`Alternates`) included."""
        names = [step.step_name() for step in self.steps]
        if self.tried:
            names.append(Alternates.title)
        return names + [step.step_name() for step in (*self.tried, *self.after)]

    @functools.cached_property
    def by_name(self) -> Mapping[str, type[Step]]:
        """Return every step by its name."""
        return {step.step_name(): step for step in self.walk()}

    @functools.cached_property
    def asked(self) -> frozenset[str]:
        """Return the actions that its steps ask workers for."""
        return frozenset(
            action for step in self.walk() for action in (step.action_name(), *step.extra_actions) if action
        )

    @functools.cached_property
    def required(self) -> frozenset[str]:
        """Return the actions that a worker must know before it takes part in a flow of this graph.

        A worker of an older release owes the other actions until it is upgraded.
        """
        owed = {step.action_name() for step in self.walk() if step.owed_by_older}
        return self.asked - owed

    @functools.cached_property
    def shown(self) -> Shown:
        """Return the groups of this graph's steps that `Shown` describes; reads no rows.

        A reader of the rows uses the groups to tell which steps the rows prove done or undone.
        """
        names, atoms = list(self.by_name), self.names()

        def place(field: str, *values: str) -> int:
            """Return the place of the first step that writes this field of the rows, or one of these values into it.

            Returns the number of steps where none does.
            """
            found = (step.leaves.does.get(field) for step in self.walk())
            places = (at for at, value in enumerate(found) if (value in values if values else value is not None))
            return next(places, len(names))

        switch, start = place("side"), names.index(self.no_return.step_name())
        last_finder = max((at for at, step in enumerate(self.walk()) if step.finds), default=-1)
        # Places in ``atoms`` differ from those in ``names``, which lacks the retry.
        after_finder = atoms.index(names[last_finder + 1]) if last_finder + 1 < len(names) else len(atoms)
        return Shown(
            switch="".join(names[switch : switch + 1]),
            switched=frozenset(names[switch:]),
            started=frozenset(names[start + 1 : place("status", MigrationStatus.FINISHED)]),
            first=frozenset(names[: place("status") + 1]),
            preparing=frozenset(names[: place("status", MigrationStatus.MIGRATING) + 1]),
            finding=frozenset(atoms[:after_finder]),
        )

    def make(self, run: Run) -> Iterator[Step]:
        """Make every step in order, for one run."""
        # Where the first step is the point of no return, the flow has nothing that it could go back to.
        past_no_return = next(self.walk()) is self.no_return
        for step in self.walk():
            at_no_return = step is self.no_return
            yield step(run, at_no_return=at_no_return, past_no_return=past_no_return)
            past_no_return = past_no_return or at_no_return

    def reference(self) -> FlowRef:
        """Return kind, version and digest, by which the journal names a flow's graph."""
        return FlowRef(self.kind, self.version, self.digest())

    def digest(self) -> str:
        """Return the digest of the steps' names, order, needs and gives; a test pins that of each released version."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        facts: list[Any] = [[step.step_name(), list(step.needs), step.gives] for step in self.walk()]
        text = json.dumps([self.kind, self.version, self.names(), facts, self.no_return.step_name()])
        return hashlib.sha256(text.encode()).hexdigest()


def older(graph: Graph, *without: type[Step], instead: Mapping[Any, type[Step]] | None = None) -> Graph:
    """Make the graph's previous version: it lacks some steps, and has another class in the place of some others.

    ``instead`` maps the step of the present version to the one that stood in its place.
    """
    others = instead or {}

    def part(steps: tuple[type[Step], ...]) -> tuple[type[Step], ...]:
        return tuple(others.get(step, step) for step in steps if step not in without)

    steps, tried, after = map(part, (graph.steps, graph.tried, graph.after))
    return dataclasses.replace(graph, version=graph.version - 1, steps=steps, tried=tried, after=after)


def _check(step: type[Step]) -> None:
    """Raise ValueError unless the step's undo says what becomes of each field that the step changes in the rows.

    The ``undoes`` of a step without an undo must be empty.
    """
    name = step.step_name()
    if not hasattr(step, "leaves"):
        raise ValueError(f"say in leaves of step {name} what it changes in the server's rows, NOTHING for none")
    between = step.between
    for leaves in (step.leaves, *(() if between is None else (between.source, between.target))):
        _check_leaves(step, name, leaves)


def _check_leaves(step: type[Step], name: str, leaves: Leaves) -> None:
    does, undoes = leaves.does.keys(), leaves.undoes.keys()
    if step.no_undo and undoes:
        raise ValueError(f"step {name} has no undo: let its leaves say only what it does")
    if not step.no_undo and undoes != does:
        lacking = ", ".join(sorted(does ^ undoes))
        raise ValueError(f"step {name} has an undo: let its leaves say for both ways what becomes of {lacking}")
    if unknown := does - _FIELDS:
        raise ValueError(f"step {name} leaves {', '.join(sorted(unknown))}: Stands has no such field")
