"""What the cell's rows of a server say in the middle of its move, and what of it one step changes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from droveway.persistence.nova.vm_states import MigrationStatus, TaskState


class Side(enum.StrEnum):
    """One of the move's two hosts with its cell, or none for a shelved server."""

    SOURCE = "source"
    DESTINATION = "destination"
    NOWHERE = "no host"
    RETURN = "return"
    """The host of the source's cell that a revert between cells leads to: the source, or one in a dead one's place."""


class Vm(enum.StrEnum):
    """What `instances.vm_state` says."""

    BEFORE = "as before the move"
    RESIZED = "resized"
    FOUND = "active or stopped, as the host found the guest"
    DELETED = "deleted"
    SHELVED = "shelved"
    OFFLOADED = "shelved_offloaded"
    ACTIVE = "active"


class Power(enum.StrEnum):
    """What `instances.power_state` says; only some steps write it, and Nova may write it at any time."""

    BEFORE = "as before the move"
    OFF = "shut down"
    AGAIN = "as the guest is started again"
    FOUND = "as the host found the guest"
    NONE = "no state"


class Flavor(enum.StrEnum):
    """Which of the move's two flavors a slot of `instance_extra.flavor` has."""

    OLD = "old"
    NEW = "new"


@dataclasses.dataclass(frozen=True)
class Stands:
    """What the rows of a server say of it and of its move."""

    task_state: str | None = None
    vm_state: Vm = Vm.BEFORE
    power_state: Power = Power.BEFORE
    side: Side = Side.SOURCE
    """Where the server lives: host, node and compute_id, with the sizes of `cur` in the server's own row."""
    zone: Side = Side.SOURCE
    """Whose availability zone the server's row has; the source's is the one that it had before the move."""
    status: str | None = None
    """Of the move's migration; None while it has no row."""
    attempt: int = 0
    """The alternate whose host the migration names as its destination; 0: none yet.  An undo leaves it there."""
    cur: Flavor = Flavor.OLD
    old: Flavor | None = None
    new: Flavor | None = None
    traces: bool = False
    """Whether `instance_extra.migration_context` and the old_vm_state of the system metadata are there."""
    attachments: Side = Side.SOURCE
    """On which host the attachments are complete that block_device_mapping names."""
    here: bool = True
    """Whether the cell has rows of the server at all."""
    hidden: bool = False
    """Whether the copy is in no list; one that is hidden has names of the other cell, and no number of a node."""


START: Final = Stands()
"""Before the first step of a move."""

OFFLOADED: Final = Stands(
    vm_state=Vm.OFFLOADED,
    power_state=Power.OFF,
    side=Side.NOWHERE,
    zone=Side.NOWHERE,
    attachments=Side.NOWHERE,
)
"""The same of a move that takes up a shelved server."""

GONE: Final = Stands(here=False)
"""What a cell says that has nothing of the server."""

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
"""While the server waits for confirm or revert; the alternate is the move's last."""


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
"""The copy in the source's cell meanwhile, where the server went into another one."""


@dataclasses.dataclass(frozen=True)
class Leaves:
    """What a step changes in the rows, and what its undo does; an undo that is not written changes nothing."""

    does: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Field of `Stands` → what it is then."""
    undoes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names_alternate: bool = False
    """Whether the migration names the host of the move's alternate from then on."""


NOTHING: Final = Leaves()
"""Of a step that writes other places than the server's rows."""


@dataclasses.dataclass(frozen=True)
class Between:
    """What a step of a move between cells changes in the copy of each cell, and what its undo does."""

    source: Leaves = NOTHING
    target: Leaves = NOTHING
    takes: tuple[str, ...] = ()
    """Fields of `Stands` that the copy which the step writes takes from the other one, before anything is changed."""
    maps: tuple[Side, Side] | None = None
    """Whose cell the server is mapped to from then on, and whose after the undo."""


CLEARED: Final[Mapping[str, Any]] = {"old": None, "new": None, "traces": False}
"""What both ends take away."""


class Shown(NamedTuple):
    """Steps of a graph by what the server's rows show of them, which follows from what each step leaves there."""

    switch: str
    """The step that lets the rows name the other host; empty in a graph without one."""
    switched: frozenset[str]
    """The steps from the switch on: rows that name the other host do not show that these were done."""
    started: frozenset[str]
    """The same once the migration is finished: what comes between the point of no return and its finish."""
    first: frozenset[str]
    """The steps that are undone last, from the migration's end on."""
    preparing: frozenset[str]
    """The steps that may still be to be undone while the migration says that it is being prepared."""
    finding: frozenset[str]
    """The atoms up to the last step that finds what undos have to know; none where no step does."""
