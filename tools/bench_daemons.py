"""`tools/bench daemons`: an installation of daemons, idle, at work and with a long queue, beside a lab's embedded mode.

Real ZooKeeper, real PostgreSQL, conductors and workers as processes, the cloud's services behind HTTP, all on this
machine.  Times are taken from what the journal says, so that nobody's looking on is part of them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import bench_cost as cost
import bench_figures as figures
import sqlalchemy as sa
from support.daemons.daemons import LONG, SESSION, Daemon, Installation, installation
from support.labs.small_lab import in_child, is_released, until
from support.rows import long_queue
from support.servers import postgres_server, zookeeper_server

from droveway.clocks import now
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import build, cloud, runner
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Claim, Move, MoveStep

ROUNDS: Final = 12
SUBMITS: Final = 6
"""How many moves are requested, and cancelled before they begin, for each move that runs."""

COMMANDS: Final = 3
SAME: Final = 1.2
"""The largest ratio of a command's times that counts as not slower."""

QUEUED: Final = 10_000
LIVE: Final = 1_000
SERVERS: Final = tuple(f"server{number}" for number in range(1, 41))
AT_ONCE: Final = 20
"""How many moves one conductor gets at once, and in another run one after another."""
HOSTS: Final = tuple(f"host{number}" for number in range(1, 3))
CROWD: Final = "crowd"
"""The name of a host that does not exist; the queued moves are from it."""

_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
CLOUD: Final = f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {{vcpus: 64, memory_mb: 32768, disk_gb: 320}}" for host in HOSTS)}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}}}
images: {{base: {{size_mb: 8}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % len(HOSTS)]}, {_SERVER}}}\n" for number, name in enumerate(SERVERS))

LIMITS: Final = "[keeper]\nper_host = 8\n"

Found = dict[str, float]


def main() -> int:
    """Measure the daemons and the embedded mode, and report."""
    parser = argparse.ArgumentParser(prog="tools/bench daemons", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="moves of each kind of round")
    parser.add_argument("--queued", type=int, default=QUEUED, help="how long the queue is")
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=figures.WORK) as folder:
        daemons = of_daemons(Path(folder, "daemons"), wanted.rounds, wanted.queued)
        embedded = of_embedded(Path(folder, "embedded"), wanted.rounds, wanted.queued)
    return figures.report(daemons_bench(daemons, embedded, wanted.queued), write=wanted.write)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """Make and open a lab."""
    folder.mkdir()
    in_child(lambda: build.create(folder / "lab", cloud.parse_cloud(CLOUD, "bench")).close())
    with (folder / "lab" / "droveway.conf").open("a") as file:
        file.write(LIMITS)
    lab = Lab.open(folder / "lab")
    try:
        yield lab
    finally:
        lab.close()
        build.destroy(folder / "lab")


def of_daemons(folder: Path, rounds: int, queued: int) -> Found:
    """Measure the daemons."""
    found: Found = {}
    with (
        opened(folder) as lab,
        zookeeper_server.running_server(folder / "zookeeper") as server,
        postgres_server.running_server() as databases,
        installation(lab, folder, server.hosts, databases) as site,
    ):
        with site.configuration.open("a") as file:
            file.write(LIMITS)
        # A daemon that is forked after its imports would not have its own name in the server's log.
        site.apart = True
        with cost.named("workers"):
            workers = site.workers()
        found["idle worker, MiB"] = max(resident(worker) for worker in workers.values())
        with cost.named("conductor"):
            conductors = {"first": site.conductor("first")}
        measure_latency(lab, rounds, found, "idle")
        found["move create idle, ms"] = min(command(site) for _ in range(min(COMMANDS, rounds)))
        measure_throughput(lab, rounds, found)
        with cost.named("conductor"):
            conductors["second"] = site.conductor("second")
        pids = {
            "conductors": [daemon.process.pid for daemon in conductors.values()],
            "workers": [daemon.process.pid for daemon in workers.values()],
            "ZooKeeper": [server.pid],
        }
        measure_cost(lab, found, databases, pids)
        found["hand-over, s"] = max(hand_over(site, conductors) for _ in range(min(3, rounds)))
        conductors.pop("second").stop()
        crowd(lab, queued)
        measure_latency(lab, rounds, found, "queued")
        found["move create queued, ms"] = min(command(site) for _ in range(min(COMMANDS, rounds)))
        found["conductor, MiB"] = resident(conductors["first"])
    return found


