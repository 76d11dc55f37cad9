"""What the cell's rows of a server say after each step of its move: older rows are those of a database put back.

`LEAVES` is the table: by graph and step, what the step and its undo change.  `left` walks a history through it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from droveway.persistence.nova.vm_states import MigrationStatus, TaskState
from droveway.wire.values import Direction


class Side(enum.StrEnum):
    """One of the move's two hosts."""

    SOURCE = "source"
    DESTINATION = "destination"


class Vm(enum.StrEnum):
    """What `instances.vm_state` says."""

    BEFORE = "as before the move"
    RESIZED = "resized"
    FOUND = "active or stopped, as the host found the guest"
    DELETED = "deleted"


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


START: Final = Stands()
"""Before the first step of a move."""

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


@dataclasses.dataclass(frozen=True)
class Leaves:
    """What a step changes in the rows, and what its undo does; an undo that is not written changes nothing."""

    does: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    undoes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


NOTHING: Final = Leaves()
"""Of a step that writes other places than the server's rows."""

_FORWARD: Final = {
    "record_before": NOTHING,
    "accept": Leaves({"task_state": TaskState.RESIZE_MIGRATED}, {"task_state": None}),
    "record_migration": Leaves({"status": MigrationStatus.PRE_MIGRATING}, {"status": MigrationStatus.ERROR}),
    "choose_destinations": NOTHING,
    "claim": NOTHING,
    "record_destination": Leaves({"new": Flavor.NEW, "traces": True}, {"new": None, "traces": False}),
    "check_destination": NOTHING,
    "find_storage": NOTHING,
    "reserve_ports": NOTHING,
    "reserve_volumes": NOTHING,
    "mark_migrating": Leaves(
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.MIGRATING,
            "power_state": Power.OFF,
        },
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.PRE_MIGRATING,
            "power_state": Power.BEFORE,
        },
    ),
    "stop_guest": NOTHING,
    "release_source": NOTHING,
    "set_aside": NOTHING,
    "copy_disks": NOTHING,
    "fit_disks": NOTHING,
    "move_volumes": Leaves({"attachments": Side.DESTINATION}, {"attachments": Side.SOURCE}),
    "move_ports": NOTHING,
    "connect_destination": NOTHING,
    "define_guest": NOTHING,
    "switch_records": Leaves(
        {
            "task_state": TaskState.RESIZE_FINISH,
            "status": MigrationStatus.POST_MIGRATING,
            "side": Side.DESTINATION,
            "zone": Side.DESTINATION,
            "cur": Flavor.NEW,
            "old": Flavor.OLD,
        },
        {
            "task_state": TaskState.RESIZE_MIGRATED,
            "status": MigrationStatus.MIGRATING,
            "side": Side.SOURCE,
            "zone": Side.SOURCE,
            "cur": Flavor.OLD,
            "old": None,
        },
    ),
    "start_guest": NOTHING,
    "save_request_spec": NOTHING,
    "finish_records": Leaves(
        {
            "task_state": None,
            "vm_state": Vm.RESIZED,
            "status": MigrationStatus.FINISHED,
            "power_state": Power.AGAIN,
        }
    ),
}

_CLEARED: Final = {"old": None, "new": None, "traces": False}
"""What both ends take away."""

LEAVES: Final[Mapping[str, Mapping[str, Leaves]]] = {
    "resize": _FORWARD,
    "migrate": _FORWARD,
    "confirm": {
        "mark_confirming": Leaves({"status": MigrationStatus.CONFIRMING}, {"status": MigrationStatus.FINISHED}),
        "check_destination_copy": NOTHING,
        "check_source": NOTHING,
        "discard_source": NOTHING,
        "keep_copy": NOTHING,
        "release_source_allocation": NOTHING,
        "settle_records": Leaves(
            {
                "status": MigrationStatus.CONFIRMED,
                "vm_state": Vm.FOUND,
                "power_state": Power.FOUND,
                **_CLEARED,
            }
        ),
    },
    "revert": {
        "mark_reverting": Leaves(
            {
                "task_state": TaskState.RESIZE_REVERTING,
                "status": MigrationStatus.REVERTING,
                "power_state": Power.OFF,
                "zone": Side.SOURCE,
            },
            {
                "task_state": None,
                "status": MigrationStatus.FINISHED,
                "power_state": Power.AGAIN,
                "zone": Side.DESTINATION,
            },
        ),
        "check_source": NOTHING,
        "reserve_ports": NOTHING,
        "reserve_volumes": NOTHING,
        "stop_guest": NOTHING,
        "release_destination": NOTHING,
        "move_volumes": Leaves({"attachments": Side.SOURCE}, {"attachments": Side.DESTINATION}),
        "move_ports": NOTHING,
        "restore_disks": NOTHING,
        "prepare_source_guest": NOTHING,
        "switch_records": Leaves(
            {"side": Side.SOURCE, "cur": Flavor.OLD}, {"side": Side.DESTINATION, "cur": Flavor.NEW}
        ),
        "start_guest": NOTHING,
        "discard_destination": NOTHING,
        "return_allocation": NOTHING,
        "restore_request_spec": NOTHING,
        "settle_records": Leaves(
            {
                "task_state": None,
                "status": MigrationStatus.REVERTED,
                "vm_state": Vm.BEFORE,
                "power_state": Power.AGAIN,
                **_CLEARED,
            }
        ),
    },
    "delete": {
        "mark_deleting": Leaves({"task_state": TaskState.DELETING}),
        "stop_guest": NOTHING,
        "disconnect_guest": NOTHING,
        "remove_guest": NOTHING,
        "delete_ports": NOTHING,
        "delete_attachments": NOTHING,
        "release_allocation": NOTHING,
        "settle_records": Leaves({"task_state": None, "vm_state": Vm.DELETED, "power_state": Power.NONE}),
        "forget_request": NOTHING,
    },
}
"""Graph → step → what it leaves.  A step of every graph has its row, also one that leaves nothing."""

_NAMES_DESTINATION: Final = "record_destination"


class Ran(NamedTuple):
    """A step that was done, or undone."""

    kind: str
    """The graph's."""
    step: str
    direction: Direction = "execute"
    attempt: int = 0
    """The alternate that the move was on."""


def after(found: Stands, ran: Ran) -> Stands:
    """What stands after this step of this graph, of what stood before it; a step that no graph has changes nothing."""
    leaves = LEAVES.get(ran.kind, {}).get(ran.step, NOTHING)
    if ran.direction == "execute":
        if ran.step == _NAMES_DESTINATION:
            found = dataclasses.replace(found, attempt=ran.attempt)
        return dataclasses.replace(found, **leaves.does)
    changes = dict(leaves.undoes)
    if found.status is None:
        # The undo of a step that never came to insert the migration finds none, and makes none.
        changes.pop("status", None)
    return dataclasses.replace(found, **changes)


def left(history: Iterable[Ran]) -> Stands:
    """What stands after all these steps of a move, in their order, from its first one on."""
    found = START
    for ran in history:
        found = after(found, ran)
    return found
