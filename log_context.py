"""Adds to each line of the log the ids of the request, the move and the server that its thread works for."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from oslo_context import context

ABSENT: Final = "-"
"""Stands for an id that is not known."""

FORMAT: Final = (
    "%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [%(request_id)s %(move_id)s %(server_id)s] %(message)s"
)
"""The daemons' ``logging_context_format_string``, unless the configuration has another one."""

INSTANCE_FORMAT: Final = "[%(uuid)s] "
"""The daemons' ``instance_format``, which oslo.log puts before each line of a traceback."""

LAB_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s [%(instance)s] %(message)s"


class MoveContext(context.RequestContext):
    """The context of a thread that works for a move; it gives each line request_id, move_id and server_id."""

    def __init__(self, *, move_id: str = ABSENT, server_id: str = "", flow: str = "") -> None:
        super().__init__(request_id=f"req-{flow}" if flow else ABSENT)
        self.move_id = move_id
        self.server_id = server_id or ABSENT

    @property
    def instance(self) -> str:
        """Return all ids, as they stand before each line of a traceback."""
        return f"{self.request_id} {self.move_id} {self.server_id}"

    def get_logging_values(self) -> dict[str, Any]:
        """Return what oslo.log writes into each line."""
        return {"request_id": self.request_id, "move_id": self.move_id, "server_id": self.server_id}


class _NoMoveContext(context.RequestContext):
    """The context of a thread that works for no move: oslo.log writes its lines without ids."""

    def get_logging_values(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


# oslo.context has no public call that takes a thread's context away. So a context without ids replaces it.
_NO_MOVE: Final = _NoMoveContext(request_id=ABSENT)

# oslo.context's own store is not enough. A lab, which is a whole cloud for trials and tests, runs Placement inside its
# process, and Placement leaves its own contexts in that store.
_CURRENT: Final[contextvars.ContextVar[MoveContext | None]] = contextvars.ContextVar("move", default=None)


@contextlib.contextmanager
def of_move(move_id: str, *, server_id: str = "", flow: str = "") -> Iterator[None]:
    """Give the lines of this thread the ids, until the end of the block.

    ``flow`` is the uuid of the flow that this thread works for. The request's id is ``req-`` followed by that uuid.
    """
    before = _CURRENT.get()
    _set(MoveContext(move_id=move_id, server_id=server_id, flow=flow))
    try:
        yield
    finally:
        _set(before)


def name_server(server_id: str) -> None:
    """Add the server's id to the context of this thread, now that it is known."""
    found = _CURRENT.get()
    if found is not None:
        found.server_id = server_id


def setter_of_these_ids() -> Callable[[], None]:
    """Return a function that sets the present ids of this thread in another thread.

    A thread that works on behalf of this one calls the function first. From then on its lines have the same ids.
    """
    return functools.partial(_set, _CURRENT.get())


def _set(found: MoveContext | None) -> None:
    _CURRENT.set(found)
    (found or _NO_MOVE).update_store()


class LabFormatter(logging.Formatter):
    """Writes a lab's log in one format, with the ids that oslo.log's own formatter would write."""

    def __init__(self) -> None:
        super().__init__(LAB_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those of a traceback, each with the ids."""
        found = _CURRENT.get()
        ids = found.instance if found is not None else ABSENT
        record.__dict__["instance"] = ids
        first, *more = super().format(record).splitlines()
        return "\n".join([first, *(f"[{ids}] {line}" for line in more)])
