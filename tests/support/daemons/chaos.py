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
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from support.daemons.daemons import LONG, SESSION, Daemon, Ended, Installation, installation
from support.labs.small_lab import in_child
from support.rows import journal_moves, left_over
from support.servers import postgres_server, zookeeper_server
from support.servers.proxy import Loss, Proxy, running_proxy

from droveway.audit.findings import Kind
from droveway.cli.main import USAGE
from droveway.clients.volume import RESERVED
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import Refused
from droveway.lab import books, build, cloud
from droveway.lab.session import Lab
from droveway.persistence.journal import kinds, requests
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Intent, Move
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2", "host3", "host4")
SERVERS: Final = tuple(f"server{number}" for number in range(1, 17))
CONDUCTORS: Final = ("conductor1", "conductor2")

SETTLES_WITHIN: Final = 180.0
"""Seconds for all moves to end once nothing dies any more; the longest pause of a conductor's retries is 60."""

MOVES: Final = 200
"""So many are asked for at least, unless somebody wants fewer."""

MORE: Final = 420.0
"""Seconds that may be added for them, on a machine that is busy with other things."""

_LONGEST_PAUSE: Final = 0.1
"""Seconds between two requests."""

_LONGEST_CUT: Final = 0.3
"""Seconds for which each new connection is broken too."""

_LONGEST_CALM: Final = 2.0
"""Seconds between two things that break."""

_CANCELS: Final = 0.04
"""How often a move that runs is cancelled when it is met."""

_HOST: Final = "{vcpus: 16, memory_mb: 8192, disk_gb: 80}"

_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"

CELLS: Final = {"cell1": HOSTS[:2], "cell2": HOSTS[2:]}


def _cell(hosts: Sequence[str]) -> str:
    return f"{{hosts: {{{', '.join(f'{host}: {_HOST}' for host in hosts)}}}}}"


_CLOUD: Final = f"""
hypervisor: sandbox
options: {{cross_cell: true}}
cells: {{{", ".join(f"{name}: {_cell(hosts)}" for name, hosts in CELLS.items())}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 8}}}}
servers:
""" + "".join(f"  {name}: {{host: {HOSTS[number % len(HOSTS)]}, {_SERVER}}}\n" for number, name in enumerate(SERVERS))


class Asking(threading.Thread):
    """Asks for moves and of moves, one thing after another, while others break what is to do them."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(name="asking")
        self.done: collections.Counter[str] = collections.Counter()
        self._lab = lab
        self._chance = random.Random(f"{seed} asks")
        self._over = threading.Event()
        self._failed: BaseException | None = None

    def run(self) -> None:
        """Until `close`; what fails is kept for it."""
        try:
            while not self._over.wait(self._chance.uniform(0, _LONGEST_PAUSE)):
                with contextlib.suppress(Refused, sa.exc.OperationalError):
                    self._ask()
        except BaseException as error:  # noqa: BLE001 - raised where this is closed
            self._failed = error

    def close(self) -> None:
        """Ask for nothing more; raises what it has failed with."""
        self._over.set()
        self.join()
        if self._failed is not None:
            raise self._failed

    def _ask(self) -> None:
        """Ask for one thing that a server's state allows."""
        name = self._chance.choice(SERVERS)
        with self._lab.journal.read() as session:
            move = session.scalar(sa.select(Move).where(Move.server_name == name, Move.active_server.is_not(None)))
        if move is None:
            flavor, cell = self._chance.choice([None, "small", "large"]), self._chance.choice([None, *CELLS])
            made = submit(self._lab, MoveSpec(server=name, flavor=flavor, to_cell=cell))
            self.done["moves"] += 1
            self.done["between cells"] += kinds.of(made.kind).crosses_cells
        elif move.state == State.VERIFYING:
            request = self._chance.choice([move_requests.confirm, move_requests.revert])
            move_requests.file_request(self._lab, move.id, request)
            self.done[request.__name__] += 1
        elif self._chance.random() < _CANCELS:
            move_requests.file_request(self._lab, move.id, move_requests.cancel)
            self.done["cancel"] += 1


