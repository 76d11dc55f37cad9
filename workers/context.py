"""Holds what an action gets: its command, the parts of its host, and the points at which it may be stopped."""

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
"""Injects a fault; called with the step, the direction, the phase and the name of an effect (`Context.effect`).

It has nothing to do with the storage probe of a destination, nor with the probes of a guest's agent and of a transfer
port: these belong to moves, and this one to labs and tests.
The phase is always ``during`` here, since a worker's faults fire while a step runs.  A conductor's faults have other
phases too.
"""

PROGRESS_SECONDS: Final = 0.5


class References(Protocol):
    """Resolves what a command refers to; the worker's only way to a secret."""

    def connection_info(self, attachment_id: str) -> dict[str, Any]:
        """Return the connection info of a volume attachment."""

    def image(self, image: str) -> ImageRecord:
        """Return an image as it is now.

        The methods on images raise StepError ``image-gone`` or ``no-image-service``.
        """

    def upload_image(self, image: str, data: Data) -> None:
        """Send these bytes to an image; send nothing if the image has its data or another upload is under way."""

    def download_image(self, image: str, offset: int) -> Generator[bytes, None, None]:
        """Yield an image's bytes from ``offset`` on, part by part."""


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
    """Drop the progress: nobody watches this action."""


class Context:
    """One run of one action, with everything that it may use."""

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
        """Return the epoch under which the action runs now."""
        return self._fence.epoch

    @property
    def mark(self) -> Mark:
        """Return the mark for everything that this action makes on the host."""
        return Mark(move=self.move, epoch=self.epoch)

    @property
    def step_key(self) -> str:
        """Return ``<flow>.<step>``, under which notes outlive the single attempts of a step."""
        return f"{self.command.key.partition('.')[0]}.{self.command.step}"

    def effect(self, name: str) -> None:
        """Let the action be stopped here, before its effect ``name``, which the caller then performs.

        A name in the past tense, such as ``renamed``, marks the moment after an effect.  Raises as `check` does.  A
        fault may be injected here.  After a change of the ZooKeeper session it also fences.
        """
        self.check()
        if self._probe is not None:
            self._probe(self.command.step, self.command.direction, "during", name)
        self._fence_if_slept()

    def replacing(self, name: str) -> None:
        """Do as `effect` does and then fence, before an effect that replaces something that is there.

        A worker that slept must not replace what another host has made meanwhile.  Raises as `check` and `fence` do.
        """
        self.effect(name)
        self.check()
        self.fence()

    def check(self) -> None:
        """Raise Parked when the worker stops, Cancelled for an undo, and StepError past the command's deadline."""
        if self._cancelled.is_set():
            if self._stopped:
                raise Parked(f"the worker of host {self.host.name} stops")
            raise Cancelled(f"{self.command.action} was cancelled on {self.host.name}", host=self.host.name)
        if time.monotonic() >= self._ends:
            raise self.failed(f"{self.command.action} took longer than {self.command.deadline:g} s", code="deadline")

    def pause(self, seconds: float) -> None:
        """Wait at most ``seconds``; raises as soon as `check` would."""
        self._cancelled.wait(seconds)
        self.check()

    def fence(self) -> None:
        """Raise Fenced when the epoch has moved on; an action calls this right before an irreversible effect."""
        self._fence.check()

    def _fence_if_slept(self) -> None:
        """Fence when the ZooKeeper session is another one than before.

        When the old session expired, conductors may have taken this worker for dead and had others finish its work.  An
        outage that the session survived stops nothing.
        """
        session = self.host.coordination.session
        if session not in (None, self._session):
            self.fence()
            self._session = session

    def cancel(self) -> None:
        """End the action at its next effect, because its undo has come."""
        self._cancelled.set()

    def stop(self) -> None:
        """End the action before its next effect, without a result: the next worker process carries it out again."""
        self._stopped = True
        self._cancelled.set()

    def progress(self, done: int, total: int, *, kept: int = 0, seconds: float = 0.0) -> None:
        """Report how many bytes of the action are done, at most twice a second and at the end; see `Progress`."""
        with self._reporting:
            now = time.monotonic()
            if now - self._reported < PROGRESS_SECONDS and done < total:
                return
            self._reported = now
        self._report(Progress(key=self.command.key, done=done, total=total, kept=kept, seconds=seconds))

    def is_live(self, move: str) -> bool:
        """Return whether the move is claimed and has not ended."""
        return standing_epoch(self.host.coordination, move) is not None

    def is_foreign(self, move: str) -> bool:
        """Return whether ``move``, found in a mark, is another move that has not ended."""
        return move != self.move and self.is_live(move)

    def volumes(self, wanted: list[VolumeRef]) -> list[Volume]:
        """Return the volumes with their connection info, a secret that goes to the hypervisor and nowhere else."""
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
                    f": if the database of Cinder was put back from a copy, make the attachment anew with droveway "
                    f"move settle {short} --cell cinder --reason TEXT, and then go on with droveway move retry {short}"
                )
            raise self.failed(why, code=error.error_code) from None

    def failed(self, message: str, *, code: str | None = None) -> StepError:
        """Return an error of this host for which the move is undone."""
        return StepError(message, code=code, host=self.host.name)

    def fault(self, message: str, *, code: str | None = None) -> DestinationFault:
        """Return an error of this host as a destination, after which the next alternate may be tried."""
        return DestinationFault(message, code=code, host=self.host.name)
