"""What a move's confirm policy does while the move waits for verification: a pure function of what is known.

`manual` and `auto` confirm at their deadline, which `auto` has at once.  `healthy` confirms as soon as the destination
says that the guest is healthy, and reverts at its deadline when the destination says that it is not.

No policy acts on what nobody can know, and none begins a flow that must fail:

- While the destination does not answer, a `healthy` move is neither confirmed nor reverted, not even at its deadline:
  its guest may well run and serve, and to revert it, the destination would have to prove it off.
- While the source is away, nothing is confirmed or reverted, and nobody asked how the guest is: both need it.

The move then goes on waiting, says for what (`waits_for`), and what is due is done when the host is back; a person may
still confirm or revert.  An answer is acted on while it is fresh: whoever comes back late asks again first.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Final, Literal

from droveway.persistence.policies import HEALTHY, Health

ASK_EVERY: Final = dt.timedelta(seconds=1)
FRESH: Final = dt.timedelta(seconds=15)
"""So long after it was asked for an answer is acted on: longer than any answer takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """One move that waits for verification; times by the database's clock."""

    move: str
    policy: str
    deadline: dt.datetime | None
    source: str
    destination: str
    health: Health | None = None
    """What the destination answered last; None before the first answer."""
    asked: dt.datetime | None = None
    """When that answer was asked for."""
    waits_for: str | None = None
    deleting: bool = False
    """Whether its server is to be deleted, which confirms it first."""


@dataclasses.dataclass(frozen=True)
class Settle:
    """The move is to be confirmed or reverted now, if it still has the deadline that this was decided over."""

    move: str
    kind: Literal["confirm", "revert"]
    deadline: dt.datetime | None


@dataclasses.dataclass(frozen=True)
class Ask:
    """Ask the move's destination how its guest is."""

    move: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Note what the policy waits for; None: for nothing but time and the guest."""

    move: str
    why: str | None


PolicyAction = Settle | Ask | Wait


def hosts(waiting: Waiting, now: dt.datetime) -> set[str]:
    """The hosts of which `act` has to know whether their workers are there."""
    if waiting.policy == HEALTHY:
        return {waiting.source, waiting.destination}
    return {waiting.source} if _is_due(waiting, now) else set()


def act(waiting: Waiting, up: frozenset[str], now: dt.datetime) -> list[PolicyAction]:
    """What is to be done for the move; ``up`` are the hosts whose workers are there."""
    due = _is_due(waiting, now)
    if (waiting.deleting or waiting.policy != HEALTHY) and not due:
        return []
    if waiting.source not in up:
        return _wait(waiting, _away(waiting.source, "its copy of the server is needed to confirm and to revert"))
    if waiting.deleting or waiting.policy != HEALTHY:
        return [_settle(waiting, "confirm")]
    if waiting.destination not in up:
        return _wait(waiting, _away(waiting.destination, "whether the guest is healthy cannot be asked there"))
    if _is_fresh(waiting, now):
        if waiting.health is Health.PASSED:
            return [_settle(waiting, "confirm")]
        if due and _is_later(waiting.asked, waiting.deadline):
            return [_settle(waiting, "revert")]
    asks: list[PolicyAction] = [Ask(waiting.move)] if _is_later(now - ASK_EVERY, waiting.asked) else []
    return [*asks, *_wait(waiting, None)]


def _settle(waiting: Waiting, kind: Literal["confirm", "revert"]) -> Settle:
    return Settle(waiting.move, kind, waiting.deadline)


def _wait(waiting: Waiting, why: str | None) -> list[PolicyAction]:
    return [Wait(waiting.move, why)] if why != waiting.waits_for else []


def _away(host: str, what: str) -> str:
    return f"the worker of host {host} is away, and {what}: start it"


def _is_due(waiting: Waiting, now: dt.datetime) -> bool:
    return waiting.deadline is not None and waiting.deadline <= now


def _is_fresh(waiting: Waiting, now: dt.datetime) -> bool:
    return waiting.health is not None and waiting.asked is not None and now - waiting.asked <= FRESH


def _is_later(moment: dt.datetime | None, than: dt.datetime | None) -> bool:
    """Whether the moment is not before ``than``; anything is later than never."""
    return than is None or (moment is not None and moment >= than)
