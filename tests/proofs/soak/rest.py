"""Bringing a lab to rest and reading all its books: done in a process of its own after each episode of a soak."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec
from proofs import leftovers
from proofs.soak.model import Books, ReportedMove
from support.rows import journal_moves

from droveway.errors import DrovewayError
from droveway.lab import books, faults, operations
from droveway.lab.session import Lab
from droveway.persistence.journal import debts, moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.nova import catalog
from droveway.persistence.nova.vm_states import TaskState
from droveway.workers.hypervisors import guests_log

ROUNDS: Final = 4
"""So often a move that needs an operator is retried after its faults were cleared."""

MARK_AT: Final = 32 * 1024
"""Where a server's disks are marked: behind what a guest writes, before what its image holds."""


EPHEMERAL: Final = "disk.eph0"


class Seen(msgspec.Struct, frozen=True):
    """A server as the lab tells of it."""

    id: str
    name: str
    host: str
    """Empty for a server on no host."""
    flavor: str
    status: str
    runs: list[str]
    unmarked: list[str]
    """The disks that do not hold the mark of the day on which the server was built."""


class Facts(msgspec.Struct, frozen=True):
    """A lab at rest."""

    stuck: list[tuple[str, str]]
    """Server and sentence of every move that needed an operator before it was brought to its end."""
    moves: list[ReportedMove]
    servers: list[Seen]
    allocations: Books
    usages: dict[str, dict[str, int]]
    wrong: list[str]
    """What the audit found, runs that overlapped, debts, and what is left of deleted servers."""


def settle(root: Path, record: Path, known: Mapping[str, str], told: Collection[str]) -> int:
    """Let every move come to rest, then write down the `Facts` of all moves but those that ended and were told before.

    ``known`` are the servers that there were, names by id: nothing may be left of one that is gone.
    """
    lab = Lab.open(root)
    faults.clear(lab.layout, None)
    stuck = _bring_to_rest(lab)
    for server in catalog.servers(lab.api, lab.cell_databases):
        if server.task_state == TaskState.DELETING:
            # Whoever asked was killed between the mark and the request; asked again, it goes on.
            operations.delete_server(lab, server.name)
    record.write_bytes(msgspec.json.encode(_facts(lab, stuck, known, told)))
    lab.close()
    return 0


def mark(root: Path, server: str) -> None:
    """Write the server's id into each of its disks."""
    lab = Lab.open(root)
    found = catalog.find_server(lab.api, lab.cell_databases, server)
    for disk in _disks(lab, found):
        with disk.open("r+b") as file:
            file.seek(MARK_AT)
            file.write(found.id.encode())
    lab.close()


def _bring_to_rest(lab: Lab) -> list[tuple[str, str]]:
    stuck = left = _stuck(lab)
    for _ in range(ROUNDS):
        with lab.journal.write() as session:
            for move in moves.open_moves(session):
                if move.state == State.NEEDS_OPERATOR:
                    requests.retry(session, move)
                elif move.hold:
                    requests.resume(session, move)
        operations.carry_all(lab)
        left = _stuck(lab)
        if not left:
            return stuck
    raise DrovewayError("; ".join(f"{server} still needs an operator: {error}" for server, error in left))


def _stuck(lab: Lab) -> list[tuple[str, str]]:
    with lab.journal.read() as session:
        return [(move.server_name, move.error or "") for move in journal_moves.listing(session, stuck=True)]


def _facts(lab: Lab, stuck: list[tuple[str, str]], known: Mapping[str, str], told: Collection[str]) -> Facts:
    allocations, usages = _held(lab)
    with lab.journal.read() as session:
        fresh = [move for move in journal_moves.listing(session) if move.id not in told]
    servers = _servers(lab)
    gone = set(known) - {server.id for server in servers}
    return Facts(
        stuck=stuck,
        moves=[
            ReportedMove(move.id, move.server, move.kind, move.state, move.dest_host or "", move.new_flavor)
            for move in fresh
        ],
        servers=servers,
        allocations=allocations,
        usages=usages,
        wrong=[
            *_wrong(lab),
            *(f"left of {known[server]}: {each}" for server in sorted(gone) for each in leftovers.of(lab, server)),
        ],
    )


def _held(lab: Lab) -> tuple[Books, dict[str, dict[str, int]]]:
    """What each consumer holds, and each provider's usages as Placement itself sums them up."""
    hosts = {host.node: host.name for host in catalog.hosts(lab.api, lab.cell_databases)}
    allocations: Books = {}
    usages = {}
    for node, host in hosts.items():
        for consumer, amounts in lab.cloud.placement.provider_allocations(node).items():
            allocations.setdefault(consumer, {})[host] = dict(amounts)
        usages[host] = {name: amount for name, amount in lab.cloud.placement.provider_usages(node).items() if amount}
    return allocations, {host: used for host, used in usages.items() if used}


def _servers(lab: Lab) -> list[Seen]:
    running: dict[str, list[str]] = {}
    for host in sorted(lab.identity.hosts):
        for guest in lab.hypervisor(host).guests():
            if guest.running:
                running.setdefault(guest.server, []).append(host)
    return [
        Seen(
            id=server.id,
            name=server.name,
            host=server.host or "",
            flavor=server.flavor,
            status=server.status,
            runs=running.pop(server.id, []),
            unmarked=[disk.name for disk in _disks(lab, server) if not _is_marked(disk, server.id)],
        )
        for server in catalog.servers(lab.api, lab.cell_databases)
    ] + [Seen(server, "", "", "", "UNKNOWN", hosts, []) for server, hosts in running.items()]


def _disks(lab: Lab, server: catalog.Server) -> list[Path]:
    """Every disk whose bytes a move must carry over: a swap disk is made anew.  A shelved server's lie in its image."""
    volumes = [lab.layout.volumes / each.volume for each in lab.cloud.volumes.for_server(server.id)]
    if server.host is None:
        return volumes
    local = lab.hypervisor(server.host).instances / server.id
    return [path for name in ("disk", EPHEMERAL) if (path := local / name).exists()] + volumes


def _is_marked(disk: Path, server: str) -> bool:
    with disk.open("rb") as file:
        file.seek(MARK_AT)
        return file.read(len(server)) == server.encode()


def _wrong(lab: Lab) -> list[str]:
    report = books.balance(lab)
    found = [] if report.clean else [f"audit: {each.kind}: {each.detail}" for each in report.findings]
    with lab.journal.read() as session:
        found += [f"debt of {debt.host}" for debt in debts.collectable(session)]
    return found + [str(each) for each in guests_log.overlaps(lab.layout.guests_log)]