def of_embedded(folder: Path, rounds: int, queued: int) -> Found:
    """Measure a lab, whose conductor, keeper and workers are threads of this process."""
    found: Found = {}
    with opened(folder) as lab:
        with runner.running(lab):
            measure_latency(lab, rounds, found, "idle")
            measure_throughput(lab, rounds, found)
        crowd(lab, queued)
        with runner.running(lab):
            measure_latency(lab, rounds, found, "queued")
    return found


def crowd(lab: Lab, queued: int) -> None:
    """Make a queue that waits for room on one host, behind moves of unknown kinds and some at rest."""
    long_queue.fill(lab.journal, queued, host=CROWD, digest="unknown")
    long_queue.fill(lab.journal, LIVE, State.VERIFYING, host=CROWD)
    long_queue.add_servers(lab, queued)
    for database in (lab.journal, lab.api, *lab.cell_databases.values()):
        # The server would do this by itself within a minute.
        with database.begin() as connection:
            connection.execute(sa.text("ANALYZE"))


def measure_latency(lab: Lab, rounds: int, found: Found, what: str) -> None:
    """Request one move after another, each when the one before has ended."""
    asked, claimed, begun = [], [], []
    end(lab, submitted(lab, SERVERS[0])[0])  # the first move also imports modules
    for server in itertools.islice(itertools.cycle(SERVERS), 1 + (rounds - 1) * SUBMITS):
        move, took = submitted(lab, server)
        end(lab, move)
        asked.append(took)
    for server in itertools.islice(itertools.cycle(SERVERS), rounds):
        move, _took = submitted(lab, server)
        accepted = now()
        until_rest(lab, move)
        with lab.journal.read() as session:
            first = sa.select(sa.func.min(MoveStep.started_at)).where(MoveStep.move_id == move)
            begun.append(milliseconds(session.execute(first).scalar_one(), accepted))
        claimed.append(milliseconds(claim_of(lab, move).claimed_at, accepted))
        move_requests.file_request(lab, move, move_requests.confirm)
        until_rest(lab, move)
    found[f"submit {what}, median ms"], found[f"submit {what}, p99 ms"] = statistics.median(asked), p99(asked)
    found[f"submit to claim {what}, median ms"] = statistics.median(claimed)
    found[f"submit to first step {what}, median ms"] = statistics.median(begun)


def measure_throughput(lab: Lab, rounds: int, found: Found) -> None:
    """Give one conductor moves in a row, and as many at once."""
    servers = SERVERS[: min(rounds, AT_ONCE)]
    began = time.monotonic()
    for server in servers:
        there_and_confirmed(lab, server)
    found["moves a minute, 1 conductor, in a row"] = 60 * len(servers) / (time.monotonic() - began)
    found["moves a minute, 1 conductor, at once"] = throughput(lab, servers)


def measure_cost(lab: Lab, found: Found, databases: postgres_server.Server, pids: dict[str, list[int]]) -> None:
    """Move all servers at once, and note the statements and the processor time of each process."""
    log = cost.StatementLog(databases.url("postgres"), databases.log)
    with lab.journal.read() as session:
        steps_before = session.scalar(sa.select(sa.func.count(MoveStep.seq))) or 0
    log.begin()
    before = processor(pids, databases)
    found[f"moves a minute, 2 conductors, {len(SERVERS)} at once"] = throughput(lab, SERVERS)
    after = processor(pids, databases)
    asked = log.end()
    with lab.journal.read() as session:
        steps = (session.scalar(sa.select(sa.func.count(MoveStep.seq))) or 0) - steps_before
    for database in ("journal", "cell-cell1"):
        what = asked["conductor", database]
        found[f"statements of the conductors to {database} a step"] = what.statements / steps
        found[f"transactions of the conductors with {database} a step"] = what.transactions / steps
    for name, seconds in after.items():
        found[f"processor of {name} a move, s"] = (seconds - before[name]) / len(SERVERS)
    found["processor of all but the services a move, s"] = sum(
        found[f"processor of {name} a move, s"] for name in after
    )


