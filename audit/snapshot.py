"""Holds all that an audit has read, and how each server stands, which decides what it should have."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping

from droveway.audit.records import (
    AttachmentView,
    CommandView,
    Consumer,
    DebtRow,
    Directory,
    DiskDigest,
    FlowRow,
    HostView,
    ImageView,
    IntentRow,
    MappingRow,
    MigrationRow,
    MoveRow,
    Node,
    PortView,
    ServerRow,
    StepRow,
    Store,
    UnreadCell,
    Unseen,
)
from droveway.clients.image import ACTIVE
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.workers.hypervisors.guests_log import Overlap

Amounts = Mapping[str, int]
"""Maps resource classes to amounts, MEMORY_MB in MiB and DISK_GB in GiB."""


class Phase(enum.StrEnum):
    """The phase of a server's move, which decides what the server should have.

    The audit knows that exactly at `REST` and `VERIFYING`, and knows only what is possible at `MOVING`.
    """

    REST = "rest"
    """No move is open, or the open move's first flow has not begun.

    The server is on one host, with one allocation, one binding for each port and so on.
    """
    VERIFYING = "verifying"
    """The server waits for its confirm or revert, and has exactly what Nova has in VERIFY_RESIZE."""
    MOVING = "moving"
    """A flow is under way or is parked: the server may have whatever one of the flow's steps explains."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """The standing of one server: its row, its open move if there is one, and the phase of that move."""

    server: str
    row: ServerRow | None
    """The row in the cell that the server is mapped to, or its only row; None when the server is deleted."""
    move: MoveRow | None
    phase: Phase

    @property
    def name(self) -> str:
        """Return the server's name."""
        if self.row is not None and self.row.name:
            return self.row.name
        return self.move.server_name if self.move is not None else self.server

    @property
    def host(self) -> str | None:
        """Return the host in the server's row."""
        return self.row.host if self.row is not None else None

    @property
    def cell(self) -> str:
        """Return the cell of the server's row; empty when the server has no row."""
        return self.row.cell if self.row is not None else ""

    @property
    def hosts(self) -> frozenset[str]:
        """Return every host that may have something of the server."""
        found = {self.host}
        if self.move is not None and self.phase is not Phase.REST:
            found |= {self.move.source_host, self.move.dest_host, self.move.return_host}
        return frozenset(host for host in found if host)

    @property
    def move_id(self) -> str:
        """Return the id of the server's open move; empty when there is none."""
        return self.move.id if self.move is not None else ""

    @property
    def is_being_deleted(self) -> bool:
        """Say whether the server is being deleted, so that what it had may be gone already."""
        if self.row is None:
            return True
        deleting = self.row.task_state == TaskState.DELETING and self.move is not None
        return deleting or (self.move is not None and (self.move.delete_requested or kinds.of(self.move.kind).deletes))

    @property
    def placed(self) -> bool:
        """Say whether the server is on a host: neither being built, nor offloaded, nor failed before it got a host."""
        row = self.row
        return row is not None and bool(row.host) and row.vm_state != VmState.BUILDING and not self.offloaded

    @property
    def offloaded(self) -> bool:
        """Say whether the server is shelved and on no host, and neither Droveway nor Nova is unshelving it."""
        row = self.row
        return (
            row is not None
            and row.vm_state == VmState.SHELVED_OFFLOADED
            and row.task_state is None
            and self.phase is Phase.REST
        )

    @property
    def shelving(self) -> bool:
        """Say whether the server's move is a shelve or an unshelve: for a time no host has anything of the server."""
        return (
            self.move is not None
            and not kinds.of(self.move.kind).has_migration
            and not kinds.of(self.move.kind).deletes
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that the databases, the services and the hosts said."""

    cells: tuple[str, ...]
    """The cells that were read."""
    servers: tuple[ServerRow, ...]
    migrations: tuple[MigrationRow, ...]
    nodes: tuple[Node, ...]
    mappings: tuple[MappingRow, ...]
    requests: Mapping[str, str]
    """The flavorid in each server's request spec; empty when the spec cannot be read."""
    moves: tuple[MoveRow, ...]
    flows: tuple[FlowRow, ...]
    open_steps: tuple[StepRow, ...]
    begun: frozenset[str]
    """The flows that have not ended and have run at least one step."""
    intents: tuple[IntentRow, ...]
    debts: tuple[DebtRow, ...]
    """All debts. Those that were written off explain findings for as long as their host is declared down."""
    providers: Mapping[str, str | None]
    """The parent of each provider."""
    allocations: Mapping[str, Mapping[str, Amounts]]
    """The amounts that each consumer has of each provider."""
    ports: tuple[PortView, ...]
    shows_requests: bool
    """Whether Neutron shows what ports ask of Placement."""
    attachments: tuple[AttachmentView, ...]
    images: tuple[ImageView, ...] | None
    """The images; None when the configuration does not name the image service, so that none are known."""
    hosts: tuple[HostView, ...]
    stores: tuple[Store, ...]
    overlaps: tuple[Overlap, ...]
    """The times at which a server ran twice, by the log of a lab's guests."""
    unseen: tuple[Unseen, ...]
    consumers: Mapping[str, Consumer] = dataclasses.field(default_factory=dict)
    """The type, project and user of the consumers that are a server or a move."""
    digests: tuple[DiskDigest, ...] = ()
    checksums: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """Maps (move, disk) to the digest that the copy made of a disk which the move then set aside."""
    commands: tuple[CommandView, ...] = ()
    without_action: frozenset[str] = frozenset()
    """The moves that are done and that have no instance action in any cell."""
    without_failed_action: frozenset[str] = frozenset()
    """The moves that were undone and whose instance action is not marked as failed."""
    claimed: frozenset[str] = frozenset()
    """The moves whose claim was not given back: a conductor runs them, or has to clean up after them."""
    down: frozenset[str] = frozenset()
    """The hosts that are declared down."""
    unread_cells: tuple[UnreadCell, ...] = ()

    @functools.cached_property
    def move_by_id(self) -> dict[str, MoveRow]:
        """Return every move by its id."""
        return {move.id: move for move in self.moves}

    @functools.cached_property
    def open_moves(self) -> dict[str, MoveRow]:
        """Return the open move of each server that has one."""
        return {move.server: move for move in self.moves if not move.ended}

    @functools.cached_property
    def last_moves(self) -> dict[str, MoveRow]:
        """Return for each server the last of those moves that have written in a cell, or may still write there."""
        return {
            move.server: move
            for move in self.moves
            if move.marked or not move.ended or not kinds.of(move.kind).begins_with_accept
        }

    @functools.cached_property
    def rows_of(self) -> dict[str, list[ServerRow]]:
        """Return the live rows of each server in all cells."""
        found: dict[str, list[ServerRow]] = {}
        for row in self.servers:
            found.setdefault(row.uuid, []).append(row)
        return found

    @functools.cached_property
    def known_servers(self) -> frozenset[str]:
        """Return the servers that have rows, and of which no cell that could not be read can have any."""
        unread = {cell.name for cell in self.unread_cells}
        elsewhere = {mapping.server for mapping in self.mappings if mapping.cell not in self.cells}
        elsewhere |= {move.server for move in self.moves if unread & {move.source_cell, move.dest_cell}}
        return frozenset(self.rows_of) - elsewhere

    @functools.cached_property
    def standings(self) -> dict[str, Standing]:
        """Return the standing of each server that exists or has an open move."""
        return {server: self._standing(server) for server in sorted({*self.rows_of, *self.open_moves})}

    @functools.cached_property
    def host_of_node(self) -> dict[str, str]:
        """Return the host of each compute node's provider."""
        return {node.uuid: node.host for node in self.nodes}

    @functools.cached_property
    def migration_of(self) -> dict[str, MigrationRow]:
        """Return the migration row with each move's uuid; of two copies, that in the cell the server is mapped to."""
        cells = {mapping.server: mapping.cell for mapping in self.mappings}
        rows = sorted(self.migrations, key=lambda row: row.cell == cells.get(row.server))
        return {row.uuid: row for row in rows}

    @functools.cached_property
    def seen_hosts(self) -> frozenset[str]:
        """Return the hosts whose hypervisor answered."""
        return frozenset(view.host for view in self.hosts)

    def host_of(self, provider: str) -> str | None:
        """Return the host in whose tree the provider is; None when it is in no host's tree."""
        return self.host_of_node.get(self.root_of(provider))

    def root_of(self, provider: str) -> str:
        """Return the root of the provider's tree."""
        root = provider
        while (parent := self.providers.get(root)) is not None:
            root = parent
        return root

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return the amounts that the consumer has in each host's tree; providers in no host's tree are left out."""
        found: dict[str, dict[str, int]] = {}
        for provider, amounts in self.allocations.get(consumer, {}).items():
            host = self.host_of(provider)
            if host is None:
                continue
            total = found.setdefault(host, {})
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return found

    def entries(self) -> Iterator[tuple[Store, Directory]]:
        """Yield every entry of every instances directory."""
        for store in self.stores:
            for entry in store.entries:
                yield store, entry

    def store_of(self, host: str) -> Store | None:
        """Return the host's instances directory; None when it could not be read."""
        return next((store for store in self.stores if host in store.hosts), None)

    def unread(self, host: str | None) -> bool:
        """Say whether the host's instances directory could not be read.

        The host may then share the directory of any other host.
        """
        return bool(host) and host not in self.seen_hosts and self.store_of(str(host)) is None

    def may_use(self, host: str | None, store: Store) -> bool:
        """Say whether the host uses, or may use, this instances directory."""
        return host in store.hosts or self.unread(host)

    def has_image(self, standing: Standing) -> bool:
        """Say whether the image that a shelved server's row names is active, and so holds the whole root disk.

        The answer is also yes when nothing speaks against it: the server has no row, its root disk is a volume, or the
        images were not read.
        """
        row = standing.row
        if row is None or row.from_volume or self.images is None:
            return True
        return any(image.id == row.shelved_image and image.status == ACTIVE for image in self.images)

    def counted(self) -> dict[str, int]:
        """Return how many of each kind of thing were compared."""
        return {
            "servers": len(self.rows_of),
            "moves": len(self.moves),
            "hosts": len(self.hosts),
            "cells": len(self.cells),
            "allocations": len(self.allocations),
            "ports": len(self.ports),
            "attachments": len(self.attachments),
            "images": len(self.images or ()),
            "guests": sum(len(view.guests) for view in self.hosts),
            "directories": sum(entry.is_directory for _, entry in self.entries()),
        }

    def _standing(self, server: str) -> Standing:
        move = self.open_moves.get(server)
        return Standing(server, self._main_row(server), move, self._phase(move))

    def _main_row(self, server: str) -> ServerRow | None:
        rows = self.rows_of.get(server, [])
        cell = next((mapping.cell for mapping in self.mappings if mapping.server == server), None)
        return min(rows, key=lambda row: (row.cell != cell, row.hidden), default=None)

    def _phase(self, move: MoveRow | None) -> Phase:
        if move is None:
            return Phase.REST
        if move.stage is State.VERIFYING:
            return Phase.VERIFYING
        if move.stage is State.QUEUED and move.flow_uuid not in self.begun:
            return Phase.REST
        return Phase.MOVING
