"""Completion in a shell: `droveway complete` says what may stand at the cursor, and the script for bash asks it."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from droveway.cli import main
from droveway.cli.registry import COMMANDS
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.flows import registry
from droveway.lab import build, cloud

SCRIPT = Path(__file__).parents[2] / "cli/completion/droveway"
HOSTILE = "web $(touch pwned); `touch pwned`"
CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
  cell2: {hosts: {other: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 2}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 4}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  named1: {flavor: small, host: host1, image: base, state: stopped}
  named2: {flavor: small, host: host1, image: base, state: stopped}
"""
ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_droveway "$1"
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
exit 0
"""

PATIENT = (
    "import sys; from droveway.cli import main; from droveway.cli.commands import complete; complete.PATIENCE = 60.0; "
    "sys.exit(main.main(sys.argv[1:]))"
)
"""The command, which a busy machine may answer late."""

ENDLESS = """
import sys, threading
from droveway.cli import main
from droveway.cli.commands import complete
complete._names = lambda *_: threading.Event().wait()
sys.exit(main.main(["complete", "--", "server", "show", ""]))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("labs") / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    # Nova lets a user call a server anything.
    with contextlib.closing(sqlite3.connect(path / "cells/cell1.sqlite")) as database, database:
        for name, called in {"named1": HOSTILE, "named2": "two\nlines"}.items():
            database.execute("UPDATE instances SET display_name = ? WHERE display_name = ?", (called, name))
    yield path
    build.destroy(path)


def completed(*words: str) -> list[str]:
    """What is offered in the place of the last word; nothing may be told on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main.main(["complete", "--", *words]) == 0
    assert err.getvalue() == ""
    return out.getvalue().splitlines()


def test_every_command_is_offered_word_by_word() -> None:
    for name in COMMANDS:
        *before, last = name.split()
        assert last in completed(*before, ""), name
        assert last in completed(*before, last), name


def test_a_word_that_has_begun_is_completed_to_what_begins_so() -> None:
    assert completed("mo") == ["move"]
    assert completed("move", "re") == ["resume", "retry", "revert"]
    assert completed("lab", "server", "st") == ["start", "stop"]
    assert completed("freeze", "") == ["list"]
    assert completed("nonsense", "") == []


def test_the_options_of_a_command_are_offered_and_those_before_the_noun_too() -> None:
    assert {"--heal", "--yes", "--lab"} <= set(completed("audit", "-"))
    assert completed("move", "create", "web", "--to-h") == ["--to-host"]
    assert completed("--", "--d") == ["--debug"]


def test_an_option_with_fixed_values_offers_these() -> None:
    assert completed("move", "plan", "web", "--transfer", "") == ["auto", "direct", "image"]
    assert completed("flow", "graph", "resize", "-f", "=", "m") == ["mermaid"]
    assert completed("flow", "graph", "") == sorted(registry.kinds())
    assert completed("explain", "") == sorted(EXPLANATIONS)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("server", "show", "i"), ["idle"]),
        (("move", "create", ""), ["idle", "web", HOSTILE]),
        (("move", "create", "web", "--to-host", ""), ["host1", "host2", "other"]),
        (("host", "show", "ho"), ["host1", "host2"]),
        (("server", "resize", "web", "--flavor", ""), ["large", "small"]),
        (("cell", "down", "--i-made-sure", "it burnt", "cell"), ["cell1", "cell2"]),
        (("move", "create", "web", "--to-cell", ""), ["cell1", "cell2"]),
        (("server", "show", "web", ""), None),
    ],
)
def test_names_are_offered_where_an_argument_names_something(
    lab: Path, words: tuple[str, ...], offered: list[str] | None
) -> None:
    """A name with a line break in it is not among them: it could not be typed either."""
    found = completed("--lab", str(lab), *words)
    assert found == offered if offered is not None else all(each.startswith("-") for each in found)


def test_the_newest_moves_are_offered_by_their_whole_ids(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--lab", str(lab), "server", "migrate", "idle", "--host", "host2"]) == 0
    capsys.readouterr()
    (move,) = completed("move", "wait", "--lab", str(lab), "")
    assert completed("--lab", str(lab), "move", "wait", move, move[:8]) == [move]
    assert len(move) == len("b4b2d8a0-0000-0000-0000-000000000000")


def test_a_lab_is_found_by_its_option_by_the_environment_and_under_a_home(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed("host", "show", "--lab", "=", str(lab), "ot") == ["other"]
    monkeypatch.setenv("HOME", str(lab.parent))
    assert completed("--lab", "~/lab", "host", "show", "ot") == ["other"]
    monkeypatch.chdir(lab.parent)
    assert completed("--lab", "lab", "host", "show", "ot") == ["other"]
    monkeypatch.setenv("DROVEWAY_LAB", str(lab))
    assert completed("host", "show", "ot") == ["other"]


def test_the_shell_is_told_to_complete_files_where_one_belongs() -> None:
    for words in (("--lab", ""), ("--lab", "lab"), ("move", "list", "--config-file", ""), ("lab", "create", "")):
        assert completed(*words) == [":files"], words


def test_nothing_is_offered_and_nothing_told_where_nothing_can_be_read(tmp_path: Path, lab: Path) -> None:
    assert completed("server", "show", "") == []
    assert completed("--lab", str(tmp_path / "none"), "server", "show", "") == []
    assert completed("--lab", "~nobody-of-this-name/lab", "server", "show", "") == []
    assert completed("server", "show", "--config-file", str(tmp_path), "") == []
    assert completed("--lab", str(lab), "conductor", "show", "") == []
    assert completed("--lab", str(lab), "server", "show", '"we') == []


def test_a_database_that_does_not_answer_holds_the_prompt_up_for_seconds_alone() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.fixture
def bash(lab: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """What bash would offer, asked as it asks: with the words of a command line in COMP_WORDS."""
    program = tmp_path / "droveway"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{PATIENT}" "$@"\n')
    program.chmod(0o755)

    def ask(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-u", "-c", ASK, "bash", SCRIPT, program, *words],
            env=os.environ | {"DROVEWAY_LAB": str(lab)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return ask


def test_bash_completes_commands_options_and_names(bash: Callable[..., list[str]]) -> None:
    assert bash("mo") == ["move"]
    assert bash("move", "create", "--to-h") == ["--to-host"]
    assert bash("move", "create", "web", "--to-host", "o") == ["other"]
    assert bash("server", "show", "no-server-begins-so") == []


def test_bash_quotes_a_name_that_a_user_of_the_cloud_chose_and_runs_nothing_of_it(
    bash: Callable[..., list[str]], tmp_path: Path
) -> None:
    plain, hostile = bash("server", "show", "w")
    assert plain == "web"
    assert bash("server", "show", "web\\ ") == [hostile]
    words = ["bash", "-c", f"printf %s {hostile}"]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert again.stdout == HOSTILE
    assert [path.name for path in tmp_path.iterdir()] == ["droveway"]


def test_the_script_that_is_printed_is_the_one_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["complete"]) == 0
    assert capsys.readouterr().out == SCRIPT.read_text(encoding="utf-8")
