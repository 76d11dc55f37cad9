"""The operations in which a host dies, and the places in them, by the graphs of today."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from support.labs.operations import Stage
from support.two_faults.death_worlds import BOTH, BOTH_ELSEWHERE, DESTINATION, HOSTS, HOSTS_ELSEWHERE, RETURN, SOURCE

from droveway.engines.operations import move_requests, shelving
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import HostStep
from droveway.lab import operations
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move

UNDONE: Final = "-undone"
"""Turned back at the point of no return."""

BETWEEN: Final = "cross_cell_"
"""Before the name of an operation that leads into another cell, or ends such a move."""

_WITHIN: Final = {
    "resize": "resize",
    "migrate": "migrate",
    "confirm": "confirm",
    "revert": "revert",
    "confirm-deleted": "confirm",
    "delete-waiting": "delete",
    "delete": "delete",
    "resize-undone": "resize",
    "migrate-undone": "migrate",
    "confirm-undone": "confirm",
    "revert-undone": "revert",
}
MOVES: Final = _WITHIN | {
    f"{BETWEEN}{operation}": kind if kind == "delete" else f"{BETWEEN}{kind}"
    for operation, kind in _WITHIN.items()
    if operation != "delete"
}
"""The kind of graph of each operation of moves that wait, and of deletes.

A delete of a server that waits confirms it before, which is two of them.
"""
SHELVES: Final = {"shelve": "shelve", "shelve-undone": "shelve"}
UNSHELVES: Final = {
    f"{operation}{end}": kind
    for operation, kind in {
        "unshelve": "unshelve",
        "unshelve-there": "unshelve",
        f"{BETWEEN}unshelve": f"{BETWEEN}unshelve",
    }.items()
    for end in ("", UNDONE)
}
"""On a host of the scheduler's choice, on the one that was named, in another cell."""
ELSEWHERE: Final = {f"{BETWEEN}revert_elsewhere{end}": f"{BETWEEN}revert_elsewhere" for end in ("", UNDONE)}
"""A revert to another host than the source, which is dead before."""
OPERATIONS: Final = MOVES | SHELVES | UNSHELVES | ELSEWHERE
"""The kind of graph of each operation."""

FROM_REST: Final = ("resize", "migrate", "delete", f"{BETWEEN}resize", f"{BETWEEN}migrate", "shelve")
"""Operations of a server that has no move; all others end one that waits, or begin with a shelved server."""


def begin(lab: Stage, operation: str, policy: str = "manual") -> str:
    """Ask for the operation; the move that carries it out."""
    to_cell = "cell2" if operation.startswith(BETWEEN) else None
    operation = operation.removeprefix(BETWEEN)
    if operation == "resize":
        return submit(lab.lab, MoveSpec(server="web", flavor="large", to_cell=to_cell, policy=policy)).id
    if operation == "migrate":
        return submit(lab.lab, MoveSpec(server="web", host="host2", to_cell=to_cell, policy=policy)).id
    if operation in ("delete", "delete-waiting", "confirm-deleted"):
        return operations.request_delete(lab.lab, "web")
    if operation == "shelve":
        return shelving.shelve(lab.lab, "web").id
    if operation.startswith("unshelve"):
        host = "host2" if operation == "unshelve-there" else None
        return shelving.unshelve(lab.lab, "web", host=host, to_cell=to_cell).id
    move = lab.move("web").id
    with lab.lab.journal.write() as session:
        if operation == "revert_elsewhere":
            requests.end_wait(session, session.get_one(Move, move), registry.reference(f"{BETWEEN}{operation}"))
            return move
        getattr(move_requests, operation)(session, session.get_one(Move, move))
    return move


PROVED: Final = {
    "discard_source": (DESTINATION,),
    # In the place of a source that is dead the other host of its cell.
    "discard_destination": (SOURCE, RETURN),
}
"""The steps that delete a copy, with the host that shows its own right before the command is sent.

One that dies while the command is carried out had shown it in this claim: nothing calls the deletion back, and its
own copy is the last one.
"""

ONE_HOST: Final = ("delete", *SHELVES, *UNSHELVES)
"""The server has no second one."""


def turns(operation: str) -> str:
    """The step at which the operation is turned back; "" for one that is not."""
    return registry.latest(OPERATIONS[operation]).no_return.step_name() if operation.endswith(UNDONE) else ""


def again(operation: str, step: str) -> bool:
    """Whether a flow with a step of that name comes before the operation's own."""
    within = operation.removesuffix("delete-waiting")
    return within != operation and step in registry.latest(f"{within}confirm").names()


def steps(operation: str) -> list[type[Step]]:
    """Of an operation that is turned back those that have something to undo."""
    graph = registry.latest(OPERATIONS[operation])
    every = list(graph.walk())
    if not operation.endswith(UNDONE):
        return every
    # The one that turns the flow back never ran.
    return [step for step in every[: every.index(graph.no_return)] if not step.no_undo]


def direction(operation: str) -> str:
    """The direction of the operation's steps."""
    return "revert" if operation.endswith(UNDONE) else "execute"


def hosts(operation: str) -> tuple[str, ...]:
    """Which hosts of the operation may die.

    A server at rest has one.  A migrate to a host that was named differs from a resize where that host is lost.
    """
    if operation in ELSEWHERE:
        return HOSTS_ELSEWHERE
    if operation in UNSHELVES or operation.removeprefix(BETWEEN).startswith("migrate"):
        return (DESTINATION,)
    return (SOURCE,) if operation in ONE_HOST else HOSTS


def both(operation: str) -> tuple[str, str]:
    """Both hosts of the operation, in either order."""
    return BOTH_ELSEWHERE if operation in ELSEWHERE else BOTH


def in_flows() -> Iterator[tuple[str, str]]:
    """Operation and place of each death in the middle of a flow."""
    for operation in OPERATIONS:
        for step in steps(operation):
            within = ["during"] if issubclass(step, HostStep) else []
            for phase in ("before", *within, "after", "stored"):
                yield operation, f"{direction(operation)}.{step.step_name()}.{phase}"
