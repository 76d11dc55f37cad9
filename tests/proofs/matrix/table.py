"""The table of a whole crash matrix, as a page of the documentation."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from proofs.crash import points as crash_points
from proofs.crash.bench import HOWS
from proofs.matrix import clouds as matrix_clouds

from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.persistence.journal import kinds

COLUMNS: Final = {
    "killed before": "before it",
    "killed during": "between two of its effects",
    "killed after": "after its effects, before its result was stored",
    "killed stored": "once its result was stored",
    "worker killed": "its host's worker, between two effects, while the conductor lived on",
    "failed": "it failed before, half way or after",
    "run twice": "its body ran twice in a row",
    "requests": "a delete, a cancel or a pause arrived",
    "bad world": "it had to refuse, or to find out what nobody had told it",
    "double": "a fault in the undo of a failure, or a kill of who resumed",
}
"""What happened to a step, and what that means."""

DIGITS: Final = 16
"""So many of a graph's digest are shown."""

_EFFECTS: Final = {
    "worker": "worker killed",
    "fail": "failed",
    "refuse": "failed",
    "twice": "run twice",
    "delete": "requests",
    "cancel": "requests",
    "pause": "requests",
    "bad": "bad world",
}


class ReportedPoint(NamedTuple):
    """What a run of the matrix told of one point."""

    cloud: str
    how: str
    """What brought the confirm about, `proofs.crash.bench.How`."""
    point: str
    converged: bool
    met: bool
    """Whether it met a state from which an earlier point went on to its end."""


