"""Checks that the commands, results and progress in ZooKeeper belong to flows that run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import CommandView
from droveway.audit.snapshot import Snapshot
from droveway.clients.zookeeper import host_path
from droveway.persistence.journal.states import State
from droveway.wire.values import HEALTH, printable

_DEBT: Final = ".debt-"


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find nodes that belong to no running flow, no debt and no question about the health of a waiting guest.

    A worker would carry out such a command, or never remove such a result.
    """
    flows = {flow.uuid: flow for flow in snapshot.flows}
    owing = {(debt.move, debt.host) for debt in snapshot.debts if not debt.written_off}
    for node in snapshot.commands:
        named = node.key.partition(".")[0]
        flow = flows.get(named)
        if named.startswith(HEALTH):
            move = snapshot.move_by_id.get(named.removeprefix(HEALTH))
            if move is not None and move.state is State.VERIFYING:
                continue
            yield _finding(node, "it asks after a guest that no move waits for", move.id if move is not None else "")
        elif flow is None:
            yield _finding(node, "the journal knows no flow of this name", "")
        elif (
            flow.ended
            and not (_DEBT in node.key and (flow.move, node.host) in owing)
            # A conductor that still has its claim may be about to delete the node.
            and flow.move not in snapshot.claimed
        ):
            yield _finding(node, f"its {flow.kind} flow has ended", flow.move)


def _finding(node: CommandView, why: str, move: str) -> Finding:
    name = printable(f"{node.folder}/{node.key}")
    return Finding(
        Kind.COMMAND,
        name,
        f"ZooKeeper has {name} for {node.host}, but {why}",
        f"zkCli.sh delete {shlex.quote(f'{host_path(node.host)}/{name}')}",
        node.host,
        "",
        move,
    )
