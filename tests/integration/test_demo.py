"""The one-command demonstration, as an operator runs it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAST = re.compile(r"demo: ok: (\d+) moves, (\d+) kills survived, audit clean")
KILL = re.compile(r"^  KILL (\d+): process \d+, \w+ of \w+ (inside|between) (.*)$", re.MULTILINE)
KIND = re.compile(r"^\W*[0-9a-f]{8}\W+(\w+)\W+\w+\W+(?:done|reverted)\b", re.MULTILINE)
MOVE = re.compile(
    r"^\W*[0-9a-f]{8}\W+(?:resize|(?:cross_cell_)?migrate|shelve|cross_cell_unshelve)\W+\w+\W+(?:done|reverted|failed)\b",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a whole run printed, and the directory for temporary files that it was given."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [ROOT / "tools" / "demo"],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr}"
    return done.stdout, folder


# No promise of speed, only a guard: on a busy machine a run takes several times its 50 seconds.
pytestmark = pytest.mark.timeout(900)


def test_last_line_counts_the_moves_and_kills_that_were_shown(demo: tuple[str, Path]) -> None:
    printed, _folder = demo
    last = LAST.fullmatch(printed.splitlines()[-1])
    assert last is not None, printed[-500:]
    moves, kills = int(last[1]), int(last[2])
    assert moves >= 20
    assert kills >= 15
    assert {"cross_cell_migrate", "shelve", "cross_cell_unshelve"} <= set(KIND.findall(printed))
    assert len(MOVE.findall(printed)) == moves
    assert {int(number) for number, _where, _step in KILL.findall(printed)} == set(range(1, kills + 1))


def test_three_kills_fall_into_an_undo(demo: tuple[str, Path]) -> None:
    printed, _folder = demo
    assert len({number for number, _where, step in KILL.findall(printed) if step.startswith("the undo of ")}) >= 3


def test_it_names_its_seed_its_time_and_the_verdict(demo: tuple[str, Path]) -> None:
    printed, _folder = demo
    assert re.search(r"^seed \d+: \d+ moves, \d+ kills, \d+ of them during an undo", printed, re.MULTILINE)
    assert re.search(r"^took \d+ s after the installation$", printed, re.MULTILINE)
    assert re.search(r"^\$ droveway audit .*\n  checked 10 servers.*\n  the books balance$", printed, re.MULTILINE)


def test_nothing_is_left_behind(demo: tuple[str, Path]) -> None:
    _printed, folder = demo
    assert list(folder.iterdir()) == []
