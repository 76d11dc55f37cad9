"""A graph: the declared order of an operation's steps, and the TaskFlow flow and the digest that are made of it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from taskflow.patterns import linear_flow

from droveway.flows.alternates import AlternateRetry

if TYPE_CHECKING:
    from droveway.flows.run import Run
    from droveway.flows.step import Step
    from droveway.persistence.journal.kinds import Kind

NO_RETURN = "PONR"


@dataclasses.dataclass(frozen=True)
class Graph:
    """``before``, then ``tried`` once for each alternate, then ``after``; all linear.

    ``no_return`` is the step beyond which a move only goes forward; steps after it have no undo.
    """

    of: Kind
    version: int
    steps: tuple[type[Step], ...]
    no_return: type[Step]
    tried: tuple[type[Step], ...] = ()
    after: tuple[type[Step], ...] = ()

    @property
    def kind(self) -> str:
        """Return the name of its kind."""
        return self.of.name

    def walk(self) -> Iterator[type[Step]]:
        """Every step in order, the retry atom left out."""
        yield from self.steps
        yield from self.tried
        yield from self.after

    def names(self) -> list[str]:
        """Every atom's name in order, the retry's included."""
        names = [step.step_name() for step in self.steps]
        if self.tried:
            names.append(AlternateRetry.title)
        return names + [step.step_name() for step in (*self.tried, *self.after)]

    def build(self, run: Run) -> linear_flow.Flow:
        """The TaskFlow flow for one run."""
        # Where the first step is the point of no return already, nothing is there to go back to.
        past_no_return = next(self.walk()) is self.no_return
        flow = linear_flow.Flow(f"{self.kind}@{self.version}")
        tried = linear_flow.Flow("alternates", retry=AlternateRetry(run)) if self.tried else None
        for group, target in ((self.steps, flow), (self.tried, tried), (self.after, flow)):
            if target is tried and tried is not None:
                flow.add(tried)
            for step in group:
                at_no_return = step is self.no_return
                if target is not None:
                    target.add(step(run, at_no_return=at_no_return, past_no_return=past_no_return))
                past_no_return = past_no_return or at_no_return
        return flow

    def digest(self) -> str:
        """What a golden test pins: names, order, needs and gives."""
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        facts: list[Any] = [[step.step_name(), list(step.needs), step.gives] for step in self.walk()]
        text = json.dumps([self.kind, self.version, self.names(), facts, self.no_return.step_name()])
        return hashlib.sha256(text.encode()).hexdigest()
