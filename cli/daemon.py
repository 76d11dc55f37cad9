"""What both daemons share: their configuration, their log, their signals, and the watchdog that their loops feed."""

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
"""So many new objects between two searches for garbage, in a process that lives for months."""

LastTick = Callable[[], float]
"""When a loop began its last turn, by the monotonic clock."""


class Daemon(Command, abc.ABC):
    """A command that runs until SIGTERM or SIGINT."""

    @abc.abstractmethod
    def running(
        self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[LastTick]:
        """Start, leave what ends it to the stack, and return the loops that do the work."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run until told to stop; what runs by then is given back at its next boundary."""
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
    """An error that nobody foresaw goes into the log with its traceback: that is where an operator looks."""
    try:
        yield
    except DrovewayError:
        raise
    except Exception:
        LOG.exception("This daemon ends, for it met what nobody foresaw")
        raise


def log_thread(ended: threading.ExceptHookArgs) -> None:
    """Log an error that ended a thread: Python would write it beside the log."""
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = "" if ended.thread is None else ended.thread.name
        LOG.error("The thread %s ended, for it met what nobody foresaw", name, exc_info=ended.exc_value)


IGNORE_HELP: Final = (
    "do not ask this host's worker how far it has seen the journal: it lies, or its word is of another one; may be "
    "given more than once"
)


class Signals:
    """Signals as they come, without a handler that could interrupt what it waits for itself."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The system may give a signal to any thread, and does so to a process that was just continued. A handler runs
        # in the main thread alone, which would sleep on; this is written by whichever thread is hit.
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, seconds: float | None) -> int | None:
        """The next of them; None when none came in time."""
        if not select.select([self._reading], [], [], seconds)[0]:
            return None
        return os.read(self._reading, 1)[0]


def await_signal(signals: Signals, loops: Collection[LastTick]) -> int:
    """The next signal; until then systemd is told that the service lives while every loop turns."""
    limit = systemd.watchdog()
    while (number := signals.wait(None if limit is None else limit / 4)) is None:
        late = time.monotonic() - min(tick() for tick in loops)
        if limit is not None and late < limit:
            systemd.notify(systemd.ALIVE)
        else:
            LOG.error("A loop has not turned for %.0f s", late)
    return number
