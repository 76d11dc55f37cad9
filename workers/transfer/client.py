"""The destination's end of the disk transfer: a source that another worker serves over a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Final, TypeVar

import tenacity

from droveway.certificates import Identity
from droveway.errors import CoordinationLost, DrovewayError, Fenced, StepError
from droveway.wire.values import harmless
from droveway.workers.transfer import endpoints, frames
from droveway.workers.transfer.limits import Bucket
from droveway.workers.transfer.sources import DiskMap

PATIENCE: Final = 20.0
"""Seconds for which a source that does not answer is asked again, because its worker may be restarting."""

LONGEST_PAUSE: Final = 60.0
"""Most seconds before a source that is busy is asked again, even if it names a longer time (`frames.LaterFrame`)."""

REFUSALS: Final = frozenset({
    "not-offered", "guest-runs", "certificate", "source-changed", "missing", "link", "damaged", "disk-format",
    "storage-away",
})  # fmt: skip
"""Error codes that this host takes over from a source.

Any other code is replaced by ``protocol``.  Otherwise a hostile source could send a code for which the conductor blames
this host, or which only a conductor may use.
"""

Answer = TypeVar("Answer")


class RemoteSource:
    """The disks that another worker offers; connects when it is first asked, and again when the connection breaks.

    ``pause`` waits for a number of seconds, and may raise to end the waiting.  ``identity`` is the certificate of this
    end.  ``limits`` bound how much is received.
    """

    def __init__(
        self,
        host: str,
        address: str,
        hello: frames.Hello,
        *,
        pause: Callable[[float], Any],
        patience: float = PATIENCE,
        identity: Identity | None = None,
        limits: Sequence[Bucket] = (),
    ) -> None:
        self.host = host
        self._address = address
        self._identity = identity
        self._limits = limits
        self._hello = hello
        self._pause = pause
        self._patience = patience
        self._connection: frames.FrameSocket | None = None
        self._offered = frames.Welcome(disks=[])

    def offered(self) -> frames.Welcome:
        """Return the disks that are offered, and their bases; raises StepError."""
        self._retried(lambda _: None)
        return self._offered

    def disk_map(self, disk: str) -> DiskMap:
        """Return where the disk's data lies; raises StepError (``protocol``) for a map that cannot be true."""
        found: DiskMap = self._retried(
            lambda peer: self._request(peer, frames.MapRequest(disk=disk), frames.MapFrame)[0].map
        )
        sizes = {offered.name: offered.size for offered in self._offered.disks}
        if disk in sizes and found.identity.size != sizes[disk]:
            raise self._unsound(disk, f"it has {found.identity.size} bytes, and {sizes[disk]} were set aside")
        end = 0
        for offset, length in found.extents:
            if offset < end or length <= 0 or offset + length > found.identity.size:
                raise self._unsound(disk, f"({offset}, {length}) is out of order, or not within it")
            end = offset + length
        return found

    def _unsound(self, disk: str, why: str) -> StepError:
        return StepError(
            f"host {self.host} says wrongly where the data of {disk} of server {self._hello.server} lies: {why}",
            code="protocol",
            host=self.host,
        )

    def read(self, disk: str, offset: int, length: int, into: memoryview) -> tuple[memoryview, str]:
        """Fetch one chunk into ``into``, and return it with the checksum that the source made of it."""
        for limit in self._limits:
            while seconds := limit.take(length):
                self._pause(seconds)
        request = frames.ChunkRequest(disk=disk, offset=offset, length=length)
        while True:
            answer, data = self._retried(lambda peer: self._request(peer, request, frames.ChunkAnswer, into[:length]))
            if isinstance(answer, frames.ChunkFrame):
                return data, answer.checksum
            self._pause(min(max(answer.seconds, 0.0), LONGEST_PAUSE))

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _retried(self, question: Callable[[frames.FrameSocket], Answer]) -> Answer:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(OSError),
            stop=tenacity.stop_after_delay(self._patience),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
            sleep=self._pause,
            reraise=True,
        )
        try:
            answer: Answer = attempts(self._once, question)
        except OSError as error:
            raise StepError(
                f"the worker of {self.host} does not serve the disks of server {self._hello.server}: {error}",
                code="source-unreachable",
                host=self.host,
            ) from None
        return answer

    def _once(self, question: Callable[[frames.FrameSocket], Answer]) -> Answer:
        try:
            if self._connection is None:
                self._connect()
            assert self._connection is not None  # noqa: S101 - made by the line above
            return question(self._connection)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self._connection = frames.FrameSocket(endpoints.connect(self._address, self.host, self._identity))
        self._offered = self._request(self._connection, self._hello, frames.Welcome)[0]

    def _request(
        self,
        peer: frames.FrameSocket,
        request: frames.Frame,
        kind: type | UnionType,
        into: memoryview = frames.NOWHERE,
    ) -> tuple[Any, memoryview]:
        peer.send(request)
        answer, payload = peer.receive(into)
        if isinstance(answer, frames.Refusal):
            raise self._refused(answer.error)
        if not isinstance(answer, kind):
            raise StepError(f"host {self.host} answered with {type(answer).__name__}", code="protocol", host=self.host)
        return answer, payload

    def _refused(self, error: dict[str, str]) -> DrovewayError | OSError:
        """Return the source's refusal as an error; its words come from a stranger and are made harmless."""
        code, why = (harmless(error.get(name, "")) for name in ("code", "message"))
        why = why or f"host {self.host} refuses and does not say why"
        if code == Fenced.code:
            return Fenced(why)
        if code == CoordinationLost.code:
            return frames.FrameError(why)  # the source could not ask ZooKeeper, and may be able to in a moment
        return StepError(why, code=code if code in REFUSALS else "protocol", host=self.host)
