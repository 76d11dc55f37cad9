"""Holds what both daemons share: their configuration, their log, their signals, and systemd's watchdog."""

from __future__ import annotations

import abc
import argparse
import contextlib
import gc
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from droveway.cli import systemd
from droveway.cli.base import Command
from droveway.errors import DrovewayError

if TYPE_CHECKING:
    from oslo_config import cfg


LOG = logging.getLogger(__name__)

COLLECT_EVERY: Final = 50_000
"""How many new objects the interpreter allows between two searches for garbage, in a process that lives for months."""

LastTick = Callable[[], float]
"""Returns when a loop began its last turn, by the monotonic clock."""


class Daemon(Command, abc.ABC):
    """A command that runs until SIGTERM or SIGINT."""

    @abc.abstractmethod
    def running(
        self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[LastTick]:
        """Start the daemon's loops, which the stack ends, and return functions that say when each last turned."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run until told to stop.

        A conductor then stops each flow before its next step, so that another conductor can go on with it. A worker
        stops each action at its next effect.
        """
        from oslo_log import log

        from droveway.conf import rights

        gc.set_threshold(COLLECT_EVERY)
        conf = self.configuration(parsed_args)
        for file in conf.config_file:
            rights.require_private(Path(file))
        log.setup(conf, "droveway")
        threading.excepthook = log_thread
        signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with contextlib.ExitStack() as stack, _log_unforeseen():
            loops = self.running(conf, parsed_args, stack)
            systemd.notify(systemd.READY)
            LOG.info("Ready")
            while (number := await_signal(signals, loops)) == signal.SIGHUP:
                conf.mutate_config_files()
            LOG.info("Stops at the next boundary, told by signal %d", number)
            systemd.notify(systemd.STOPPING)
        return 0


@contextlib.contextmanager
def _log_unforeseen() -> Iterator[None]:
    """Log an unexpected error with its traceback, where an operator looks for it."""
    try:
        yield
    except DrovewayError:
        raise
    except Exception:
        LOG.exception("This daemon ends after an unexpected error")
        raise


def log_thread(ended: threading.ExceptHookArgs) -> None:
    """Log an error that ended a thread; Python would write it to stderr alone."""
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "" if ended.thread is None else ended.thread.name
        LOG.error("The thread %s ended after an unexpected error", name, exc_info=ended.exc_value)


IGNORE_HELP: Final = (
    "do not ask this host's worker which steps of moves it has seen; meant for a host that reports steps wrongly, or "
    "that belonged to another installation; may be given more than once"
)


class Signals:
    """Receives signals by a pipe, so that no handler interrupts the code that waits for one."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The kernel may deliver a signal to any thread. Python runs handlers in the main thread alone, which would
        # sleep on. But the thread that gets the signal writes its number to this pipe at once.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, seconds: float | None) -> int | None:
        """Return the next signal; None when none came in time."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return None
        return os.read(self._reading, 1)[0]


def await_signal(signals: Signals, loops: Collection[LastTick]) -> int:
    """Return the next signal; until then, tell systemd that the service is alive while every loop turns."""
    limit = systemd.watchdog()
    while (number := signals.wait(None if limit is None else limit / 4)) is None:
        late = time.monotonic() - min(tick() for tick in loops)
        if limit is not None and late < limit:
            systemd.notify(systemd.ALIVE)
        else:
            LOG.error("A loop has not turned for %.0f s", late)
    return number
