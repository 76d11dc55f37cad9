"""What the sandbox promises beyond the contract: its guests, their log, and kills at every moment of a start."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from droveway.errors import DestinationFault, StepError
from droveway.workers.hypervisors import guests_log, processes
from droveway.workers.hypervisors.base import Volume
from droveway.workers.hypervisors.guests_log import Event, overlaps, under_way
from droveway.workers.hypervisors.sandbox import guest as sandbox_guest
from droveway.workers.hypervisors.sandbox import hypervisor as sandbox
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

pytest.register_assert_rewrite("hypervisor_contract")

from hypervisor_contract import open_fence, wait_for  # noqa: E402 - its asserts are rewritten first

DISK_BYTES = 1 << 20
STARTER = """
import sys
from pathlib import Path
from typing import Any
from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox
root, log, server = sys.argv[1:]
Sandbox("host1", Path(root), guests_log=Path(log)).start(server, lambda: None)
"""


class Lab:
    """A server that two hosts know, and the log of all guests."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "guests.log"
        self.server = str(uuid.uuid4())
        self.host, self.peer = (Sandbox(name, folder / name, guests_log=self.log) for name in ("host1", "host2"))
        for host in (self.host, self.peer):
            disk = host.instances / self.server / "disk"
            disk.parent.mkdir(parents=True)
            disk.write_bytes(os.urandom(DISK_BYTES))
            text = host.create_definition(
                server=self.server, name="web", vcpus=1, memory_mb=512, disks=[disk], boot_volume=False
            )
            host.define(self.server, text, vcpus=None, memory_mb=None, disks=[disk], volumes=[], ports=[], mark=None)
        self.run = self.host.root / "run"
        self.disk = self.host.instances / self.server / "disk"

    def start(self) -> int:
        self.host.start(self.server, open_fence)
        return self.pid

    @property
    def pid(self) -> int:
        return int(json.loads((self.run / f"{self.server}.pid").read_bytes())["pid"])

    @property
    def starts(self) -> int:
        guest = self.host.guest(self.server)
        assert guest is not None
        return guest.starts

    @property
    def running(self) -> bool:
        guest = self.host.guest(self.server)
        return guest is not None and guest.running

    def moments(self) -> dict[str, Callable[[], bool]]:
        """What can be seen of a start from outside, one after the other."""
        return {
            "locked": self.host._run(self.server).held,
            "recorded": (self.run / f"{self.server}.pid").exists,
            "logged": self.log.exists,
            "counted": (self.host.root / "domains" / f"{self.server}.starts").exists,
            "up": self.host._run(self.server).up,
        }


MOMENTS = ["locked", "recorded", "logged", "counted", "up"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    for host in (made.host, made.peer):
        host.stop(made.server, grace=0, fence=open_fence)
    assert overlaps(made.log) == []
    assert under_way(made.log) == []


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_starter_leaves_one_guest_to_be_found(lab: Lab, moment: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, lab.host.root, lab.log, lab.server], start_new_session=True
    )
    wait_for(lambda: lab.moments()[moment]() or starter.poll() is not None, moment)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    lab.start()
    assert lab.running
    assert lab.starts == lab.host.probe_guest(lab.server)["boots"] == 1
    assert len(under_way(lab.log)) == 1


def test_a_start_that_is_refused_at_the_last_moment_leaves_nothing_that_counts_as_running(lab: Lab) -> None:
    """A process that another thread starts has the lock's file open too, until its exec."""
    inherited: list[int] = []

    def closed_while_another_starts() -> None:
        inherited.extend(os.dup(file) for file in _open_files(lab.run / f"{lab.server}.lock"))
        raise StepError("the permission is void")

    with pytest.raises(StepError, match="the permission is void"):
        lab.host.start(lab.server, closed_while_another_starts)
    assert len(inherited) == 1
    assert not lab.running
    lab.start()
    assert lab.starts == 1
    os.close(inherited[0])
    assert lab.running


