"""What an action is given: its command, the host's parts, and the points at which it may be stopped."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

from droveway.certificates import Identity
from droveway.clients.zookeeper import Coordination
from droveway.errors import AttachmentLost, Cancelled, DestinationFault, Parked, StepError
from droveway.printable import SHORT
from droveway.wire.commands import Command, Progress, VolumeRef
from droveway.wire.values import Direction
from droveway.workers.directories import Directories
from droveway.workers.fence import Fence, standing_epoch
from droveway.workers.hypervisors.base import Hypervisor, Mark, Volume
from droveway.workers.journal import WorkerJournal
from droveway.workers.permission import Permissions
from droveway.workers.transfer.limits import Limits

if TYPE_CHECKING:
    from droveway.clients.references import Data, ImageRecord

Probe = Callable[[str, Direction, str, str], None]
"""Fault injection: called with step, direction, ``during`` and the name of the effect that comes next."""

PROGRESS_SECONDS: Final = 0.5


class References(Protocol):
    """Resolves what a command refers to; the worker's only way to a secret."""

    def connection_info(self, attachment_id: str) -> dict[str, Any]:
        """The connection info of a volume attachment."""

    def image(self, image: str) -> ImageRecord:
        """An image as it is now; raises StepError ``image-gone`` or ``no-image-service``, as the others do."""

    def upload_image(self, image: str, data: Data) -> None:
        """Give an image these bytes, unless it has its data or somebody is about to give it."""

    def download_image(self, image: str, offset: int) -> Generator[bytes, None, None]:
        """An image's bytes from ``offset`` on, part by part."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """The parts of one host's worker that actions use."""

    name: str
    hypervisor: Hypervisor
    directories: Directories
    references: References
    coordination: Coordination
    journal: WorkerJournal
    permissions: Permissions
    transfer_address: str
    identity: Identity | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)


def _no_progress(progress: Progress) -> None:
    """Nobody watches."""


class Context:
    """One run of one action."""

    def __init__(
        self,
        host: Host,
        command: Command,
        *,
        probe: Probe | None = None,
        report: Callable[[Progress], None] = _no_progress,
    ) -> None:
        self.host = host
        self.command = command
        self.move = command.move
        self.server = command.server
        self.hypervisor = host.hypervisor
        self.directories = host.directories
        self.journal = host.journal
        self._fence = Fence(host.coordination, host.journal, command)
        self._session = host.coordination.session
        self._probe = probe
        self._report = report
        self._reported = float("-inf")
        self._reporting = threading.Lock()
        self._ends = time.monotonic() + command.deadline
        self._cancelled = threading.Event()
        self._stopped = False

    @property
    def epoch(self) -> int:
        """The epoch under which the action runs now."""
        return self._fence.epoch

    @property
    def mark(self) -> Mark:
        """What everything that this action makes is marked with."""
        return Mark(move=self.move, epoch=self.epoch)

    @property
    def step_key(self) -> str:
        """The flow and the step, under which notes outlive the attempts of a step."""
        return f"{self.command.key.partition('.')[0]}.{self.command.step}"

    def effect(self, name: str) -> None:
        """Between two effects: ``name`` comes next.  Here an action may be stopped, cancelled or made to fail."""
        self.check()
        if self._probe is not None:
            self._probe(self.command.step, self.command.direction, "during", name)
        self._fence_if_slept()

    def replacing(self, name: str) -> None:
        """The same before an effect that replaces something, which nobody does who has slept: see `fence`."""
        self.effect(name)
        self.check()
        self.fence()

    def check(self) -> None:
        """Raise Parked when the worker stops, Cancelled for an undo, StepError past the deadline."""
        if self._cancelled.is_set():
            if self._stopped:
                raise Parked(f"the worker of host {self.host.name} stops")
            raise Cancelled(f"{self.command.action} was cancelled on {self.host.name}", host=self.host.name)
        if time.monotonic() >= self._ends:
            raise self.failed(f"{self.command.action} took longer than {self.command.deadline:g} s", code="deadline")

    def pause(self, seconds: float) -> None:
        """Wait, at most ``seconds``; ends early like `check`."""
        self._cancelled.wait(seconds)
        self.check()

    def fence(self) -> None:
        """Right before an irreversible effect: raises Fenced when the epoch has moved on."""
        self._fence.check()

    def _fence_if_slept(self) -> None:
        """Whoever has another session now may have been taken for gone, and another have done all that is left.

        An outage that ZooKeeper has not given the session up for stops nothing.
        """
        session = self.host.coordination.session
        if session not in (None, self._session):
            self.fence()
            self._session = session

    def cancel(self) -> None:
        """Let the action end at its next effect, for its undo."""
        self._cancelled.set()

    def stop(self) -> None:
        """Let the action end at its next effect without a result: it is entered again by the next worker."""
        self._stopped = True
        self._cancelled.set()

    def progress(self, done: int, total: int, *, kept: int = 0, seconds: float = 0.0) -> None:
        """Tell how far the action is, at most twice a second and when it is all; see `Progress`."""
        with self._reporting:
            now = time.monotonic()
            if now - self._reported < PROGRESS_SECONDS and done < total:
                return
            self._reported = now
        self._report(Progress(key=self.command.key, done=done, total=total, kept=kept, seconds=seconds))

    def is_live(self, move: str) -> bool:
        """Whether the move is claimed and has not ended."""
        return standing_epoch(self.host.coordination, move) is not None

    def is_foreign(self, move: str) -> bool:
        """Whether what is marked with ``move`` belongs to another move that lives."""
        return move != self.move and self.is_live(move)

    def volumes(self, wanted: list[VolumeRef]) -> list[Volume]:
        """The volumes with their connection info, which is a secret: it goes to the hypervisor and nowhere else."""
        return [
            Volume(
                volume=ref.volume,
                device=ref.device,
                boot=ref.boot,
                connection=self._connection_info(ref),
            )
            for ref in wanted
        ]

    def _connection_info(self, ref: VolumeRef) -> dict[str, Any]:
        try:
            return self.host.references.connection_info(ref.attachment)
        except AttachmentLost as error:
            why = f"{error}, by which server {self.server} has volume {ref.volume}, so nothing was connected"
            if self.command.direction == "revert":
                short = self.move[:SHORT]
                why += (
                    f": was the database of Cinder put back from a copy, droveway move settle {short} --cell cinder "
                    f"--reason TEXT makes the attachment anew, and then droveway move retry {short} goes on"
                )
            raise self.failed(why, code=error.error_code) from None

    def failed(self, message: str, *, code: str | None = None) -> StepError:
        """An error by which the move is undone."""
        return StepError(message, code=code, host=self.host.name)

    def fault(self, message: str, *, code: str | None = None) -> DestinationFault:
        """An error of this host as a destination: the next alternate may be tried."""
        return DestinationFault(message, code=code, host=self.host.name)
