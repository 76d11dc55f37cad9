"""The soak: random histories on one lab, and that its model sees what the lab does wrong."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FIXED = 1
OPERATIONS = 50

RUN = """
import sys
from droveway.cli.main import main
from proofs.soak import command
sys.exit(command.main(main, sys.argv[1:]))
"""

PLANTED = """
import shutil
from droveway.cli.main import main
from droveway.lab.session import Lab
from proofs.soak.command import Failed, Soak, make_folder, warm
from proofs.soak.plan import Episode
from proofs.soak.process import Operation

def plant(_words):
    lab = Lab.open(soak.root)
    server = sorted(soak.model.servers)[0]
    held = lab.cloud.placement.allocations(server).allocations
    lab.cloud.placement.release(server)
    wrong = {node: {**amounts, "VCPU": amounts["VCPU"] + 1} for node, amounts in held.items()}
    lab.cloud.placement.ensure_allocation(server, wrong, project_id=lab.identity.project, user_id=lab.identity.user)
    return 0

warm()
folder = make_folder()
soak = Soak(main, folder, print)
soak.build()
try:
    built = "lab server create web --flavor tiny --host host1 --image base"
    soak.carry_out(Episode(((Operation(1, tuple(built.split())),),), holds=False))
    print("clean before")
    soak.apart(plant)
    soak.settled()
except Failed as error:
    print(f"found: {error}")
soak.destroy()
shutil.rmtree(folder)
"""


# No promise of speed, only a guard: on a busy machine a run takes several times as long.
pytestmark = pytest.mark.timeout(900)


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own: a soak forks, and pytest has threads."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seed", [FIXED, random.SystemRandom().randrange(1_000_000)], ids=["fixed", "random"])
def test_random_histories_end_with_books_that_are_the_models(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    done = python(RUN, "--seed", str(seed), "--operations", str(OPERATIONS))
    printed = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert printed[0] == f"seed {seed}: tools/soak --seed {seed} --operations {OPERATIONS} plans the same"
    last = re.fullmatch(
        r"soak: (\d+) operations, (\d+) kills, (\d+) moves ended, audit clean, allocations equal", printed[-1]
    )
    assert last is not None, printed[-1]
    record_property("figure", f"{printed[-1]} (seed {seed})")
    assert int(last[1]) >= OPERATIONS
    assert int(last[3]) >= OPERATIONS / 10


def test_an_allocation_that_is_wrong_is_reported() -> None:
    done = python(PLANTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clean before\nfound: " in done.stdout
    assert "allocations are not the model's: " in done.stdout
    assert re.search(r"usages are not the model's: \w", done.stdout)


def test_a_failure_is_told_with_the_line_that_repeats_it(tmp_path: Path) -> None:
    patched = "command.scratch.MEMORY, command.EPISODE_SECONDS = Path(sys.argv.pop(1)), 0.0\n"
    program = RUN.replace("sys.exit(", f"{patched}sys.exit(")
    done = python("from pathlib import Path\n" + program, str(tmp_path), "--seed", "5", "--operations", "10")
    assert done.returncode == 1, done.stderr
    assert "soak: failed after 0 operations: " in done.stdout
    assert "again:  tools/soak --seed 5 --operations " in done.stdout
