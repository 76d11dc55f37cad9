"""Holds the types of single values on the wire, and makes a host's words fit to be stored and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from oslo_utils import units

Direction = Literal["execute", "revert"]

ACTION_VERSION: Final = 1

MOST_BYTES: Final = 256 * units.Ki
"""Most bytes of one record; ZooKeeper itself takes four times as many."""

LONGEST_ERROR: Final = 2000
"""Most characters that are taken of one value of an error, which is stored in rows and shown to operators."""

MOST_DISKS: Final = 256
"""Most disks of one server."""

MOST_FIELDS: Final = 64
"""Most fields of a `Connector`."""

SWAP: Final = "disk.swap"
"""Nova's name of a server's swap disk, which is made anew on each host and never copied."""

UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Pattern for the ids of servers and moves."""

HEALTH: Final = "health-"
"""How the key of a health check's command begins.

The key of a command is ``<flow>.<step>.<direction>.<number>``: see `droveway.wire.commands.Command.key`.  A health
check belongs to no flow and has no row, so its key has ``health-<move>`` in the flow's place.  In the number's place it
has the time of the question, in seconds since 1970.
"""

PERMISSION_VOID: Final = "permission-void"
"""Code of the StepError for a guest that was not started because the permission to start it was no longer good."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}\Z")]
"""Text that may become the name of a file or of a node, or a value of a column."""

PRINTABLE: Final = r"[^\x00-\x1f\x7f-\x9f]"

Text = Annotated[str, msgspec.Meta(pattern=rf"^{PRINTABLE}{{0,2000}}\Z")]
"""One line that is safe to show on a terminal: no control characters, at most 2000 characters."""

Owner = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:-]{0,254})?\Z")]
"""A `Name`, or empty for none.

The move that owns a guest or a directory is one use.  Permissions and names of directories are others.
"""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number from 0 on that fits into a column of 64 bits."""

Connector = Annotated[dict[Text, Any], msgspec.Meta(max_length=MOST_FIELDS)]
"""What Cinder has to know about a host to export a volume to it.

The type leaves the values open, and `require_plain` checks them.  A full type would nest text in a list in a union in
a dict, and msgspec crashes on such a type when the process ends: it reads memory that it has freed.
"""

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

_TEXT: Final = re.compile(rf"{PRINTABLE}{{0,2000}}\Z")

_UNPRINTABLE: Final = re.compile(rf"(?!{PRINTABLE}).", re.DOTALL)

_CUT: Final = "..."


def harmless(text: str) -> str:
    """Return a host's words as they may be stored and shown: a `Text` of one line, `printable`.

    Words that are too long for a `Text` are cut, and an ellipsis shows the cut.
    """
    shown = printable(" ".join(text[:LONGEST_ERROR].split()))
    if max(len(text), len(shown)) <= LONGEST_ERROR:
        return shown
    return f"{shown[: LONGEST_ERROR - len(_CUT)]}{_CUT}"


def printable(text: str) -> str:
    """Return the text with each character that a terminal must not get replaced by its hexadecimal code."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", whole)


def require_plain(connector: Mapping[str, Any]) -> None:
    """Raise ValueError unless each value is a number, a text, a list of texts, true, false or null."""
    for name, value in connector.items():
        texts = value if isinstance(value, list) else [value]
        is_text = all(isinstance(each, str) and _TEXT.match(each) for each in texts)
        if not (is_text or isinstance(value, bool | int | float | None)):
            raise ValueError(f"{name} of the connector is no plain value")
