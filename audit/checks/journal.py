"""Compares the journal with itself: an open move waits, is parked or has a flow; an ended flow has no open step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import MoveRow
from droveway.audit.snapshot import Phase, Snapshot
from droveway.persistence.journal.states import State
from droveway.printable import SHORT

_RESTS: Final = frozenset({State.VERIFYING, State.NEEDS_OPERATOR})
"""The states in which an open move needs no flow: it waits for a confirm or revert, or it is parked."""
_FLOW_FOLLOWS: Final = frozenset({State.DELETING})
"""The states in which a move may have no flow: the keeper begins the next flow only when the last one has ended."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find moves that no flow will carry on, flows and steps left open, and calls to services without a known end."""
    flows = {flow.uuid: flow for flow in snapshot.flows}
    for move in snapshot.moves:
        flow = flows.get(move.flow_uuid or "")
        if not move.ended and move.state not in _RESTS | _FLOW_FOLLOWS and (flow is None or flow.ended):
            yield _finding(move, f"is {move.state}, but has no flow that would carry it on")
        if move.state is State.VERIFYING and flow is not None and not flow.ended:
            yield _finding(move, "waits for confirm or revert, but still has a flow under way")
    for flow in snapshot.flows:
        owner = snapshot.move_by_id[flow.move]
        if not flow.ended and flow.uuid != owner.flow_uuid and flow.uuid in snapshot.begun:
            yield _finding(owner, f"is {owner.state}, but its {flow.kind} flow {flow.uuid[:SHORT]} has no end")
    for step in snapshot.open_steps:
        owner, flow = snapshot.move_by_id[step.move], flows.get(step.flow)
        if flow is None or flow.ended:
            run = f"{step.step} ({step.direction})"
            yield _finding(owner, f"has no end for step {run}, though the step's flow has ended")
    for intent in snapshot.intents:
        owner = snapshot.move_by_id[intent.move]
        standing = snapshot.standings.get(owner.server)
        running = standing is not None and standing.move is owner and standing.phase is Phase.MOVING
        if intent.state == "open" and not running:
            yield _finding(owner, f"has a call to {intent.service} without an end ({intent.call}), and no flow runs")


def late_calls(snapshot: Snapshot) -> Iterator[Finding]:
    """Note the calls that a conductor had under way when it lost its claim; a service may still carry them out."""
    for intent in snapshot.intents:
        move = snapshot.move_by_id[intent.move]
        if intent.state == "late" and not move.ended:
            yield _finding(move, f"may still see a late call to {intent.service} land ({intent.call}): audit it again")


def _finding(move: MoveRow, text: str) -> Finding:
    return Finding(
        Kind.JOURNAL,
        move.id,
        f"the move {move.short} of {move.server_name} {text}",
        f"droveway move show {move.short}",
        move.source_host,
        move.server,
        move.id,
    )
