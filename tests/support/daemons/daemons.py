"""An installation on one machine: databases, ZooKeeper, services, and daemons started as systemd would start them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from support.daemons import warm_commands, warm_daemons
from support.labs.small_lab import is_released, read_move, until
from support.servers import mariadb_server, postgres_server
from support.servers.certificates import Authority, Files

from droveway import certificates
from droveway.clients import zookeeper
from droveway.clients.access import Access, Protection
from droveway.clients.zookeeper import BOARD, ROOT
from droveway.flows import registry
from droveway.lab import served_cloud
from droveway.lab.serve_ports import free_port
from droveway.lab.serve_settings import in_place, map_cell, settings_of, write
from droveway.lab.session import Lab
from droveway.persistence.database import Database
from droveway.persistence.journal import daemons, migrate
from droveway.persistence.journal import tables as journal
from droveway.persistence.nova import base as nova_base

SESSION = 2.0
"""Seconds after which ZooKeeper gives up a process that was killed."""

LONG = 180.0

CONDUCTOR = "droveway-conductor"
"""The name in every conductor's certificate."""

_WORKER = "worker-"


Server = postgres_server.Server | mariadb_server.Server


class Ended(Exception):
    """A daemon's process has ended where it should have run."""

    def __init__(self, daemon: Daemon, code: int) -> None:
        super().__init__(f"{daemon.name} ended with {code}:\n{daemon.text()}")
        self.code = code


class Daemon:
    """One process of `droveway conductor run` or `droveway worker run`."""

    def __init__(
        self, name: str, words: list[str], folder: Path, environment: dict[str, str], *, apart: bool = False
    ) -> None:
        """``apart``: it is a process of its own from the start, not one that was forked after its imports."""
        self.name = name
        self.log = folder / f"{name}.log"
        path = folder / f"{name}.notify"
        path.unlink(missing_ok=True)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(path))
        self._notify.settimeout(0.1)
        start = warm_daemons.start_apart if apart else warm_daemons.start
        with self.log.open("ab") as log:
            self.process = start(words, {**os.environ, **environment, "NOTIFY_SOCKET": str(path)}, log.fileno())

    def await_said(self, state: str) -> None:
        """Wait until it told the service manager so; raises `Ended` when its process ends instead."""
        ends = time.monotonic() + LONG
        said = ""
        while said != state:
            try:
                said = self._notify.recv(4096).decode()
            except TimeoutError:
                if (code := self.process.poll()) is not None:
                    self._notify.close()
                    raise Ended(self, code) from None
                assert time.monotonic() < ends, f"{self.name} never said {state}:\n{self.text()}"

    def stop(self) -> None:
        """As systemd stops it."""
        self.process.terminate()
        assert self.process.wait(LONG) == 0, self.text()
        self._notify.close()

    def end(self) -> None:
        """Stop it, or kill it where it does not stop, which is an error."""
        self.process.send_signal(signal.SIGCONT)
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} does not stop:\n{self.text()}") from None

    def kill(self) -> None:
        """A SIGKILL."""
        self.process.kill()
        assert self.process.wait(LONG) == -signal.SIGKILL
        self._notify.close()

    def text(self) -> str:
        """The end of what it logged."""
        return self.log.read_text()[-6000:]


