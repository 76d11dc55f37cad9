"""Which hosts take no servers for what the journal knows: drained, frozen, owing, or with a worker that is too old."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.persistence.database import Executor
from droveway.persistence.journal import daemons, debts, freezes, kinds
from droveway.persistence.journal.kinds import Kind
from droveway.persistence.journal.tables import Daemon
from droveway.wire.levels import SINCE
from droveway.wire.values import ACTION_VERSION

QUESTION: Final = "check_guest"
"""The action by which a destination is asked how a guest is."""


class Known(NamedTuple):
    """A worker as it registered."""

    version: str
    knows: Sequence[str]


def chosen(kind: str, pinned: int | None) -> Graph:
    """The newest graph of the kind that requires nothing of hosts beyond the ``pinned`` level, if there is one.

    Else the newest of all, whose steps say what the hosts lack.
    """
    serving = (each for each in registry.versions(kind) if not _beyond(each.required, pinned))
    return next(serving, registry.latest(kind))


def ineligible(session: orm.Session, wanted: Collection[str]) -> dict[str, str]:
    """The reason against each host that is to take no server; ``wanted``: what its worker has to know, see `needed`."""
    known = daemons.known_workers(session)
    old = {host: why for host in known.workers if (why := lacking(known.workers[host], wanted))}
    return debts.owing(session) | old | known.drained() | freezes.hosts(session)


def lacking(worker: Daemon, wanted: Collection[str]) -> str:
    """What the worker lacks of what flows ask of a host; empty when it has all."""
    missing = sorted(set(wanted) - set(worker.knows))
    if not missing:
        return ""
    levels = [SINCE.get(name.partition("@")[0], 1) for name in missing]
    named = (f"{name} (level {level})" if level > 1 else name for name, level in zip(missing, levels, strict=True))
    instead = _older_graphs(min(levels) - 1)
    return f"its worker ({worker.version}) does not know {', '.join(named)}: upgrade it first{instead}"


def _older_graphs(level: int) -> str:
    """How to go on at this level meanwhile; empty where no graphs of all kinds are within it."""
    if not level or pinned_below(level):
        return ""
    return f", or set [upgrade_levels] worker = {level} on every conductor's machine until every worker is upgraded"


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


def uncheckable(connection: Executor, hosts: Collection[str]) -> dict[str, str]:
    """The reason against each of the hosts that cannot be asked how a guest is."""
    told = sa.select(Daemon.name, Daemon.version, Daemon.knows).where(
        Daemon.kind == daemons.WORKER, Daemon.name.in_(hosts)
    )
    reasons = {row.name: unsupported(Known(row.version, row.knows), QUESTION, None) for row in connection.execute(told)}
    return {host: why for host, why in reasons.items() if why}


def needed(pinned: int | None = None, own: Graph | None = None) -> frozenset[str]:
    """``action@version`` of every action that flows, or the policies of moves, ask a host for at the ``pinned`` level.

    ``own``: the graph of the move's first flow, so that only those are counted that may come after it; None: of all
    that move a server from one host to another.
    """
    record = own.kind_record if own is not None else None
    followed = [kind for kind in registry.kinds() if _may_follow(kinds.of(kind), record)]
    graphs = [chosen(kind, pinned) for kind in followed] + ([own] if own is not None else [])
    return frozenset(f"{action}@{ACTION_VERSION}" for graph in graphs for action in (*graph.asked, QUESTION))


def _may_follow(kind: Kind, own: Kind | None) -> bool:
    """Whether a flow of the kind may come after one of the ``own`` kind; None: after a move to another host."""
    if own is None:
        return kind.has_migration
    return kind.deletes or (kind.ends_wait and kind.crosses_cells == own.crosses_cells)


def pinned_below(pinned: int | None, own: Graph | None = None) -> str:
    """Why no move can be made while what is spoken to workers is pinned; empty when one can.  ``own``: see `needed`."""
    return _beyond((name.partition("@")[0] for name in needed(pinned, own)), pinned)


def _beyond(actions: Iterable[str], pinned: int | None) -> str:
    """Why the first of these actions cannot be asked for that is beyond the pinned level; empty where none is."""
    return next((why for action in sorted(actions) if (why := unsupported(None, action, pinned))), "")
