"""Records which chunks of a disk's copy are safely on the medium, in a file beside the copy, to resume from there."""

from __future__ import annotations

import os

import msgspec

from droveway.workers.directories import open_file
from droveway.workers.transfer.sources import Identity


class ChunkLog:
    """The chunks of one disk that are safely on the medium, one line each: offset, length, checksum.

    The first line is the source's identity.  When the source has another identity now, the log is not used.  A last
    line without a newline was not written completely and is not read.
    """

    def __init__(self, directory: int, disk: str, identity: Identity) -> None:
        self.name = log_name(disk)
        self.done: dict[tuple[int, int], str] = {}
        self._pending: list[str] = []
        self._head = msgspec.json.encode(identity).decode() + "\n"
        self._file = open_file(directory, self.name, os.O_RDWR | os.O_CREAT)
        self._load()

    def _load(self) -> None:
        with open(self._file, "rb", closefd=False) as stream:
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1].decode()
        if not whole.startswith(self._head):
            return
        for line in whole[len(self._head) :].splitlines():
            offset, length, checksum = line.split()
            self.done[int(offset), int(length)] = checksum
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def begin(self) -> None:
        """Empty the log and record the source's present identity."""
        self.done.clear()
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, self._head.encode())
        os.fdatasync(self._file)

    def add(self, offset: int, length: int, checksum: str) -> None:
        """Note that the chunk was written; it counts after the next `sync`."""
        self.done[offset, length] = checksum
        self._pending.append(f"{offset} {length} {checksum}\n")

    def sync(self, data: int) -> None:
        """Sync the file ``data``, and then write the lines of the chunks in it."""
        os.fdatasync(data)
        os.write(self._file, "".join(self._pending).encode())
        os.fdatasync(self._file)
        self._pending.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def log_name(disk: str) -> str:
    """Return the name of a disk's chunk log, which is no name of a disk."""
    return f"{disk}-chunks"
