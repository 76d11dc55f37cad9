"""Completion in zsh: what a person types at its prompt is completed as `droveway complete` says."""

from __future__ import annotations

import contextlib
import os
import pty
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from droveway.cli import main
from droveway.lab import build, cloud

SCRIPT = Path(__file__).parents[2] / "cli/completion/_droveway"
HOSTILE = "web $(touch pwned); `touch pwned`"
SECONDS = 60.0
CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, other: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  idle: {flavor: small, host: host1, image: base, state: stopped}
  named: {flavor: small, host: host1, image: base, state: stopped}
"""
PREPARED = """
PS1='READY> '
fpath=($FUNCTIONS $fpath)
autoload -Uz compinit
compinit -u -d $ZDOTDIR/dump
[[ -z $SCRIPT ]] || source $SCRIPT
typed() { print -rn -- "$BUFFER" > $TYPED.part; mv $TYPED.part $TYPED; }
zle -N typed
bindkey '^X' typed
"""
"""What zsh reads at its start; Ctrl-X writes the line as it stands into a file."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("labs") / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    with contextlib.closing(sqlite3.connect(path / "cells/cell1.sqlite")) as database, database:
        database.execute("UPDATE instances SET display_name = ? WHERE display_name = 'named'", (HOSTILE,))
    yield path
    build.destroy(path)


PATIENT = (
    "import sys; from droveway.cli import main; from droveway.cli.commands import complete; complete.PATIENCE = 60.0; "
    "sys.exit(main.main(sys.argv[1:]))"
)
"""The command, which a busy machine may answer late."""


class Zsh:
    """A zsh on a terminal of its own, in an empty directory."""

    def __init__(self, folder: Path, lab: Path, *, installed: bool) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        (folder / "functions").mkdir()
        if installed:
            (folder / "functions" / "_droveway").symlink_to(SCRIPT)
        (folder / ".zshrc").write_text(PREPARED)
        program = folder / "droveway"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{PATIENT}" "$@"\n')
        program.chmod(0o755)
        self._typed = folder / "typed"
        reading, writing = pty.openpty()
        self._terminal = reading
        self.process = subprocess.Popen(
            ["zsh", "--no-global-rcs", "-i"],
            stdin=writing,
            stdout=writing,
            stderr=writing,
            cwd=self.folder,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
                "ZDOTDIR": str(folder),
                "FUNCTIONS": str(folder / "functions"),
                "SCRIPT": "" if installed else str(SCRIPT),
                "TYPED": str(self._typed),
                "DROVEWAY_LAB": str(lab),
                "TERM": "xterm",
            },
        )
        os.close(writing)
        self._said = ""
        threading.Thread(target=self._read, daemon=True).start()
        self._until(lambda: "READY> " in self._said)

    def completed(self, line: str) -> str:
        """The line after TAB was pressed at its end; the line is then cleared."""
        self._typed.unlink(missing_ok=True)
        os.write(self._terminal, f"{line}\t\x18".encode())
        self._until(self._typed.exists)
        os.write(self._terminal, b"\x15")
        return self._typed.read_text()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(SECONDS)

    def _until(self, is_so: Callable[[], bool]) -> None:
        ends, pause = time.monotonic() + SECONDS, threading.Event()
        while not is_so():
            assert time.monotonic() < ends, self._said
            pause.wait(0.02)

    def _read(self) -> None:
        # A terminal that nobody holds open any more ends with an error.
        with contextlib.suppress(OSError):
            while data := os.read(self._terminal, 65536):
                self._said += data.decode(errors="replace")


@pytest.fixture(name="zsh", params=["installed", "sourced"])
def fixture_zsh(tmp_path: Path, lab: Path, request: pytest.FixtureRequest) -> Iterator[Zsh]:
    zsh = Zsh(tmp_path, lab, installed=request.param == "installed")
    yield zsh
    zsh.end()


def test_zsh_completes_commands_options_names_and_files(zsh: Zsh) -> None:
    (zsh.folder / "some.conf").touch()
    for line, whole in (
        ("droveway mo", "droveway move "),
        ("droveway move create --to-h", "droveway move create --to-host "),
        ("droveway move create idle --to-host o", "droveway move create idle --to-host other "),
        ("droveway move create idle --to-host=o", "droveway move create idle --to-host=other "),
        ('droveway server show "id', 'droveway server show "idle" '),
        ("droveway move list --config-file so", "droveway move list --config-file some.conf "),
        ("droveway move list --config-file=so", "droveway move list --config-file=some.conf "),
        ("droveway server show no-server-begins-so", "droveway server show no-server-begins-so"),
    ):
        assert zsh.completed(line) == whole


def test_zsh_names_the_lab_of_the_line(zsh: Zsh, tmp_path: Path) -> None:
    line = f"droveway --lab={tmp_path}/none server show i"
    assert zsh.completed(line) == line


def test_zsh_quotes_a_name_that_a_user_of_the_cloud_chose_and_runs_nothing_of_it(zsh: Zsh) -> None:
    for begun in ("w", "web\\ "):
        line = zsh.completed(f"droveway server show {begun}")
        words = line.removeprefix("droveway server show ")
        done = subprocess.run(
            ["zsh", "-fc", f"printf %s {words}"], cwd=zsh.folder, capture_output=True, text=True, check=True
        )
        assert done.stdout == HOSTILE
    assert list(zsh.folder.iterdir()) == []


def test_the_script_that_is_printed_is_the_one_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["complete", "--shell", "zsh"]) == 0
    assert capsys.readouterr().out == SCRIPT.read_text(encoding="utf-8")