class Chaos:
    """One run, by one seed: here things are broken, beside it moves are asked for."""

    def __init__(
        self,
        site: Installation,
        ensemble: zookeeper_server.Ensemble,
        databases: postgres_server.Server,
        proxies: tuple[Proxy, Proxy],
        seed: int,
        wanted: int,
    ) -> None:
        self.site = site
        self.done: collections.Counter[str] = collections.Counter()
        self._ensemble = ensemble
        self._databases = databases
        self._proxy, self._zookeeper = proxies
        self._asking = Asking(site.lab, seed)
        self._chance = random.Random(f"{seed} breaks")
        self._wanted = wanted
        self._daemons: dict[str, Daemon] = {}
        self._turns: dict[Callable[[], None], float] = {
            self._kill_conductor: 10,
            self._kill_worker: 10,
            self._stop_worker: 4,
            self._freeze_conductor: 4,
            self._kill_leader: 3,
            self._kill_databases: 3,
            self._cut_connections: 4,
            self._lose_commits: 4,
        }
        self._first = self._chance.sample(list(self._turns), len(self._turns))
        """Each thing that breaks comes once before chance chooses: a short run has all of them too."""

    def run(self, seconds: float) -> None:
        """Let things die for so long, each once at least, and until the moves were asked for; then all moves end."""
        for name in (*HOSTS, *CONDUCTORS):
            self._start(name)
        began = time.monotonic()
        self._asking.start()
        try:
            while (passed := time.monotonic() - began) < seconds or not self._is_enough():
                assert self._asking.is_alive()
                assert passed < seconds + MORE, f"but {self._asking.done['moves']} moves in {passed:.0f} s"
                self._next()()
                time.sleep(self._chance.uniform(0, _LONGEST_CALM))
        finally:
            self._asking.close()
        self.done += self._asking.done
        self._proxy.lose_none()
        self._settle()

    def _is_enough(self) -> bool:
        return not self._first and self._asking.done["moves"] >= self._wanted

    def _next(self) -> Callable[[], None]:
        if self._first:
            return self._first.pop()
        return self._chance.choices(list(self._turns), list(self._turns.values()))[0]

    def _start(self, name: str) -> None:
        """As systemd's Restart=on-failure does: again when it ends over a server that is away."""
        ends = time.monotonic() + LONG
        start = self.site.worker if name in HOSTS else self.site.conductor
        while True:
            try:
                self._daemons[name] = start(name)
            except Ended as ended:
                if ended.code != USAGE or time.monotonic() > ends:
                    raise
                self.done["starts in vain"] += 1
            else:
                return

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
        time.sleep(2 * SESSION)
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
        time.sleep(self._chance.uniform(0, _LONGEST_CUT))
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
                        move_requests.file_request(lab, move.id, move_requests.confirm)
                    elif move.state == State.NEEDS_OPERATOR:
                        move_requests.file_request(lab, move.id, requests.retry)
                        self.done["retries"] += 1
            time.sleep(0.2)
        try:
            left_over.await_none(lab, self.site.session, ends - time.monotonic())
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._logs()}") from None

    def mend_late_calls(self) -> None:
        """Delete, as the audit says, the attachments of calls that landed late: nobody promises that none does.

        Cinder has no generations by which a call could be refused whose conductor lost its claim meanwhile.
        """
        lab = self.site.lab
        with lab.journal.read() as session:
            calls = sa.select(Move.server, Intent.call).join(Intent, Intent.move_id == Move.id)
            late = {(row.server, row.call) for row in session.execute(calls.where(Intent.state == "late"))}
        extra = {each.id: each for each in lab.cloud.volumes.all_attachments() if each.status == RESERVED}
        for finding in books.balance(lab).findings:
            found = extra.get(finding.subject) if finding.kind is Kind.ATTACHMENT else None
            if found is not None and not late.isdisjoint((found.server, call) for call in _reserving(found.volume)):
                assert finding.mend == f"openstack volume attachment delete {found.id}"
                lab.cloud.volumes.delete_attachment(found.id)
                self.done["late calls"] += 1

    def _open(self) -> list[Move]:
        with self.site.lab.journal.read() as session:
            return [move for move in journal_moves.listing(session) if State(move.state) not in ENDED]

    def _told(self, found: Sequence[Move]) -> str:
        rests = "; ".join(f"{move.id[:8]} {move.kind} {move.state} at {move.step}: {move.error}" for move in found)
        return f"moves that did not end: {rests}\n{self._logs()}"

    def _logs(self) -> str:
        return "\n".join(daemon.text()[-2000:] for daemon in self._daemons.values())


def _reserving(volume: str) -> tuple[str, str]:
    """The calls of moves that make an attachment of the volume."""
    return f"reserve {volume}", f"attach {volume} as before"


def run(folder: Path, seconds: float, seed: int, wanted: int = MOVES) -> str:
    """Run it in an empty folder until ``wanted`` moves are asked for, and say what was done.

    Raises AssertionError when anything is not as it should be.
    """
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
            images = "".join(f"{name} = {value}\n" for name, value in site.cloud.image_settings()["glance"].items())
            with site.configuration.open("a") as file:
                file.write(f"\n[cross_cell]\nallowed = true\n\n[glance]\n{images}")
            chaos = Chaos(site, ensemble, databases, (to_databases, to_zookeeper), seed, wanted)
            chaos.run(seconds)
            chaos.mend_late_calls()
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
    parser.add_argument(
        "--minutes",
        type=float,
        default=3.0,
        help=f"how long things die, or longer, for {MOVES} moves (default 3)",
    )
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
