"""A lab for acceptance tests of the operations: built once for a file, with servers of its own for each test."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from proofs.demo.command import WARM
from support.daemons import warm_commands
from support.labs.small_lab import until
from support.rows import journal_moves

from droveway.cli import main
from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines import start
from droveway.engines.conductor.run import Probe
from droveway.lab import books, build, cloud, faults, runner
from droveway.lab import operations as lab_operations
from droveway.lab.faults import Fault
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import catalog
from droveway.workers.context import Probe as WorkerProbe
from droveway.workers.daemon import Worker
from droveway.workers.hypervisors import guests_log

Amounts = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where everything of a server is, as the services and the hosts tell it."""

    host: str
    flavor: str
    status: str
    held: dict[str, Amounts]
    """What the server's own consumer holds, by host."""
    runs: list[str]
    """The hosts on which its guest runs."""
    defined: list[str]
    directories: list[str]
    """PLACE/NAME of everything below the hosts' instances that bears the server's id."""
    bindings: list[dict[str, str]]
    attachments: list[tuple[str | None, str]]
    """Host and status of every attachment."""
    plugged: list[str]
    connected: list[str]
    places: dict[str, str]
    """Where each host keeps its instances: in a directory that it shares, or in its own."""

    def verifying(self, destination: str, flavor: str, held: Amounts) -> Standing:
        """The same server while its move to the destination waits for confirm or revert."""
        moved = self.confirmed(destination, flavor, held)
        source = [f"{self.places[self.host]}/ID_resize"] if self.directories else []
        return dataclasses.replace(
            moved,
            status="VERIFY_RESIZE",
            defined=sorted({self.host, destination}),
            directories=sorted([*source, *moved.directories]),
        )

    def confirmed(self, destination: str, flavor: str, held: Amounts) -> Standing:
        """The same server once it lives on the destination for good."""

        def there(hosts: list[str]) -> list[str]:
            return [destination for _ in hosts]

        return dataclasses.replace(
            self,
            host=destination,
            flavor=flavor,
            held={destination: held},
            runs=there(self.runs),
            defined=there(self.defined),
            directories=[f"{self.places[destination]}/ID" for _ in self.directories],
            bindings=[{destination: "ACTIVE"} for _ in self.bindings],
            attachments=[(destination, "attached") for _ in self.attachments],
            plugged=there(self.plugged),
            connected=there(self.connected),
        )


class Workers:
    """The workers of a lab that runs in the test: each can go away, and come back over a session of its own."""

    def __init__(self, lab: Lab, connect: Callable[[], Coordination]) -> None:
        self._lab = lab
        self._connect = connect
        self._running: dict[str, Worker] = {}

    def start(self, host: str, probe: WorkerProbe | None = None) -> None:
        """Let the host's worker be there."""
        self._running[host] = runner.start_worker(self._lab, host, self._connect(), probe=probe)

    def session(self) -> Coordination:
        """A session of the test's own with the ZooKeeper that they share."""
        return self._connect()

    def stop(self, host: str) -> None:
        """Let it be away: what it does ends at the next effect, without a result."""
        self._running.pop(host).stop()

    def stop_all(self) -> None:
        """Let none be there."""
        for host in list(self._running):
            self.stop(host)


REWRITES: list[Callable[[str], str]] = []
"""What is made of each cloud file first: a fixture runs whole modules once more in other clouds."""


