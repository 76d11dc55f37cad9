"""Sends the commands of a claimed run's steps: their keys, their answers, and the step's error when no answer comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, Protocol

from sqlalchemy import orm

from droveway import deadlines
from droveway.clients.watches import LeafWatch
from droveway.engines.conductor import answers, story
from droveway.engines.conductor.history import History
from droveway.engines.conductor.host_channel import DeclaredDown, Fence, HostChannel, Overdue, Unreachable, key_of
from droveway.engines.conductor.progress import ProgressNote
from droveway.errors import Cancelled, DestinationFault, StepError, step_error
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE
from droveway.persistence.database import Database
from droveway.persistence.journal import attempts
from droveway.persistence.journal.tables import Move
from droveway.persistence.restored import Restored
from droveway.wire.commands import Command, Result
from droveway.wire.values import Direction

GRACE: Final = 15.0
"""Seconds for which the conductor waits for an answer after the deadline, at which the worker ends the command."""


class Silence(NamedTuple):
    """The code and the message of a step's error when no answer came; ``words`` is formatted with the command."""

    code: str
    words: str


SILENCES: Final[Mapping[type[Exception], Silence]] = MappingProxyType(
    {
        DeclaredDown: Silence(
            code=DECLARED_DOWN,
            words="host {0.host} is declared down and its worker is away, so nothing waits for it",
        ),
        Unreachable: Silence(
            code=UNREACHABLE,
            words="the worker of host {0.host} is away: start it, or see droveway host show {0.host}",
        ),
        Overdue: Silence(
            code="overdue",
            words="host {0.host} did not finish {0.action} of step {0.step} within {0.deadline:g} s",
        ),
    }
)


class ClaimedRun(Protocol):
    """Says what this module needs of `droveway.engines.conductor.run.MoveRun`, whose steps send the commands."""

    move_id: str
    flow_uuid: str
    epoch: int
    journal: Database
    row: Move
    history: History

    def alternate_host(self) -> str:
        """Name the host that the flow replaces by another one if it is at fault; empty where no other is tried."""

    def write(self) -> AbstractContextManager[orm.Session]:
        """Begin a journal transaction that holds the claim."""

    def probe(self, step: str, direction: str, phase: str) -> None:
        """Let a test inject a fault."""

    def park(self, step: str, direction: Direction, error: StepError) -> NoReturn:
        """Let the move rest as needs-operator with this error."""


