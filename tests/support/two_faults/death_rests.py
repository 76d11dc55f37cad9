"""Everything that a move may rest at, brought about before one of its hosts dies for good or is declared down."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from support import codes
from support.labs.operations import Stage
from support.labs.small_lab import until
from support.two_faults import death_flows, ways_out
from support.two_faults.death_flows import BETWEEN, ELSEWHERE, MOVES, OPERATIONS, SHELVES, UNDONE, UNSHELVES, begin
from support.two_faults.death_worlds import SOURCE, Death, Spot

from droveway.cli.view.explanations import EXPLANATIONS
from droveway.engines.operations import move_requests
from droveway.errors import StepError
from droveway.flows import registry
from droveway.flows.steps.hosts.command import HostStep
from droveway.lab import stopped
from droveway.persistence.journal import requests

OPERATION: Final = "rest"

_RAISE: Final = ("flows", "workers", "clients", "engines")
"""Whose errors may be those of a step."""

_MORE: Final = ("shelve", "unshelve", f"{BETWEEN}unshelve", f"{BETWEEN}revert_elsewhere")
"""Operations that are paused too, beside those of moves within a cell and between two."""

_NO_PARK: Final = ("settled", "not-begun")
"""The first is no error; the second proves that the step may be undone."""


def rests() -> Iterator[tuple[str, str]]:
    """Operation and place of each death at a rest."""
    for at in _places():
        yield OPERATION, at


def _places() -> Iterator[str]:
    yield from ("queued.resize", "queued.shelve", "queued.unshelve", f"queued.{BETWEEN}unshelve")
    yield from ("verifying.confirm", "verifying.revert", "verifying.confirm-deleted")
    yield from ("waiting.auto", "waiting.healthy", "waiting.delete")
    yield from (f"verifying.{BETWEEN}{operation}" for operation in ("confirm", "revert", "confirm-deleted"))
    between = (f"{BETWEEN}{operation}" for operation in ("resize", "confirm", "revert"))
    for operation in ("resize", "confirm", "revert", "delete", *between, *_MORE):
        yield from (f"paused.{operation}.{step.step_name()}" for step in death_flows.steps(operation)[:-1])
    within = [operation for operation in MOVES if not operation.startswith(BETWEEN)]
    crossing = [operation for operation in MOVES if operation.startswith(BETWEEN)]
    for operations in (within, crossing, [*SHELVES, *UNSHELVES], [*ELSEWHERE]):
        for (operation, step), code in zip(itertools.cycle(_where_to_park(operations)), park_codes(), strict=False):
            yield f"parked.{operation}.{step}.{code}"
    for operation in OPERATIONS:
        found = [step for step in death_flows.steps(operation) if issubclass(step, HostStep)]
        yield from (f"late.{operation}.{step.step_name()}" for step in found)


def park_codes() -> list[str]:
    """Every code of an error that a step may meet."""
    raised = codes.raised()
    return sorted(
        code
        for code in EXPLANATIONS
        if code not in _NO_PARK and any(path.startswith(_RAISE) for path in raised.get(code, ()))
    )


def _where_to_park(operations: Iterable[str]) -> list[tuple[str, str]]:
    """Operation and step: those that must go on, which are undos and what lies behind the point of no return."""
    found = []
    for operation in operations:
        names = [step.step_name() for step in death_flows.steps(operation)]
        if not operation.endswith(UNDONE):
            last = registry.latest(OPERATIONS[operation]).no_return.step_name()
            names = names[names.index(last) + 1 :]
        if not operation.removeprefix(BETWEEN).startswith("migrate"):
            found += [(operation, name) for name in names]
    return found


def begins_with(at: str) -> str:
    """The operation that the rest is in the middle of, or before."""
    what, operation = at.split(".")[:2]
    if what == "waiting":
        return "delete-waiting" if operation == "delete" else "resize"
    return operation


def bring_about(lab: Stage, at: str, death: Death) -> str:
    """Let the move come to the rest, and the host die there; why it did not, or ""."""
    what, operation, *more = at.split(".")
    if what == "queued":
        begin(lab, operation)
    elif what == "waiting":
        _wait(lab, operation)
        death.die()
        # Of two hosts that are away only one may be dead.
        if SOURCE not in death.roles:
            lab.cli("lab", "worker", "start", "host1")
        return ""
    elif what == "verifying":
        death.die()
        # Refused where the other way is the only one, which the move then names.
        verb = operation.removeprefix(BETWEEN)
        asked = ("lab", "server", "delete", "web") if verb == "confirm-deleted" else ("server", verb, "web")
        ways_out.say(lab, *asked)
        return ""
    elif what == "late":
        return _lose(lab, operation, more[0], death)
    else:
        _stop(lab, what, operation, more)
    death.die()
    return ""


def _wait(lab: Stage, how: str) -> None:
    """A policy or a delete waits for the source, whose worker is away."""
    if how == "delete":
        stopped.stop(lab.lab.layout, "host1")
        begin(lab, "delete-waiting")
        ways_out.say(lab, "move", "resume")
        return

    def away(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("finish_records", "execute", "before"):
            workers.stop("host1")
            stopped.stop(lab.lab.layout, "host1")

    with lab.running(away) as workers:
        move = begin(lab, "resize", how)
        until(lambda: move_requests.read_move(lab.lab, move).waits_for, "the wait for the source")


def _stop(lab: Stage, what: str, operation: str, more: list[str]) -> None:
    """The move is held at a boundary, or rests as a step cannot go on."""
    turns = death_flows.turns(operation)
    asked: list[str] = []

    def meet(move: str, step: str, direction: str, phase: str) -> None:
        if phase != "before":
            return
        if step == turns and direction == "execute":
            raise StepError("the flow is turned back", code="not-begun")
        if (step, direction) != (more[0], death_flows.direction(operation)) or asked:
            return
        if what == "paused":
            asked.append(move)
            move_requests.file_request(lab.lab, move, requests.pause)
        else:
            raise StepError("the step cannot go on", code=more[1])

    with lab.running(meet):
        move_requests.carry(lab.lab, begin(lab, operation.removesuffix(UNDONE)))


def _lose(lab: Stage, operation: str, step: str, death: Death) -> str:
    """The host dies in the middle, and nobody says so before the move rests."""
    turns, again = death_flows.turns(operation), death_flows.again(operation, step)
    spot = Spot(f"{death_flows.direction(operation)}.{step}.before", death, turns=turns, again=again, declared=False)
    with lab.running(spot.on_conductor) as workers:
        death.workers = workers
        move_requests.carry(lab.lab, begin(lab, operation.removesuffix(UNDONE)))
    death.workers = None
    if not death.hosts:
        return "no host ever died"
    death.declare()
    return ""
