"""Tells which hosts take no servers because of what the journal says, and what each worker can be asked for.

A host takes no server while it is drained or frozen, while it owes a clean-up, or while its worker is too old.  A
release that adds actions or queries of workers has one protocol *level* more (`droveway.wire.levels`).  During an
upgrade operators pin the level with ``[upgrade_levels] worker``: then no flow asks for an action of a higher one.
"""

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
    """A worker's release, and the actions that it registered."""

    version: str
    knows: Sequence[str]


def chosen(kind: str, pinned: int | None) -> Graph:
    """Return the newest graph of the kind whose actions are all within the ``pinned`` level.

    If there is none, return the newest graph of all.  The callers then refuse the move, and name the action of that
    graph which lies beyond the level.
    """
    serving = (each for each in registry.versions(kind) if not _beyond(each.required, pinned))
    return next(serving, registry.latest(kind))


def ineligible(session: orm.Session, wanted: Collection[str]) -> dict[str, str]:
    """Return the reason against each host that is to take no server.

    ``wanted`` are the actions that a host's worker has to know, see `needed`.
    """
    known = daemons.known_workers(session)
    old = {host: why for host in known.workers if (why := lacking(known.workers[host], wanted))}
    return debts.owing(session) | old | known.drained() | freezes.hosts(session)


def lacking(worker: Daemon, wanted: Collection[str]) -> str:
    """Say which of the wanted actions the worker does not know, and the mend; empty when it knows them all."""
    missing = sorted(set(wanted) - set(worker.knows))
    if not missing:
        return ""
    levels = [SINCE.get(name.partition("@")[0], 1) for name in missing]
    named = (f"{name} (level {level})" if level > 1 else name for name, level in zip(missing, levels, strict=True))
    instead = _advice_to_pin(min(levels) - 1)
    return f"its worker ({worker.version}) does not know {', '.join(named)}: upgrade it first{instead}"


def _advice_to_pin(level: int) -> str:
    """Return the end of a sentence that advises to pin this level; empty when some kind has no graph within it."""
    if not level or pinned_below(level):
        return ""
    return f", or set [upgrade_levels] worker = {level} on every conductor's machine until every worker is upgraded"


def unsupported(worker: Daemon | Known | None, action: str, pinned: int | None) -> str:
    """Say why a host cannot be asked for an action that not every release has; empty when it can.

    ``pinned``: the highest level that operators allow while hosts are upgraded; None: this release's own.
    """
    since = SINCE.get(action, 1)
    if pinned is not None and pinned < since:
        return (
            f"{action} came with protocol level {since}, and [upgrade_levels] worker allows none above level {pinned}: "
            "take the pin out once every worker is upgraded"
        )
    if worker is not None and f"{action}@{ACTION_VERSION}" not in worker.knows:
        return f"its worker ({worker.version}) does not know {action}@{ACTION_VERSION}: upgrade it first"
    return ""


def uncheckable(connection: Executor, hosts: Collection[str]) -> dict[str, str]:
    """Return the reason against each of the hosts whose worker cannot be asked how a guest is."""
    told = sa.select(Daemon.name, Daemon.version, Daemon.knows).where(
        Daemon.kind == daemons.WORKER, Daemon.name.in_(hosts)
    )
    reasons = {row.name: unsupported(Known(row.version, row.knows), QUESTION, None) for row in connection.execute(told)}
    return {host: why for host, why in reasons.items() if why}


def needed(pinned: int | None = None, own: Graph | None = None) -> frozenset[str]:
    """Return every action, as ``action@version``, that a move may ask a host for at the ``pinned`` level.

    The move's flows and its confirm policy ask for them.  ``own`` is the graph of the move's first flow.  With it, the
    result has the actions of that graph and of the flows that may follow it.  Without it, the result has the actions of
    every flow that a move to another host may have.
    """
    record = own.kind_record if own is not None else None
    followed = [kind for kind in registry.kinds() if _may_follow(kinds.of(kind), record)]
    graphs = [chosen(kind, pinned) for kind in followed] + ([own] if own is not None else [])
    return frozenset(f"{action}@{ACTION_VERSION}" for graph in graphs for action in (*graph.asked, QUESTION))


def _may_follow(kind: Kind, own: Kind | None) -> bool:
    """Tell whether a flow of the kind may come after a flow of the ``own`` kind.

    If ``own`` is None, tell whether a move to another host may have a flow of the kind.
    """
    if own is None:
        return kind.has_migration
    return kind.deletes or (kind.ends_wait and kind.crosses_cells == own.crosses_cells)


def pinned_below(pinned: int | None, own: Graph | None = None) -> str:
    """Return a sentence that says why the ``pinned`` level rules a move out; empty when it does not.

    The sentence names the first action that only workers above that level know.  The actions are those of `needed`,
    which also explains ``own``.
    """
    return _beyond((name.partition("@")[0] for name in needed(pinned, own)), pinned)


def _beyond(actions: Iterable[str], pinned: int | None) -> str:
    """Say why the first of these actions beyond the pinned level cannot be asked for; empty when none is beyond it."""
    return next((why for action in sorted(actions) if (why := unsupported(None, action, pinned))), "")