def processor(pids: dict[str, list[int]], databases: postgres_server.Server) -> Found:
    """Return the processor seconds of each kind of process so far."""
    return {
        **{name: cost.processor_seconds(each) for name, each in pids.items()},
        "databases": cost.processor_seconds([databases.pid, *cost.children(databases.pid)]),
    }


def there_and_confirmed(lab: Lab, server: str) -> str:
    """Migrate the server, confirm the move, and return its id."""
    move = submitted(lab, server)[0]
    until_rest(lab, move)
    require(lab, move, State.VERIFYING)
    move_requests.file_request(lab, move, move_requests.confirm)
    until_rest(lab, move)
    return move


def submitted(lab: Lab, server: str) -> tuple[str, float]:
    """Request a move, and return its id and the milliseconds that the request took."""
    began = time.perf_counter()
    move = submit(lab, MoveSpec(server=server)).id
    return move, (time.perf_counter() - began) * 1000


def command(site: Installation) -> float:
    """Return the milliseconds of a command that requests a move, which is then cancelled."""
    words = [sys.executable, "-m", "droveway.cli.main", "move", "create", SERVERS[0]]
    began = time.perf_counter()
    said = subprocess.check_output([*words, "--config-file", str(site.configuration)], text=True)
    took = (time.perf_counter() - began) * 1000
    end(site.lab, move_requests.find_move(site.lab, said.split()[1]).id)
    return took


def end(lab: Lab, move: str) -> None:
    """Cancel the move, which has hardly begun, and wait for its end."""
    move_requests.file_request(lab, move, move_requests.cancel)
    until(lambda: State(move_requests.read_move(lab, move).state) in ENDED, "its end", LONG)


def milliseconds(moment: dt.datetime, since: dt.datetime) -> float:
    """Return the milliseconds from one moment to the other."""
    return (moment - since).total_seconds() * 1000