def page(
    told: Iterable[ReportedPoint],
    *,
    states: int,
    seed: int,
    clouds: Sequence[str] = matrix_clouds.CLOUDS,
    sample: int | None = None,
) -> str:
    """The page in reStructuredText; its points are counted by cloud, kind and what happened.

    ``sample``: so many points of each part ran; None for all of them.
    """
    counted: dict[tuple[str, str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    met = 0
    for each in told:
        met += each.met
        tested = crash_points.parse(each.point)
        cell = counted[each.cloud, _flow(tested.kind, each.how), column(tested)]
        cell[0] += 1
        cell[1] += each.converged
    points = sum(cell[0] for cell in counted.values())
    converged = sum(cell[1] for cell in counted.values())
    head = _HEADS.get(clouds[0], _HEAD)
    lines = [*head, "", f"``crash matrix: {points} points, {converged} converged, {points - converged} leaks``", ""]
    lines += [
        f"{met} of them met a state from which an earlier point went on to its end. {states} distinct end states were",
        f"used; the double faults that were chosen follow from seed {seed}.",
        "",
    ]
    lines += [
        *(() if sample is None else (f"It is no whole matrix but a sample: {sample} points of each of its parts.", "")),
        "The graphs that it ran, each with what tells it from any other:",
        "",
        *(f"- {each}" for each in graphs(clouds)),
        "",
    ]
    lines += [f"- *{name}*: {what}" for name, what in COLUMNS.items()]
    lines += ["", ".. csv-table::", "   :header-rows: 1", ""]
    lines.append(_row(["cloud", "flow", *COLUMNS]))
    for cloud in clouds:
        for flow in _flows(cloud):
            cells = [counted.get((cloud, flow, name)) for name in COLUMNS]
            if any(cells):
                lines.append(_row([cloud, flow, *(f"{cell[1]}/{cell[0]}" if cell else "" for cell in cells)]))
    return "\n".join(lines) + "\n"


def graphs(clouds: Sequence[str] = matrix_clouds.ALL) -> list[str]:
    """The newest graph of each kind that runs in these clouds, with the beginning of its digest."""
    wanted = {kind for cloud in clouds for kind in matrix_clouds.kinds_in(cloud)}
    return [named(registry.latest(kind)) for kind in registry.kinds() if kind in wanted]


def named(graph: Graph) -> str:
    """The graph, with the beginning of its digest."""
    return f"``{graph.kind}@{graph.version}`` {graph.digest()[:DIGITS]}"


def column(tested: crash_points.Point) -> str:
    """Where the table counts the point."""
    if len(tested.spots) > 1:
        return "double"
    first = tested.first
    if first.effect != "kill":
        return _EFFECTS[first.effect]
    return f"killed {first.phase if first.phase in crash_points.AROUND else 'during'}"


def write(path: Path, text: str) -> None:
    """Put the page in place."""
    path.write_text(text, encoding="utf-8")


def _flows(cloud: str) -> list[str]:
    confirms = kinds.names_of(kinds.Way.CONFIRM)
    return [
        _flow(kind, how) for kind in matrix_clouds.kinds_in(cloud) for how in (HOWS if kind in confirms else HOWS[:1])
    ]


_HEAD_BETWEEN: Final = [
    ".. Written by tools/matrix --full --between.",
    "",
    "==============================",
    "The crash matrix between cells",
    "==============================",
    "",
    "Every step of every flow that leads into another cell, or ends such a move, as :doc:`crash-matrix` has it of",
    "the others: killed, failing, repeated and met by requests. Besides what that page tells each end is judged by the",
    "rows of both cells: the copy that the mapping does not name is hidden and names no host of its cell, and none is",
    "left of a move that ended. Resize and migrate are one graph: migrate runs in the first cloud only. The page is",
    "written by ``tools/matrix --full --between``.",
]


_HEAD_SHELVING: Final = [
    ".. Written by tools/matrix --full --shelving.",
    "",
    "===============================",
    "The crash matrix of the shelved",
    "===============================",
    "",
    "Every step of a shelve and of an unshelve, as :doc:`crash-matrix` has it of the others: killed, failing, repeated",
    "and met by requests. A shelve that is done leaves nothing on any host, unbound ports, reserved volumes, and an",
    "image that holds what the root disk held; an unshelve that is undone leaves the same; one that is done leaves an",
    "ordinary server with those bytes, and no image. From each distinct end the server is unshelved, stopped, started",
    "and moved. The page is written by ``tools/matrix --full --shelving``.",
]
_HEAD_PORTS: Final = [
    ".. Written by tools/matrix --full --ports.",
    "",
    "====================================",
    "The crash matrix of guaranteed ports",
    "====================================",
    "",
    "Every step of every flow of a server whose ports are guaranteed bandwidth and a packet rate, as",
    ":doc:`crash-matrix` has it of the others: killed, failing, repeated and met by requests. Besides what that page",
    "tells each end is judged by the tables of Placement and Neutron: each bridge and agent gives what the bindings",
    "name, to the server and to the migration, and the bindings name nobody of another host. The page is written by",
    "``tools/matrix --full --ports``.",
]
_HEADS: Final = {
    matrix_clouds.BETWEEN[0]: _HEAD_BETWEEN,
    matrix_clouds.SHELVING[0]: _HEAD_SHELVING,
    matrix_clouds.GUARANTEED[0]: _HEAD_PORTS,
}
"""The first cloud of a page → how that begins."""


def _flow(kind: str, how: str) -> str:
    return kind if how == HOWS[0] else f"{kind} ({how})"


def _row(cells: Sequence[str]) -> str:
    return f"   {', '.join(cells)}".rstrip()


_HEAD: Final = [
    ".. Written by tools/matrix --full.",
    "",
    "================",
    "The crash matrix",
    "================",
    "",
    "Every step of every flow, the retry that chooses destinations included, killed, failing, repeated and met by",
    "requests, in every cloud: forward, while it is undone, and while it is undone for the next alternate. Each cell",
    "has the points that converged and all points: the move rested where it should, the audit was clean, what the flow",
    "is for had come about (disks, guest, what is attached and rows, as the lab's own files have them), and from each",
    "distinct end the server was stopped, started and moved again. In a bad world the step refused, and nothing was",
    "touched. Resize and migrate are one graph: migrate runs in the first cloud only. The page is written by",
    "``tools/matrix --full``, which takes its points from the graphs; any of them is run again by ``tools/matrix",
    "--cloud CLOUD POINT``. ``tools/test`` runs a fixed sample: in three clouds each step is killed on each way, and",
    "all else happens once in each flow; of each of the others some points.",
    "",
    "Between two steps all that a flow goes on from is in the lab: rows, files and guests. So a point ends early that",
    "has its lab, once its fault is over, in a state from which an earlier point of the same expected end went on to",
    "it; from any other state it is run to its end. ``--whole`` runs each to its end, whatever states it meets.",
]
