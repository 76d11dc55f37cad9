"""Chaos over an installation: daemons, ZooKeeper's leader and the databases die while moves run (`tools/chaos`)."""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from support import postgres_server, zookeeper_server
from support.daemons import Daemon, Installation, installation
from support.proxy import Loss, Proxy, running_proxy
from support.small_lab import in_child

from droveway.engines import asking
from droveway.engines.submit import Wish, submit
from droveway.errors import Refused
from droveway.lab import books, build, cloud
from droveway.lab.session import Lab
from droveway.persistence import moves, requests
from droveway.persistence.journal import Claim, Move
from droveway.persistence.states import ENDED, State
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2", "host3", "host4")
SERVERS: Final = tuple(f"server{number}" for number in range(1, 9))
CONDUCTORS: Final = ("conductor1", "conductor2")

SETTLES_WITHIN: Final = 180.0
"""Seconds for all moves to end once nothing dies any more; the longest pause of a conductor's retries is 60."""

_LONGEST_PAUSE: Final = 0.3
"""Seconds between two turns."""

_HOST: Final = "{vcpus: 16, memory_mb: 8192, disk_gb: 80}"

_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"

_CLOUD: Final = f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {_HOST}" for host in HOSTS)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 8}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % len(HOSTS)]}, {_SERVER}}}\n" for number, name in enumerate(SERVERS))


class Chaos:
    """One run, by one seed."""

    def __init__(
        self,
        site: Installation,
        ensemble: zookeeper_server.Ensemble,
        databases: postgres_server.Server,
        proxies: tuple[Proxy, Proxy],
        seed: int,
    ) -> None:
        self.site = site
        self.done: collections.Counter[str] = collections.Counter()
        self._ensemble = ensemble
        self._databases = databases
        self._proxy, self._zookeeper = proxies
        self._chance = random.Random(seed)
        self._daemons: dict[str, Daemon] = {}
        self._turns: dict[Callable[[], None], float] = {
            self._ask: 60,
            self._kill_conductor: 10,
            self._kill_worker: 10,
            self._stop_worker: 4,
            self._freeze_conductor: 4,
            self._kill_leader: 3,
            self._kill_databases: 3,
            self._cut_connections: 4,
            self._lose_commits: 4,
        }

    def run(self, seconds: float) -> None:
        """Let moves run and things die, then let all moves end."""
        for name in (*HOSTS, *CONDUCTORS):
            self._start(name)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            turn = self._chance.choices(list(self._turns), list(self._turns.values()))[0]
            turn()
            time.sleep(self._chance.uniform(0, _LONGEST_PAUSE))
        self._proxy.lose_none()
        self._settle()

    def _start(self, name: str) -> None:
        self._daemons[name] = self.site.worker(name) if name in HOSTS else self.site.conductor(name)

    def _ask(self) -> None:
        """Ask for one thing that a server's state allows."""
        name = self._chance.choice(SERVERS)
        lab = self.site.lab
        with contextlib.suppress(Refused, sa.exc.OperationalError):
            with lab.journal.read() as session:
                move = session.scalar(sa.select(Move).where(Move.server_name == name, Move.active_server.is_not(None)))
            if move is None:
                flavor = self._chance.choice([None, "small", "large"])
                submit(lab, Wish(server=name, flavor=flavor))
                self.done["moves"] += 1
            elif move.state == State.VERIFYING:
                request = self._chance.choice([asking.confirm, asking.revert])
                asking.ask(lab, move.id, request)
                self.done[request.__name__] += 1
            elif self._chance.random() < 0.1:
                asking.ask(lab, move.id, asking.cancel)
                self.done["cancel"] += 1

    def _kill_conductor(self) -> None:
        self._kill(self._chance.choice(CONDUCTORS))

    def _kill_worker(self) -> None:
        self._kill(self._chance.choice(HOSTS))

    def _kill(self, name: str) -> None:
        self._daemons[name].kill()
        self.done["kills"] += 1
        self._start(name)

    def _stop_worker(self) -> None:
        name = self._chance.choice(HOSTS)
        self._daemons[name].stop()
        self.done["stops"] += 1
        self._start(name)

    def _freeze_conductor(self) -> None:
        """Let one sleep until its session is gone, and wake up in the middle of what others do now."""
        daemon = self._daemons[self._chance.choice(CONDUCTORS)]
        daemon.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            self._ask()
            time.sleep(0.2)
        daemon.process.send_signal(signal.SIGCONT)
        self.done["freezes"] += 1

    def _kill_leader(self) -> None:
        leader = self._ensemble.leader()
        if leader is not None:
            leader.kill()
            leader.start()
            self.done["leaders"] += 1

    def _kill_databases(self) -> None:
        self._databases.kill()
        self._databases.start()
        self.done["databases"] += 1

    def _cut_connections(self) -> None:
        """Break every connection to the databases or to a ZooKeeper server, and for a moment each new one."""
        proxy = self._chance.choice([self._proxy, self._zookeeper])
        proxy.cut()
        time.sleep(self._chance.uniform(0, _LONGEST_PAUSE))
        proxy.heal()
        self.done["cuts"] += 1

    def _lose_commits(self) -> None:
        """Lose one of the next commits, or the answer to it."""
        losses: tuple[Loss, Loss] = ("before", "after")
        lost = self._chance.randint(1, 20)
        self.done["lost commits"] += self._proxy.lost
        self._proxy.lose_commits(lambda number: number == lost, self._chance.choice(losses))

    def _settle(self) -> None:
        """Confirm what waits for it and retry what asks for an operator, until no move is open."""
        lab = self.site.lab
        ends = time.monotonic() + SETTLES_WITHIN
        while open_moves := self._open():
            assert time.monotonic() < ends, self._told(open_moves)
            for move in open_moves:
                with contextlib.suppress(Refused):
                    if move.state == State.VERIFYING:
                        asking.ask(lab, move.id, asking.confirm)
                    elif move.state == State.NEEDS_OPERATOR:
                        asking.ask(lab, move.id, requests.retry)
                        self.done["retries"] += 1
            time.sleep(0.2)
        while kept := self._kept_claims():
            assert time.monotonic() < ends, f"claims were never given back: {kept}"
            time.sleep(0.2)

    def _kept_claims(self) -> list[tuple[str, ...]]:
        with self.site.lab.journal.read() as session:
            claims = sa.select(Move.id, Move.state, Move.flow_uuid, Claim.owner, Claim.epoch)
            kept = claims.join(Claim, Claim.move_id == Move.id).where(Claim.released_at.is_(None))
            return [tuple(map(str, row)) for row in session.execute(kept)]

    def _open(self) -> list[Move]:
        with self.site.lab.journal.read() as session:
            return [move for move in moves.listing(session) if State(move.state) not in ENDED]

    def _told(self, found: Sequence[Move]) -> str:
        rests = "; ".join(f"{move.id[:8]} {move.kind} {move.state} at {move.step}: {move.error}" for move in found)
        logs = "\n".join(daemon.text()[-2000:] for daemon in self._daemons.values())
        return f"moves that did not end: {rests}\n{logs}"