class Installation:
    """The daemons of one installation, whose hosts and services are a lab's."""

    def __init__(
        self, lab: Lab, folder: Path, settings: dict[str, dict[str, str]], authority: Authority | None = None
    ) -> None:
        """``authority``: TLS goes to ZooKeeper and between workers, by each daemon with its own certificate."""
        self.lab = lab
        self.folder = folder
        self.authority = authority
        self.configuration = folder / "droveway.conf"
        shown = None if authority is None else protection(authority.issue(CONDUCTOR))
        self.session = zookeeper.connect(settings["zookeeper"]["hosts"], timeout=SESSION, protection=shown)
        self.session.delete(ROOT)
        self.server: Server | None = None
        """Of its databases; none where they are files."""
        self.cloud: served_cloud.Server
        """Its services."""
        self.daemons: list[Daemon] = []
        """All that were started."""
        self.apart = False
        """Whether they are processes of their own from the start, with command lines of their own."""
        self._addresses: dict[str, str] = {}
        write(settings, self.configuration)

    def conductor(self, name: str = "conductor", **environment: str) -> Daemon:
        """A conductor, ready when this returns."""
        return self._start(name, ["conductor", "run"], {**self.certified(CONDUCTOR), **environment})

    def worker(self, host: str, *, configuration: Path | None = None, **environment: str) -> Daemon:
        """A host's worker, registered when this returns."""
        places: dict[str, str] = {}
        if self.authority is not None:
            where = self._addresses.setdefault(host, f"127.0.0.1:{free_port()}")
            places |= {"OS_WORKER__TRANSFER_LISTEN": where, "OS_WORKER__TRANSFER_ADDRESS": where}
        words = ["worker", "run", "--host", host]
        shown = {**places, **self.certified(host), **environment}
        daemon = self._start(f"{_WORKER}{host}", words, shown, configuration)
        if self.authority is None:  # else its folders are there once a conductor has run
            self.await_worker(host)
        return daemon

    def await_worker(self, host: str) -> None:
        """Wait until it has registered."""
        until(lambda: self.session.get(zookeeper.worker_path(host)), f"the worker of {host}", LONG)

    def workers(self) -> dict[str, Daemon]:
        """A worker for every host; where a conductor is up, commands know of all of them when this returns."""
        found = {host: self.worker(host) for host in sorted(self.lab.identity.hosts)}
        if any(each.process.poll() is None for each in self.daemons if not each.name.startswith(_WORKER)):
            self.await_known(found)
        return found

    def await_known(self, hosts: Collection[str]) -> None:
        """Wait until commands know that the workers of these hosts are up, as a conductor writes into the journal."""

        def are_known() -> bool:
            with self.lab.journal.read() as session:
                return {*hosts} <= {row.name for row, up in daemons.listing(session, daemons.WORKER) if up}

        until(are_known, "what a conductor knows of the workers", LONG)

    def droveway(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """An operator's command: exit code, stdout and stderr.

        A daemon, or one with an environment, on which its imports may depend, is a process of its own from the start.
        """
        apart = bool(environment) or "run" in words
        inherited = {name: value for name, value in os.environ.items() if name != "DROVEWAY_LAB"}
        command = [sys.executable, "-m", "droveway.cli.main"] if apart else [warm_commands.of(warm_commands.OPERATORS)]
        done = subprocess.run(
            [*command, *words, "--config-file", str(self.configuration)],
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG,
        )
        return done.returncode, done.stdout, done.stderr

    def done(self, *words: str) -> str:
        """What a command says that has to succeed."""
        code, said, complained = self.droveway(*words)
        assert code == 0, complained
        return said

    def told(self, *words: str) -> Any:
        """The same as JSON."""
        return json.loads(self.done(*words, "-f", "json"))

    def refused(self, *words: str) -> str:
        """Why a command is refused."""
        code, _, complained = self.droveway(*words)
        assert code == 2, complained
        return complained

    def await_step(self, move: str, step: str) -> None:
        """Wait until the resize has come to this step, or beyond: a short one may be over between two looks."""
        number = registry.latest("resize").names().index(step) + 1
        until(lambda: (read_move(self.lab, move).step_number or 0) >= number, step, LONG)

    def await_rest_of(self, move: str) -> str:
        """Where the move rests when nobody runs it any more, whatever others do."""
        until(lambda: is_released(self.lab, move), f"the end of move {move}", LONG)
        return read_move(self.lab, move).state

    def await_rest(self, move: str) -> str:
        """The same of the only move."""
        self.await_rest_of(move)
        until(lambda: self.session.children(BOARD) == [], "an empty board", LONG)
        return read_move(self.lab, move).state

    def places_of(self, secret: str) -> list[str]:
        """Where a secret is found that belongs into the configuration alone: logs, nodes, rows of the journal."""
        found = [str(path) for path in self.folder.glob("*.log") if secret in path.read_text()]
        found += [path for path in self.nodes(ROOT) if secret.encode() in (self.session.get(path) or (b"", 0))[0]]
        with self.lab.journal.read() as session:
            for table in journal.JournalBase.metadata.sorted_tables:
                rows = session.execute(sa.select(table)).all()
                found += [table.name for row in rows if secret in repr(row)]
        return found

    def nodes(self, path: str) -> Iterator[str]:
        """The path of every node of ZooKeeper from this one down."""
        yield path
        for name in self.session.children(path):
            yield from self.nodes(f"{path}/{name}")

    def certified(self, name: str) -> dict[str, str]:
        """The environment of a daemon with this name in its certificate."""
        if self.authority is None:
            return {}
        return {f"OS_TLS__{option.upper()}": value for option, value in self.authority.issue(name).options().items()}

    def close(self) -> None:
        """Stop all that run; what does not stop is killed, so that it outlives no test, and told."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.session.close)
            for daemon in self.daemons:
                if daemon.process.poll() is None:
                    stack.callback(daemon.end)

    def _start(
        self, name: str, words: list[str], environment: dict[str, str], configuration: Path | None = None
    ) -> Daemon:
        file = configuration or self.configuration
        daemon = Daemon(name, [*words, "--config-file", str(file)], self.folder, environment, apart=self.apart)
        self.daemons.append(daemon)
        daemon.await_said("READY=1")
        return daemon


@contextlib.contextmanager
def installation(
    lab: Lab,
    folder: Path,
    hosts: str,
    server: Server | None,
    authority: Authority | None = None,
    *,
    reached: Callable[[str], str] | None = None,
) -> Iterator[Installation]:
    """Daemons over the ZooKeeper at ``hosts``, with the lab's databases on the server, or as they are without one.

    ``reached`` gives the URL by which daemons reach a database of the server, where that is not the server's own.
    """
    urls = in_place(lab) if server is None else _on_server(lab, server, reached or server.url)
    with served_cloud.served(lab.layout) as cloud:
        settings = settings_of(lab, hosts, urls, cloud.server_port, folder / "run")
        settings["zookeeper"] |= {"session_timeout": str(SESSION), "tls": str(authority is not None)}
        made = Installation(lab, folder, settings, authority)
        made.server, made.cloud = server, cloud
        try:
            yield made
        finally:
            made.close()


def protection(files: Files) -> Protection:
    """What its holder shows to ZooKeeper, where identities are as they are by default."""
    identity = certificates.read(files.certificate, files.key, files.authority)
    return Protection(identity, Access(f"CN={CONDUCTOR}", "CN={host}"))


def _on_server(lab: Lab, server: Server, reached: Callable[[str], str]) -> dict[str, str]:
    """Bring the lab's rows to the server, and let the lab look at them there; how daemons reach each database."""
    cells = dict(lab.cell_databases)
    names = {"journal": "journal", "api": "api", **{f"cell-{name}": f"cell-{name}" for name in cells}}
    urls = {name: server.url(database) for name, database in names.items()}
    server.create(*names.values())
    made = Database(urls["journal"])
    migrate.sync(made)
    copy_rows(lab.journal, made, journal.JournalBase.metadata)
    copy_rows(lab.api, Database(urls["api"]), nova_base.ApiBase.metadata)
    for name, database in cells.items():
        copy_rows(database, Database(urls[f"cell-{name}"]), nova_base.CellBase.metadata)
    lab.close()
    for path in (lab.layout.journal, lab.layout.api, *map(lab.layout.cell, cells)):
        path.unlink()
    lab.__dict__["journal"] = Database(urls["journal"])
    lab.__dict__["api"] = Database(urls["api"])
    lab.__dict__["cell_databases"] = {name: Database(urls[f"cell-{name}"]) for name in cells}
    lab.__dict__.pop("cells", None)
    for name in cells:
        map_cell(lab.api, name, reached(names[f"cell-{name}"]))
    return {name: reached(database) for name, database in names.items()}


def put_apart(lab: Lab, cell: str, server: Server) -> None:
    """Bring one cell's rows to a server of its own, for daemons and for the lab."""
    server.create(cell)
    url = server.url(cell)
    copy_rows(lab.cell_databases[cell], Database(url), nova_base.CellBase.metadata)
    lab.cell_databases[cell].close()
    lab.cell_databases[cell] = Database(url)
    lab.__dict__.pop("cells", None)
    map_cell(lab.api, cell, url)


def copy_rows(source: Database, target: Database, metadata: sa.MetaData) -> None:
    """Make the tables in another database, with the rows of this one."""
    metadata.create_all(target.engine)
    # A lab of an earlier release may lack tables of Nova's that nothing needed then, and columns of the journal.
    shape = sa.inspect(source.engine)
    there = set(shape.get_table_names())
    with source.read() as reading, target.begin() as writing:
        for table in metadata.sorted_tables:
            if table.name not in there:
                continue
            columns = [table.c[column["name"]] for column in shape.get_columns(table.name) if column["name"] in table.c]
            rows = [dict(row) for row in reading.execute(sa.select(*columns)).mappings()]
            if rows:
                writing.execute(sa.insert(table), rows)
                key = table.autoincrement_column
                if key is not None and target.dialect == "postgresql":
                    writing.execute(
                        sa.text("SELECT setval(pg_get_serial_sequence(:name, :key), :last)"),
                        {"name": table.name, "key": key.name, "last": max(row[key.name] for row in rows)},
                    )
    target.close()
