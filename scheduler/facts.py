"""Holds the facts by which the rules judge a request for a move; the caller gathers them before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from droveway.clients.network import Port
from droveway.persistence.journal import kinds
from droveway.persistence.nova.catalog import Flavor, Host, Server
from droveway.persistence.nova.quotas import QuotaUsage
from droveway.persistence.nova.server_features import Features

RESIZE: Final = kinds.RESIZE.name
MIGRATE: Final = kinds.MIGRATE.name
CROSS_CELL_RESIZE: Final = kinds.CROSS_CELL_RESIZE.name
CROSS_CELL_MIGRATE: Final = kinds.CROSS_CELL_MIGRATE.name
SHELVE: Final = kinds.SHELVE.name
UNSHELVE: Final = kinds.UNSHELVE.name
CROSS_CELL_UNSHELVE: Final = kinds.CROSS_CELL_UNSHELVE.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What the databases, the services and the workers say about a request to move a server."""

    server: Server
    asked: str | None = None
    """The kind of move that was asked for by name; None for a kind that follows from flavor, host and cell (`kind`)."""
    current: Flavor
    """The flavor that the server has, as its own record keeps it."""
    new: Flavor | None = None
    """The flavor that was asked for; None for a cold migration."""
    may_use: bool = True
    """Whether the server's project may use the new flavor."""
    source: Host | None = None
    """The host that the server is on."""
    target: Host | None = None
    """The host that was asked for by name."""
    up: frozenset[str] = frozenset()
    """The hosts whose workers are up."""
    namesakes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Maps each host name that stands in several cells to the sentence that says so."""
    open_move: str | None = None
    """The first letters of the id of a move of the server that has not ended."""
    holds_allocation: bool = True
    """Whether the server holds its resources on its host in Placement."""
    same_host_cold_migrate: bool = False
    """Whether the server's host declares that it can migrate a server to itself."""
    features: Features = dataclasses.field(default_factory=Features)
    ports: tuple[Port, ...] = ()
    binds_twice: bool = True
    """Whether Neutron binds a port to two hosts at once, where the server has ports."""
    holds_for_ports: tuple[str, ...] = ()
    """The resource classes of the server's allocation that only ports ask for."""
    quota_usages: tuple[QuotaUsage, ...] = ()
    """What the server's project and user have of each resource that has a quota; empty for a cold migration."""

    to_cell: str | None = None
    """The cell that was asked for by name."""
    may_leave_cell: bool = False
    """Whether servers may leave their cell."""
    cell_disabled: bool = False
    """Whether the cell that the server goes to takes no new servers."""
    bound_to_cell: str = ""
    """Why the server cannot leave its cell; empty when it can."""
    cells_away: frozenset[str] = frozenset()
    """The cells whose databases do not answer."""
    other_cells: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Maps each other cell to the reason why the server cannot go there; the reason is empty when it can."""
    chosen_cell: str | None = None
    """The cell that the scheduler chose, among those that the server may go to."""

    discards_ephemeral: bool = False
    """Whether the request for a shelve gives up what the server's ephemeral disk holds."""
    holds_anything: bool = True
    """Whether the server has an allocation on any provider in Placement."""
    has_image_service: bool = True
    """Whether the configuration says how Glance is reached."""
    image_status: str | None = None
    """The status of the image that holds a shelved server's root disk; None where it does not exist."""

    @property
    def named_cell(self) -> str | None:
        """Return the cell that was asked for by its name or by naming a host of it; None where neither was."""
        return self.to_cell or (self.target.cell if self.target is not None else None)

    @property
    def cell(self) -> str:
        """Return the cell that the server goes to."""
        return self.chosen_cell or self.named_cell or self.server.cell

    @property
    def cells(self) -> dict[str, str]:
        """Return the cells that the request allows, each with the reason why this server cannot go there.

        The reason is empty for a cell that the server can go to.
        """
        if self.asked is not None or self.named_cell is not None or not self.may_leave_cell:
            return {self.cell: ""}
        others = {cell: self.bound_to_cell or why for cell, why in self.other_cells.items()}
        return {self.server.cell: ""} | others

    @property
    def leaves_cell(self) -> bool:
        """Say whether the server goes to another cell than its own."""
        return self.cell != self.server.cell

    @property
    def kind(self) -> str:
        """Return the kind of flow that the request needs."""
        return self.kind_into(self.cell)

    def kind_into(self, cell: str) -> str:
        """Return the kind of flow that the request needs where the server goes to this cell."""
        if self.asked == UNSHELVE and cell != self.server.cell:
            return CROSS_CELL_UNSHELVE
        if self.asked is not None:
            return self.asked
        if cell != self.server.cell:
            return CROSS_CELL_MIGRATE if self.new is None else CROSS_CELL_RESIZE
        return MIGRATE if self.new is None else RESIZE


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndFacts:
    """What the databases and the workers say about a request to confirm or revert a move that is verifying."""

    move: str
    """The first letters of the move's id."""
    server: Server
    migration: str | None
    """The status of the move's row in `migrations`."""
    deleting: bool
    """Whether the server is to be deleted once the move is confirmed."""
    destination: str | None = None
    home: str = ""
    """The cell in which the move left its server."""
    source: str
    source_up: bool
    source_gone: bool = False
    """Whether a person declared the source down, and its worker is away."""
    elsewhere: str | None = None
    """Why a revert cannot bring the server to another host of the source's cell; None if it can.

    A revert does this when the source is gone.
    """
    destination_up: bool = True
    destination_gone: bool = False
    """Whether a person declared the destination down, and its worker is away."""
    old: Flavor
    """The flavor that a revert brings back."""
    current: Flavor
    quota_usages: tuple[QuotaUsage, ...] = ()
    """What the server's project and user have of each resource that has a quota; empty where both flavors are one."""
