"""Carries out one command: it is recorded in the journal before, and recorded and answered after."""

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
    """The parts of a command's key."""

    flow: str
    step: str
    direction: str
    number: int
    """The id of the row in ``move_steps`` of the step's attempt: a later attempt has a higher one."""

    def supersedes(self, other: Key) -> bool:
        """Return whether this is the undo that ends the other's execution."""
        return (
            (self.flow, self.step) == (other.flow, other.step)
            and (self.direction, other.direction) == ("revert", "execute")
            and self.number > other.number
        )


def parse_key(key: str) -> Key:
    """Split a key ``<flow>.<step>.<direction>.<number>[.<part>]`` into its parts; raises Refused for anything else."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise Refused(f"{key[:80]!r} is no command's key")
    return Key(found[1], found[2], found[3], int(found[4]))


def of_command(command: commands.Command) -> contextlib.AbstractContextManager[None]:
    """Return a context that adds the command's request, move and server to this thread's log lines."""
    flow = command.key.partition(".")[0]
    return log_context.of_move(command.move, server_id=command.server, flow=flow)


def answer(coordination: Coordination, host: str, key: str, result: bytes) -> None:
    """Write the result to the node where the conductor waits for it; a result that is there already stays."""
    _put_beside(coordination, host, key, result_path(host, key), result)
    coordination.delete(progress_path(host, key))


def _put_beside(coordination: Coordination, host: str, key: str, path: str, data: bytes) -> None:
    """Create a node unless the command was taken back: then nobody would ever delete the node."""
    command = command_path(host, key)
    while (present := coordination.get(command, sync=True)) is not None:
        with contextlib.suppress(Fenced):  # a conductor stamped the command anew, or took it back
            coordination.create_guarded(path, data, guard=command, version=present[1])
            return


class Run:
    """Carries out one command in a thread of its own, from `start` until it is no longer `alive`."""

    def __init__(self, host: Host, command: commands.Command, *, probe: Probe | None) -> None:
        self.host = host
        self.command = command
        self.key = parse_key(command.key)
        self.left_begun = False
        """Whether it ended without a result; the worker carries the command out again later, see `Worker`."""
        self.why = ""
        """Why the conductor gets no answer now: there is no result, or ZooKeeper could not take the answer."""
        self._context = Context(host, command, probe=probe, report=self._report)
        self._thread = threading.Thread(target=self._carry_out, name=command.key, daemon=True)

    def start(self, done: threading.Event) -> None:
        """Begin; sets ``done`` at the end."""
        self._done = done
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the command is still being carried out."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """End the command before its next effect, because its undo has come."""
        self._context.cancel()

    def stop(self) -> None:
        """End the command before its next effect, without a result: the next worker process carries it out again."""
        self._context.stop()

    def join(self) -> None:
        """Wait until it has ended."""
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
            self.why = f"it met an unexpected {type(error).__name__}; the worker's log has the traceback"
        finally:
            self.host.journal.keep_room()
            self._done.set()

    def _is_thrifty(self) -> bool:
        """Return whether the command needs no more room than the reserve has."""
        known = ACTIONS.get(self.command.action)
        return self.command.direction == "revert" or (known is not None and known.thrifty)

    def _result(self) -> bytes:
        """Carry the command out and return its result.

        The result is recorded, so that the command is never carried out again.  The answer to a question is not
        recorded, nor is an error that is found before the command is begun.
        """
        journal = self.host.journal
        try:
            details = codec.details_of(self.command)
        except Refused as error:
            return self._encoded(None, self._context.failed(str(error), code=error.code))
        begun = self.command.key in journal.begun()
        try:
            # Before anything is recorded: a forged high epoch in the journal would bar all commands that come later.
            self._context.fence()
            if not begun and (why := self._why_restored()):
                return self._encoded(None, self._context.failed(why, code="restored"))
            if not commands.ages(self.command.action):
                journal.begin(self.command)
        except sqlite3.Error as error:
            if begun:
                raise  # an earlier run of the command may have done something
            why = f"{self._unwritten(error)}: nothing of {self.command.action} was begun, make room there"
            error_of = self._context.fault if ACTIONS[self.command.action].of_destination else self._context.failed
            return self._encoded(None, error_of(why, code="not-begun"))
        if commands.ages(self.command.action):
            return self._attempted(details)
        result = self._attempted(details)
        journal.finish(self.command.key, result)
        return result

    def _why_restored(self) -> str:
        """Return an error text when the conductors' journal was restored from an older copy; empty when it was not.

        This host's own journal shows it.  If this host has carried out a later step of the move than the one that it is
        asked for now, the conductors' journal is the older copy.
        """
        later = self.host.journal.step_of(self.command.move)
        is_old = self.key.number < later and not self.command.key.rpartition(".")[2].startswith(DEBT)
        if not is_old or commands.ages(self.command.action):
            return ""
        return (
            f"the journal was restored from an older copy: host {self.host.name} has carried out step number {later} "
            f"of move {self.command.move[:SHORT]}, and is asked for number {self.key.number} now, so nothing is done: "
            "put the newest copy back, or take it as it is with  droveway db adopt"
        )

    def _unwritten(self, error: sqlite3.Error) -> str:
        return f"the worker of host {self.host.name} cannot write its journal ({error})"

    def _attempted(self, details: Any) -> bytes:
        try:
            return self._encoded(dispatch.run(self._context, details), None)
        except StepError as error:
            if error.error_code == dispatch.DISK_FULL and self.host.journal.make_room():
                # The reserve was given up, so the few bytes of the action find room now, and the action may be
                # repeated.
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
            # The next report replaces this one.
            LOG.debug("The progress of %s could not be reported: %s", self.command.key, error)


def readable(error: StepError) -> dict[str, str]:
    """Return the error as the conductor can read it: words in it may come from a stranger and be of any length."""
    return {name: harmless(text) for name, text in error.as_dict().items()}


def superseded(host: Host, command: commands.Command) -> bytes:
    """Record as the command's result that its undo came before it had a result, and return that result."""
    error = Cancelled(f"{command.action} on {host.name} was undone before it had a result", host=host.name)
    result = codec.encode(commands.Result(key=command.key, epoch=command.epoch, error=error.as_dict()))
    host.journal.begin(command)
    host.journal.finish(command.key, result)
    return result
