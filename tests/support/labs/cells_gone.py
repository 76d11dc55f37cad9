"""Cells that a person declares down in the middle of a move, with their hosts off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from support.labs.cells_away import CLOUD, Databases, owed, shown, waits
from support.labs.operations import Stage
from support.labs.small_lab import until

from droveway.persistence.journal import cells_down
from droveway.persistence.journal.tables import Move

WIDE = CLOUD.replace("{host1: {}}", "{host1: {}, host2: {}}")
HOSTS = {"cell1": ("host1", "host2"), "cell2": ("host3",), "cell3": ("host5",)}


@contextlib.contextmanager
def gone(lab: Stage, cell: str, step: str, asks: Callable[[], Move], *, also: str = "") -> Iterator[str]:
    """Let the move run until it waits for its cell, and declare that down with its hosts off; yields the move's id."""
    away = Databases(lab, cell, step)
    down = [each for each in (cell, also) if each]
    try:
        with lab.running(probe=away) as workers:
            asked = asks()
            move = asked.id
            until(lambda: waits(lab, move, cell), f"the move waits for {cell}")
            for host in HOSTS[cell]:
                workers.stop(host)
                guest = lab.lab.hypervisor(host).guest(asked.server)
                if guest is not None and guest.running:
                    lab.lab.hypervisor(host).stop(asked.server, grace=0.0, fence=lambda: None)
            with lab.lab.journal.write() as session:
                for each in down:
                    cells_down.declare(session, each, reason="the room burnt down", who="me")
            yield move
    finally:
        if away.went.is_set():
            away.bring()
    for each in down:
        lab.cli("cell", "up", each)


def settled(lab: Stage) -> bool:
    """Whether all that was owed is paid, once the lab has gone on."""
    lab.cli("move", "resume")
    return owed(lab) == []


def runs_on(lab: Stage, move: str) -> list[str]:
    """The hosts on which a guest runs, though one of the cells cannot be asked."""
    server = shown(lab, move).server
    guests = {host: lab.lab.hypervisor(host).guest(server) for host in sorted(lab.lab.identity.hosts)}
    return [host for host, guest in guests.items() if guest is not None and guest.running]


def unread(lab: Stage, move: str) -> list[str]:
    """What the history says of late writes that nobody could read."""
    results = [each.result or {} for each in lab.history(move)]
    return [str(result["unread"]) for result in results if "unread" in result]
