"""`tools/bench cli`: the start of the command line.

Each command is run several times, in turns with the imports that it is compared with, and the shortest times count.
They are seconds of the processor (user and system), which what else the machine does hardly changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv" / "bin"
ROUNDS = 9

BASELINES = {
    "cliff": "import cliff.app",
    "cliff and sqlalchemy": "import cliff.app, sqlalchemy.orm",
}
CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 512, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base}}
"""


def main() -> int:
    """Make a lab with a move in it and measure commands there."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Path(folder, "lab")
        Path(folder, "cloud.yaml").write_text(CLOUD, encoding="utf-8")
        droveway("lab", "create", str(lab), "--cloud", f"{folder}/cloud.yaml")
        try:
            droveway("--lab", str(lab), "server", "migrate", "web")
            return bench_cli(lab)
        finally:
            droveway("lab", "destroy", str(lab))


def bench_cli(lab: Path) -> int:
    """Print each command's ratio to its baseline; 1 when one is over its budget."""
    moves = json.loads(droveway("--lab", str(lab), "move", "list", "-f", "json"))
    move = moves[0]["id"]
    commands = {
        "--help": (["--help"], "cliff", 1.6),
        "move list": (["move", "list"], "cliff and sqlalchemy", 1.5),
        "move show": (["move", "show", move], "cliff and sqlalchemy", 1.5),
        "move history": (["move", "history", move], "cliff and sqlalchemy", 1.5),
        "server list": (["server", "list"], "cliff and sqlalchemy", 1.5),
    }
    runs = {name: [str(VENV / "python"), "-c", code] for name, code in BASELINES.items()}
    runs |= {name: [str(VENV / "droveway"), *words] for name, (words, _, _) in commands.items()}
    best = measure(runs, lab)
    over = 0
    for name, (_, baseline, budget) in commands.items():
        ratio = best[name] / best[baseline]
        over += ratio > budget
        verdict = "over budget" if ratio > budget else "ok"
        print(f"{name:<13} {best[name]:6.3f} s  {ratio:4.2f} times {baseline} (at most {budget})  {verdict}")
    print(f"bench cli: {len(commands)} commands, {over} over budget")
    return min(over, 1)


def measure(runs: dict[str, list[str]], lab: Path) -> dict[str, float]:
    """The shortest time of each, in seconds of the processor."""
    best = dict.fromkeys(runs, float("inf"))
    environment = os.environ | {"DROVEWAY_LAB": str(lab)}
    # The installed libraries have their bytecode; so does a command from its second run on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(ROUNDS):
        for name, words in runs.items():
            child = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=lab, env=environment
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                raise subprocess.CalledProcessError(child.returncode, words)
            best[name] = min(best[name], usage.ru_utime + usage.ru_stime)
    return best


def droveway(*words: str) -> str:
    """Run a command and return what it printed."""
    return subprocess.run([VENV / "droveway", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
