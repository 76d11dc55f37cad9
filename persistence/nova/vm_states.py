"""The values of Nova's state columns of a server, and the status that the API shows for them.

They are plain strings and numbers, as the database has them.
"""

from __future__ import annotations

from typing import Final


class VmState:
    """Values of `instances.vm_state`."""

    ACTIVE: Final = "active"
    STOPPED: Final = "stopped"
    RESIZED: Final = "resized"
    ERROR: Final = "error"
    DELETED: Final = "deleted"
    SOFT_DELETED: Final = "soft-delete"
    BUILDING: Final = "building"
    PAUSED: Final = "paused"
    SUSPENDED: Final = "suspended"
    RESCUED: Final = "rescued"
    SHELVED: Final = "shelved"
    SHELVED_OFFLOADED: Final = "shelved_offloaded"


class TaskState:
    """Values of `instances.task_state` that a move, a delete or a lab's start and stop of a server writes.

    NULL means that no operation is under way.
    """

    RESIZE_PREP: Final = "resize_prep"
    RESIZE_MIGRATING: Final = "resize_migrating"
    RESIZE_MIGRATED: Final = "resize_migrated"
    RESIZE_FINISH: Final = "resize_finish"
    RESIZE_REVERTING: Final = "resize_reverting"
    DELETING: Final = "deleting"
    SHELVING: Final = "shelving"
    SHELVING_OFFLOADING: Final = "shelving_offloading"
    UNSHELVING: Final = "unshelving"
    POWERING_ON: Final = "powering-on"
    POWERING_OFF: Final = "powering-off"


class PowerState:
    """Values of `instances.power_state`."""

    NOSTATE: Final = 0
    RUNNING: Final = 1
    PAUSED: Final = 3
    SHUTDOWN: Final = 4
    CRASHED: Final = 6
    SUSPENDED: Final = 7


class MigrationStatus:
    """Values of `migrations.status`."""

    PRE_MIGRATING: Final = "pre-migrating"
    MIGRATING: Final = "migrating"
    POST_MIGRATING: Final = "post-migrating"
    FINISHED: Final = "finished"
    CONFIRMING: Final = "confirming"
    CONFIRMED: Final = "confirmed"
    REVERTING: Final = "reverting"
    REVERTED: Final = "reverted"
    ERROR: Final = "error"
    FAILED: Final = "failed"


MOVABLE: Final = frozenset({VmState.ACTIVE, VmState.STOPPED})
"""The vm_states in which a server may be resized or migrated."""

RESIZING: Final = frozenset(
    {TaskState.RESIZE_PREP, TaskState.RESIZE_MIGRATING, TaskState.RESIZE_MIGRATED, TaskState.RESIZE_FINISH},
)
"""The task_states of a server whose resize or cold migration runs."""

ENDED_MIGRATIONS: Final = frozenset({"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"})
"""The migration statuses that Nova no longer counts as in progress; `finished` and `confirming` are in progress."""

ENDING_MIGRATIONS: Final = frozenset(
    {MigrationStatus.CONFIRMING, MigrationStatus.CONFIRMED, MigrationStatus.REVERTING, MigrationStatus.REVERTED}
)
"""The migration statuses once Droveway or Nova has begun a confirm or revert: the whole forward flow is done then."""

_API_STATUS: Final = {
    VmState.ACTIVE: "ACTIVE",
    VmState.STOPPED: "SHUTOFF",
    VmState.RESIZED: "VERIFY_RESIZE",
    VmState.ERROR: "ERROR",
    VmState.DELETED: "DELETED",
    VmState.SOFT_DELETED: "SOFT_DELETED",
    VmState.BUILDING: "BUILD",
    VmState.PAUSED: "PAUSED",
    VmState.SUSPENDED: "SUSPENDED",
    VmState.RESCUED: "RESCUE",
    VmState.SHELVED: "SHELVED",
    VmState.SHELVED_OFFLOADED: "SHELVED_OFFLOADED",
}


def api_status(vm_state: str | None, task_state: str | None) -> str:
    """Return the status that Nova's API shows for a server; UNKNOWN when the vm_state is unknown.

    Of the operations that are under way only a resize, a cold migration and a revert show.  Nova's API has a status for
    a few others too, such as REBOOT and REBUILD.
    """
    if vm_state in MOVABLE and task_state in RESIZING:
        return "RESIZE"
    if vm_state == VmState.RESIZED and task_state == TaskState.RESIZE_REVERTING:
        return "REVERT_RESIZE"
    return _API_STATUS.get(vm_state or "", "UNKNOWN")