def run(folder: Path, seconds: float, seed: int) -> str:
    """Run it in an empty folder and say what was done; raises AssertionError when anything is not as it should be."""
    in_child(lambda: build.create(folder / "lab", cloud.parse_cloud(_CLOUD, "chaos")).close())
    lab = Lab.open(folder / "lab")
    try:
        with (
            zookeeper_server.running_ensemble(folder / "zookeeper") as ensemble,
            postgres_server.running_server() as databases,
            running_proxy(databases.socket) as to_databases,
            running_proxy(ensemble.servers[0].address) as to_zookeeper,
            installation(
                lab,
                folder,
                ensemble.hosts_but_for(f"127.0.0.1:{to_zookeeper.port}"),
                databases,
                reached=lambda name: databases.url_through(to_databases.port, name),
            ) as site,
        ):
            chaos = Chaos(site, ensemble, databases, (to_databases, to_zookeeper), seed)
            chaos.run(seconds)
            report = books.balance(lab)
            assert report.clean, "; ".join(f"{each.kind}: {each.detail}" for each in report.findings)
            overlaps = guests_log.overlaps(lab.layout.guests_log)
            assert not overlaps, f"servers ran twice: {overlaps}"
            assert site.places_of(postgres_server.PASSWORD) == []
        told = ", ".join(f"{count} {name}" for name, count in sorted(chaos.done.items()))
        return f"chaos: {told}; every move ended, audit clean (seed {seed})"
    finally:
        lab.close()
        build.destroy(folder / "lab")


def main(words: Sequence[str] | None = None) -> int:
    """The program of `tools/chaos`."""
    parser = argparse.ArgumentParser(prog="tools/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long things die (default 3)")
    parser.add_argument("--seed", type=int, help="what is done, in which order; when is the machine's to say")
    options = parser.parse_args(words)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    sys.stdout.write(f"chaos: {options.minutes:g} minutes, seed {seed}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="droveway-chaos-") as folder:
        sys.stdout.write(run(Path(folder), options.minutes * 60, seed) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
