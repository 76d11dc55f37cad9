"""What becomes of a command whose output nobody can have: U1, U13."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, stage

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}, none: {vcpus: 1, memory_mb: 256, root_gb: 0}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, state: stopped}}
"""
POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("output") / "lab", CLOUD) as made:
        yield made


def shell(lab: Stage, words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it, with what stands behind it for its output."""
    line = f"set -o pipefail; {sys.executable} -m droveway.cli.main --lab {lab.root} {words}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("to", "code", "said"),
    [
        ("> /dev/full", 1, "the output could not be written (No space left on device)"),
        (">&-", 1, "the output could not be written (it is closed)"),
        ("| true", 141, "nobody reads the output"),
    ],
)
def test_a_move_that_was_made_is_named_and_never_told_as_refused(lab: Stage, to: str, code: int, said: str) -> None:
    done = shell(lab, f"server migrate web {to}")
    move = lab.move("web")
    assert (done.returncode, move.state) == (code, "verifying")
    assert done.stderr == f"droveway: {said}; what was asked of move {move.id} stands: droveway move show {move.id}\n"
    lab.cli("move", "revert", move.id)


@pytest.mark.parametrize("to", ["> /dev/full", ">&-"])
def test_what_only_reads_says_so_in_one_sentence(lab: Stage, to: str) -> None:
    for words in ("server list", "--help", "--version", "explain", "server list -f json"):
        done = shell(lab, f"{words} {to}")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), (words, done.stderr)
        assert done.stderr.startswith("droveway: the output could not be written"), words


@pytest.mark.parametrize("to", ["", "> /dev/full", ">&-", "| true"])
def test_what_is_refused_ends_with_2_wherever_its_output_goes(lab: Stage, to: str) -> None:
    done = shell(lab, f"server resize web --flavor none {to}")
    assert done.returncode == 2
    assert "root_gb >= 1" in done.stderr


def test_a_refusal_behind_a_move_that_was_made_is_none(lab: Stage) -> None:
    """Exit 2 means that nothing was changed: here the lab cannot be run once the move is in the journal."""
    lock = lab.lab.layout.lock
    kept = lock.with_suffix(".kept")
    lock.rename(kept)
    lock.mkdir()
    try:
        done = shell(lab, "server migrate web")
    finally:
        lock.rmdir()
        kept.rename(lock)
    move = lab.move("web")
    assert (done.returncode, move.state) == (1, "queued")
    assert f"what was asked of move {move.id} stands" in done.stderr
    lab.cli("move", "cancel", move.id)


def test_a_terminal_without_these_letters_gets_others(lab: Stage) -> None:
    done = shell(lab, "server migrate web", **POSIX)
    assert done.returncode == 0, done.stderr
    assert "host1 -> host2  verifying" in done.stdout
    assert shell(lab, "move plan web", **POSIX).returncode == 2
    assert shell(lab, "server list 2>&-", **POSIX).returncode == 0
    lab.cli("move", "revert", lab.move("web").id)


def test_a_descriptor_that_is_closed_becomes_no_database(lab: Stage) -> None:
    """What is opened next would get its number, and whatever is printed would go there."""
    assert shell(lab, "server list <&- >&- 2>&-").returncode == 1
    assert shell(lab, "server list").returncode == 0
