"""What single values on the wire may be, and how a host's words are made fit to be stored and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from oslo_utils import units

Direction = Literal["execute", "revert"]

ACTION_VERSION: Final = 1

MOST_BYTES: Final = 256 * units.Ki
"""Of a record; ZooKeeper itself takes four times as much."""

LONGEST_ERROR: Final = 2000
"""Characters of one value of an error: it is stored in rows and shown to operators."""

MOST_DISKS: Final = 256
"""Of one server."""

MOST_FIELDS: Final = 64
"""Of what a host tells Cinder of itself."""

SWAP: Final = "disk.swap"
"""The name of a server's swap disk, as Nova has it: it is made anew and never copied."""

UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""A pattern for the ids of servers and moves in names."""

HEALTH: Final = "health-"
"""Begins the flow in the key of a health check; the move's id follows."""

PERMISSION_VOID: Final = "permission-void"
"""The code of the StepError for a guest that was not started, since its worker slept meanwhile."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}\Z")]
"""What may become the name of a file, a node or a column's value."""

PRINTABLE: Final = r"[^\x00-\x1f\x7f-\x9f]"

Text = Annotated[str, msgspec.Meta(pattern=rf"^{PRINTABLE}{{0,2000}}\Z")]
"""What a terminal may be shown."""

Owner = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:-]{0,254})?\Z")]
"""A `Name`, or nothing."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What a column holds."""

Connector = Annotated[dict[Text, Any], msgspec.Meta(max_length=MOST_FIELDS)]
"""A host as Cinder wants to know it; `require_plain` looks at the values.

A schema of them would be a text in a list in a choice in a dict, of which msgspec reads at the end of a process what it
has freed.
"""

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

_TEXT: Final = re.compile(rf"{PRINTABLE}{{0,2000}}\Z")

_UNPRINTABLE: Final = re.compile(rf"(?!{PRINTABLE}).", re.DOTALL)


def harmless(text: str) -> str:
    """Return a host's words as they may be stored and shown: in one line, bounded, and `printable`."""
    shown = printable(" ".join(text[:LONGEST_ERROR].split()))
    return shown if len(text) <= LONGEST_ERROR else f"{shown}..."


def printable(text: str) -> str:
    """Return the text as a terminal may be shown it: everything else by its code."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", whole)


def require_plain(connector: Mapping[str, Any]) -> None:
    """Raise ValueError unless each value is a number, a text, a list of texts, true, false or nothing."""
    for name, value in connector.items():
        texts = value if isinstance(value, list) else [value]
        is_text = all(isinstance(each, str) and _TEXT.match(each) for each in texts)
        if not (is_text or isinstance(value, bool | int | float | None)):
            raise ValueError(f"{name} of the connector is no plain value")
