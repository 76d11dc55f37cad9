"""The command ``tools/matrix``: which of the matrices it runs, and what becomes of its exit status."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PYTHON = """#!/bin/bash
echo "$*"
[[ $2 != "$FAILS" ]] || exit "$STATUS"
"""
ONE, TWO, FEW = "proofs.matrix.command", "support.two_faults_full", "support.two_faults.command"


@pytest.fixture(name="checkout")
def fixture_checkout(tmp_path: Path) -> Path:
    """A checkout whose Python says what it is asked, and fails where it is told to."""
    tools, programs = tmp_path / "tools", tmp_path / ".venv" / "bin"
    tools.mkdir()
    programs.mkdir(parents=True)
    shutil.copy(TOOLS / "matrix", tools / "matrix")
    (tools / "lib.sh").write_text("install_droveway() { :; }\n")
    (programs / "python").write_text(PYTHON)
    (programs / "python").chmod(0o755)
    return tmp_path


def run(checkout: Path, *words: str, fails: str = "", status: int = 1) -> tuple[int, list[str]]:
    """The command's exit status, and what it had Python run."""
    found = subprocess.run(
        [checkout / "tools" / "matrix", *words],
        check=False,
        env={"PATH": "/usr/bin:/bin", "FAILS": fails, "STATUS": str(status)},
        capture_output=True,
        text=True,
    )
    assert found.stderr == ""
    return found.returncode, [line.removeprefix("-m ") for line in found.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        ("", [f"{ONE} "]),
        ("--kind resize", [f"{ONE} --kind resize"]),
        ("--two deaths --sample 3", [f"{FEW} deaths --sample 3"]),
        ("--two --full --jobs 2", [f"{TWO} --full --jobs 2"]),
        ("--two deaths --full", [f"{TWO} deaths --full"]),
        ("--full", [f"{ONE} --full", f"{TWO} --full"]),
        ("--jobs 2 --full --seed 3", [f"{ONE} --jobs 2 --full --seed 3", f"{TWO} --full --jobs 2"]),
        ("--full --jobs=2 --whole", [f"{ONE} --full --jobs=2 --whole", f"{TWO} --full --jobs=2"]),
        ("--full --sample 3 --seed 4", [f"{ONE} --full --sample 3 --seed 4", f"{FEW} --sample 3 --seed 4"]),
        ("--full --sample=3", [f"{ONE} --full --sample=3", f"{FEW} --sample=3"]),
        ("--full --help", [f"{ONE} --full --help"]),
    ],
)
def test_each_choice_runs_its_matrices(checkout: Path, words: str, ran: list[str]) -> None:
    assert run(checkout, *words.split()) == (0, [line.strip() for line in ran])


@pytest.mark.parametrize("fails", [ONE, TWO])
def test_a_full_run_runs_both_and_fails_with_either(checkout: Path, fails: str) -> None:
    assert run(checkout, "--full", fails=fails) == (1, [f"{ONE} --full", f"{TWO} --full"])


def test_what_is_refused_runs_nothing_more(checkout: Path) -> None:
    assert run(checkout, "--full", "--cover", fails=ONE, status=2) == (2, [f"{ONE} --full --cover"])
