"""The protocol between two workers: frames of a JSON header and raw bytes, over any stream socket.

A frame is two lengths (network order, 32 bits each), the header, and the bytes.  The protocol is the same over each
kind of socket (`droveway.workers.transfer.endpoints`).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Final

import msgspec
from oslo_utils import units

from droveway.workers.directories import BaseFile, SetAsideDisk
from droveway.workers.transfer.sources import DiskMap

_LENGTHS: Final = struct.Struct("!II")
LONGEST_HEADER: Final = 16 * units.Mi
"""Most bytes of a header: enough for the map of a disk with a million extents."""

LONGEST_QUESTION: Final = 64 * units.Ki
"""Most bytes of a question, which only names a disk or a server; a peer must not choose how much memory it takes."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """The first frame of the host that fetches: who it is, and for which server, move and epoch.

    With ``probe`` the host only asks whether it would be let in, and gets a `Welcome` without disks.
    """

    peer: str
    server: str
    move: str
    epoch: int
    probe: bool = False


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The disks that are offered, and the bases that they rest on."""

    disks: list[SetAsideDisk]
    bases: list[BaseFile] = []


class MapRequest(msgspec.Struct, frozen=True, kw_only=True, tag="map?"):
    """Asks where the disk's data lies."""

    disk: str


class ChunkRequest(msgspec.Struct, frozen=True, kw_only=True, tag="chunk?"):
    """Asks for one chunk: offset and length in bytes."""

    disk: str
    offset: int
    length: int


class MapFrame(msgspec.Struct, frozen=True, kw_only=True, tag="map"):
    """The answer to `MapRequest`."""

    map: DiskMap


class ChunkFrame(msgspec.Struct, frozen=True, kw_only=True, tag="chunk"):
    """The answer to `ChunkRequest`; the chunk follows as bytes."""

    checksum: str


class LaterFrame(msgspec.Struct, frozen=True, kw_only=True, tag="later"):
    """The answer to `ChunkRequest` when the source has sent as much as it may: ask again after so many seconds."""

    seconds: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The error why there is no answer: a `droveway.errors.StepError.as_dict`."""

    error: dict[str, str]


ChunkAnswer = ChunkFrame | LaterFrame

Frame = Hello | Welcome | MapRequest | ChunkRequest | MapFrame | ChunkFrame | LaterFrame | Refusal

_DECODER: Final = msgspec.json.Decoder(Frame)
NOWHERE: Final = memoryview(b"")


class FrameError(ConnectionError):
    """The connection has ended or is of no more use; another one may be tried."""


class Malformed(FrameError):
    """The other side has sent something that is no frame."""


class FrameSocket:
    """Sends and receives frames; one thread at a time may use it."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream

    def send(self, frame: Frame, payload: bytes | memoryview = b"") -> None:
        """Send one frame."""
        header = msgspec.json.encode(frame)
        self.stream.sendall(_LENGTHS.pack(len(header), len(payload)) + header)
        if payload:
            self.stream.sendall(payload)

    def receive(
        self, into: memoryview = NOWHERE, *, longest: int = LONGEST_HEADER, within: float | None = None
    ) -> tuple[Frame, memoryview]:
        """Receive the next frame and its bytes, which are put into ``into``; its header has at most ``longest`` bytes.

        Raises FrameError.  With ``within``, raises TimeoutError unless the whole frame comes within so many seconds.
        Without it, each part of the frame may take as long as the stream's own timeout.
        """
        ends = None if within is None else time.monotonic() + within
        header_length, payload_length = _LENGTHS.unpack(self._exactly(memoryview(bytearray(_LENGTHS.size)), ends))
        if header_length > longest or payload_length > len(into):
            raise Malformed(f"a frame of {header_length} + {payload_length} bytes is too long")
        try:
            frame = _DECODER.decode(self._exactly(memoryview(bytearray(header_length)), ends))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"no frame: {error}") from None
        return frame, self._exactly(into[:payload_length], ends)

    def end(self) -> None:
        """End the connection from another thread; the thread that waits in it wakes and closes it."""
        with contextlib.suppress(OSError):  # the other side may have ended it already
            # Not `SSLSocket.shutdown`: it drops the TLS state, which the other thread may be using at this moment.
            socket.socket.shutdown(self.stream, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; only the thread that uses it may do so.

        After the close, the file descriptor's number may belong to another connection at once.
        """
        self.end()
        self.stream.close()

    def _exactly(self, view: memoryview, ends: float | None) -> memoryview:
        got = 0
        while got < len(view):
            if ends is not None:
                # A peer that sends a byte now and then would never run into the stream's own timeout.
                left = ends - time.monotonic()
                if left <= 0:
                    raise TimeoutError("it was too slow")
                self.stream.settimeout(left)
            count = self.stream.recv_into(view[got:])
            if not count:
                raise FrameError("the other side broke off")
            got += count
        return view
