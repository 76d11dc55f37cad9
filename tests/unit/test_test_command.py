"""The command ``tools/test``: each of its parts runs whatever became of the others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
LIB = """
die() { echo "${0##*/}: $*" >&2; exit 1; }
need_debian() { :; }
unpack_debian() { :; }
install_droveway() { :; }
install_openstack() { :; }
"""
PYTHON = """#!/bin/bash
echo "ran $*"
if [[ $* == *"$HANGS"* ]]; then
    trap 'echo a summary; kill $!; exit 2' INT
    sleep 600 & wait
fi
[[ $* != *"$FAILS"* ]]
"""
EATMYDATA = """#!/bin/bash
exec "$@"
"""


@pytest.fixture(name="checkout")
def fixture_checkout(tmp_path: Path) -> Path:
    """A checkout whose tools say what they are asked, and fail where they are told to."""
    tools, programs = tmp_path / "tools", tmp_path / ".venv" / "bin"
    tools.mkdir()
    programs.mkdir(parents=True)
    shutil.copy(TOOLS / "test", tools / "test")
    (tools / "lib.sh").write_text(LIB)
    (tools / "debian-packages").write_text("")
    (tools / "debian-unpacked").write_text("")
    for name in ("python", "ruff", "mypy"):
        (programs / name).write_text(PYTHON)
        (programs / name).chmod(0o755)
    (programs / "eatmydata").write_text(EATMYDATA)
    (programs / "eatmydata").chmod(0o755)
    return tmp_path


def run(checkout: Path, fails: str = "nothing", hangs: str = "nothing") -> tuple[int, list[str]]:
    """The command's exit status and the lines that it printed."""
    found = subprocess.run(
        [checkout / "tools" / "test"],
        check=False,
        env={"PATH": f"{checkout / '.venv' / 'bin'}:/usr/bin:/bin", "FAILS": fails, "HANGS": hangs},
        capture_output=True,
        text=True,
    )
    return found.returncode, found.stdout.splitlines()


@pytest.mark.parametrize("fails", ["tests/unit", "check --quiet", "tests/integration"])
def test_a_part_that_fails_keeps_no_other_from_running(checkout: Path, fails: str) -> None:
    code, lines = run(checkout, fails)
    assert code == 1
    assert any(line.startswith("ran -m pytest tests/integration") for line in lines)
    assert any(line.startswith("ran tools/requirements") for line in lines)
    verdicts = [line.partition(" in ")[0] for line in lines if line.startswith("tools/test: ")]
    failed, passed = ("integration", "unit") if "integration" in fails else ("unit", "integration")
    assert sorted(verdicts) == sorted([f"tools/test: {failed} failed (exit 1)", f"tools/test: {passed} passed"])


def test_all_parts_that_pass_end_well(checkout: Path) -> None:
    code, lines = run(checkout)
    assert code == 0
    assert [line.partition(" in ")[0] for line in lines if line.startswith("tools/test: ")] == [
        "tools/test: unit passed",
        "tools/test: integration passed",
    ]


def test_a_part_that_hangs_is_interrupted_and_sums_up(checkout: Path) -> None:
    """Else what had failed before would be told by nobody."""
    command = checkout / "tools" / "test"
    script = command.read_text().replace("LONGEST_PART=4800", "LONGEST_PART=1")
    assert "LONGEST_PART=1\n" in script
    command.write_text(script)
    code, lines = run(checkout, hangs="tests/integration")
    assert code == 1
    assert "a summary" in lines
    verdicts = [line.partition(" in ")[0] for line in lines if line.startswith("tools/test: ")]
    assert verdicts == ["tools/test: unit passed", "tools/test: integration failed (exit 124)"]
