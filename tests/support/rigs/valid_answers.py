"""What a worker answers rightly to each action, as it stands in the result's node."""

from __future__ import annotations

from typing import Any, Final

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

VALID: Final[dict[str, dict[str, Any]]] = {
    "describe_guest": {
        "defined": True,
        "running": True,
        "starts": 1,
        "definition": "<domain>\n</domain>",
        "move": "",
        "disks": [INFO],
        "set_aside": False,
        "connector": CONNECTOR,
    },
    "check_destination": {"connector": CONNECTOR, "free_bytes": 1 << 40},
    "find_storage": {"shared": False},
    "stop_guest": {"ran": True},
    "disconnect": {},
    "connect": {},
    "set_aside": {"disks": [ASIDE]},
    "offer_disks": {"address": "tcp:host1:1"},
    "copy_disks": {"variant": "pull", "disks": [COPIED], "bases": [COPIED], "bytes": 8192},
    "fit_disks": {"disks": [INFO]},
    "define_guest": {"starts": 0},
    "prepare_start": {"permission": "p-1"},
    "start_guest": {"started": True, "running": True, "starts": 1},
    "check_copy": {"running": False, "starts": 0, "disks": [INFO]},
    "check_set_aside": {"disks": [ASIDE], "connector": CONNECTOR},
    "check_guest": {"running": True, "starts": 1, "running_for": 1.5, "answers": None, "why": ""},
    "check_health": {"running": True, "starts": 1, "running_for": 1.5, "answers": False, "why": "it is mute"},
    "discard_source": {"kept": ""},
    "rename_copy": {"kept": ""},
    "keep_copy": {},
    "purge_kept": {},
    "restore_disks": {},
    "prepare_source_guest": {"starts": 3},
    "discard_destination": {},
    "remove_guest": {},
}
