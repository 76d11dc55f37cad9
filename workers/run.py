"""One command being carried out: journaled before, journaled and answered after."""

from __future__ import annotations

import contextlib
import logging
import re
import sqlite3
import threading
from typing import Any, Final, NamedTuple

from droveway import log_context
from droveway.clients.zookeeper import Coordination, command_path, progress_path, result_path
from droveway.errors import Cancelled, CoordinationLost, DrovewayError, Fenced, Parked, Refused, StepError
from droveway.printable import SHORT
from droveway.wire import codec, commands
from droveway.wire.values import harmless
from droveway.workers.actions import dispatch
from droveway.workers.actions.table import ACTIONS
from droveway.workers.context import Context, Host, Probe
from droveway.workers.journal import DEBT

LOG = logging.getLogger(__name__)

_KEY: Final = re.compile(r"([\w-]+)\.(\w+)\.(execute|revert)\.([0-9]{1,18})(?:\.[\w-]+)?", re.ASCII)


class Key(NamedTuple):
    """What a command's key says."""

    flow: str
    step: str
    direction: str
    attempt: int

    def supersedes(self, other: Key) -> bool:
        """Whether this is the undo that ends the other's execution."""
        return (
            (self.flow, self.step) == (other.flow, other.step)
            and (self.direction, other.direction) == ("revert", "execute")
            and self.attempt > other.attempt
        )


def parse_key(key: str) -> Key:
    """The parts of ``<flow>.<step>.<direction>.<attempt>[.<part>]``; raises Refused for anything else."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise Refused(f"{key[:80]!r} is no command's key")
    return Key(found[1], found[2], found[3], int(found[4]))


def of_command(command: commands.Command) -> contextlib.AbstractContextManager[None]:
    """Return what gives the lines of this thread the ids of the command's request, move and server."""
    flow = command.key.partition(".")[0]
    return log_context.of_move(command.move, server_id=command.server, flow=flow)


def answer(coordination: Coordination, host: str, key: str, result: bytes) -> None:
    """Put the result where the conductor waits for it; the first one stays."""
    _put_beside(coordination, host, key, result_path(host, key), result)
    coordination.delete(progress_path(host, key))


def _put_beside(coordination: Coordination, host: str, key: str, path: str, data: bytes) -> None:
    """Create a node that goes with the command: not once that was taken back, since nobody would remove it."""
    command = command_path(host, key)
    while (present := coordination.get(command, sync=True)) is not None:
        with contextlib.suppress(Fenced):  # it was stamped anew meanwhile, or taken back
            coordination.create_guarded(path, data, guard=command, version=present[1])
            return


