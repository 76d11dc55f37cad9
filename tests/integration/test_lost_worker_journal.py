"""A worker whose journal was lost knows nothing of a start: the conductor's own record of the count decides."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage

from droveway.errors import CoordinationLost, DestinationFault
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nretry_for = 0.2\n")
        yield made


class PowerCut:
    """Takes the host down right after the step has started the guest, and the worker's notes with it."""

    def __init__(self, lab: Stage, host: str, patched: pytest.MonkeyPatch) -> None:
        self._lab, self._host, self._patched = lab, host, patched
        self._over = False

    def __call__(self, step: str, direction: str, _phase: str, effect: str) -> None:
        if (step, direction, effect) != ("start_guest", "execute", "started") or self._over:
            return
        self._over = True
        server = self._lab.id_of("web")
        self._lab.lab.hypervisor(self._host).stop(server, grace=0.0, fence=lambda: None)
        journal = sqlite3.connect(self._lab.lab.layout.host(self._host) / "worker.sqlite")
        with journal:
            journal.execute("DELETE FROM notes")
        journal.close()
        self._patched.setattr(Sandbox, "start", self._refuse)
        raise CoordinationLost("the host lost its power")

    def _refuse(self, *_: object) -> None:
        raise DestinationFault("a tap is missing", host=self._host)


def test_a_guest_that_ran_is_not_proved_never_started(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, lab.running(workers={"host2": PowerCut(lab, "host2", patched)}):
        lab.cli("server", "migrate", "web", code=4)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("needs-operator", "start-unknown")
    assert (lab.directory("host2", "web") / "disk").stat().st_size == 2**30
    assert lab.starts("web")[1:] == ["host2"]
    lab.cli("move", "retry", move.id)
    assert lab.standing("web").runs == ["host2"]
    lab.assert_balanced()
