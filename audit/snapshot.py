"""All that an audit knows, read once; and how each server stands, which decides what it should hold."""

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
    Unseen,
)
from droveway.clients.image import ACTIVE
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.persistence.nova.vm_states import TaskState, VmState
from droveway.workers.hypervisors.guests_log import Overlap

Amounts = Mapping[str, int]
"""Resource class → amount, MEMORY_MB in MiB, DISK_GB in GiB."""


class Phase(enum.StrEnum):
    """How exactly one can say what a server holds."""

    REST = "rest"
    """No move holds anything of it: one host, one of each."""
    VERIFYING = "verifying"
    """Exactly what Nova has in VERIFY_RESIZE."""
    MOVING = "moving"
    """A flow is under way, or was parked in its middle: whatever some step of it explains."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """One server with its open move, if any."""

    server: str
    row: ServerRow | None
    """The row that its mapping leads to, or the only one; None when the server is gone."""
    move: MoveRow | None
    phase: Phase

    @property
    def name(self) -> str:
        """What operators call it."""
        if self.row is not None and self.row.name:
            return self.row.name
        return self.move.server_name if self.move is not None else self.server

    @property
    def host(self) -> str | None:
        """Where it lives by its row."""
        return self.row.host if self.row is not None else None

    @property
    def cell(self) -> str:
        """The cell that has its row; empty when it has none."""
        return self.row.cell if self.row is not None else ""

    @property
    def hosts(self) -> frozenset[str]:
        """Every host that may hold something of it."""
        found = {self.host}
        if self.move is not None and self.phase is not Phase.REST:
            found |= {self.move.source_host, self.move.dest_host, self.move.return_host}
        return frozenset(host for host in found if host)

    @property
    def move_id(self) -> str:
        """Its open move's id, or nothing."""
        return self.move.id if self.move is not None else ""

    @property
    def going(self) -> bool:
        """Whether it is being deleted, so that what it holds may be gone already."""
        if self.row is None:
            return True
        deleting = self.row.task_state == TaskState.DELETING and self.move is not None
        return deleting or (self.move is not None and (self.move.delete_requested or kinds.of(self.move.kind).deletes))

    @property
    def placed(self) -> bool:
        """Whether it lives on a host: neither being built nor shelved away nor lost before it got one."""
        row = self.row
        return row is not None and bool(row.host) and row.vm_state != VmState.BUILDING and not self.offloaded

    @property
    def offloaded(self) -> bool:
        """Whether it is shelved and on no host, and nobody, Nova included, is bringing it back."""
        row = self.row
        return (
            row is not None
            and row.vm_state == VmState.SHELVED_OFFLOADED
            and row.task_state is None
            and self.phase is Phase.REST
        )

    @property
    def shelving(self) -> bool:
        """Whether its move leads to or from no host, so that at some points of it no host has anything of it."""
        return (
            self.move is not None
            and not kinds.of(self.move.kind).has_migration
            and not kinds.of(self.move.kind).deletes
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the databases, the cloud's services and the hosts said."""

    cells: tuple[str, ...]
    servers: tuple[ServerRow, ...]
    migrations: tuple[MigrationRow, ...]
    nodes: tuple[Node, ...]
    mappings: tuple[MappingRow, ...]
    requests: Mapping[str, str]
    """Server → flavorid in its request spec; empty when the spec cannot be read."""
    moves: tuple[MoveRow, ...]
    flows: tuple[FlowRow, ...]
    open_steps: tuple[StepRow, ...]
    begun: frozenset[str]
    """Flows of which some step has run."""
    intents: tuple[IntentRow, ...]
    debts: tuple[DebtRow, ...]
    """Those that were written off among them: they explain what is found on a host for as long as it is down."""
    providers: Mapping[str, str | None]
    """Provider → its parent."""
    allocations: Mapping[str, Mapping[str, Amounts]]
    """Consumer → provider → amounts, of all consumers that hold something."""
    ports: tuple[PortView, ...]
    tells_asked: bool
    """Whether Neutron tells what ports ask of Placement."""
    attachments: tuple[AttachmentView, ...]
    images: tuple[ImageView, ...] | None
    """None where nobody says how the image service is reached, so that nothing is known of any."""
    hosts: tuple[HostView, ...]
    stores: tuple[Store, ...]
    overlaps: tuple[Overlap, ...]
    """What the guests' log says against "no server ever runs twice"."""
    unseen: tuple[Unseen, ...]
    consumers: Mapping[str, Consumer] = dataclasses.field(default_factory=dict)
    """Of the consumers that are a server or a move, whose they are."""
    digests: tuple[DiskDigest, ...] = ()
    checksums: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """(Move, disk) → the digest of what the move set aside, as it was copied."""
    commands: tuple[CommandView, ...] = ()
    lacking: frozenset[str] = frozenset()
    """The moves that are done and of which no cell of their servers has Nova's action."""
    unfinished: frozenset[str] = frozenset()
    """The moves that were undone and whose action has not failed in the cell of their servers."""
    claimed: frozenset[str] = frozenset()
    """The moves whose claim was never given back: a conductor runs them, or has to clear up after them."""
    down: frozenset[str] = frozenset()
    """Hosts that somebody declared to be off."""

    @functools.cached_property
    def move_by_id(self) -> dict[str, MoveRow]:
        """Every move."""
        return {move.id: move for move in self.moves}

    @functools.cached_property
    def open_moves(self) -> dict[str, MoveRow]:
        """The move of each server that has one which has not ended."""
        return {move.server: move for move in self.moves if not move.ended}

    @functools.cached_property
    def last_moves(self) -> dict[str, MoveRow]:
        """Find the last move of each server that wrote in its cell, or may yet."""
        return {
            move.server: move
            for move in self.moves
            if move.marked or not move.ended or not kinds.of(move.kind).begins_with_accept
        }

    @functools.cached_property
    def rows_of(self) -> dict[str, list[ServerRow]]:
        """The live rows of each server, over all cells."""
        found: dict[str, list[ServerRow]] = {}
        for row in self.servers:
            found.setdefault(row.uuid, []).append(row)
        return found

    @functools.cached_property
    def standings(self) -> dict[str, Standing]:
        """How each server stands that is alive or has an open move."""
        return {server: self._standing(server) for server in sorted({*self.rows_of, *self.open_moves})}

    @functools.cached_property
    def host_of_node(self) -> dict[str, str]:
        """The host of each compute node's provider."""
        return {node.uuid: node.host for node in self.nodes}

    @functools.cached_property
    def migration_of(self) -> dict[str, MigrationRow]:
        """Find the migration row of each move by the uuid that they share; of two copies, the mapped cell's."""
        cells = {mapping.server: mapping.cell for mapping in self.mappings}
        rows = sorted(self.migrations, key=lambda row: row.cell == cells.get(row.server))
        return {row.uuid: row for row in rows}

    @functools.cached_property
    def seen_hosts(self) -> frozenset[str]:
        """The hosts whose hypervisor answered."""
        return frozenset(view.host for view in self.hosts)

    def host_of(self, provider: str) -> str | None:
        """The host in whose tree the provider is; None for one that is no host's."""
        return self.host_of_node.get(self.root_of(provider))

    def root_of(self, provider: str) -> str:
        """Return the root of the provider's tree."""
        root = provider
        while (parent := self.providers.get(root)) is not None:
            root = parent
        return root

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Host → amounts that the consumer holds in the host's tree; providers of no host are left out."""
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
        """Every entry of every instances directory."""
        for store in self.stores:
            for entry in store.entries:
                yield store, entry

    def store_of(self, host: str) -> Store | None:
        """The host's instances directory, unless it could not be looked at."""
        return next((store for store in self.stores if host in store.hosts), None)

    def unread(self, host: str | None) -> bool:
        """Whether nobody could look which instances directory the host uses: it may share any."""
        return bool(host) and host not in self.seen_hosts and self.store_of(str(host)) is None

    def may_use(self, host: str | None, store: Store) -> bool:
        """Whether the host uses this instances directory, for all that could be seen."""
        return host in store.hosts or self.unread(host)

    def has_image(self, standing: Standing) -> bool:
        """Whether the image that a shelved server's rows name is whole, for all that was seen; a volume needs none."""
        row = standing.row
        if row is None or row.from_volume or self.images is None:
            return True
        return any(image.id == row.shelved_image and image.status == ACTIVE for image in self.images)

    def counted(self) -> dict[str, int]:
        """How many of each were compared."""
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
