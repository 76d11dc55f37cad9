"""Run an earlier release from its own code: its lab, its daemons and its requests.

The archive has all that git has of 69b5cfa but its tests, tools and documents:
``git archive 69b5cfa -- . ':!tests' ':!docs' ':!tools' | xz``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from support.daemons.daemons import LONG, Daemon, Installation
from support.labs.small_lab import until
from support.servers.postgres_server import Server

from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.flows.step import Where
from droveway.lab.session import Lab
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal.states import State

ARCHIVE: Final = Path(__file__).parents[2] / "data" / "release-69b5cfa.tar.xz"
OWN: Final = Path(__file__).parents[1] / "habits" / "earlier_release"
"""The folder of what its processes import or run beside its code."""

PHASES: Final = ("before", "after", "stored")
"""The phases of a step in which a conductor may be halted."""

UNANSWERED: Final = "unanswered"
"""The phase in which a worker is halted: the step's command is in ZooKeeper, and nobody has begun it."""

_BUILD: Final = """
import sys
from pathlib import Path
from droveway.lab import build, cloud
build.create(Path(sys.argv[1]), cloud.parse_cloud(sys.stdin.read(), "earlier")).close()
"""


@dataclasses.dataclass(frozen=True)
class Spot:
    """Names where a flow is when the earlier release ends; without a step its move rests in the state ``phase``."""

    kind: str
    step: str
    direction: str
    phase: str

    @property
    def fails(self) -> bool:
        """Tell whether the flow has to fail to come there."""
        return self.direction == "revert"


def spots(kind: str) -> list[Spot]:
    """List one at every step of the earlier graph in each direction, at every unanswered command, and at rest."""
    graph = registry.graph(kind, 1)
    found = [Spot(kind, name, "execute", PHASES[at % 3]) for at, name in enumerate(graph.names())]
    found += [Spot(kind, name, "execute", UNANSWERED) for name in _asking(graph)]
    if kind == "resize":
        undone = [step.step_name() for step in graph.walk() if not step.no_undo]
        found += [Spot(kind, name, "revert", PHASES[at % 3]) for at, name in enumerate(undone)]
        found += [Spot(kind, "", "", state) for state in (State.VERIFYING, State.NEEDS_OPERATOR)]
    return found


def _asking(graph: Graph) -> list[str]:
    return [step.step_name() for step in graph.walk() if step.where is not Where.CONDUCTOR]


class Release:
    """Unpacks the earlier release into a folder and runs its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.halts = folder / "halts.json"
        self._halting = f"{OWN}{os.pathsep}{folder}"
        """Where a daemon imports from that halts where it is told."""
        shutil.unpack_archive(ARCHIVE, folder / "droveway")

    def build(self, root: Path, cloud: str) -> Lab:
        """Make a lab, and open it: its journal as it is, of the earlier schema."""
        self._python(["-c", _BUILD, str(root)], cloud)
        lab = Lab.open(root)
        lab.__dict__["journal"] = Database(sqlite_url(lab.layout.journal))
        return lab

    def journal(self, site: Installation, server: Server) -> None:
        """Give the installation a journal that the earlier release has made."""
        server.create("earlier")
        url = server.url("earlier")
        text = site.configuration.read_text()
        (line,) = (line for line in text.splitlines() if line == f"connection = {server.url('journal')}")
        unlimited = "[quota]\ncores = -1\nram = -1\n[keeper]\nmax_running = 10000\n"
        site.configuration.write_text(text.replace(line, f"connection = {url}") + unlimited)
        site.lab.journal.close()
        site.lab.__dict__["journal"] = Database(url)
        self._python(["-m", "droveway.cli.main", "db", "sync", "--config-file", str(site.configuration)])

    def halt(self, where: dict[str, Spot]) -> None:
        """Tell the daemons where each server's flow halts from now on, by the servers' ids."""
        told = {server: [*dataclasses.astuple(spot), spot.fails] for server, spot in where.items()}
        written = self.halts.with_suffix(".new")
        written.write_text(json.dumps(told))
        written.replace(self.halts)

    def await_halted(self, servers: Iterable[str]) -> None:
        """Wait until these servers' flows have halted."""
        told = self.halts.with_suffix(".halted")
        missing = set(servers)

        def look() -> bool:
            missing.difference_update(told.read_text().split() if told.exists() else ())
            return not missing

        until(look, f"the halt of {len(missing)} flows", LONG * 3)

    def conductor(self, site: Installation, threads: int) -> Daemon:
        """Start a conductor."""
        site.apart = True
        made = site.conductor(
            "earlier", OS_CONDUCTOR__THREADS=str(threads), PYTHONPATH=self._halting, HALTS=str(self.halts)
        )
        site.apart = False
        return made

    def workers(self, site: Installation) -> dict[str, Daemon]:
        """Start a worker for every host."""
        site.apart = True
        made = {
            host: site.worker(
                host,
                PYTHONPATH=self._halting,
                HALTS=str(self.halts),
                # That release knows no {host} in these two options.
                OS_WORKER__STATE_PATH=str(site.lab.layout.host(host)),
                OS_WORKER__INSTANCES_ROOT=str(site.lab.layout.host(host)),
            )
            for host in sorted(site.lab.identity.hosts)
        }
        site.apart = False
        return made

    def ask(self, site: Installation, asked: list[tuple[str, str]]) -> dict[str, str]:
        """Ask for moves, or for their ends, in pairs of verb and server's name; the moves by server."""
        told: dict[str, str] = json.loads(
            self._python([str(OWN / "ask.py"), str(site.configuration)], json.dumps(asked))
        )
        return told

    def refused(self, site: Installation, *words: str) -> str:
        """Give a command of the earlier release that has to fail; what it says."""
        done = self._run(["-m", "droveway.cli.main", *words, "--config-file", str(site.configuration)])
        assert done.returncode not in (0, 1), done.stdout + done.stderr
        return done.stderr

    def _python(self, arguments: list[str], given: str = "") -> str:
        done = self._run(arguments, given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, arguments: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "DROVEWAY_LAB"}
        return subprocess.run(
            [sys.executable, *arguments],
            env={**environment, "PYTHONPATH": str(self.folder)},
            input=given,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG * 3,
        )
