"""A cell's database, Placement's or Nova's API database put back from an older copy in the middle of an operation.

Nothing tells Droveway of it.  The move goes on, or is cancelled, and then ends by the commands that it names; at the
end what the audit names of the move is done, and the rows, the services and the hosts have to agree.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Final

from support.labs.operations import Stage
from support.two_faults import ways_out
from support.two_faults.recording import (
    AWAY,
    BETWEEN_CELLS,
    CELL,
    CELLS,
    CHOICES,
    DATABASES,
    FORWARD,
    OPERATIONS,
    PLACEMENT,
    VOLUME,
    Point,
    Recording,
    pairs,
)
from support.two_faults.world import cell_rows, running_on, the_row

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement

STORAGES: Final = ("apart", "shared", VOLUME)
WITHIN: Final = (CELL, PLACEMENT)
"""What is put back of a move within a cell; between cells each of `DATABASES`."""

RESUMED: Final = "resumed"
CANCELLED: Final = "cancelled"
HOWS: Final = tuple(itertools.product((RESUMED, CANCELLED), AWAY, CHOICES))
"""What is asked of the move next, whose worker is away meanwhile, and how the move is ended where it waits."""

TRUE: Final = ("it was put back from a copy",)
"""What the person who runs the commands knows."""

_MENDS: Final = ("move", "settle")
"""The commands of the audit that are run at the end, beside two of OpenStack's."""
_DELETE: Final = re.compile(r"openstack resource provider allocation delete ([\w-]+)")
_HEAL: Final = re.compile(r"nova-manage placement heal_allocations --instance ([\w-]+) --force")


def points() -> list[str]:
    """Every effect of every operation with every boundary of it of each database, each in one of `HOWS` in turn."""
    worlds = (
        *((storage, operation, WITHIN) for storage in STORAGES for operation in OPERATIONS),
        *((CELLS, operation, DATABASES) for operation in BETWEEN_CELLS),
    )
    every = [
        (storage, operation, databases, at, of)
        for storage, operation, databases in worlds
        for at, of in pairs(operation)
        if not of.startswith(FORWARD)
    ]
    # One turn for all databases: else each would be tried in some of them only.
    return [
        str(Point(storage, operation, at, f"{database}{of}", how))
        for (storage, operation, databases, at, of), how in zip(every, itertools.cycle(HOWS), strict=False)
        for database in databases
    ]


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
    if wrong := taken.watch.trouble(taken.server, ended=False):
        return f"{rest}: {wrong}"
    if away != "up":
        ways_out.say(lab, "lab", "worker", "start", away)
    if stuck := ways_out.finish(lab, move, choice=choice, true=TRUE):
        return stuck
    if away != "up":
        ways_out.say(lab, "move", "resume")
    if wrong := taken.watch.trouble(taken.server, ended=True):
        mended = mend(lab)
        if wrong := taken.watch.trouble(taken.server, ended=True):
            return f"{wrong} (the audit: {mended or 'nothing'})"
    return "" if running_on(lab.root, taken.server) else "the server ran before its move, and is off at its end"


def mend(lab: Stage) -> str:
    """Run what the audit names of a move that is over; what it was and how each ended."""
    found = json.loads(ways_out.say(lab, "audit", "-f", "json").out or "[]")
    told = []
    for named in dict.fromkeys(finding["mend"] for finding in found):
        ways = [way for way in ways_out.commands(named) if way.words[:2] == _MENDS]
        for way in ways:
            said = ways_out.say(lab, *way.words)
            told.append(f"droveway {way} ended with {said.code}: {(said.error or said.out).strip()}")
        if not ways and _is_of_openstack(lab, named):
            told.append(named)
    return "; ".join(told) or ", ".join(dict.fromkeys(finding["detail"] for finding in found))


def _is_of_openstack(lab: Stage, named: str) -> bool:
    """Do what one of OpenStack's own commands on allocations does; whether the sentence names one."""
    books = Placement(embedded_placement(lab.lab.layout.placement))
    deleted, healed = _DELETE.fullmatch(named), _HEAL.fullmatch(named)
    if deleted:
        books.release(deleted[1])
    elif healed:
        row = the_row(lab.root, healed[1])
        (node,) = [each["uuid"] for each in cell_rows(lab.root, "compute_nodes") if each["host"] == row["host"]]
        held = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"]}
        if row["root_gb"] and row["image_ref"]:
            held["DISK_GB"] = row["root_gb"]
        books.ensure_allocation(healed[1], {node: held}, project_id=row["project_id"], user_id=row["user_id"])
    return bool(deleted or healed)
