"""Decides what a move's confirm policy does while the move waits for verification.  The decision is a pure function.

`deadline` confirms at its deadline, and `auto` at once.  `healthy` confirms as soon as the
destination says that the guest is healthy, and reverts at its deadline when the destination says that it is not.
`manual` waits for a person.

No policy acts on what nobody can know, none begins a flow that must fail, and none does what a person may not:

- While the destination does not answer, a `healthy` move is neither confirmed nor reverted, not even at its deadline:
  its guest may well run and serve, and a revert needs the destination's proof that the guest is off.
  The same goes for a destination whose worker is of a release that asks guests in another way.
- While the source or the destination is away, no policy confirms or reverts, since both are needed for that.
  While the source is away, nobody asks how the guest is either.  The confirm before a delete needs only the source.
- While a confirm or revert would be refused to a person, it is refused to the policy.

In these cases the move goes on waiting, and its row says for what (`waits_for`).  What is due is done once that is
over; a person may still confirm or revert.  An answer about the guest counts only while it is fresh: a keeper that was
away for longer asks again first.

After a revert that was undone the move has no deadline, and no policy acts: a person decides.

A host that a person declared down is not waited for.  If it is the source, its part of the confirm becomes a debt of
that host.  If it is the destination, no policy acts: a person can bring the server back with a revert.

A confirm and a revert delete a copy of the server.  So a deadline has passed only when two clocks say so: the
database's, and the keeper's own, which nobody can set (`early`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from droveway.persistence.journal.policies import Health
from droveway.persistence.journal.policy_names import DEADLINE, HEALTHY, MANUAL
from droveway.printable import SHORT

CHECK_EVERY: Final = dt.timedelta(seconds=1)
FRESH: Final = dt.timedelta(seconds=5)
"""The keeper acts on an answer for so long after the time that a host has to give it (`Waiting.answers_within`)."""


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
    answers_within: dt.timedelta = dt.timedelta(0)
    """How long after a question its answer may come."""
    waits_for: str | None = None
    deleting: bool = False
    """Whether somebody asked to delete the server.  The keeper then confirms the move before the server is deleted."""
    since: dt.datetime | None = None
    """When the time until its deadline began; None when what is due need not wait, as for a delete or for `auto`."""
    early: bool = False
    """Whether the time until its deadline is not over by the keeper's own clock, whatever the database's clock says."""
    refused: str | None = None
    """Why its policy may not confirm or revert it, by the last answer; None when it may."""


@dataclasses.dataclass(frozen=True)
class EndWait:
    """Confirm or revert the move now, if it still has the deadline by which this was decided."""

    move: str
    kind: Literal["confirm", "revert"]
    deadline: dt.datetime | None
    for_delete: bool = False
    """Whether a person asked for the server to be deleted: then it is filed whatever state the server is in."""


@dataclasses.dataclass(frozen=True)
class CheckHealth:
    """Ask the move's destination how its guest is."""

    move: str


@dataclasses.dataclass(frozen=True)
class Wait:
    """Write what the policy waits for; None if it waits only for its deadline and for the guest."""

    move: str
    why: str | None


PolicyAction = EndWait | CheckHealth | Wait


def hosts(waiting: Waiting, now: dt.datetime) -> set[str]:
    """Return the hosts of which `act` has to know whether their workers are up."""
    if waiting.deadline is not None and (waiting.policy == HEALTHY or _is_due(waiting, now)):
        return {waiting.source, waiting.destination}
    return set()


def act(
    waiting: Waiting,
    up: frozenset[str],
    now: dt.datetime,
    uncheckable: Mapping[str, str] = MappingProxyType({}),
    gone: frozenset[str] = frozenset(),
) -> list[PolicyAction]:
    """Decide what to do for the move; ``up`` are the hosts whose workers are up.

    ``uncheckable`` says why hosts cannot be asked how a guest is, although their workers are up.  ``gone`` are the
    hosts that a person declared down.  A source among them owes its part of the confirm.  No policy confirms or reverts
    a server whose destination is among them.
    """
    due = _is_due(waiting, now)
    if waiting.deadline is None:
        return []
    if (waiting.deleting or waiting.policy != HEALTHY) and not due:
        return []
    if waiting.destination in gone and not waiting.deleting:
        return _wait(waiting, _dead(waiting, source_gone=waiting.source in gone))
    if waiting.source not in up | gone:
        return _wait(waiting, _away(waiting.source, "its copy of the server is needed to confirm and to revert"))
    if waiting.deleting:
        return _end_wait(waiting, "confirm")
    asks = waiting.policy == HEALTHY
    if waiting.destination not in up:
        needed = "whether the guest is healthy cannot be asked there" if asks else "its copy is needed to confirm"
        return _wait(waiting, _away(waiting.destination, needed))
    if not asks:
        return _end_wait(waiting, "confirm")
    if why := uncheckable.get(waiting.destination):
        return _wait(waiting, f"host {waiting.destination} cannot be asked whether the guest is healthy: {why}")
    if _is_fresh(waiting, now):
        if waiting.health is Health.PASSED:
            return _end_wait(waiting, "confirm")
        if due and _has_reached(waiting.asked, waiting.deadline):
            return _end_wait(waiting, "revert")
    checks: list[PolicyAction] = [CheckHealth(waiting.move)] if _has_reached(now - CHECK_EVERY, waiting.asked) else []
    return [*checks, *_wait(waiting, waiting.refused or _unanswered(waiting, now))]


def since(policy: str, deadline: dt.datetime | None, seconds: int, *, deleting: bool) -> dt.datetime | None:
    """Return when the time until a move's deadline began: ``seconds`` before the deadline.

    None where no time has to pass: without a deadline, before a delete, and for the policies `auto` and `manual`.
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
    """Tell whether this reason for a wait (`Waiting.waits_for`) is a host whose worker is away or does not answer."""
    return why.startswith(_HOST)


def _away(host: str, what: str) -> str:
    return f"{_HOST}{host} is away, and {what}: start it"


def _unanswered(waiting: Waiting, now: dt.datetime) -> str | None:
    """Say that the destination is late with its answer; None while an answer may still come in time.

    No answer is late before the deadline, nor for a moment after it: until then nothing is held up.
    """
    if not _is_due(waiting, now) or not _has_reached(now - FRESH, waiting.deadline):
        return None
    return (
        f"{_HOST}{waiting.destination} has not said since the deadline whether the guest is healthy: it is asked "
        "again, and its log tells more"
    )


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
    lasts = waiting.answers_within + FRESH
    return waiting.health is not None and waiting.asked is not None and now - waiting.asked <= lasts


def _has_reached(moment: dt.datetime | None, start: dt.datetime | None) -> bool:
    """Tell whether the moment is ``start`` or later.

    Always true if ``start`` is None.  Otherwise false if the moment is None.
    """
    return start is None or (moment is not None and moment >= start)
