"""A move watched through terminals and pipes while its disk is copied, left with Ctrl-C and carried on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from droveway.cli import main
from droveway.lab import books, build, cloud, faults
from droveway.lab.layout import Layout
from droveway.lab.session import Lab

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 512, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, state: stopped}}
"""
DATA = 128 << 20
GO = "go"
"""The file in whose presence no worker dawdles."""
SECONDS = 60.0
Ask = Callable[..., Any]
CTRL_C = b"\x03"
SLOW = Path(__file__).parents[1] / "support" / "labs" / "slow_lab.py"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    [disk] = path.glob("hosts/host1/instances/*/disk")
    with disk.open("r+b") as file:
        file.write(os.urandom(DATA))
    yield path
    lab = Lab.open(path)
    assert books.balance(lab).findings == ()
    lab.close()
    build.destroy(path)


class Seen:
    """A command on a terminal of its own, or on a pipe, and all that it has said."""

    def __init__(self, root: Path, *words: str, terminal: bool = True, slow: bool = False, **variables: str) -> None:
        program = [str(SLOW), str(root / GO)] if slow else ["-m", "droveway.cli.main"]
        reading, writing = pty.openpty() if terminal else os.pipe()
        self._terminal = reading
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, *program, "--lab", str(root), *words],
            stdin=writing if terminal else subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=environment | {"TERM": "xterm-256color", "COLUMNS": "120", **variables},
            # A terminal of its own sends its Ctrl-C to this command alone.
            preexec_fn=_own_terminal if terminal else None,  # noqa: PLW1509 - it takes no lock
        )
        os.close(writing)
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, *words: str) -> None:
        """Wait for words on it."""
        ends, pause = time.monotonic() + SECONDS, threading.Event()
        while not all(each in self.said for each in words):
            assert time.monotonic() < ends, self.said
            pause.wait(0.02)

    def press(self, keys: bytes) -> None:
        """As its person would."""
        os.write(self._terminal, keys)

    def end(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        os.close(self._terminal)
        return code

    def _read(self) -> None:
        # A terminal that nobody holds open any more ends with an error.
        with contextlib.suppress(OSError):
            while data := os.read(self._terminal, 65536):
                self.said += data.decode(errors="replace")


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def asked(root: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str) -> Any:
        capsys.readouterr()
        assert main.main(["--lab", str(root), *words, "-f", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def test_a_copy_is_watched_left_and_carried_on(root: Path, asked: Ask) -> None:
    holder = Seen(root, "server", "migrate", "web", slow=True)
    holder.until("of 128.0 MiB", "left to copy", "━", "then it waits for your confirm")
    move = asked("move", "list")[0]["id"]

    lines = Seen(root, "move", "watch", move, terminal=False)
    lines.until("▸ copy_disks on host2", "left to copy")
    watcher = Seen(root, "move", "watch", move, NO_COLOR="1")
    watcher.until("of 128.0 MiB", "left to copy")
    watcher.press(CTRL_C)
    assert watcher.end() == 130
    assert f"the move goes on; watch it again with  droveway move watch {move[:8]}" in watcher.said
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", watcher.said)
    assert holder.process.poll() is None

    holder.press(CTRL_C)
    assert holder.end() == 130
    assert "nobody runs this lab now" in holder.said
    assert f"droveway move resume {move[:8]}" in holder.said.replace("\r\n", "")
    lines.until("nobody runs this lab now")
    left = asked("move", "show", move)
    assert (left["state"], left["step"], left["owner"]) == ("running", "copy_disks", None)
    assert 0 < left["progress_done"] < left["progress_total"] == DATA
    assert left["next"] == f"nobody runs this lab now: droveway move resume {move[:8]}"

    resumed = Seen(root, "move", "resume", move, slow=True)
    resumed.until("of it kept")
    (root / GO).touch()
    assert resumed.end() == 0
    assert lines.end() == 0
    assert "✓ copy_disks on host2" in lines.said
    assert "\x1b" not in lines.said
    assert f"move {move[:8]}  migrate web  host1 → host2  verifying" in lines.said
    copies = [row for row in asked("move", "history", move) if row["step"] == "copy_disks"]
    assert len(copies) == 1


def test_who_waits_for_a_move_sees_the_bytes_of_its_copy_their_rate_and_the_time_left(root: Path, asked: Ask) -> None:
    holder = Seen(root, "server", "migrate", "web", slow=True)
    holder.until("left to copy")
    move = asked("move", "list")[0]["id"]
    waiter = Seen(root, "move", "wait", move, COLUMNS="200")
    told = rf"{move[:8]} copy_disks, \d+\.\d of 128\.0 MiB, \d+ %, \d+\.\d [KM]iB/s, [0-9hmins. ]+ left to copy"
    waiter.until("waiting for moves", "0 of 1", "left to copy")
    assert re.search(told, waiter.said), waiter.said
    (root / GO).touch()
    assert holder.end() == 0
    assert waiter.end() == 0
    assert f"move {move[:8]}  migrate web  host1 → host2  verifying" in waiter.said


def test_a_stalled_step_does_not_hold_a_second_ctrl_c_up(root: Path, asked: Ask) -> None:
    layout = Layout(root)
    faults.arm(layout, faults.Fault(id=0, step="copy_disks", direction="execute", phase="during", action="stall"))
    holder = Seen(root, "move", "create", "web", "--wait")
    holder.until("copy_disks on host2")
    holder.press(CTRL_C)
    holder.until("Ctrl-C again ends this command at once")
    holder.press(CTRL_C)
    assert holder.end() == 130
    assert holder.said.endswith("\x1b[?25h\r\n")
    faults.clear(layout, None)
    assert main.main(["--lab", str(root), "move", "resume"]) == 0
    assert asked("move", "list")[0]["state"] == "verifying"
