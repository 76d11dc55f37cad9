"""The program that plays a sandbox guest: one process for each run of a server.

`droveway.workers.hypervisors.sandbox.hypervisor` starts it as ``python -I -S guest.py`` with the arguments of `Guest`,
and with the signals of `SIGNALS` blocked.  It imports little, so that a guest boots in milliseconds: no slow module
(json, signal) before it is up.  It imports nothing of droveway, so that it runs without an installation.

A second run of a server at the same time cannot go unnoticed:

- The starter hands down a locked file.  It is an open file description lock, so it is held without a gap from before
  the fork until the last process of this run has ended.
- All disks are locked for the run, as QEMU locks its images.
- The boot count in the disk's first block and the start count of the host are raised before the guest says it is up.
- The guest writes its start line to the log of all guests before it changes anything else.  An earlier run of the
  server that was killed has written no stop line.  The guest writes that stop line first, before its own start line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time

BLOCK = 4096
MAGIC = b"droveway"
MARK_BYTES = 16
SERVER_BYTES = 64
PF_EXITING = 0x4
"""The kernel's flag of a process that is exiting."""
SIGNALS = ("SIGTERM", "SIGUSR1")
"""The signals that a guest waits for; it starts with them blocked, so that none gets lost.

SIGTERM is the power button.  SIGUSR1 says that a file holds a question for the guest (`Guest.serve`).
"""


