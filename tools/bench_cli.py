"""`tools/bench cli`: the start of the command line.

Each command is run several times, in turns with the imports that it is compared with, and the shortest times count.
They are compared by the processor's time (user and system), which what else the machine does hardly changes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import bench_figures as figures

from droveway.lab.serve_ports import free_port
from droveway.lab.serve_settings import in_place, settings_of, write
from droveway.lab.session import Lab

VENV: Final = figures.WORK / "bin"
ROUNDS: Final = 9
STARTS_WITHIN: Final = 30.0
"""Seconds for the cloud's services."""

BASELINES: Final = {
    "cliff": "import cliff.app",
    "cliff and sqlalchemy": "import cliff.app, sqlalchemy.orm",
    "cliff, sqlalchemy, oslo and keystoneauth": (
        "import cliff.app, sqlalchemy.orm, oslo_config.cfg, oslo_log.log, keystoneauth1.loading, keystoneauth1.adapter"
    ),
}
"""What a command cannot do without: the command line, databases, the configuration and requests to services."""

CLOUD: Final = """
cells: {{cell1: {{hosts: {{host1: {{}}, host2: {{}}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 512, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
servers:
  web: {{flavor: small, host: host1, image: base}}
{servers}
"""
SERVER: Final = "  web{number}: {{flavor: small, host: host1, image: base, ports: [{{}}]}}\n"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One command with what it is compared with."""

    words: list[str]
    baseline: str
    most: float
    """So many times the baseline, at most."""


def main() -> int:
    """Make a lab with a move in it, let an installation use its databases, and measure commands of both."""
    parser = argparse.ArgumentParser(prog="tools/bench cli", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="so often each command is run")
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder:
        lab = Path(folder, "lab")
        servers = "".join(SERVER.format(number=number) for number in range(wanted.rounds))
        Path(folder, "cloud.yaml").write_text(CLOUD.format(servers=servers), encoding="utf-8")
        droveway("lab", "create", str(lab), "--cloud", f"{folder}/cloud.yaml")
        try:
            droveway("--lab", str(lab), "server", "migrate", "web")
            with installation(lab) as configuration:
                commands = measured(lab, configuration)
                best = measure(commands, lab, wanted.rounds)
        finally:
            droveway("lab", "destroy", str(lab))
    return figures.report(cli_bench(commands, best), write=wanted.write)


@contextlib.contextmanager
def installation(lab: Path) -> Iterator[Path]:
    """Make an installation with the lab's databases and services but without daemons; yields its configuration."""
    port = free_port()
    configuration = lab.parent / "droveway.conf"
    opened = Lab.open(lab)
    try:
        # ZooKeeper is not asked by a command that asks for a move.
        write(settings_of(opened, "127.0.0.1:1", in_place(opened), port, lab.parent / "run"), configuration)
    finally:
        opened.close()
    services = subprocess.Popen(
        [VENV / "python", "-m", "droveway.lab.served_cloud", lab, str(port)], stdout=subprocess.DEVNULL
    )
    try:
        ends = time.monotonic() + STARTS_WITHIN
        while not answers(port):
            if services.poll() is not None or time.monotonic() > ends:
                raise RuntimeError("the cloud's services do not start")
        yield configuration
    finally:
        services.terminate()
        services.wait()


def measured(lab: Path, configuration: Path) -> dict[str, Measured]:
    """Every command that is measured, by its name."""
    moves = json.loads(droveway("--lab", str(lab), "move", "list", "-f", "json"))
    move = moves[0]["id"]
    rows = "cliff and sqlalchemy"
    return {
        "move create": Measured(
            # Of another server in each round: one with a move that has not ended is refused.
            ["move", "create", "web{round}", "--config-file", str(configuration)],
            "cliff, sqlalchemy, oslo and keystoneauth",
            1.5,
        ),
        "--help": Measured(["--help"], "cliff", 1.6),
        "move list": Measured(["move", "list"], rows, 1.5),
        "move show": Measured(["move", "show", move], rows, 1.5),
        "move history": Measured(["move", "history", move], rows, 1.5),
        "server list": Measured(["server", "list"], rows, 1.5),
    }


def measure(commands: dict[str, Measured], lab: Path, rounds: int) -> dict[str, figures.Cost]:
    """Return the shortest times of each command and each baseline."""
    runs = {name: [str(VENV / "python"), "-c", code] for name, code in BASELINES.items()}
    runs |= {name: [str(VENV / "droveway"), *command.words] for name, command in commands.items()}
    best = dict.fromkeys(runs, figures.Cost(float("inf"), float("inf")))
    environment = os.environ | {"DROVEWAY_LAB": str(lab)}
    # The installed libraries have their bytecode; so does a command from its second run on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for number in range(rounds):
        for name, words in runs.items():
            best[name] = best[name].shorter(cost([word.format(round=number) for word in words], lab, environment))
    return best


def cost(words: list[str], lab: Path, environment: dict[str, str]) -> figures.Cost:
    """Return what one run takes; raises CalledProcessError when it does not end with 0."""
    began = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=lab, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    took = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, words)
    return figures.Cost(took * 1000, (usage.ru_utime + usage.ru_stime) * 1000)


def cli_bench(commands: dict[str, Measured], best: dict[str, figures.Cost]) -> figures.Bench:
    """Return the figures and the goals."""
    ratios = {name: best[name].cpu / best[command.baseline].cpu for name, command in commands.items()}
    rows = [[f"import of {name}", f"{best[name].wall:.0f}", f"{best[name].cpu:.0f}", ""] for name in BASELINES]
    rows += [[name, f"{best[name].wall:.0f}", f"{best[name].cpu:.0f}", f"{ratios[name]:.2f}"] for name in commands]
    return figures.Bench(
        name="cli",
        title="Start of a command",
        text=(
            "Whole commands, from the start of Python to its end, beside a Python that only imports the libraries that "
            "the command cannot do without. ``move create`` asks an installation for a move: databases in SQLite, "
            "Placement and Neutron behind HTTP on the same machine, and no conductor that takes the move. The others "
            "read from a lab. Times are compared by the processor's."
        ),
        head=["command", "ms", "ms of processor", "times the import"],
        rows=rows,
        goals=[
            figures.at_most(f"{name}, times the import of {command.baseline}", ratios[name], command.most)
            for name, command in commands.items()
        ],
        bars=[(name, best[name].cpu) for name in commands],
        unit="ms of processor",
    )


def answers(port: int) -> bool:
    """Tell whether somebody listens on the port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def droveway(*words: str) -> str:
    """Run a command and return what it printed."""
    return subprocess.run([VENV / "droveway", *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
