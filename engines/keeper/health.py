"""Asks destinations how the guests of moves with the policy `healthy` are.

A question is a host command like any other (`droveway.engines.conductor.host_channel`).  It is made under the epoch of
the move's last claim, and only while that epoch stands.  As soon as somebody claims the move's confirm or revert, the
worker drops the question.

Its key says everything about it, so that a keeper that starts goes on with what another one asked.  In the key the flow
is ``health-MOVE``, and the sequence is the time of the question, in seconds since 1970 by the database's clock.  A
question changes nothing, so any number of keepers may ask, and any of them may take the answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from droveway import log_context
from droveway.clients.zookeeper import HOSTS, Coordination
from droveway.engines.conductor import answers, fencing
from droveway.engines.conductor.eligibility import QUESTION
from droveway.engines.conductor.host_channel import REFUSED, HostChannel, key_of
from droveway.engines.keeper.policies import Waiting
from droveway.errors import Fenced, Refused
from droveway.flows.before import before
from droveway.persistence.database import Database, database_time
from droveway.persistence.journal import moves, policies
from droveway.persistence.journal.policies import Health
from droveway.persistence.journal.policy_names import HEALTHY
from droveway.wire import commands
from droveway.wire.values import HEALTH

LOG = logging.getLogger(__name__)

STEP: Final = "check_health"
"""What stands for the step in the keys of questions."""

ANSWER_SECONDS: Final = 5.0
"""How much longer than the guest agent a worker may take to answer; after that the guest counts as failing."""

_KEY: Final = re.compile(rf"{HEALTH}([\w-]+)\.{STEP}\.execute\.([0-9]{{1,10}})", re.ASCII)
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as the journal's columns hold it


@dataclasses.dataclass(frozen=True)
class Standard:
    """What makes a guest healthy; times in seconds."""

    healthy_after: float = 30.0
    """For how long it must have run without a break."""
    probe_timeout: float = 5.0
    """How long a guest agent has to answer; 0: the agent is not asked."""

    @property
    def answers_within(self) -> dt.timedelta:
        """How long a worker has to answer a question."""
        return dt.timedelta(seconds=self.probe_timeout + ANSWER_SECONDS)


class _Question(NamedTuple):
    """One question that stands, read from its key."""

    host: str
    key: str
    move: str
    asked: dt.datetime


class HealthChecks:
    """Asks the questions, and writes the answers into the journal."""

    def __init__(self, coordination: Coordination, journal: Database, standard: Standard) -> None:
        self._coordination = coordination
        self._channel = HostChannel(coordination)
        self._journal = journal
        self._standard = standard
        self.answers_within = standard.answers_within
        self._hosts: set[str] | None = None
        """The hosts where questions may stand; None when another keeper's may be on any host."""

    def collect(self, waiting: Iterable[Waiting], now: dt.datetime) -> bool:
        """Write each answer into the journal and remove its nodes; remove each question that nobody needs.

        ``waiting`` are all moves that wait for verification at ``now``.  True when a question about one of them is
        over: its answer has come, readable or not, or the time for the answer has passed.
        """
        destinations = {each.move: each.destination for each in waiting if each.policy == HEALTHY and each.destination}
        wanted = set(destinations.values())
        known = set(self._coordination.children(HOSTS)) if self._hosts is None else self._hosts
        kept = False
        for question in self._standing(known | wanted):
            if destinations.get(question.move) != question.host:
                self._channel.remove(question.host, question.key)
            else:
                with log_context.of_move(question.move):
                    if self._take(question, now):
                        self._channel.remove(question.host, question.key)
                        kept = True
        self._hosts = wanted
        return kept

    def forget(self) -> None:
        """Let the next look cover all hosts, since another keeper may have asked any of them."""
        self._hosts = None

    def check(self, move_id: str) -> None:
        """Ask the move's destination how the guest is, unless a question stands there already."""
        with self._journal.read() as session:
            move = moves.get(session, move_id)
            epoch = fencing.standing_epoch(session, move_id)
            now = database_time(session)
        if epoch is None or move.dest_host is None:
            return
        if any(question.move == move_id for question in self._standing({move.dest_host})):
            return
        probe = self._standard.probe_timeout
        command = commands.Command(
            key=key_of(f"{HEALTH}{move_id}", STEP, "execute", int((now - _EPOCH).total_seconds())),
            host=move.dest_host,
            move=move_id,
            server=move.server,
            epoch=epoch,
            step=STEP,
            action=QUESTION,
            direction="execute",
            details=msgspec.to_builtins(commands.CheckGuest(probe_seconds=probe)),
            deadline=probe + ANSWER_SECONDS,
        )
        try:
            self._channel.post(command, self._channel.fence(move_id, epoch, journal=self._journal))
        except Fenced as error:
            LOG.info("Move %s is no longer asked about: %s", move_id, error)

    def _take(self, question: _Question, now: dt.datetime) -> bool:
        """Write the question's answer into the journal; False while there is still time for one."""
        within = self._standard.answers_within
        reason = f"host {question.host} did not say within {within.total_seconds():g} s how the guest is"
        try:
            result = self._channel.answer(question.host, question.key)
        except Refused as error:
            result, reason = None, answers.sentence(question.host, QUESTION, str(error))
        else:
            if result is None and now - question.asked <= within:
                return False
        if result is not None:
            health, reason = self._judged(question, result)
            self._record(question, health, reason, result.epoch)
            return True
        # Without its own node nobody knows under which claim the question was put, so it says nothing.
        with contextlib.suppress(Refused):
            if (command := self._channel.standing(question.host, question.key)) is not None:
                self._record(question, Health.FAILING, reason, command.epoch)
        return True

    def _judged(self, question: _Question, result: commands.Result) -> tuple[Health, str]:
        with self._journal.read() as session:
            meant_to_run = before(moves.get(session, question.move)).powered_on
        try:
            return judge(result, self._standard, meant_to_run=meant_to_run)
        except msgspec.ValidationError as error:
            return Health.FAILING, answers.sentence(question.host, QUESTION, str(error))

    def _record(self, question: _Question, health: Health, reason: str, epoch: int) -> None:
        with self._journal.write() as session:
            policies.record_health(session, question.move, health, reason, asked=question.asked, epoch=epoch)

    def _standing(self, hosts: set[str]) -> Iterator[_Question]:
        for host in sorted(hosts):
            for key in sorted(key for key in self._channel.keys(host) if key.startswith(HEALTH)):
                if (found := _KEY.fullmatch(key)) is None:
                    REFUSED.log_once(f"The node {key[:200]} of host {host} is refused", "it names no question")
                    continue
                yield _Question(host, key, found[1], _EPOCH + dt.timedelta(seconds=int(found[2])))


def judge(result: commands.Result, standard: Standard, *, meant_to_run: bool) -> tuple[Health, str]:
    """Say whether the answer means that the guest is healthy, and why.

    A server that was stopped when it was moved has no guest to wait for: it is healthy when it is off, as it was.
    """
    if result.error is not None:
        return Health.FAILING, result.error["message"]
    found = msgspec.convert(result.value, type=commands.GuestHealth)
    if not found.running and not meant_to_run:
        return Health.PASSED, "the server is stopped, as it was"
    if not found.running:
        return Health.FAILING, "the guest does not run"
    if found.running_for < standard.healthy_after:
        return Health.FAILING, (
            f"the guest has run without a break for {found.running_for:.0f} s of {standard.healthy_after:g} s"
        )
    if found.answers is False:
        return Health.FAILING, f"the guest runs but fails its probe: {found.why}"
    silent = "has no agent to ask" if standard.probe_timeout else "its agent is not asked"
    told = "answers" if found.answers else silent
    return Health.PASSED, f"the guest has run without a break for {found.running_for:.0f} s and {told}"
