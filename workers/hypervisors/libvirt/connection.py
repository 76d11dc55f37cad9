"""A connection to libvirt that is opened again when the libvirt daemon was restarted."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from droveway.errors import StepError
from droveway.workers.hypervisors.libvirt.errors import is_lost

OPEN_SECONDS = 15.0
ANSWER_SECONDS = 5.0
OPEN_AGAIN_SECONDS = 0.05
# Seconds between keepalive messages and how many may go unanswered: without them a call on a hung daemon never ends.
KEEPALIVE = (5, 3)

T = TypeVar("T")
_loop_lock = threading.Lock()
_loop_process = 0


class Overdue(TimeoutError):
    """Raised for a call that did not end in time and goes on in ``thread``."""

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self.thread = thread


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make a call that has no time limit of its own; raises Overdue when it has not ended in time."""
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise Overdue(thread)
    value, error = outcome[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def library() -> Any:
    """Return the module libvirt, with its event loop running in this process and its printing of errors turned off."""
    import libvirt

    global _loop_process
    with _loop_lock:
        if _loop_process != os.getpid():
            libvirt.registerErrorHandler(lambda *_: None, None)
            libvirt.virEventRegisterDefaultImpl()
            threading.Thread(target=_run_events, args=(libvirt,), name="libvirt-events", daemon=True).start()
            _loop_process = os.getpid()
    return libvirt


def _run_events(libvirt: Any) -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


class Connection:
    """A hypervisor's connection; it is opened when it is first needed, and again when its daemon was lost.

    Every thread has a connection of its own.  On a shared one, libvirt would let a call wait for up to a keepalive
    interval when another thread's call hangs.  A thread's connection is closed when the thread ends.
    """

    def __init__(self, uri: str, host: str = "") -> None:
        self.uri = uri
        self.host = host
        self._of_thread = threading.local()

    def get(self) -> Any:
        """Return this thread's connection; raises StepError when no daemon answers within `OPEN_SECONDS`."""
        libvirt = library()
        deadline = time.monotonic() + OPEN_SECONDS
        connection = self._kept()
        while connection is None or not connection.isAlive():
            self.close()
            connection = None
            try:
                connection = within(max(0.1, deadline - time.monotonic()), self._connect)
            except (libvirt.libvirtError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise StepError(
                        f"the libvirt daemon of host {self.host} does not answer at {self.uri}: {error}",
                        code="hypervisor-away",
                        host=self.host,
                    ) from None
                time.sleep(OPEN_AGAIN_SECONDS)
            else:
                self._of_thread.connection = (os.getpid(), connection)
        return connection

    def answers(self) -> bool:
        """Return whether a daemon answers now."""
        libvirt = library()
        try:
            connection = within(ANSWER_SECONDS, self._connect)
        except (libvirt.libvirtError, TimeoutError):
            return False
        connection.close()
        return True

    def call_repeatable(self, question: Callable[[Any], T]) -> T:
        """Make a call that does no harm when it is made twice; repeat it once if the connection was lost.

        The second call goes over a new connection.  Such a call only reads, or it defines or undefines a guest: when
        libvirt has carried out the first call already, the second one changes nothing.
        """
        libvirt = library()
        try:
            return question(self.get())
        except libvirt.libvirtError as error:
            if not is_lost(error):
                raise
        self.close()
        return question(self.get())

    def close(self) -> None:
        """Close this thread's connection; its next call opens another one."""
        connection = self._kept()
        if connection is not None:
            self._of_thread.connection = (0, None)
            # The daemon may be gone, and the connection is closed on this side all the same.
            with contextlib.suppress(library().libvirtError):
                connection.close()

    def _kept(self) -> Any:
        process, connection = getattr(self._of_thread, "connection", (0, None))
        if process != os.getpid() and connection is not None:
            # A forked child must neither use nor close its parent's socket, so the object is kept and not used.
            self._of_thread.parents = connection
            self._of_thread.connection = (0, None)
            return None
        return connection

    def _connect(self) -> Any:
        connection = library().open(self.uri)
        connection.setKeepAlive(*KEEPALIVE)
        return connection
