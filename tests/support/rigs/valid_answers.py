"""What a worker answers rightly to each action, as it stands in the result's node."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from droveway.wire import commands

DIGEST: Final = "ab" * 32
DISK: Final = {"name": "disk", "format": "qcow2", "size": 4096, "allocated": 4096}
ASIDE: Final = {**DISK, "mtime_ns": 1, "inode": 2, "checksum": "", "backing": "", "backing_format": ""}
COPIED: Final = {
    **DISK,
    "sent": 4096,
    "checksum": DIGEST,
    "source_checksum": DIGEST,
    "backing": "",
    "backing_format": "",
}
INFO: Final = {
    "name": "disk",
    "format": "qcow2",
    "virtual_size": 4096,
    "allocated": 4096,
    "backing": "/b/_base/x",
    "backing_format": "raw",
    "checksum": "",
}
CONNECTOR: Final = {"host": "host2", "ip": "192.0.2.7", "initiator": "iqn.x", "multipath": False, "wwpns": ["50", "51"]}

EXAMPLES: Final[dict[type[msgspec.Struct], dict[str, Any]]] = {
    commands.Nothing: {},
    commands.GuestState: {
        "defined": True,
        "running": True,
        "starts": 1,
        "definition": "<domain>\n</domain>",
        "move": "",
        "disks": [INFO],
        "set_aside": False,
        "connector": CONNECTOR,
    },
    commands.Checked: {"connector": CONNECTOR, "free_bytes": 1 << 40},
    commands.Storage: {"shared": False},
    commands.Stopped: {"ran": True},
    commands.SetAside: {"disks": [ASIDE]},
    commands.Offered: {"address": "tcp:host1:1"},
    commands.Reached: {"reached": False, "why": "nobody answers there"},
    commands.Copied: {"variant": "pull", "disks": [COPIED], "bases": [COPIED], "bytes": 8192},
    commands.Uploaded: {
        "disks": [{"disk": "disk", "image": "i-1", "size": 4096, "checksum": DIGEST, "format": "qcow2"}]
    },
    commands.Fitted: {"disks": [INFO]},
    commands.Defined: {"starts": 0},
    commands.Ready: {"permission": "p-1"},
    commands.Started: {"started": True, "running": True, "starts": 1},
    commands.Whole: {"running": False, "starts": 0, "disks": [INFO]},
    commands.CheckedAside: {"disks": [ASIDE], "connector": CONNECTOR},
    commands.GuestHealth: {"running": True, "starts": 1, "running_for": 1.5, "answers": False, "why": "it is mute"},
    commands.Discarded: {"kept": ""},
}

VALID: Final = {name: EXAMPLES[schema.answer] for name, schema in commands.ACTIONS.items() if schema.answer in EXAMPLES}
"""A right answer to each action."""