def p99(taken: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(taken)[math.ceil(0.99 * len(taken)) - 1]


def until_rest(lab: Lab, move: str | None = None) -> None:
    """Wait until the move, or every move of the servers, rests and its claim was given back."""
    wanted = [move] if move else open_of(lab)
    until(lambda: all(is_released(lab, each) for each in wanted), "rest", LONG)


def open_of(lab: Lab) -> list[str]:
    """Return the open moves of the servers."""
    with lab.journal.read() as session:
        rows = sa.select(Move.id).where(Move.server_name.in_(SERVERS), Move.active_server.is_not(None))
        return list(session.scalars(rows))


def throughput(lab: Lab, servers: Sequence[str]) -> float:
    """Return the moves a minute when all servers are moved at once and confirmed."""
    began = time.monotonic()
    for server in servers:
        submit(lab, MoveSpec(server=server))
    until_rest(lab)
    for move in open_of(lab):
        require(lab, move, State.VERIFYING)
        move_requests.file_request(lab, move, move_requests.confirm)
    until_rest(lab)
    return 60 * len(servers) / (time.monotonic() - began)


def require(lab: Lab, move: str, state: State) -> None:
    """Raise RuntimeError for a move that came to rest elsewhere."""
    with lab.journal.read() as session:
        found = moves.get(session, move)
    if found.state != state:
        raise RuntimeError(f"the move is {found.state} instead of {state}: {found.error}")


def hand_over(site: Installation, conductors: dict[str, Daemon]) -> float:
    """Return the seconds from the SIGKILL of a conductor that runs a move until another one has claimed the move."""
    lab = site.lab
    move = submit(lab, MoveSpec(server=SERVERS[0])).id
    claim = until(lambda: claim_of(lab, move), "a claim", LONG)
    killed = next(name for name, daemon in conductors.items() if f"-{daemon.process.pid}-" in claim.owner)
    conductors[killed].kill()
    died = now()
    until(lambda: claim_of(lab, move).epoch != claim.epoch, "the next claim", LONG)
    took = milliseconds(claim_of(lab, move).claimed_at, died) / 1000
    conductors[killed] = site.conductor(killed)
    until_rest(lab, move)
    require(lab, move, State.VERIFYING)
    move_requests.file_request(lab, move, move_requests.confirm)
    until_rest(lab, move)
    return took


def claim_of(lab: Lab, move: str) -> Any:
    """Return the move's last claim."""
    with lab.journal.read() as session:
        return session.scalar(sa.select(Claim).where(Claim.move_id == move))


def resident(daemon: Daemon) -> float:
    """Return the MiB of memory that the process has now."""
    text = Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def daemons_bench(daemons: Found, embedded: Found, queued: int) -> figures.Bench:
    """Return the figures and the goals."""
    rows = [
        [name, f"{daemons[name]:.2f}", f"{embedded[name]:.2f}" if name in embedded else ""] for name in sorted(daemons)
    ]
    return figures.Bench(
        name="daemons",
        title="Daemons",
        text=(
            f"Conductors and {len(HOSTS)} workers as processes over a real ZooKeeper and PostgreSQL, on the machine of "
            f"the servers and of {len(SERVERS)} moving servers with a disk of 8 MB, a port and a volume; beside it a "
            "lab's embedded mode, everything in one process over SQLite. A move is a migration and its confirmation. "
            f"Queued are {queued:,} moves of other servers, which wait for room on a host; {LIVE:,} more wait for "
            "verification; a conductor, which has threads for 4 at a time, has them all before it: that is the one "
            f"with {LIVE:,} live moves. Memory is what a process has resident, shared libraries included. A session "
            f"with ZooKeeper outlives a killed process by {SESSION:g} s."
        ),
        head=["what", "daemons", "embedded"],
        rows=rows,
        goals=[
            figures.at_most(
                "move create with a long queue, times that of none",
                daemons["move create queued, ms"] / daemons["move create idle, ms"],
                SAME,
            ),
            figures.at_most("submit with a long queue, p99 ms", daemons["submit queued, p99 ms"], 150),
            figures.at_most(
                "submit to first step, idle, median ms", daemons["submit to first step idle, median ms"], 200
            ),
            figures.at_most("hand-over after SIGKILL, s", daemons["hand-over, s"], SESSION + 2),
            figures.at_most("an idle worker, MiB", daemons["idle worker, MiB"], 80),
            figures.at_most(
                "statements to the journal a step", daemons["statements of the conductors to journal a step"], 8
            ),
            figures.at_most(
                "transactions with the journal a step", daemons["transactions of the conductors with journal a step"], 2
            ),
            figures.at_most("processor of conductors a move, s", daemons["processor of conductors a move, s"], 0.15),
            figures.at_most("processor of workers a move, s", daemons["processor of workers a move, s"], 0.08),
            figures.at_most(
                "processor of all but the services a move, s",
                daemons["processor of all but the services a move, s"],
                0.4,
            ),
            figures.at_least(
                f"moves a minute, {len(SERVERS)} at once",
                daemons[f"moves a minute, 2 conductors, {len(SERVERS)} at once"],
                140,
            ),
            figures.at_most(f"a conductor with {LIVE:,} live moves, MiB", daemons["conductor, MiB"], 400),
        ],
        bars=[
            (f"{name}, {kind}", found[f"submit to first step {name}, median ms"])
            for name in ("idle", "queued")
            for kind, found in (("daemons", daemons), ("embedded", embedded))
        ],
        unit="ms from a submit to the first step",
    )


if __name__ == "__main__":
    sys.exit(main())
