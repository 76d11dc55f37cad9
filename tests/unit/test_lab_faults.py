from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from droveway.errors import DestinationFault, NotFound, Refused, StepError
from droveway.lab import faults, stopped
from droveway.lab.layout import Layout

HERE: dict[str, Any] = {"id": 0, "step": "copy_disks", "direction": "execute", "phase": "during"}


@pytest.fixture
def files(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def meet(files: Layout, *, host: str | None = None, detail: str = "", direction: str = "execute") -> None:
    faults.probe(files, "copy_disks", direction, "during", host=host, detail=detail)


@pytest.mark.parametrize(("whose", "kind"), [("move", StepError), ("destination", DestinationFault)])
def test_a_failure_fires_as_often_as_it_says_and_only_there(files: Layout, whose: Any, kind: type[StepError]) -> None:
    faults.arm(files, faults.Fault(**HERE, action="fail", count=2, fault=whose))
    meet(files, direction="revert")
    for left in (1, 0):
        with pytest.raises(StepError) as raised:
            meet(files)
        assert type(raised.value) is kind
        assert sum(fault.count for fault in faults.armed(files)) == left
    meet(files)
    assert faults.armed(files) == []


def test_a_fault_of_one_host_leaves_the_others_and_the_conductor_alone(files: Layout) -> None:
    faults.arm(files, faults.Fault(**HERE, action="fail", host="host1"))
    meet(files)
    meet(files, host="host2")
    with pytest.raises(StepError) as raised:
        meet(files, host="host1")
    assert raised.value.host == "host1"


@pytest.mark.parametrize("hit", ["conductor", "worker"])
def test_a_fault_of_one_process_leaves_the_other_alone(files: Layout, hit: str) -> None:
    faults.arm(files, faults.Fault(**HERE, action="fail", host="host1", process=hit))  # type: ignore[arg-type]
    probes = {
        "conductor": lambda: faults.conductor_probe(files, lambda _move, _step: "host1")(
            "move", "copy_disks", "execute", "during"
        ),
        "worker": lambda: faults.worker_probe(files, "host1")("copy_disks", "execute", "during", "chunk"),
    }
    fires = probes.pop(hit)
    for spared in probes.values():
        spared()
    with pytest.raises(StepError):
        fires()


def test_a_kill_is_a_kill_and_its_count_is_lowered_before(files: Layout) -> None:
    faults.arm(files, faults.Fault(**HERE, action="kill"))
    child = os.fork()
    if child == 0:
        meet(files)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert faults.armed(files) == []


def test_a_stall_lasts_until_it_is_cleared(files: Layout) -> None:
    armed = faults.arm(files, faults.Fault(**HERE, action="stall"))
    met = threading.Thread(target=meet, args=(files,), daemon=True)
    met.start()
    while [fault.count for fault in faults.armed(files)] != [0]:
        assert met.is_alive()
    meet(files)
    assert met.is_alive()
    assert faults.clear(files, armed.id) == 1
    met.join(timeout=10)
    assert not met.is_alive()


def test_a_full_disk_is_met_by_a_worker_that_writes(files: Layout) -> None:
    faults.arm(files, faults.Fault(**HERE, action="enospc"))
    meet(files)
    meet(files, host="host1", detail="offer")
    with pytest.raises(OSError, match="was armed") as raised:
        meet(files, host="host1", detail="chunk")
    assert raised.value.errno == errno.ENOSPC


def test_a_byte_of_the_copy_is_flipped_before_it_is_proved(files: Layout) -> None:
    part = files.host("host1") / "instances" / "part"
    part.mkdir(parents=True)
    (part / "disk").write_bytes(b"abc")
    (part / "disk-chunks").write_text("log")
    faults.arm(files, faults.Fault(**HERE, action="corrupt"))
    meet(files, host="host1", detail="chunk")
    assert (part / "disk").read_bytes() == b"abc"
    meet(files, host="host1", detail="verify")
    assert (part / "disk").read_bytes() == b"`bc"


def test_what_can_never_fire_is_refused(files: Layout) -> None:
    with pytest.raises(Refused, match="--phase during"):
        faults.arm(files, faults.Fault(**(HERE | {"phase": "after"}), action="enospc"))
    with pytest.raises(Refused, match="only a worker meets corrupt"):
        faults.arm(files, faults.Fault(**HERE, action="corrupt", process="conductor"))
    with pytest.raises(Refused, match="only during an action"):
        faults.arm(files, faults.Fault(**(HERE | {"phase": "stored"}), action="fail", process="worker"))
    with pytest.raises(Refused, match="with --phase after"):
        faults.arm(files, faults.Fault(**(HERE | {"phase": "stored"}), action="fail"))
    with pytest.raises(NotFound, match="fault 3 is not armed"):
        faults.clear(files, 3)


def test_each_fault_has_a_number_of_its_own(files: Layout) -> None:
    numbers = [faults.arm(files, faults.Fault(**HERE, action="fail")).id for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert faults.clear(files, 2) == 1
    assert faults.clear(files, None) == 2


def test_stopped_workers_are_remembered(files: Layout) -> None:
    assert stopped.stopped_workers(files) == []
    stopped.stop(files, "host2")
    stopped.stop(files, "host1")
    stopped.stop(files, "host1")
    assert stopped.stopped_workers(files) == ["host1", "host2"]
    stopped.start(files, "host2")
    stopped.start(files, "host3")
    assert stopped.stopped_workers(files) == ["host1"]