def born(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the machine's boot; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs the guest's start its time
            return birth(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def birth(stat: bytes) -> int | None:
    """Return the start time that `born` returns, from the content of ``/proc/PID/stat``.

    A process that is exiting counts as ended, because the kernel may free its locks before it counts as dead.
    """
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in b"ZXx" or int(fields[6]) & PF_EXITING else int(fields[19])


class LockedLog:
    """The log of all guests; one writer at a time holds it."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self._drop_torn()

    def __enter__(self) -> LockedLog:  # noqa: PYI034 - as the imports of this file are few
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.fd)

    def append(self, event: str, server: str, host: str, pid: int, birth: int) -> None:
        """Write one line; a line that does not fit on the file system is removed again."""
        # The JSON is written by hand, as json is slow to import; names of servers and hosts need no escapes.
        run = f'"server": "{server}", "host": "{host}", "pid": {pid}, "born": {birth}'
        line = f'{{"time": {time.time()!r}, "event": "{event}", {run}}}\n'.encode()
        size = os.fstat(self.fd).st_size
        if os.write(self.fd, line) != len(line):
            os.ftruncate(self.fd, size)
            raise OSError(errno.ENOSPC, "the log of all guests cannot grow")

    def _drop_torn(self) -> None:
        """Remove the unfinished line of a writer that was killed; the kernel may cut a write at a page border."""
        size = os.fstat(self.fd).st_size
        if size and os.pread(self.fd, 1, size - 1) != b"\n":
            os.ftruncate(self.fd, os.pread(self.fd, size, 0).rfind(b"\n") + 1)

    def write_stop_lines(self, server: str) -> None:
        """Write the stop line of every run of the server, on any host, that ended without one."""
        data = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        needle, unfinished = f'"server": "{server}"'.encode(), {}
        for line in data.splitlines():
            event, found, run = line.partition(needle)
            if not found:
                continue
            if b'"start"' in event:
                unfinished[run] = line
            else:
                unfinished.pop(run, None)
        if unfinished:
            import json

            for run in map(json.loads, unfinished.values()):
                if born(run["pid"]) != run["born"]:
                    self.append("stop", run["server"], run["host"], run["pid"], run["born"])


def replace(path: str, data: bytes, *, sync: bool = False) -> None:
    """Replace the file by ``data`` in one go, durably with ``sync``."""
    temporary = f"{path}.new"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, data)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)
    os.rename(temporary, path)  # noqa: PTH104 - as above
    if sync:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120 - as above
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class Guest:
    """One run of a server."""

    def __init__(
        self, server: str, host: str, vcpus: str, memory_mb: str, log: str, starts: str, run: str, *disks: str
    ) -> None:
        self.server = server
        self.host = host
        self.sizes = {"vcpus": int(vcpus), "memory_mb": int(memory_mb)}
        self.disks = disks
        self.log = log
        self.starts = starts
        self.record = f"{run}.pid"
        self.ask = f"{run}.ask"
        self.answer = f"{run}.answer"
        self.pid = os.getpid()
        self.birth = born(self.pid) or 0

    def boot(self) -> None:
        """Lock the disks, write the start to the log and raise the counts; raises OSError when one of these fails.

        If the start is in the log already, its stop line is written too.  The start count may stay raised after an
        error.
        """
        self.fds = [self.lock(path) for path in self.disks]
        self.read_block()
        with LockedLog(self.log) as log:
            log.write_stop_lines(self.server)
            self.write_record(up=False)
            log.append("start", self.server, self.host, self.pid, self.birth)
        try:
            self.raise_starts()
            self.boots += 1
            self.write_block()
            self.write_record(up=True)
        except OSError:
            self.end()
            raise

    def lock(self, path: str) -> int:
        """Open a disk and lock it for this run; raises OSError when it is in use or was renamed meanwhile."""
        disk = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(disk, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "the disk is in use", path) from None
        if not os.path.samestat(os.fstat(disk), os.stat(path)):  # noqa: PTH116 - as above
            raise OSError(errno.ESTALE, "the disk was moved away", path)
        return disk

    def read_block(self) -> None:
        """Read the boot count and the text (``mark``) from the boot disk, which is the first.

        The text is what `Guest.serve` was last asked to write.  It is not the mark that names a move.
        """
        block = os.pread(self.fds[0], BLOCK, 0)
        self.boots, self.mark = 0, "-"
        if block.startswith(MAGIC):
            owner = block[32 : 32 + SERVER_BYTES].rstrip(b"\0").decode()
            if owner != self.server:
                raise OSError(errno.EPERM, f"the disk belongs to server {owner}", self.disks[0])
            self.boots = int.from_bytes(block[8:12], "little")
            self.mark = block[12 : 12 + MARK_BYTES].rstrip(b"\0").decode()

    def write_block(self) -> None:
        """Write the boot count and the text to the boot disk, durably."""
        counts = MAGIC + self.boots.to_bytes(4, "little") + self.mark.encode().ljust(MARK_BYTES, b"\0")
        block = counts.ljust(32, b"\0") + self.server.encode().ljust(SERVER_BYTES, b"\0")
        os.pwrite(self.fds[0], block, 0)
        os.fsync(self.fds[0])

    def raise_starts(self) -> None:
        """Raise the start count of this server on this host."""
        try:
            with open(self.starts, "rb") as file:  # noqa: PTH123 - as above
                before = int(file.read())
        except FileNotFoundError:
            before = 0
        replace(self.starts, b"%d" % (before + 1), sync=True)

    def write_record(self, *, up: bool) -> None:
        """Write the record that names this process as the server's guest."""
        known = f'{{"pid": {self.pid}, "born": {self.birth}, "up": {"true" if up else "false"}}}'
        replace(self.record, known.encode())

    def serve(self) -> None:
        """Answer questions (SIGUSR1) until the power button (SIGTERM) is pressed."""
        import json
        import signal

        while signal.sigwait([getattr(signal, name) for name in SIGNALS]) != signal.SIGTERM:
            with open(self.ask, "rb") as file:  # noqa: PTH123 - as above
                question = json.loads(file.read())
            answer = {"id": question["id"]}
            try:
                if question["mark"] is not None:
                    self.mark = question["mark"]
                    self.write_block()
                answer |= {"boots": self.boots, "mark": self.mark, **self.sizes}
            except OSError as error:
                answer["error"] = str(error)
            replace(self.answer, json.dumps(answer).encode())
        self.end()

    def end(self) -> None:
        """Write to the log that this run is over, and delete its record."""
        with LockedLog(self.log) as log:
            log.append("stop", self.server, self.host, self.pid, self.birth)
            os.unlink(self.record)  # noqa: PTH108 - as above


def main(*spec: str) -> None:
    """Run the guest, and report on standard output how its boot went."""
    if os.fork():
        os._exit(0)  # the guest is then no child of the starter, just as QEMU is no child of libvirtd
    os.setsid()
    os.chdir("/")
    guest = Guest(*spec)
    try:
        guest.boot()
        word = b"up"
    except OSError as error:
        word = f"{error.strerror}: {error.filename}".encode()
    try:  # noqa: SIM105 - contextlib costs the guest's start its time
        os.write(1, word)
    except BrokenPipeError:
        pass  # the starter was killed, and the next starter finds this guest by its record
    os.dup2(0, 1)
    if word == b"up":
        guest.serve()
    os._exit(0)  # a normal exit of the interpreter would take longer and hold the run's lock meanwhile


if __name__ == "__main__":
    main(*sys.argv[1:])