def test_a_guest_that_was_undefined_does_not_count_as_running(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited: list[int] = []
    remove = sandbox.durable.remove

    def while_another_starts(path: Path) -> None:
        inherited.extend(os.dup(file) for file in _open_files(lab.run / f"{lab.server}.lock"))
        remove(path)

    monkeypatch.setattr(sandbox.durable, "remove", while_another_starts)
    lab.host.undefine(lab.server)
    assert inherited
    assert not lab.running
    for file in inherited:
        os.close(file)


def test_a_process_that_got_the_pid_of_an_ended_guest_is_never_signalled(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next guest writes its record between two looks at it."""
    lab.start()
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run = lab.host._run(lab.server)
    recorded = run._recorded
    looks = iter([{"pid": stranger.pid, "born": 0, "up": True}])
    monkeypatch.setattr(run, "_recorded", lambda: next(looks, None) or recorded())
    run.signal(signal.SIGKILL, 10.0)
    assert not lab.running
    stranger.communicate(b"\n")
    assert stranger.returncode == 0


def _open_files(path: Path) -> list[int]:
    """The descriptors under which this process has the file open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if link.readlink() == path:
                found.append(int(link.name))
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_guest_killed_while_it_boots_is_never_called_unstarted_when_it_counted(lab: Lab, moment: str) -> None:
    def end_it() -> None:
        wait_for(lambda: lab.moments()[moment]() and lab.moments()["recorded"](), moment)
        kill(lab.pid)

    killer = threading.Thread(target=end_it)
    killer.start()
    try:
        lab.host.start(lab.server, open_fence)
    except DestinationFault:
        killer.join()
        assert lab.starts == 0
    except StepError:
        killer.join()
        assert lab.starts == 1
    killer.join()
    wait_for(lambda: not lab.running, "the guest is off")
    before = lab.starts
    lab.start()
    assert lab.starts == before + 1
    assert lab.host.probe_guest(lab.server)["boots"] in (lab.starts, lab.starts - 1)


def test_a_guest_outlives_the_session_of_its_starter(lab: Lab) -> None:
    script = STARTER + "\nimport os, signal\nos.killpg(0, signal.SIGKILL)\n"
    ended = subprocess.run(
        [sys.executable, "-c", script, lab.host.root, lab.log, lab.server], start_new_session=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert lab.running
    assert os.getsid(lab.pid) == lab.pid


def test_a_guest_is_started_by_a_process_with_many_files_open(lab: Lab) -> None:
    """Beyond 1,024 of them the system's select takes no file any more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < 1024:
            pass
        lab.start()
    assert lab.running


def test_a_guest_is_started_with_the_signals_blocked_that_it_waits_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes before it listens would end it without a word."""
    masks, start, before = [], subprocess.Popen, signal.pthread_sigmask(signal.SIG_BLOCK, set())

    def starting(*words: Any, **options: Any) -> Any:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, set()))
        return start(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", starting)
    lab.start()
    assert masks == [before | {signal.SIGTERM, signal.SIGUSR1}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_every_line_of_the_log_says_who_and_where(lab: Lab) -> None:
    pid = lab.start()
    lab.host.stop(lab.server, grace=5, fence=open_fence)
    lines = [json.loads(line) for line in lab.log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "stop"]
    for line in lines:
        assert (line["server"], line["host"], line["pid"]) == (lab.server, "host1", pid)
        assert isinstance(line["time"], float)


def test_many_finders_of_a_dead_guest_write_one_stop_line(lab: Lab) -> None:
    kill(lab.start())
    wait_for(lambda: not lab.host._run(lab.server).held(), "the guest is gone")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lab.host.guest, [lab.server] * 8))
    assert [event.event for event in guests_log.events(lab.log)] == ["start", "stop"]


def test_a_start_elsewhere_first_settles_a_run_that_nobody_found_dead(lab: Lab) -> None:
    kill(lab.start())
    wait_for(lambda: not lab.host._run(lab.server).held(), "the guest is gone")
    lab.peer.start(lab.server, open_fence)
    events = [(event.event, event.host) for event in guests_log.events(lab.log)]
    assert events == [("start", "host1"), ("stop", "host1"), ("start", "host2")]


@pytest.mark.parametrize("written", [1, 60, -1], ids=["begun", "half", "all but its end"])
def test_a_line_that_was_torn_by_a_kill_is_taken_back(lab: Lab, written: int) -> None:
    """A guest that is killed while it says that it stops has not said so."""
    lab.start()
    lab.host.stop(lab.server, grace=2, fence=open_fence)
    start, stop = lab.log.read_bytes().splitlines(keepends=True)
    lab.log.write_bytes(start + stop[:written])
    assert len(under_way(lab.log)) == 1
    lab.start()
    events = [json.loads(line)["event"] for line in lab.log.read_bytes().splitlines()]
    assert events == ["start", "stop", "start"]


def test_two_runs_of_a_server_are_seen_by_the_log(lab: Lab) -> None:
    lab.start()
    lab.peer.start(lab.server, open_fence)
    (found,) = overlaps(lab.log)
    assert (found.start.server, found.start.host, found.run.host) == (lab.server, "host2", "host1")
    lab.log.unlink()
    lab.log.touch()


def test_overlaps_are_told_by_the_order_of_lines(tmp_path: Path) -> None:
    log = tmp_path / "guests.log"
    assert overlaps(log) == []

    def line(event: str, server: str, host: str, pid: int) -> str:
        return json.dumps({"time": 1.0, "event": event, "server": server, "host": host, "pid": pid})

    good = [line("start", "a", "h1", 1), line("start", "b", "h1", 2), line("stop", "a", "h1", 1)]
    log.write_text("\n".join([*good, line("start", "a", "h2", 3)]) + "\n")
    assert overlaps(log) == []
    assert [(run.server, run.pid) for run in under_way(log)] == [("b", 2), ("a", 3)]
    log.write_text("\n".join([*good, line("start", "b", "h2", 3), line("stop", "b", "h1", 2)]) + "\n")
    assert list(map(str, overlaps(log))) == ["server b was started on h2 (pid 3) while it ran on h1 (pid 2)"]
    assert guests_log.events(log)[0] == Event(time=1.0, event="start", server="a", host="h1", pid=1)


def test_a_pid_that_was_given_anew_is_not_the_guest(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "KILL_SECONDS", 0.1)
    kill(lab.start())
    run = lab.host._run(lab.server)
    wait_for(lambda: not run.held(), "the guest is gone")
    record = lab.run / f"{lab.server}.pid"
    known = json.loads(record.read_text())
    # The system gives no number anew within the clock tick in which its last bearer was born.
    wait_for(lambda: processes.age(known["born"]) > 2 / os.sysconf("SC_CLK_TCK"), "the tick is over")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record.write_text(json.dumps(known | {"pid": bystander.pid}))
    lock = run.take()
    assert lock is not None
    with pytest.raises(StepError, match="cannot be stopped"):
        lab.host.stop(lab.server, grace=0, fence=open_fence)
    os.close(lock)
    bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_a_guest_changes_only_the_head_of_its_disk(lab: Lab) -> None:
    before = lab.disk.read_bytes()
    lab.start()
    lab.host.write_mark(lab.server, "mine")
    lab.host.stop(lab.server, grace=5, fence=open_fence)
    after = lab.disk.read_bytes()
    assert after[:8] == b"droveway"
    assert after[4096:] == before[4096:]


def test_another_servers_disk_is_refused(lab: Lab) -> None:
    lab.start()
    lab.host.stop(lab.server, grace=5, fence=open_fence)
    other = str(uuid.uuid4())
    disk = lab.host.instances / other / "disk"
    disk.parent.mkdir()
    disk.write_bytes(lab.disk.read_bytes())
    text = lab.host.create_definition(
        server=other, name="other", vcpus=1, memory_mb=512, disks=[disk], boot_volume=False
    )
    lab.host.define(other, text, vcpus=None, memory_mb=None, disks=[disk], volumes=[], ports=[], mark=None)
    with pytest.raises(DestinationFault, match=lab.server):
        lab.host.start(other, open_fence)
    guest = lab.host.guest(other)
    assert guest is not None
    assert guest.starts == 0


def test_a_running_guest_without_a_definition_is_still_seen(lab: Lab) -> None:
    lab.start()
    (lab.host.root / "domains" / f"{lab.server}.json").unlink()
    (guest,) = lab.host.guests()
    assert (guest.server, guest.running, guest.starts, guest.definition) == (lab.server, True, 1, "")


def test_a_disk_of_another_format_is_refused(lab: Lab) -> None:
    with pytest.raises(StepError, match="qcow2"):
        lab.host.disk_info(lab.disk, "qcow2")
    with pytest.raises(StepError, match="qcow2"):
        lab.host.grow_disk(lab.disk, "qcow2", DISK_BYTES)


def test_a_lab_may_be_moved_with_its_volumes(tmp_path: Path) -> None:
    (tmp_path / "old" / "volumes").mkdir(parents=True)
    path = tmp_path / "old" / "volumes" / "v"
    path.write_bytes(bytes(DISK_BYTES))
    server = str(uuid.uuid4())
    connection = {"driver_volume_type": "local", "data": {"path": str(path)}}
    volume = Volume(volume="v", device="/dev/vda", boot=True, connection=connection)

    def host(folder: Path) -> Sandbox:
        return Sandbox("host1", folder / "host1", guests_log=folder / "guests.log", volumes=folder / "volumes")

    old = host(tmp_path / "old")
    text = old.create_definition(server=server, name="web", vcpus=1, memory_mb=512, disks=[], boot_volume=True)
    old.connect_volume(server, volume)
    old.define(server, text, vcpus=None, memory_mb=None, disks=[], volumes=[volume], ports=[], mark=None)
    (tmp_path / "old").rename(tmp_path / "new")
    new = host(tmp_path / "new")
    new.start(server, open_fence)
    new.stop(server, grace=5, fence=open_fence)
    assert (tmp_path / "new" / "volumes" / "v").read_bytes().startswith(b"droveway")


def test_a_process_that_the_kernel_takes_apart_has_ended() -> None:
    """Its locks are free by then: who takes them must not find a run that goes on."""
    name, facts = Path("/proc/self/stat").read_bytes().rsplit(b") ", 1)
    fields = facts.split()
    assert sandbox_guest.birth(name + b") " + facts) == sandbox_guest.born(os.getpid()) == int(fields[19])
    fields[6] = str(int(fields[6]) | sandbox_guest.PF_EXITING).encode()
    assert sandbox_guest.birth(name + b") " + b" ".join(fields)) is None
