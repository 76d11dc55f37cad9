"""Commands of two processes at the same instant, and one that takes over from one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, faults_cleared, stage
from support.labs.small_lab import until

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  db: {flavor: small, host: host1, image: base, volumes: [{size_gb: 1}]}
  raced: {flavor: small, host: host2, image: base}
"""
SECONDS = 100
# A command that has imported what it needs and waits for a line, so that two begin at the same instant.
WAITING = """
import sys
from droveway.cli import main
from droveway.cli.commands import request
from droveway.engines.operations import submit
from droveway.lab import operations, runner
print("ready", flush=True)
sys.stdin.readline()
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("concurrent") / "lab", CLOUD) as made:
        yield made


class Processes:
    """Commands that wait for their start."""

    def __init__(self, lab: Stage, *commands: tuple[str, ...]) -> None:
        self.running = [
            subprocess.Popen(
                [sys.executable, "-c", WAITING, "--lab", str(lab.root), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            for words in commands
        ]
        for process in self.running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def ends(self) -> list[tuple[int, str, str]]:
        """Let them all begin; exit code, output and errors of each."""
        for process in self.running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=SECONDS) for process in self.running]
        return [(process.returncode, *output) for process, output in zip(self.running, outputs, strict=True)]


def test_of_two_commands_on_one_server_exactly_one_wins(lab: Stage) -> None:
    """The other is told why with exit 2; for the move, for its confirm or revert, and once more."""
    for _ in range(2):
        race = Processes(lab, ("server", "migrate", "raced"), ("server", "resize", "raced", "--flavor", "large"))
        ends = race.ends()
        assert sorted(code for code, _out, _error in ends) == [0, 2], ends
        (said,) = [error for code, _out, error in ends if code == 2]
        assert said.startswith("droveway: server raced has")
        assert "one move at a time" in said
        assert said.count("\n") == 1
        move = lab.move("raced")
        assert move.state == "verifying"

        ends = Processes(lab, ("server", "confirm", "raced"), ("server", "revert", "raced")).ends()
        assert sorted(code for code, _out, _error in ends) == [0, 2], ends
        (said,) = [error for code, _out, error in ends if code == 2]
        assert said.startswith("droveway: ")
        assert "raced" in said
        assert said.count("\n") == 1
        won = next(number for number, (code, _out, _error) in enumerate(ends) if code == 0)
        assert lab.move("raced").state == ("done", "reverted")[won]
        if won == 0 and lab.server("raced").flavor == "large":
            break
    lab.assert_balanced()


def test_of_two_confirms_one_files_the_flow(lab: Stage) -> None:
    """The flow runs once, whoever asked for it."""
    lab.cli("lab", "server", "create", "twice", "--flavor", "small", "--host", "host3", "--image", "base")
    lab.cli("server", "migrate", "twice")
    ends = Processes(lab, ("server", "confirm", "twice"), ("server", "confirm", "twice")).ends()
    assert sorted(code for code, _out, _error in ends) == [0, 2], ends
    history = lab.history(lab.move("twice").id)
    assert len([row for row in history if row.step == "discard_source"]) == 1
    assert lab.move("twice").state == "done"


def test_two_commands_on_two_servers_both_end_though_the_one_that_ran_the_lab_is_killed(lab: Stage) -> None:
    """The other waits for the lock, takes over at the SIGKILL and carries both moves on."""
    with faults_cleared(lab) as arm:
        arm("copy_disks", "stall", phase="after")
        (holder,) = Processes(lab, ("server", "migrate", "web")).running
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()

        def stalled() -> bool:
            rows = lab.json("lab", "fault", "list")
            return bool(rows) and rows[0]["count"] == 0

        until(stalled, "the stall", SECONDS)
        assert lab.move("web").step == "copy_disks"
        (other,) = Processes(lab, ("server", "resize", "db", "--flavor", "large")).running
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        until(lambda: "db" in {row["server_name"] for row in lab.json("move", "list")}, "the other's move", SECONDS)
        assert holder.poll() is None
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(SECONDS) == -signal.SIGKILL
        out, error = other.communicate(timeout=SECONDS)
    assert other.returncode == 0, error
    assert lab.move("db").id[:8] in out
    assert (lab.move("web").state, lab.move("db").state) == ("verifying", "verifying")
    assert len([row for row in lab.history(lab.move("web").id) if row.step == "copy_disks"]) == 1
    lab.assert_balanced()
