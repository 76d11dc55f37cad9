"""Holds what the row of a debt says of the step that a host or a cell owes."""

from __future__ import annotations

import msgspec

from droveway.wire.values import Direction


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a debt: which step of which flow is owed, in which direction, with what a command needs for it."""

    flow: str
    step: str
    sequence: int
    details: dict[str, object]
    deadline: float
    error: str = ""
    direction: Direction = "revert"
    after: str = ""
    """The host that is asked, before the debt is paid, whether its own copy of the server's disks is whole.

    If it is not, the debt is not paid yet.  Empty when no host is asked.
    """
