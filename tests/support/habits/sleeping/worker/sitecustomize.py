"""Makes of a worker one that falls asleep: in what it is asked to do, right before each of its effects."""

from __future__ import annotations

from support.habits.sleeping.asleep import give_up, pass_by

from droveway.workers import context, daemon, run

_effect, _carry_out = context.Context.effect, run.Run._carry_out


def effect(self: context.Context, name: str) -> None:
    _effect(self, name)
    pass_by(self.server, f"{self.command.step} {self.command.direction} {name}")


def carry_out(self: run.Run) -> None:
    try:
        _carry_out(self)
    finally:
        give_up(self.command.server)


daemon.MOST_AT_ONCE = 100  # type: ignore[misc]
context.Context.effect = effect  # type: ignore[method-assign]
run.Run._carry_out = carry_out  # type: ignore[method-assign]
