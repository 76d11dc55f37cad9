"""What the row of a debt says of the step that a host owes."""

from __future__ import annotations

import msgspec

from droveway.wire.values import Direction


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A debt's details: which step of which flow the host owes, in which direction."""

    flow: str
    step: str
    sequence: int
    details: dict[str, object]
    deadline: float
    error: str = ""
    direction: Direction = "revert"
    after: str = ""
    """The host that has to show its own copy of the server's disks before; empty: none has to."""
