"""What a move's confirm policy does while the move waits for verification: a pure function of what is known.

`deadline` and `auto` confirm at their deadline, which `auto` has at once.  `healthy` confirms as soon as the
destination says that the guest is healthy, and reverts at its deadline when the destination says that it is not.
`manual` waits for a person.

No policy acts on what nobody can know, none begins a flow that must fail, and none does what a person may not:

- While the destination does not answer, a `healthy` move is neither confirmed nor reverted, not even at its deadline:
  its guest may well run and serve, and to revert it, the destination would have to prove it off.
  The same goes for a destination whose worker is of a release that asks guests in another way.
- While the source is away, nothing is confirmed or reverted, and nobody asked how the guest is: both need it.
- While a confirm or revert that a person asks for would be refused, so is the policy's.

A host that a person declared down is not waited for: a source owes its part, a destination leaves only the way back.

The move then goes on waiting, says for what (`waits_for`), and what is due is done once that is over; a person may
still confirm or revert.  An answer is acted on while it is fresh: whoever comes back late asks again first.

What deletes is due when two clocks say so, the database's and the keeper's own that no one sets (`early`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from droveway.persistence.journal.policies import DEADLINE, HEALTHY, MANUAL, Health
from droveway.printable import SHORT

CHECK_EVERY: Final = dt.timedelta(seconds=1)
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
    since: dt.datetime | None = None
    """When its deadline was set, as far as its policy tells; None when nobody has to wait for it by a clock."""
    early: bool = False
    """Whether the database's clock has passed the deadline and the time until then has not."""
    refused: str | None = None
    """Why its policy may not confirm or revert it, as far as it was asked; None when it may."""


@dataclasses.dataclass(frozen=True)
class EndWait:
    """The move is to be confirmed or reverted now, if it still has the deadline that this was decided over."""

    move: str
    kind: Literal["confirm", "revert"]
    deadline: dt.datetime | None
    for_delete: bool = False
    """Whether it is a delete's, which a person asked for whatever state the server is in."""


@dataclasses.dataclass(frozen=True)
class CheckHealth:
    """Ask the move's destination how its guest is."""

    move: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Note what the policy waits for; None: for nothing but time and the guest."""

    move: str
    why: str | None


PolicyAction = EndWait | CheckHealth | Wait


def hosts(waiting: Waiting, now: dt.datetime) -> set[str]:
    """The hosts of which `act` has to know whether their workers are there."""
    if waiting.policy == HEALTHY or _is_due(waiting, now):
        return {waiting.source, waiting.destination}
    return set()


def act(
    waiting: Waiting,
    up: frozenset[str],
    now: dt.datetime,
    uncheckable: Mapping[str, str] = MappingProxyType({}),
    gone: frozenset[str] = frozenset(),
) -> list[PolicyAction]:
    """What is to be done for the move; ``up`` are the hosts whose workers are there.

    ``uncheckable`` says of hosts why they cannot be asked how a guest is, though their workers are there.  ``gone`` are
    those that a person declared down: a source among them owes its part, and no policy confirms a server whose
    destination is.
    """
    due = _is_due(waiting, now)
    if (waiting.deleting or waiting.policy != HEALTHY) and not due:
        return []
    if waiting.destination in gone and not waiting.deleting:
        return _wait(waiting, _dead(waiting, source_gone=waiting.source in gone))
    if waiting.source not in up | gone:
        return _wait(waiting, _away(waiting.source, "its copy of the server is needed to confirm and to revert"))
    if waiting.deleting or waiting.policy != HEALTHY:
        return _end_wait(waiting, "confirm")
    if waiting.destination not in up:
        return _wait(waiting, _away(waiting.destination, "whether the guest is healthy cannot be asked there"))
    if why := uncheckable.get(waiting.destination):
        return _wait(waiting, f"host {waiting.destination} cannot be asked whether the guest is healthy: {why}")
    if _is_fresh(waiting, now):
        if waiting.health is Health.PASSED:
            return _end_wait(waiting, "confirm")
        if due and _is_later(waiting.asked, waiting.deadline):
            return _end_wait(waiting, "revert")
    checks: list[PolicyAction] = [CheckHealth(waiting.move)] if _is_later(now - CHECK_EVERY, waiting.asked) else []
    return [*checks, *_wait(waiting, waiting.refused)]


def since(policy: str, deadline: dt.datetime | None, seconds: int, *, deleting: bool) -> dt.datetime | None:
    """When the deadline of a move was set that has ``seconds`` until its policy acts.

    None where a person asked for what is due now: a delete, or `auto`.
    """
    if deadline is None or deleting or policy not in (DEADLINE, HEALTHY):
        return None
    return deadline - dt.timedelta(seconds=seconds)


def _end_wait(waiting: Waiting, kind: Literal["confirm", "revert"]) -> list[PolicyAction]:
    end_wait = EndWait(waiting.move, kind, waiting.deadline, for_delete=waiting.deleting)
    return [end_wait] if waiting.refused is None else [end_wait, *_wait(waiting, waiting.refused)]


def _wait(waiting: Waiting, why: str | None) -> list[PolicyAction]:
    return [Wait(waiting.move, why)] if why != waiting.waits_for else []


_HOST: Final = "the worker of host "


def is_for_host(why: str) -> bool:
    """Whether that is waited for is a host's return."""
    return why.startswith(_HOST)


def _away(host: str, what: str) -> str:
    return f"{_HOST}{host} is away, and {what}: start it"


def _dead(waiting: Waiting, *, source_gone: bool) -> str:
    lost = f"host {waiting.destination}, which the server is on, is declared down"
    if source_gone:
        return (
            f"{lost}, and so is its source {waiting.source}: droveway move confirm {waiting.move[:SHORT]} leaves the "
            "server where it is"
        )
    return f"{lost}: droveway move revert {waiting.move[:SHORT]} brings it back from its disks on {waiting.source}"


def _is_due(waiting: Waiting, now: dt.datetime) -> bool:
    if waiting.deadline is None or waiting.early or (waiting.policy == MANUAL and not waiting.deleting):
        return False
    return waiting.deadline <= now


def _is_fresh(waiting: Waiting, now: dt.datetime) -> bool:
    return waiting.health is not None and waiting.asked is not None and now - waiting.asked <= FRESH


def _is_later(moment: dt.datetime | None, than: dt.datetime | None) -> bool:
    """Whether the moment is not before ``than``; anything is later than never."""
    return than is None or (moment is not None and moment >= than)
