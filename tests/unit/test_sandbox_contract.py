"""The sandbox keeps the contract of hypervisors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from droveway.workers.hypervisors import guests_log
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

pytest.register_assert_rewrite("hypervisor_contract")

from hypervisor_contract import HypervisorContract, Rig  # noqa: E402 - its asserts are rewritten first

DISK_BYTES = 64 << 20


class SandboxRig(Rig):
    least_memory_of_a_giant_mb = 4097

    def __init__(self, folder: Path) -> None:
        self.log = folder / "guests.log"
        self.volumes = folder / "volumes"
        self.volumes.mkdir()
        self.host = self._open(folder / "hosts" / "host1")
        self.peer = self._open(folder / "hosts" / "host2")

    def _open(self, root: Path) -> Sandbox:
        return Sandbox(root.name, root, guests_log=self.log, volumes=self.volumes, memory_mb=4096)

    def make_disk(self, path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(DISK_BYTES)

    make_volume = make_disk

    def reopen(self) -> Sandbox:
        return self._open(self.host.root)

    def guest_pid(self, server: str) -> int:
        (run,) = [run for run in guests_log.under_way(self.log) if (run.server, run.host) == (server, "host1")]
        return run.pid

    def foreign_machine(self, definition: str) -> str:
        return definition.replace("sandbox-1", "sandbox-99")

    def unknown_part(self, definition: str) -> str:
        return json.dumps(json.loads(definition) | {"bogus": 1})

    def renamed(self, definition: str, server: str, name: str) -> str:
        return json.dumps(json.loads(definition) | {"server": server, "name": name})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SandboxRig]:
    made = SandboxRig(tmp_path)
    yield made
    # Whatever a test did, no two runs of a server overlapped, and the guests of the test are gone.
    assert guests_log.overlaps(made.log) == []


class TestSandbox(HypervisorContract):
    pass
