"""A worker process of its own that copies a server's disks and may kill itself at a chunk: see `main`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from droveway.clients import zookeeper
from droveway.clients.references import References
from droveway.clients.zookeeper import command_path, epoch_path
from droveway.wire import codec, commands
from droveway.workers.daemon import Worker
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox
from droveway.workers.transfer import copying
from droveway.workers.transfer.endpoints import UnixEndpoint


class Spec(msgspec.Struct):
    """What the process does."""

    root: str
    guests_log: str
    command: commands.Command
    sync_bytes: int
    kill_at_chunk: int


class NoReferences(References):
    def __init__(self) -> None:
        """A copy from host to host asks no service."""


class KillAtChunk:
    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.chunks = 0

    def __call__(self, step: str, direction: str, phase: str, effect: str) -> None:
        with self.lock:
            self.chunks += effect == "chunk"
            if self.chunks == self.number:
                os.kill(os.getpid(), signal.SIGKILL)


def main(text: str) -> None:
    """Take the one command and work until killed."""
    spec = msgspec.json.decode(text, type=Spec)
    copying.SYNC_BYTES = spec.sync_bytes  # type: ignore[misc]
    command, root = spec.command, Path(spec.root)
    coordination = zookeeper.connect_embedded(zookeeper.embedded_store())
    coordination.create(epoch_path(command.move), str(command.epoch).encode())
    coordination.create(command_path(command.host, command.key), codec.encode(command))
    worker = Worker(
        command.host,
        root,
        Sandbox(command.host, root, guests_log=Path(spec.guests_log)),
        NoReferences(),
        coordination,
        endpoint=UnixEndpoint(f"{root}/socket"),
        probe=KillAtChunk(spec.kill_at_chunk),
    )
    worker.start()
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