class StepCommands:
    """Gives each command its key, waits for its answer, and turns a failure into the error of its step."""

    def __init__(
        self,
        run: ClaimedRun,
        channel: HostChannel,
        fence: Fence,
        *,
        host_away: float,
        wakeup: Callable[[], AbstractContextManager[threading.Event]],
        check: Callable[[], None],
        is_declared_down: Callable[[str], bool],
    ) -> None:
        """``host_away``: seconds for which a worker that is away is waited for, at most the command's deadline.

        ``wakeup`` makes the event that ends a wait early; ``check`` raises when the run is not to go on.
        """
        self._run = run
        self._channel = channel
        self._fence = fence
        self._host_away = host_away
        self._wakeup = wakeup
        self._check = check
        self._is_declared_down = is_declared_down
        self._spent: dict[str, dict[str, str]] = {}
        """The error that was the last answer to a key, by key."""
        self._answered: list[tuple[str, str]] = []
        """The hosts and keys of the commands that were answered and whose nodes stand."""
        self._withdrawn: set[int] = set()
        """The row numbers of undos for which the step's own commands were withdrawn."""

    def next_key(self, step: str, direction: Direction, part: str) -> str:
        """Remove the nodes of commands that are no longer needed, and return the key of the step's next command.

        A command is no longer needed once its answer is stored.  Before an undo, the unanswered commands of the step
        itself are no longer needed either.
        """
        self._remove_acknowledged(self._key_of(step, direction))
        if direction == "revert":
            self._withdraw_execute(step)
        return self._renewed(step, direction, part)

    def carry_out(self, command: Command, direction: Direction, *, past_no_return: bool) -> dict[str, object]:
        """Let the host's worker carry out the command, and return what it answers; raises its StepError.

        ``direction`` is the step's own; the command's may differ from it.  ``past_no_return`` tells that a host may
        have been asked for the point of no return.
        """
        answer = self._channel.post(command, self._fence)
        try:
            result = self._wait(command, answer, direction)
        except (Unreachable, Overdue) as silence:
            code, words = SILENCES[type(silence)]
            raise self._host_fault(command.host, code, words.format(command), past_no_return=past_no_return) from None
        except DestinationFault as fault:
            raise self._host_fault(command.host, fault.error_code, str(fault), past_no_return=past_no_return) from None
        self._answered.append((command.host, command.key))
        if result.error is None:
            return result.value or {}
        error = step_error(result.error)
        if error.error_code == Restored.code:
            self._run.park(command.step, direction, error)
        self._spent[command.key] = result.error
        if error.error_code == answers.BAD_ANSWER:
            raise self._host_fault(command.host, answers.BAD_ANSWER, str(error), past_no_return=past_no_return)
        raise error

    def hosts(self) -> list[str]:
        """Return every host that a command of this move may have gone to."""
        with self._run.journal.read() as session:
            return attempts.hosts(session, self._run.row)

    def _remove_acknowledged(self, current: str) -> None:
        """Remove the nodes of commands whose answers are stored by now: all but those of the row ``current``."""
        kept = [(host, key) for host, key in self._answered if f"{key}.".startswith(f"{current}.")]
        self._channel.remove_answered(dict.fromkeys(each for each in self._answered if each not in kept))
        self._answered = kept

    def _wait(self, command: Command, answer: LeafWatch, direction: Direction) -> Result:
        host = command.host
        progress = ProgressNote(self._run.move_id, lambda: self._channel.progress(host, command.key), self._run.write)

        told = False

        def is_gone() -> bool:
            nonlocal told
            if not told:
                told = True
                story.tell_wait(command.move, f"the worker of host {host}, which is away, in step {command.step}")
            return self._is_declared_down(host)

        def check() -> None:
            self._check()
            progress.update()

        try:
            self._run.probe(command.step, direction, "during")
            with self._wakeup() as wakeup, deadlines.paused():
                return self._channel.wait(
                    command,
                    answer,
                    deadline=command.deadline + GRACE,
                    away=min(self._host_away, command.deadline),
                    check=check,
                    wakeup=wakeup,
                    is_gone=is_gone,
                )
        except (DeclaredDown, Cancelled):
            # Otherwise a worker that comes back would carry it out, whatever has become of the move by then.
            self._channel.withdraw([host], self._run.flow_uuid, command.step, direction)
            raise

    def _renewed(self, step: str, direction: Direction, part: str) -> str:
        """Return the command's key; if the last answer to it was an error, begin a new row of the step first."""
        key = self._key_of(step, direction, part)
        error = self._spent.pop(key, None)
        if error is None:
            return key
        run = self._run
        with run.write() as session:
            run.history.end(session, step, direction, error=error)
            session.flush()
            run.history.begin(session, run.history.enter(session, step, direction), step, direction)
        return self._key_of(step, direction, part)

    def _key_of(self, step: str, direction: Direction, part: str = "") -> str:
        return key_of(self._run.flow_uuid, step, direction, self._run.history.sequence(step, direction), part)

    def _withdraw_execute(self, step: str) -> None:
        sequence = self._run.history.sequence(step, "revert")
        if sequence not in self._withdrawn:
            self._channel.withdraw(self.hosts(), self._run.flow_uuid, step, "execute")
            self._withdrawn.add(sequence)

    def _host_fault(self, host: str, code: str, message: str, *, past_no_return: bool) -> StepError:
        """Return the error for a host that gave no answer, or no valid one.

        This does not prove what the host did.  So past the point of no return the error does not let the flow try an
        alternate.
        """
        destination = host == self._run.alternate_host() and not past_no_return
        return (DestinationFault if destination else StepError)(message, code=code, host=host)
