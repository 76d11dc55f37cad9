"""A database of Nova, Placement, Neutron or Cinder put back from an older copy in the middle of an operation.

Nothing tells Droveway of it.  The move goes on, or is cancelled, and then ends by the commands that it names; at the
end what the audit names of the move is done, and the rows, the services and the hosts have to agree.
"""

from __future__ import annotations

import itertools
import json
from typing import Final

from support.labs.operations import Stage
from support.two_faults import audited, openstack, ways_out
from support.two_faults.recording import (
    API,
    AWAY,
    BEGIN,
    BETWEEN_CELLS,
    CELL,
    CELLS,
    CHOICES,
    CINDER,
    DATABASES,
    ELSEWHERE,
    FORWARD,
    NEUTRON,
    OPERATIONS,
    PLACEMENT,
    REST,
    REVERT_ELSEWHERE,
    SHELVES,
    SHELVES_BETWEEN,
    SHELVING,
    TARGET_CELL,
    UNSHELVE_BETWEEN,
    VOLUME,
    Point,
    Recording,
    living,
    pairs,
)

from droveway.flows import registry

STORAGES: Final = ("apart", "shared", VOLUME)
WITHIN: Final = (CELL, PLACEMENT, NEUTRON, CINDER)
"""What is put back of a move within a cell; between cells each of `DATABASES`."""
SHELVED: Final = (CELL, API, PLACEMENT, NEUTRON, CINDER)
"""What is put back of a shelve, and of an unshelve within its cell."""

RESUMED: Final = "resumed"
CANCELLED: Final = "cancelled"
HOWS: Final = tuple(itertools.product((RESUMED, CANCELLED), AWAY, CHOICES))
"""What is asked of the move next, whose worker is away meanwhile, and how the move is ended where it waits."""

TRUE: Final = ("it was put back from a copy",)
"""What the person who runs the commands knows."""

_MENDED: Final = 2
"""So often what the audit names is done."""

_MENDS: Final = ("move", "settle")
"""The commands of the audit that are run at the end, beside those of `openstack`."""


def points() -> list[str]:
    """Every effect of every operation with every boundary of it of each database, each in one of `HOWS` in turn."""
    worlds = (
        *((storage, operation, WITHIN) for storage in STORAGES for operation in OPERATIONS),
        *((CELLS, operation, DATABASES) for operation in BETWEEN_CELLS),
        *((storage, operation, SHELVED) for storage in SHELVES for operation in SHELVING),
        *((storage, operation, DATABASES) for storage in SHELVES_BETWEEN for operation in UNSHELVE_BETWEEN),
        *((ELSEWHERE, operation, DATABASES) for operation in REVERT_ELSEWHERE),
    )
    every = [
        (storage, operation, databases, at, of)
        for storage, operation, databases in worlds
        for at, of in pairs(operation)
        if not of.startswith(FORWARD)
    ]
    # One turn for all databases: else each would be tried in some of them only.
    return [
        str(Point(storage, operation, at, f"{database}{of}", living(operation, how)))
        for (storage, operation, databases, at, of), how in zip(every, itertools.cycle(HOWS), strict=False)
        for database in databases
        if not (database == TARGET_CELL and _is_lost(operation, at, of))
    ]


def _is_lost(operation: str, at: str, of: str) -> bool:
    """Whether the target cell lacks the only copy of the rows: a newer copy of its database alone brings that back.

    So it is of an unshelve that has removed the other copy already, where the cell is of a time before it had one.
    """
    if operation != UNSHELVE_BETWEEN[0]:
        return False
    names = registry.latest(operation).names()
    made, removed = names.index("copy_records"), names.index("remove_source_records")
    step = at.split(".")[1] if "." in at else names[-1]
    before = of in (REST, BEGIN) or names.index(of.split(".")[1]) < made
    return before and names.index(step) >= removed


def trouble(taken: Recording, point: Point) -> str:
    """Make the world of the point, let its move go on or cancel it, and end it by what it names."""
    taken.put_back(point)
    rest, away, choice = point.how
    lab, move = taken.lab, taken.move
    if away != "up":
        ways_out.say(lab, "lab", "worker", "stop", away)
    if rest == CANCELLED:
        ways_out.say(lab, "move", "cancel", move)
    ways_out.say(lab, "move", "resume")
    if wrong := taken.trouble(ended=False):
        return f"{rest}: {wrong}"
    if away != "up":
        ways_out.say(lab, "lab", "worker", "start", away)
    if stuck := ways_out.finish(lab, move, choice=choice, true=TRUE):
        return stuck
    if away != "up":
        ways_out.say(lab, "move", "resume")
    if wrong := taken.trouble(ended=True):
        # What one command mends may bring to light what another has to.
        mended = "; ".join(filter(None, (mend(lab) for _ in range(_MENDED))))
        if wrong := taken.trouble(ended=True):
            return f"{wrong} (the audit: {mended or 'nothing'})"
    return taken.rests_wrong() or audited.trouble(lab)


def mend(lab: Stage) -> str:
    """Run what the audit names of a move that is over; what it was and how each ended."""
    found = json.loads(ways_out.say(lab, "audit", "-f", "json").out or "[]")
    told = []
    for named in dict.fromkeys(finding["mend"] for finding in found):
        ways = [way for way in ways_out.commands(named) if way.words[:2] == _MENDS]
        for way in ways:
            said = ways_out.say(lab, *way.words)
            told.append(f"droveway {way} ended with {said.code}: {(said.error or said.out).strip()}")
        if not ways and openstack.does(lab, named):
            told.append(named)
    if healed := audited.heal(lab):
        # What Nova's command gives back is what the flavor needs.
        told.append(healed)
    return "; ".join(told) or ", ".join(dict.fromkeys(finding["detail"] for finding in found))
