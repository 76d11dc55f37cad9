"""Holds what the row of a debt says of the step that a host or a cell owes."""

from __future__ import annotations

import msgspec

from droveway.wire.values import Direction


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a debt: which step of which flow is owed, in which direction, with what a command needs for it."""

    flow: str
    step: str
    sequence: int
    """The number of the step's row in the history."""
    details: dict[str, object]
    deadline: float
    error: str = ""
    direction: Direction = "revert"
    """Whether the host owes the step's action (execute) or the undo of that action (revert)."""
    after: str = ""
    """The name of another host that is asked before the debt is paid.

    That host says whether its own copy of the server's disks is whole.  The debt is paid after a yes, and waits after a
    no.  Empty when no host is asked.
    """
