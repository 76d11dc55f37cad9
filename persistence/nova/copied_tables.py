"""Lists the tables whose rows name a server, and says which of them are copied from one cell to another.

Only live rows are copied.  The ``shadow_*`` tables, which Nova's archiver fills, stay where they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from droveway.persistence.nova.cells import FENCE_KEY, MOVE_KEY

MARKERS: Final = (FENCE_KEY, MOVE_KEY)
"""The keys of Droveway's own rows in a copy: the fence and the mark.

They are never copied: each copy gets its own when it is made.  They are removed last.
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Names a table, and why it is in its list."""

    table: str
    why: str
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Column that is not copied → what the new row has instead, and why.

    A key that is not the name of a column describes rows that are not copied.
    """


_ROW_ID: Final = {"id": "a new one: each cell counts by itself"}

COPIED: Final = (
    Entry(
        "instances",
        "the server itself",
        {
            **_ROW_ID,
            "compute_id": "NULL: the id is that of a row in the old cell",
            "host": "the source host, which is in the old cell, or NULL: so no nova-compute of the new cell takes the "
            "server for its own",
            "node": "the source's node, or NULL, as `host`",
            "hidden": "1: the mapping names the other copy",
            "power_state": "4 (off): no service may start what it describes",
            "task_state": "`resize_migrated`, or `unshelving`: users and services leave the copy alone",
        },
    ),
    Entry(
        "instance_extra",
        "flavors, topology, device requests and key pairs",
        {**_ROW_ID, "migration_context": "NULL: it names the id of a migration's row in the old cell"},
    ),
    Entry("instance_info_caches", "the ports as they were last seen", _ROW_ID),
    Entry("instance_metadata", "what users noted at the server", _ROW_ID),
    Entry(
        "instance_system_metadata",
        "what Nova noted at the server: its image's properties, the state before a resize",
        {**_ROW_ID, "Droveway's own rows": "new ones: each cell's copy has its own fence and its own mark of the move"},
    ),
    Entry("block_device_mapping", "disks and volumes; a volume is known by the row's uuid, which is kept", _ROW_ID),
    Entry("virtual_interfaces", "the ports' addresses and tags", _ROW_ID),
    Entry("tags", "what users search the server by"),
    Entry("instance_actions", "what was done with the server, as users read it", _ROW_ID),
    Entry(
        "instance_actions_events",
        "the parts of these actions",
        {**_ROW_ID, "action_id": "translated: the id that the action's row has in the new cell"},
    ),
    Entry("instance_faults", "why operations failed: Nova shows the newest reason of a server in ERROR", _ROW_ID),
    Entry(
        "migrations",
        "the server's moves; one is known by its uuid, which is kept and is a consumer in Placement",
        {**_ROW_ID, "dest_compute_id": "NULL: the id is that of a row in the old cell"},
    ),
)
"""Copied.  A table comes before those whose rows refer to it."""

MADE_ANEW: Final = (
    Entry("instance_id_mappings", "an EC2 id, which each cell counts by itself"),
    Entry(
        "security_groups",
        "the server's groups and `default`, when the project has no group of that name in the new cell; Nova makes "
        "`default` with a project's first server too",
    ),
    Entry("security_group_instance_association", "it names the groups by their ids in the cell"),
)
"""Made anew in the new cell, because ids of one cell mean nothing in another one."""

REMOVED: Final = (
    Entry("console_auth_tokens", "each names a host that the guest has left"),
    Entry("consoles", "each names a proxy of the old cell; Nova no longer writes them"),
)
"""Not copied, and removed together with the copy in the old cell."""

KEPT: Final = (
    Entry("volume_usage_cache", "history that names no live thing: what a volume has read and written"),
    Entry("bw_usage_cache", "history that names no live thing: what a port has sent and received"),
)
"""Not copied, and kept where they are."""

MUST_BE_EMPTY: Final = (
    Entry("pci_devices", "a device is a part of one host, and another one would have to be claimed"),
    Entry("share_mapping", "a share is mounted by the host, and Nova moves no server that has one"),
    Entry("fixed_ips", "an address of nova-network, which no other cell can serve"),
)
"""Not copied: a server that is named in one of these tables is not moved."""

LEGACY: Final = (
    Entry("instance_group_member", "server groups are in the API database"),
    Entry("allocations", "Placement has a database of its own"),
)
"""Not copied: since Nova has an API database, these tables of a cell name no server."""

BROUGHT_BACK: Final = (
    Entry("instances", "name, description, host name, access addresses and lock"),
    Entry("instance_metadata", "keys that were set, changed or removed"),
    Entry("tags", "tags that were added or removed"),
    Entry(
        "block_device_mapping",
        "volumes that were attached, detached or swapped, and whether a volume is deleted with the server",
    ),
    Entry("virtual_interfaces", "ports that are gone"),
    Entry("instance_info_caches", "ports that are gone"),
    Entry("instance_actions", "what was done in the other cell, by its request"),
    Entry("instance_actions_events", "the parts of these actions"),
    Entry("instance_faults", "what failed in the other cell"),
    Entry("migrations", "the status of the move, and rows that were made during the move"),
)
"""What a revert carries from the destination cell's copy into the source cell's copy: what changed during the move."""

LISTS: Final[Mapping[str, tuple[Entry, ...]]] = {
    "copied": COPIED,
    "made anew": MADE_ANEW,
    "removed with the copy": REMOVED,
    "kept where they are": KEPT,
    "must be empty": MUST_BE_EMPTY,
    "legacy": LEGACY,
}
"""Name of a list → its tables.  `BROUGHT_BACK` is missing, because its tables are in `COPIED` too."""
