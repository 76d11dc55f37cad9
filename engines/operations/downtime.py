"""Estimates for how long a move will keep its guest off, from the bytes to copy and from what past moves took."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from droveway.flows.steps.hosts.copying import CopyDisks
from droveway.flows.steps.hosts.host import StartGuest, StopGuest
from droveway.flows.steps.hosts.transferring import UPLOAD
from droveway.persistence.journal import kinds, past_moves, transfers
from droveway.persistence.journal.past_moves import PastMove, Wanted

if TYPE_CHECKING:
    from droveway.engines.site.site import Site
    from droveway.flows.graph import Graph
    from droveway.scheduler.facts import Facts

MOST: Final = 20
"""So many past moves are looked at."""

_STOP, _COPY, _START = (step.step_name() for step in (StopGuest, CopyDisks, StartGuest))
_STEPS: Final = (_STOP, UPLOAD, _COPY, _START)
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclasses.dataclass(frozen=True)
class _Figure:
    """What past moves took, or what is assumed in their place."""

    value: float
    moves: int = 0
    """How many moves it was measured in; 0 where it is assumed."""
    between: bool = False
    """Whether these were moves between the same two hosts."""


@dataclasses.dataclass(frozen=True)
class _Bytes:
    count: int | None
    """None where nobody can tell."""
    at_most: bool
    why: str


def estimate(
    site: Site, facts: Facts, graph: Graph, *, storage: str, moved: int | None, transfer: str, destination: str
) -> dict[str, Any]:
    """Return the record ``downtime`` of a plan: seconds, bytes, bytes a second, and where each of them comes from.

    ``moved``: the bytes to send, None where only the hosts can count them.
    """
    hosts = (str(facts.server.host), destination)
    size = _bytes(site, facts, hosts, storage, moved)
    rate = _rate(site, hosts, by_image=transfer == transfers.IMAGE) if size.count else None
    pause = _pause(site, graph)
    copying = size.count / rate.value if size.count and rate is not None else 0.0
    return {
        "seconds": None if size.count is None else round(pause.value + copying, 1),
        "at_most": size.at_most,
        "off_anyway": facts.server.vm_state == "stopped",
        "bytes": size.count,
        "bytes_reason": size.why,
        "rate": None if rate is None else round(rate.value),
        "rate_moves": 0 if rate is None else rate.moves,
        "rate_between_hosts": rate is not None and rate.between,
        "pause": round(pause.value, 1),
        "pause_moves": pause.moves,
    }


def _bytes(site: Site, facts: Facts, hosts: tuple[str, str], storage: str, moved: int | None) -> _Bytes:
    """Tell how many bytes are to be sent.

    ``moved`` is their number if it is known, which is so in a lab.  If it is None, the result is 0 where the hosts
    share their storage or the server has no local disks.  Otherwise it is the most that the disks of the present flavor
    can hold.  Nobody can tell the number if the flavor sets no size of the root disk.
    """
    if storage == "same-host":
        return _Bytes(0, at_most=False, why="no disk is sent; the copy that the host makes for itself is not counted")
    if moved is not None:
        return _Bytes(moved, at_most=False, why="as much as the disks hold now" if moved else "no disk is sent")
    last = past_moves.newest(site.journal, Wanted(kinds=_kinds(), hosts=hosts), steps=(), limit=1)
    if last and last[0].storage == "shared":
        return _Bytes(0, at_most=False, why="the last move between these hosts found that they share their storage")
    server, flavor = facts.server, facts.current
    if not (server.boots_from_volume or flavor.root_gb):
        return _Bytes(
            None,
            at_most=False,
            why=f"flavor {flavor.name} sets no size of the root disk, so only host {hosts[0]} knows how large it is",
        )
    count = ((0 if server.boots_from_volume else flavor.root_gb) + flavor.ephemeral_gb) * _GIB
    if not count:
        return _Bytes(0, at_most=False, why="the server has no local disks")
    return _Bytes(count, at_most=True, why=f"the most that the disks of flavor {flavor.name} can hold")


def _rate(site: Site, hosts: tuple[str, str], *, by_image: bool) -> _Figure:
    """Return the bytes a second of past copies between these hosts, or of all past copies if there were none.

    It is the sum of all bytes divided by the sum of all seconds, so that a small copy counts less than a large one.
    """
    for between in (hosts, None):
        wanted = Wanted(kinds=_kinds(), hosts=between, storage="copy", by_image=by_image)
        copies = list(_copies(past_moves.newest(site.journal, wanted, steps=_STEPS, limit=MOST)))
        count, seconds = (sum(part) for part in zip(*copies, strict=True)) if copies else (0, 0.0)
        if count and seconds:
            return _Figure(count / seconds, len(copies), between=between is not None)
    return _Figure(site.conf.conductor.plan_rate * _MIB)


def _copies(found: list[PastMove]) -> Iterator[tuple[int, float]]:
    """Yield the bytes and seconds of each move whose disks were copied in a single run of the step."""
    for move in found:
        copied = move.only(_COPY)
        sent = int((copied.result or {}).get("bytes", 0)) if copied is not None else 0
        if copied is not None and sent:
            yield sent, copied.seconds + _uploading(move)


def _pause(site: Site, graph: Graph) -> _Figure:
    """Return the seconds from the stop to the start of the guest, less the time of the copy: the past moves' median."""
    wanted = Wanted(kinds=_kinds(crosses_cells=graph.kind_record.crosses_cells))
    pauses = list(_pauses(past_moves.newest(site.journal, wanted, steps=_STEPS, limit=MOST)))
    if not pauses:
        return _Figure(site.conf.conductor.plan_pause)
    return _Figure(statistics.median(pauses), len(pauses))


def _pauses(found: list[PastMove]) -> Iterator[float]:
    for move in found:
        stopped, copied, started = (move.only(step) for step in (_STOP, _COPY, _START))
        if stopped is not None and copied is not None and started is not None and started.ended_at is not None:
            off = (started.ended_at - stopped.started_at).total_seconds()
            yield max(0.0, off - copied.seconds - _uploading(move))


def _uploading(move: PastMove) -> float:
    uploaded = move.only(UPLOAD)
    return 0.0 if uploaded is None else uploaded.seconds


def _kinds(*, crosses_cells: bool | None = None) -> list[str]:
    """Name the kinds that stop a guest on one host and start it on another one."""
    forward = (kind for kind in kinds.KINDS if kind.leads_to_wait and kind.ends is None)
    return [kind.name for kind in forward if crosses_cells in (None, kind.crosses_cells)]
