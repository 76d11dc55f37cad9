"""What a lab must hold, worked out without any of the product's code: from what was asked and how each move ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from droveway.errors import DrovewayError

Amounts = dict[str, int]
Books = dict[str, dict[str, Amounts]]
"""By consumer and host what is held; a consumer is a server's id or a move's."""

ENDED: Final = ("done", "reverted", "failed", "cancelled")
SHELVING: Final = ("shelve", "unshelve", "cross_cell_unshelve")
_UNCHANGED: Final = ("failed", "cancelled")


class ModelBroken(DrovewayError):
    """What the lab tells cannot have come of what was asked: {what}."""


@dataclasses.dataclass(frozen=True)
class Size:
    """A flavor; memory and swap in MiB, disks in GiB."""

    vcpus: int
    memory_mb: int
    root_gb: int
    ephemeral_gb: int = 0
    swap_mb: int = 0

    def amounts(self, *, from_volume: bool) -> Amounts:
        """What a server of it holds: no root disk when it boots from a volume, and swap in whole GiB."""
        disk = self.ephemeral_gb + (self.swap_mb + 1023) // 1024
        if not from_volume:
            disk += self.root_gb
        held = {"VCPU": self.vcpus, "MEMORY_MB": self.memory_mb}
        return held | ({"DISK_GB": disk} if disk else {})


@dataclasses.dataclass(frozen=True)
class Before:
    """Where a server was before the move that waits for confirm or revert."""

    move: str
    host: str
    flavor: str


@dataclasses.dataclass
class Server:
    """A server as it must be."""

    id: str
    name: str
    host: str
    """Empty while it is shelved."""
    flavor: str
    from_volume: bool
    active: bool
    ephemeral: bool = False
    """Whether it was built with an ephemeral disk, whose bytes it has to keep."""
    before: Before | None = None


@dataclasses.dataclass(frozen=True)
class ReportedMove:
    """A move as the lab tells of it."""

    id: str
    server: str
    kind: str
    state: str
    destination: str
    flavor: str


class Model:
    """All servers, and by that what every consumer holds on every host."""

    def __init__(self, flavors: Mapping[str, Size]) -> None:
        self._flavors = flavors
        self.servers: dict[str, Server] = {}
        self._settled: dict[str, str] = {}

    def created(self, server: Server) -> None:
        """A server was built."""
        self.servers[server.id] = server

    def deleted(self, server: str) -> None:
        """A server is gone, and with it what its moves held."""
        self.servers.pop(server, None)

    def named(self, name: str) -> Server | None:
        """The server of that name."""
        return next((server for server in self.servers.values() if server.name == name), None)

    def tell(self, moves: Iterable[ReportedMove]) -> None:
        """How the moves stand now, oldest first; raises ModelBroken for what none of them may have come to."""
        for move in moves:
            known = self._settled.get(move.id)
            if known is not None and known != move.state:
                raise ModelBroken(f"move {move.id} had ended as {known} and is {move.state}")
            if known is None and move.server in self.servers:
                self._tell(self.servers[move.server], move)
            if move.state in ENDED:
                self._settled[move.id] = move.state

    def ended(self) -> frozenset[str]:
        """The moves that have ended."""
        return frozenset(self._settled)

    def allocations(self) -> Books:
        """What every consumer must hold."""
        books: Books = {}
        for server in self.servers.values():
            if server.host:
                books[server.id] = {server.host: self._amounts(server, server.flavor)}
            if server.before is not None:
                books[server.before.move] = {server.before.host: self._amounts(server, server.before.flavor)}
        return books

    def _amounts(self, server: Server, flavor: str) -> Amounts:
        return self._flavors[flavor].amounts(from_volume=server.from_volume)

    def _tell(self, server: Server, move: ReportedMove) -> None:
        waits = server.before is not None and server.before.move == move.id
        if server.before is not None and not waits:
            raise ModelBroken(f"{server.name} waits for its move {server.before.move} and has another, {move.id}")
        if move.kind == "delete":
            raise ModelBroken(f"{server.name} was deleted by {move.id}, which is {move.state}, and is still there")
        if move.kind in SHELVING:
            _tell_shelving(server, move)
            return
        if move.state in _UNCHANGED and waits:
            raise ModelBroken(f"move {move.id} of {server.name} was complete and is {move.state}")
        if move.state in ("verifying", "done") and not waits:
            server.before = Before(move.id, server.host, server.flavor)
            server.host, server.flavor = move.destination, move.flavor
        if move.state == "reverted" and server.before is not None:
            server.host, server.flavor = server.before.host, server.before.flavor
        if move.state in ENDED:
            server.before = None
        elif move.state != "verifying":
            raise ModelBroken(f"move {move.id} of {server.name} rests as {move.state}")


def _tell_shelving(server: Server, move: ReportedMove) -> None:
    """A shelve or an unshelve: it ends done, or the server is as it was."""
    if move.state not in ("done", *_UNCHANGED):
        raise ModelBroken(f"move {move.id} of {server.name} rests as {move.state}")
    if move.state == "done":
        if bool(server.host) != (move.kind == "shelve"):
            raise ModelBroken(f"{server.name} is on {server.host or 'no host'}, and {move.kind} {move.id} is done")
        server.host = move.destination
        # As in Nova, an unshelve starts the server, whatever it was before.
        server.active = move.kind != "shelve"


def usages(books: Books) -> dict[str, Amounts]:
    """The sum by host of what all consumers hold."""
    found: dict[str, Amounts] = {}
    for hosts in books.values():
        for host, amounts in hosts.items():
            used = found.setdefault(host, {})
            for resource, amount in amounts.items():
                used[resource] = used.get(resource, 0) + amount
    return found


def differences(wanted: Mapping[str, object], found: Mapping[str, object]) -> list[str]:
    """One phrase for each key under which two books do not say the same."""
    return [
        f"{key}: {found.get(key, 'nothing')} and not {wanted.get(key, 'nothing')}"
        for key in sorted({*wanted, *found})
        if wanted.get(key) != found.get(key)
    ]