class Stage:
    """One lab, and what a test asks of it."""

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        self.text = text
        build.create(root, _parsed(text)).close()
        self.lab = Lab.open(root)
        self.error = ""

    def close(self) -> None:
        """Remove the lab."""
        self.lab.close()
        build.destroy(self.root)

    def create_server(self, name: str, text: str) -> None:
        """Build one more server of what a cloud file would say of it, rewritten as the lab's own was."""
        whole = yaml.safe_load(self.text) | {"servers": {name: yaml.safe_load(text)}}
        spec = _parsed(yaml.safe_dump(whole)).servers[name]
        lab_operations.create_server(self.lab, name, spec)

    def cli(self, *words: str, code: int = 0) -> str:
        """What the command prints; its exit code is asserted, and that it shows no traceback."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                ended = main.main(["--lab", str(self.root), *words])
            except SystemExit as stop:
                ended = int(stop.code or 0)
        self.error = err.getvalue()
        assert ended == code, (words, ended, out.getvalue(), self.error)
        assert "Traceback" not in self.error
        return out.getvalue()

    def killed(self, *words: str) -> None:
        """Give the command in a process of its own, which dies of the SIGKILL that was armed."""
        command = [warm_commands.of(WARM), "--lab", str(self.root), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    def refused(self, *words: str) -> str:
        """The one sentence with which a command is refused."""
        assert self.cli(*words, code=2) == ""
        assert self.error.startswith("droveway: ")
        assert self.error.count("\n") == 1
        return self.error

    def json(self, *words: str) -> Any:
        """What the command shows, read."""
        return json.loads(self.cli(*words, "-f", "json"))

    def arm(self, step: str, action: str, **facts: Any) -> Fault:
        """Arm a fault; it fires before the step's execute unless told otherwise."""
        known = {"direction": "execute", "phase": "before"} | facts
        return faults.arm(self.lab.layout, Fault(id=0, step=step, action=action, **known))  # type: ignore[arg-type]

    def server(self, name: str) -> catalog.Server:
        """The server's row."""
        return catalog.find_server(self.lab.api, self.lab.cell_databases, name)

    def id_of(self, name: str) -> str:
        """The server's uuid."""
        return self.server(name).id

    def move(self, name: str) -> Move:
        """The server's latest move."""
        server = self.id_of(name)
        with self.lab.journal.read() as session:
            return [move for move in journal_moves.listing(session) if move.server == server][-1]

    def history(self, move: str) -> list[MoveStep]:
        """Every run of every step."""
        with self.lab.journal.read() as session:
            return moves.history(session, move)

    def held(self, consumer: str) -> dict[str, Amounts]:
        """What a consumer holds in Placement, by host; what its ports hold is the audit's to judge."""
        hosts = {host.node: host.name for host in catalog.hosts(self.lab.api, self.lab.cell_databases)}
        found = self.lab.cloud.placement.allocations(consumer).allocations
        return {hosts[provider]: amounts for provider, amounts in found.items() if provider in hosts}

    def standing(self, name: str) -> Standing:
        """Where everything of the server is."""
        server = self.server(name)
        hypervisors = {host: self.lab.hypervisor(host) for host in sorted(self.lab.identity.hosts)}
        guests = {host: each.guest(server.id) for host, each in hypervisors.items()}
        places = {host: facts.shared or host for host, facts in self.lab.identity.hosts.items()}
        return Standing(
            host=str(server.host),
            flavor=server.flavor,
            status=server.status,
            held=self.held(server.id),
            runs=[host for host, guest in guests.items() if guest and guest.running],
            defined=[host for host, guest in guests.items() if guest],
            directories=sorted(
                {
                    f"{places[host]}/{path.name.replace(server.id, 'ID')}"
                    for host in hypervisors
                    for path in (self.lab.layout.host(host) / "instances").glob(f"{server.id}*")
                }
            ),
            bindings=[dict(port.bindings) for port in self.lab.cloud.network.ports(server.id)],
            attachments=[(each.host, each.status) for each in self.lab.cloud.volumes.for_server(server.id)],
            plugged=[host for host, each in hypervisors.items() if server.id in dict(each.plugged())],
            connected=[host for host, each in hypervisors.items() if server.id in dict(each.connections())],
            places=places,
        )

    def directory(self, host: str, name: str, ending: str = "") -> Path:
        """The server's directory on a host."""
        return self.lab.layout.host(host) / "instances" / f"{self.id_of(name)}{ending}"

    def assert_balanced(self) -> None:
        """The audit finds nothing, and no two runs of a server overlapped."""
        report = books.balance(self.lab)
        assert report.clean, "; ".join(f"{each.kind} {each.subject}: {each.detail}" for each in report.findings)
        assert guests_log.overlaps(self.lab.layout.guests_log) == []

    def bring_back(self) -> None:
        """Revert every move that waits for it, so that its server is where it was."""
        for row in self.json("move", "list", "--state", "verifying"):
            self.cli("server", "revert", row["server_name"])

    def starts(self, name: str) -> list[str]:
        """The hosts on which the server was started, in order."""
        server = self.id_of(name)
        return [
            event.host
            for event in guests_log.events(self.lab.layout.guests_log)
            if event.server == server and event.event == "start"
        ]

    @contextlib.contextmanager
    def running(
        self, probe: Probe | None = None, workers: Mapping[str, WorkerProbe] | None = None
    ) -> Iterator[Workers]:
        """Conductor, keeper and workers as threads of the test; commands leave the work to them.

        ``probe`` is called in the conductor before, during and after each step and when its result is stored;
        ``workers`` are the probes of the hosts that have one, called between two effects.
        """
        with self.lab.layout.lock.open("ab") as lock, contextlib.ExitStack() as stack:
            fcntl.flock(lock, fcntl.LOCK_EX)
            store = embedded_store()
            # All parts are stopped before the first session is closed, as the lab's own runner does it.
            sessions = stack.enter_context(contextlib.ExitStack())

            def connect() -> Any:
                session = connect_embedded(store)
                sessions.callback(session.close)
                return session

            started = Workers(self.lab, connect)
            stack.callback(started.stop_all)
            for host in self.lab.identity.hosts:
                started.start(host, (workers or {}).get(host))
            look = connect()
            for host in self.lab.identity.hosts:
                until(lambda host=host: look.get(worker_path(host)), f"the worker of {host}")  # type: ignore[misc]
            stack.callback(runner.start_conductor(self.lab, connect(), probe=probe).stop)
            stack.callback(start.keeper(self.lab, connect()).stop)
            # A step that a failed test left stalled could not be stopped.
            stack.callback(faults.clear, self.lab.layout, None)
            yield started


def _parsed(text: str) -> cloud.Cloud:
    for rewrite in REWRITES:
        text = rewrite(text)
    return cloud.parse_cloud(text, "test")


def photograph(root: Path) -> dict[str, object]:
    """Every row of every database that can be read, and every other file, below a lab's directory."""
    seen: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.suffix == ".sqlite":
            seen |= {f"{name}:{table}": rows for table, rows in _tables(path).items()}
        elif ".sqlite" not in path.name:
            facts = path.lstat()
            # Looking into a database touches the directory that it lies in.
            seen[name] = (
                (facts.st_mode, facts.st_ino) if path.is_dir() else (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            )
    return seen


def changes(old: dict[str, object], new: dict[str, object]) -> list[str]:
    """What two photographs do not agree on."""
    return [
        f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _tables(path: Path) -> dict[str, list[str]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"'))) for name in names}
    except sqlite3.DatabaseError:
        return {"": [str(len(path.read_bytes()))]}
    finally:
        connection.close()


@contextlib.contextmanager
def stage(root: Path, text: str) -> Iterator[Stage]:
    """A lab of the cloud for as long as the block takes."""
    made = Stage(root, text)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def faults_cleared(made: Stage) -> Iterator[Callable[..., Fault]]:
    """Arms faults that are gone after the block."""
    try:
        yield made.arm
    finally:
        faults.clear(made.lab.layout, None)
