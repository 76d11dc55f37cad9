"""Two states of a lab are the same to the crash matrix only where a flow would go on from them in the same way."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proofs.crash import state as crash_state

SERVER = str(uuid.uuid4())
KNOWN = frozenset({SERVER})
GIB = 1 << 30

_TABLES = """
CREATE TABLE moves (id, kind, server, state, hold, error, created_at);
CREATE TABLE flowdetails (state);
CREATE TABLE move_flows (kind, version, outcome);
CREATE TABLE move_attempts (attempt, cell, host, request);
CREATE TABLE atomdetails (parent_uuid, name, state, intention, atom_type, results, failure);
CREATE TABLE move_steps (seq, step, direction, ended_at);
CREATE TABLE intents (id, service, call, state);
CREATE TABLE instances (uuid, deleted);
CREATE TABLE attachments (id, volume, connector);
CREATE TABLE instance_system_metadata (key, value);
"""


@dataclasses.dataclass
class Flow:
    """A flow under way, each with ids and times of its own."""

    hold: int = 0
    created_at: str = "2026-01-01 10:00:00"
    epoch: int = 3
    bound: str = "SUCCESS"
    names_other: bool = False
    failure: tuple[str, str] = ("bind", "DestinationFault")
    head: bytes = b"1"
    data: bytes = b"data"
    fence: int = 3
    calls: tuple[str, ...] = ()
    left_step: bool = False
    deleted: int = 0
    runs: tuple[str, ...] = ("start", "stop")

    def write(self, root: Path) -> None:
        """Into a lab's journal and on its disks."""
        root.mkdir()
        first, second, flow = (str(uuid.uuid4()) for _ in range(3))
        with sqlite3.connect(root / "journal.sqlite") as journal:
            journal.executescript(_TABLES)
            row = (str(uuid.uuid4()), "resize", SERVER, "running", self.hold, "why", self.created_at)
            journal.execute("INSERT INTO moves VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            named = {"new": second if self.names_other else first, "epoch": self.epoch}
            step, kind = self.failure
            tried = [["host2", {step: {"exc_type_names": [kind, "Exception"], "exception_str": f"in {step}"}}]]
            for atom in (
                ("claim", "SUCCESS", "EXECUTE", "TASK_DETAIL", json.dumps(named)),
                ("bind", self.bound, "EXECUTE", "TASK_DETAIL", json.dumps({"ports": 1})),
                ("alternates", "SUCCESS", "RETRY", "RETRY_DETAIL", json.dumps(tried)),
            ):
                journal.execute("INSERT INTO atomdetails VALUES (?, ?, ?, ?, ?, ?, NULL)", (flow, *atom))
            for attachment, connector in ((first, "host2"), (second, "host1")):
                journal.execute("INSERT INTO attachments VALUES (?, ?, ?)", (attachment, SERVER, connector))
            for state in self.calls:
                journal.execute("INSERT INTO intents VALUES (1, 'network', 'bind', ?)", (state,))
            ended = None if self.left_step else self.created_at
            journal.execute("INSERT INTO move_steps VALUES (1, 'claim', 'execute', ?)", (ended,))
            journal.execute("INSERT INTO instances VALUES (?, ?)", (SERVER, self.deleted))
            journal.execute("INSERT INTO instance_system_metadata VALUES ('droveway_epoch', ?)", (str(self.fence),))
        journal.close()
        with (root / "guests.log").open("w", encoding="utf-8") as log:
            for number, event in enumerate(self.runs):
                run = {"server": SERVER, "host": "host1", "pid": 7 if event == "stop" else 7 + number, "born": 1}
                log.write(json.dumps({"time": 1.0, "event": event, **run}) + "\n")
        with (root / "disk").open("wb") as disk:
            disk.truncate(GIB)
            disk.write(self.head)
            disk.seek(crash_state.HEAD)
            disk.write(self.data)
            disk.seek(GIB // 2)
            disk.write(self.data)


def _lab(root: Path) -> Any:
    return SimpleNamespace(
        layout=SimpleNamespace(root=root, guests_log=root / "guests.log"),
        identity=SimpleNamespace(hosts=["host1"]),
        hypervisor=lambda _: SimpleNamespace(guests=list),
    )


@pytest.fixture
def state(tmp_path: Path) -> Callable[..., str]:
    """The state under way of a flow that was written into a lab."""

    def found(**facts: Any) -> str:
        root = tmp_path / str(uuid.uuid4())
        Flow(**facts).write(root)
        return crash_state.under_way(_lab(root), KNOWN)

    return found


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"created_at": "2026-02-02 20:00:00"},
        {"epoch": 4, "fence": 4},
        {"head": b"2"},
        {"failure": ("claim", "DestinationFault")},
        {"calls": ("done", "late")},
        {"runs": ("start", "stop", "start")},
    ],
    ids=["ids", "times", "epochs", "guest", "step", "calls", "runs"],
)
def test_what_a_flow_does_not_go_by_is_left_out(state: Callable[..., str], facts: dict[str, Any]) -> None:
    assert state(**facts) == state()


@pytest.mark.parametrize(
    "facts",
    [
        {"hold": 1},
        {"bound": "RUNNING"},
        {"bound": "REVERTED"},
        {"names_other": True},
        {"failure": ("bind", "StepError")},
        {"data": b"lost"},
        {"calls": ("open",)},
        {"left_step": True},
        {"deleted": 7},
        {"runs": ("start", "start", "stop")},
    ],
    ids=["request", "begun", "undone", "wrong-id", "class", "bytes", "open-call", "open-step", "deleted", "two-runs"],
)
def test_what_a_flow_goes_by_tells_states_apart(state: Callable[..., str], facts: dict[str, Any]) -> None:
    assert state(**facts) != state()


def test_an_atom_that_was_undone_is_as_one_that_never_ran(state: Callable[..., str]) -> None:
    assert state(bound="REVERTED") == state(bound="PENDING")


def test_a_lab_at_rest_is_the_same_wherever_its_flows_went(tmp_path: Path) -> None:
    for name, flow in (("a", Flow()), ("b", Flow(bound="PENDING", failure=("claim", "StepError")))):
        flow.write(tmp_path / name)
    assert len({crash_state.digest(_lab(tmp_path / name), KNOWN) for name in "ab"}) == 1
