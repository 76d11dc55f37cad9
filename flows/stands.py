"""Describes what a cell's rows of a server say in the middle of its move, and what a step changes in them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from droveway.persistence.nova.vm_states import MigrationStatus, TaskState


class Side(enum.StrEnum):
    """Names one of the move's two hosts with its cell, or none for a shelved server."""

    SOURCE = "source"
    DESTINATION = "destination"
    NOWHERE = "no host"
    RETURN = "return"
    """The host of the source's cell that a revert between cells leads to: the source, or a host in its place."""


class Vm(enum.StrEnum):
    """Says what `instances.vm_state` holds."""

    BEFORE = "as before the move"
    RESIZED = "resized"
    FOUND = "active or stopped, as the host found the guest"
    DELETED = "deleted"
    SHELVED = "shelved"
    OFFLOADED = "shelved_offloaded"
    ACTIVE = "active"


class Power(enum.StrEnum):
    """Says what `instances.power_state` holds; few steps write it, and Nova may write it at any time."""

    BEFORE = "as before the move"
    OFF = "shut down"
    AGAIN = "as the guest is started again"
    """Running if the guest was on before the move, else shut down: what the server has once the move has started it."""
    FOUND = "as the host found the guest"
    NONE = "no state"


class Flavor(enum.StrEnum):
    """Names the one of the move's two flavors that a slot of `instance_extra.flavor` has."""

    OLD = "old"
    NEW = "new"


@dataclasses.dataclass(frozen=True)
class Stands:
    """Holds what the rows of a server in one cell say of it and of its move."""

    task_state: str | None = None
    vm_state: Vm = Vm.BEFORE
    power_state: Power = Power.BEFORE
    side: Side = Side.SOURCE
    """Where the server lives: host, node and compute_id, and the sizes of flavor `cur` in `instances`."""
    zone: Side = Side.SOURCE
    """Whose availability zone `instances` has; SOURCE: the zone that the server had before the move."""
    status: str | None = None
    """The status of the move's migration; None while it has no row."""
    attempt: int = 0
    """The number of the alternate that the migration names as destination; 0: none yet.  An undo leaves it there."""
    cur: Flavor = Flavor.OLD
    old: Flavor | None = None
    new: Flavor | None = None
    traces: bool = False
    """Whether `instance_extra.migration_context` and the old_vm_state of the system metadata are there."""
    attachments: Side = Side.SOURCE
    """The host to which the volumes are attached by the attachments that block_device_mapping names.

    NOWHERE: these attachments are empty, and only reserve the volumes.
    """
    here: bool = True
    """Whether the cell has rows of the server at all."""
    hidden: bool = False
    """Whether Nova lists no server for this copy.

    A hidden copy names host and node of the other cell, and has no compute_id.
    """


START: Final = Stands()
"""What the rows say before the first step of a move."""

OFFLOADED: Final = Stands(
    vm_state=Vm.OFFLOADED,
    power_state=Power.OFF,
    side=Side.NOWHERE,
    zone=Side.NOWHERE,
    attachments=Side.NOWHERE,
)
"""What the rows of a shelved server say before the first step of an unshelve."""

GONE: Final = Stands(here=False)
"""What a cell says that has no rows of the server."""

WAITS: Final = Stands(
    vm_state=Vm.RESIZED,
    power_state=Power.AGAIN,
    side=Side.DESTINATION,
    zone=Side.DESTINATION,
    status=MigrationStatus.FINISHED,
    cur=Flavor.NEW,
    old=Flavor.OLD,
    new=Flavor.NEW,
    traces=True,
    attachments=Side.DESTINATION,
)
"""What the rows say while the server waits for confirm or revert; ``attempt`` is to be set to the move's alternate."""


LEFT_BEHIND: Final = Stands(
    task_state=TaskState.RESIZE_MIGRATED,
    power_state=Power.OFF,
    side=Side.DESTINATION,
    status=MigrationStatus.POST_MIGRATING,
    old=Flavor.OLD,
    new=Flavor.NEW,
    traces=True,
    attachments=Side.DESTINATION,
    hidden=True,
)
"""What the copy in the source's cell says while a server that went into another cell waits (`WAITS`) there."""


@dataclasses.dataclass(frozen=True)
class Leaves:
    """Says what a step and its undo change in the rows; a step without an undo has an empty ``undoes``."""

    does: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Field of `Stands` → its value after the step."""
    undoes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names_alternate: bool = False
    """Whether the migration names the host of the move's alternate from then on."""


NOTHING: Final = Leaves()
"""For a step that changes nothing in the server's rows."""


@dataclasses.dataclass(frozen=True)
class Between:
    """Says what a step of a move between cells, and its undo, change in the copy of each cell."""

    source: Leaves = NOTHING
    target: Leaves = NOTHING
    takes: tuple[str, ...] = ()
    """Fields of `Stands` that are first copied into the written copy from the copy of the other cell."""
    maps: tuple[Side, Side] | None = None
    """Whose cell the server is mapped to after the step, and after the undo; None: the step does not switch it."""


CLEARED: Final[Mapping[str, Any]] = {"old": None, "new": None, "traces": False}
"""The fields that confirm and revert both clear when they end a move."""


class Shown(NamedTuple):
    """Groups the steps of a graph by what the server's rows prove of them, as each step's ``leaves`` tells.

    Nearly every group belongs to one value in the rows and holds exceptions: the value proves other steps of the graph
    done (or undone), and it proves nothing about the steps of the group.  "Shown" means shown by the rows: the groups
    have nothing to do with whether a copy is visible or hidden.
    """

    switch: str
    """The step that lets the rows name the other host; empty in a graph without one."""
    switched: frozenset[str]
    """The steps from ``switch`` on.

    Rows that name the other host prove that the steps before ``switch`` were done.  They do not prove it of these.
    """
    started: frozenset[str]
    """The steps between the point of no return and the one that sets the migration to `finished`.

    A migration that is `finished` proves that the other steps were done.  It does not prove it of these.
    """
    first: frozenset[str]
    """The first steps of the graph, up to the one that writes the migration's first status.

    They are undone last.  A migration in `error` proves that the later steps were undone.  It does not prove it of
    these.
    """
    preparing: frozenset[str]
    """The first steps up to the one that sets the migration to `migrating`.

    A migration that is `pre-migrating` again proves that the later steps were undone.  It does not prove it of these.
    """
    finding: frozenset[str]
    """The steps, and the retry, up to the last one that ``finds`` what undos have to know; empty where no step does."""
