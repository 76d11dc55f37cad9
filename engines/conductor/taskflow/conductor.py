"""The conductor as TaskFlow sees it: takes jobs off the board, runs each in a thread of its own, and gives it back.

`droveway.engines.conductor.conductor` does what running a job means for the journal, the hosts and the cloud.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final

from taskflow import exceptions
from taskflow.conductors.backends import impl_nonblocking
from taskflow.types import timing

from droveway import log_context
from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor.taskflow.board import MoveBoard, MoveJob
from droveway.errors import CoordinationLost

IDLE: Final = 5.0
"""Seconds after which an idle conductor looks at the board without having been woken."""


class WakeableTimeout(timing.Timeout):
    """Lets an idle conductor wait until the board wakes it; TaskFlow's own timeout looks at intervals."""

    def __init__(self, longest: float) -> None:
        super().__init__(longest)
        self._rung = threading.Event()
        self.last_tick = time.monotonic()
        """When the last wait began, by the monotonic clock."""

    def wake(self) -> None:
        """Wake the conductor: there may be something to claim."""
        self._rung.set()

    def interrupt(self) -> None:
        """End the wait for good, for TaskFlow."""
        super().interrupt()
        self._rung.set()

    def wait(self) -> None:
        """Wait until woken, at most the longest time, for TaskFlow."""
        self.last_tick = time.monotonic()
        self._rung.wait(self.value)
        self._rung.clear()


class JobConductor(impl_nonblocking.NonBlockingConductor, abc.ABC):
    """TaskFlow's conductor, in which `run_job` runs a job, and some slots are for urgent jobs alone."""

    def __init__(
        self,
        name: str,
        board: MoveBoard,
        coordination: Coordination,
        *,
        slots: int,
        reserved: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        """``slots`` jobs run at a time, and ``reserved`` more if they are urgent."""
        self.wakeup = WakeableTimeout(IDLE)
        super().__init__(
            name,
            board,
            wait_timeout=self.wakeup,
            max_simultaneous_jobs=slots + reserved,
            # TaskFlow's own pool notices its end only once a second.
            executor_factory=lambda: futures.ThreadPoolExecutor(slots + reserved, thread_name_prefix=name),
        )
        self.name = name
        self.idle = threading.Event()
        """Set when the last flow that ran was given back."""
        self._moves = board
        self._coordination = coordination
        self._slots = slots
        self._reserved = reserved
        self._is_stopping = is_stopping

    @abc.abstractmethod
    def run_job(self, job: MoveJob) -> bool:
        """Run the job's flow; True takes the job off the board, False gives it back."""

    def running(self) -> int:
        """Return how many flows are being run."""
        return len(self._dispatched)

    def _can_claim_more_jobs(self, job: MoveJob) -> bool:
        """Tell whether a slot is free for the job, for TaskFlow.  Only urgent jobs may use the reserved slots.

        Urgent jobs come first, so the first job that finds no slot ends the round.
        """
        if self._wait_timeout.is_stopped():
            return False
        busy = list(self._dispatched)
        if job.posting.urgent:
            return len(busy) < self._slots + self._reserved
        return sum(not future.job.posting.urgent for future in busy) < self._slots

    def _dispatch_job(self, job: MoveJob) -> bool:
        """Run the job as `run_job` does, for TaskFlow."""
        job.session = self._coordination.session
        with log_context.of_move(job.posting.move, flow=job.posting.flow):
            return self.run_job(job)

    def _on_job_done(self, job: MoveJob, future: Any) -> None:
        """Take the job off the board or give it back, for TaskFlow.

        This is tried again until it works, or until the job or its claim is gone.  A conductor that stops while
        ZooKeeper is away does not try again: the claim ends with its session.
        """
        try:
            with log_context.of_move(job.posting.move, flow=job.posting.flow):
                self._give_back(job, consume=future.result())
        finally:
            self._dispatched.discard(future)
            if not self._dispatched:
                self.idle.set()
            self.wakeup.wake()

    def _give_back(self, job: MoveJob, *, consume: bool) -> None:
        pause = 0.1
        while job.session is not None and self._coordination.session == job.session:
            try:
                if consume:
                    self._moves.consume(job, self.name)
                else:
                    self._moves.abandon(job, self.name)
            except exceptions.NotFound:
                self._moves.doubt(job)  # the keeper took the job away, or the board was wiped: the claim may be left
                return
            except exceptions.JobFailure:
                if self._coordination.live():
                    if self.has_lost(job):
                        return
                elif self._is_stopping():
                    return  # the claim ends with this process's session, and the next conductor does the rest
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                return

    def has_lost(self, job: MoveJob) -> bool:
        """Tell whether the job's claim is no longer ours; False while nobody can say."""
        try:
            return job.session is None or self._moves.lock_owner(job) != job.session
        except CoordinationLost:
            return False
