"""Which hosts take no servers for what the journal knows: drained, frozen, owing, or with a worker that is too old."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.flows import registry
from droveway.persistence.database import Executor
from droveway.persistence.journal import daemons, debts, freezes
from droveway.persistence.journal.tables import Daemon
from droveway.wire.levels import SINCE
from droveway.wire.values import ACTION_VERSION

QUESTION: Final = "check_guest"
"""The action by which a destination is asked how a guest is."""


class Known(NamedTuple):
    """A worker as it registered."""

    version: str
    knows: Sequence[str]


def ineligible(session: orm.Session) -> dict[str, str]:
    """The reason against each host that is to take no server."""
    known = daemons.roster(session)
    old = {host: why for host in known.workers if (why := lacking(known.workers[host]))}
    return debts.owing(session) | old | known.drained() | freezes.hosts(session)


def lacking(worker: Daemon) -> str:
    """What the worker lacks of what flows ask of a host; empty when it has all."""
    missing = sorted(needed() - set(worker.knows))
    if not missing:
        return ""
    return f"its worker ({worker.version}) does not know {', '.join(missing)}: upgrade it first"


def unsupported(worker: Daemon | Known | None, action: str, pinned: int | None) -> str:
    """Why a host cannot be asked for an action that not every release has; empty when it can.

    ``pinned``: the level that operators allow to be spoken while hosts are upgraded; None: this release's own.
    """
    since = SINCE.get(action, 1)
    if pinned is not None and pinned < since:
        return (
            f"{action} came with level {since} of what is spoken to workers, and [upgrade_levels] worker pins that to "
            f"{pinned}: take the pin out once every worker is upgraded"
        )
    if worker is not None and f"{action}@{ACTION_VERSION}" not in worker.knows:
        return f"its worker ({worker.version}) does not know {action}@{ACTION_VERSION}: upgrade it first"
    return ""


def unasked(connection: Executor, hosts: Collection[str]) -> dict[str, str]:
    """The reason against each of the hosts that cannot be asked how a guest is."""
    told = sa.select(Daemon.name, Daemon.version, Daemon.knows).where(
        Daemon.kind == daemons.WORKER, Daemon.name.in_(hosts)
    )
    reasons = {row.name: unsupported(Known(row.version, row.knows), QUESTION, None) for row in connection.execute(told)}
    return {host: why for host, why in reasons.items() if why}


@functools.cache
def needed() -> frozenset[str]:
    """``action@version`` of every action that the newest flows, or the policies of moves, ask a host for."""
    steps = [step for kind in registry.kinds() for step in registry.latest(kind).walk()]
    named = {action for step in steps for action in (step.action_name(), *step.asks) if action}
    return frozenset(f"{action}@{ACTION_VERSION}" for action in (*named, QUESTION))


def pinned_below(pinned: int | None) -> str:
    """Why no move can be made while what is spoken to workers is pinned; empty when one can."""
    later = {action for action in SINCE if f"{action}@{ACTION_VERSION}" in needed()}
    return next((why for action in sorted(later) if (why := unsupported(None, action, pinned))), "")