class Run:
    """Carries out one command in a thread of its own, from `start` until it is no longer `alive`."""

    def __init__(self, host: Host, command: commands.Command, *, probe: Probe | None) -> None:
        self.host = host
        self.command = command
        self.key = parse_key(command.key)
        self.left_begun = False
        """Whether it ended without a result: a newer stamp of the command, or a new session, enters it again."""
        self.why = ""
        """Why it did."""
        self._context = Context(host, command, probe=probe, report=self._report)
        self._thread = threading.Thread(target=self._carry_out, name=command.key, daemon=True)

    def start(self, done: threading.Event) -> None:
        """Begin; ``done`` is set at the end."""
        self._done = done
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """Let it end at its next effect: its undo has come."""
        self._context.cancel()

    def stop(self) -> None:
        """Let it end at its next effect, to be entered again by the next worker."""
        self._context.stop()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _carry_out(self) -> None:
        with of_command(self.command):
            self._carry_out_here()

    def _carry_out_here(self) -> None:
        key = self.command.key
        self.left_begun = True
        try:
            with self.host.journal.spending() if self._is_thrifty() else contextlib.nullcontext():
                result = self._result()
            self.left_begun = False
            answer(self.host.coordination, self.host.name, key, result)
        except (Fenced, CoordinationLost, Parked) as error:
            self.why = str(error)
        except sqlite3.Error as error:
            self.why = self._unwritten(error)
        except Exception as error:
            LOG.exception("%s stopped without a result", dispatch.named(self.command))
            self.why = f"it met {type(error).__name__}, which nobody foresaw"
        finally:
            self.host.journal.keep_room()
            self._done.set()

    def _is_thrifty(self) -> bool:
        """Whether it needs no room but what is kept for it."""
        known = ACTIONS.get(self.command.action)
        return self.command.direction == "revert" or (known is not None and known.thrifty)

    def _result(self) -> bytes:
        """Carry the command out, which has no result yet; what it was the first time, it stays."""
        journal = self.host.journal
        try:
            details = codec.details_of(self.command)
        except Refused as error:
            return self._encoded(None, self._context.failed(str(error), code=error.code))
        begun = self.command.key in journal.begun()
        try:
            # Before anything is noted of it: a forged epoch in the journal would bar all that come after it.
            self._context.fence()
            if not begun and (why := self._outrun()):
                return self._encoded(None, self._context.failed(why, code="restored"))
            if not commands.ages(self.command.action):
                journal.begin(self.command)
        except sqlite3.Error as error:
            if begun:
                raise  # an earlier run of it may have done something
            why = f"{self._unwritten(error)}: nothing of {self.command.action} was begun, make room there"
            error_of = self._context.fault if ACTIONS[self.command.action].of_destination else self._context.failed
            return self._encoded(None, error_of(why, code="not-begun"))
        if commands.ages(self.command.action):
            return self._attempted(details)
        result = self._attempted(details)
        journal.finish(self.command.key, result)
        return result

    def _outrun(self) -> str:
        """Why the journal that asks is older than what it had done here for the move; empty when it is not."""
        later = self.host.journal.step_of(self.command.move)
        is_old = self.key.attempt < later and not self.command.key.rpartition(".")[2].startswith(DEBT)
        if not is_old or commands.ages(self.command.action):
            return ""
        return (
            f"the journal was restored from an older copy: host {self.host.name} has carried out step number {later} "
            f"of move {self.command.move[:SHORT]}, and is asked for number {self.key.attempt} now, so nothing is done: "
            "put the newest copy back, or take it as it is with  droveway db adopt"
        )

    def _unwritten(self, error: sqlite3.Error) -> str:
        return f"the worker of host {self.host.name} cannot write its journal ({error})"

    def _attempted(self, details: Any) -> bytes:
        try:
            return self._encoded(dispatch.run(self._context, details), None)
        except StepError as error:
            if error.error_code == dispatch.DISK_FULL and self.host.journal.make_room():
                # Its few bytes find room now, and it may be repeated.
                return self._attempted(details)
            return self._encoded(None, error)

    def _encoded(self, value: dict[str, Any] | None, error: StepError | None) -> bytes:
        return codec.encode(
            commands.Result(
                key=self.command.key,
                epoch=self._context.epoch,
                value=value,
                error=readable(error) if error is not None else None,
            )
        )

    def _report(self, progress: commands.Progress) -> None:
        data = codec.encode(progress)
        path = progress_path(self.host.name, self.command.key)
        try:
            if not self.host.coordination.put(path, data):
                _put_beside(self.host.coordination, self.host.name, self.command.key, path, data)
        except DrovewayError as error:
            LOG.debug("How far %s is could not be told: %s", self.command.key, error)  # the next word replaces it


def readable(error: StepError) -> dict[str, str]:
    """The error as a conductor can read it: the words in it may be those of a stranger, and of any length."""
    return {name: harmless(text) for name, text in error.as_dict().items()}


def superseded(host: Host, command: commands.Command) -> bytes:
    """Record that the command will never be carried out, since its undo has come first; returns the result."""
    error = Cancelled(f"{command.action} was undone before it began on {host.name}", host=host.name)
    result = codec.encode(commands.Result(key=command.key, epoch=command.epoch, error=error.as_dict()))
    host.journal.begin(command)
    host.journal.finish(command.key, result)
    return result
