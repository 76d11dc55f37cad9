"""Daemons forked from a warm process are to their tests what daemons are that were started by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import support
from support.daemons import warm_daemons
from support.daemons.daemons import LONG, Ended, Installation
from support.labs.small_lab import until

STARTER: Final = """
import os, sys
from pathlib import Path
from support.daemons import warm_daemons
with Path(sys.argv[1]).open("wb") as log:
    daemon = warm_daemons.start(sys.argv[2:], dict(os.environ), log.fileno())
assert isinstance(daemon, warm_daemons.Forked)
print(daemon.pid, flush=True)
sys.stdin.read()
"""
"""Starts a daemon and tells its pid, then lives until its stdin ends."""


def stat(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on: proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def files(pid: int) -> dict[int, str]:
    """What a process holds open."""
    return {int(path.name): str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}


def test_it_has_a_session_of_its_own_and_holds_nothing_of_its_parent(site: Installation) -> None:
    """The parent holds the connections of both by which their ends are told."""
    first, second = (site.worker(host) for host in ("host1", "host2"))
    for daemon in (first, second):
        assert isinstance(daemon.process, warm_daemons.Forked)
        pid = daemon.process.pid
        _state, parent, group, session, *_ = stat(pid)
        assert (int(group), int(session)) == (pid, pid)
        held = files(pid)
        assert [held.pop(number) for number in range(3)] == ["/dev/null", str(daemon.log), str(daemon.log)]
        assert "anon_inode:[pidfd]" in files(int(parent)).values()
        # Both may have it open, each for itself.
        assert ({*held.values()} - {"/dev/null"}).isdisjoint({*files(int(parent)).values()})


def test_its_end_is_told_as_it_was(site: Installation, tmp_path: Path) -> None:
    """A stop, a kill, a refusal; once the end is told there is no process any more, and no signal meets another."""
    stopped, killed = (site.worker(host) for host in ("host1", "host2"))
    assert stopped.process.poll() is None
    stopped.stop()
    killed.kill()
    with (tmp_path / "refused").open("wb") as log:
        words = ["worker", "run", "--host", "host3", "--config-file", str(tmp_path / "none")]
        refused = warm_daemons.start(words, dict(os.environ), log.fileno())
    assert isinstance(refused, warm_daemons.Forked)
    assert refused.wait(LONG) == 2
    assert (tmp_path / "refused").read_text().startswith("droveway: the configuration ")
    ends = []
    for process in (stopped.process, killed.process, refused):
        process.terminate()
        assert not Path(f"/proc/{process.pid}").exists()
        ends.append((process.returncode, process.poll(), process.wait(0)))
    assert ends == [(0, 0, 0), (-9, -9, -9), (2, 2, 2)]


def test_a_start_in_vain_is_told_with_its_code(site: Installation, tmp_path: Path) -> None:
    with pytest.raises(Ended, match=r"(?s)worker-host1 ended with 2:.*none\.conf is missing") as told:
        site.worker("host1", configuration=tmp_path / "none.conf")
    assert told.value.code == 2


def test_a_sleeping_one_has_not_ended(site: Installation) -> None:
    worker = site.worker("host1")
    worker.process.send_signal(signal.SIGSTOP)
    until(lambda: stat(worker.process.pid)[0] == "T", "that it sleeps")
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.1)
    worker.process.send_signal(signal.SIGCONT)
    until(lambda: stat(worker.process.pid)[0] != "T", "that it wakes up")
    worker.kill()


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "TZ"])
def test_an_environment_on_which_imports_may_depend_is_for_a_process_of_its_own(tmp_path: Path, name: str) -> None:
    with (tmp_path / "said").open("wb") as said:
        started = warm_daemons.start(["--version"], {**os.environ, name: ""}, said.fileno())
    assert isinstance(started, subprocess.Popen)
    assert started.wait(LONG) == 0
    assert (tmp_path / "said").read_text().startswith("droveway ")


def test_none_outlives_its_starter(site: Installation, tmp_path: Path) -> None:
    """Nor does the process that forked it."""
    words = ["worker", "run", "--host", "host1", "--config-file", str(site.configuration)]
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "log"), *words],
        env={**os.environ, "PYTHONPATH": str(Path(next(iter(support.__path__))).parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    with starter, starter.stdout:
        pid = int(starter.stdout.readline())
        handles = [os.pidfd_open(pid), os.pidfd_open(int(stat(pid)[1]))]
        site.await_worker("host1")
        starter.kill()
    for handle in handles:
        assert warm_daemons.readable(handle, seconds=LONG), "a process has outlived it"
        os.close(handle)
