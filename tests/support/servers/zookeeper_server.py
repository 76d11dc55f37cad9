"""A real ZooKeeper server, from Debian's package, in a directory and on a port of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from support.servers.certificates import Authority, Files

from droveway import certificates
from droveway.lab import serve_zookeeper
from droveway.lab.serve_ports import free_port

STARTS_WITHIN = 180.0
_LOCAL_SESSIONS = "localSessionsEnabled=true\nlocalSessionsUpgradingEnabled=true\n"
"""Without them a server alone refuses those who want but to read too: it can tell nobody of their sessions."""


class Server:
    """A running server: ``hosts`` is what a client connects to."""

    def __init__(
        self, folder: Path, number: int = 0, files: Files | None = None, *, serves_readers: bool = False
    ) -> None:
        """``number``: of a member of an `Ensemble`; 0 stands alone.  ``files``: it speaks TLS alone, to all sides.

        ``serves_readers``: without most of its ensemble it has sessions that only read.
        """
        self._folder = folder
        self._files = files
        self._serves_readers = serves_readers
        self._number = number
        self._port = free_port()
        self.member = "" if not number else f"server.{number}={self._name()}:{free_port()}:{free_port()}"
        """How the others of its ensemble find it."""
        self.members: tuple[str, ...] = ()
        self.address = ("127.0.0.1", self._port)
        self.hosts = f"{self._name()}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self.begin()
        self.await_answer()

    def begin(self) -> None:
        """Start it; a member of an ensemble answers once most of them run."""
        serve_zookeeper.require()
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(self._number))
        config = self._folder / "zoo.cfg"
        config.write_text(
            serve_zookeeper.configuration(data, self._ports())
            + "initLimit=50\nsyncLimit=25\n"
            + (_LOCAL_SESSIONS if self._serves_readers else "")
            + "".join(f"{each}\n" for each in self.members)
        )
        with (self._folder / "server.log").open("ab") as log:
            mode = f"-Dreadonlymode.enabled={str(self._serves_readers).lower()}"
            self._process = subprocess.Popen(serve_zookeeper.command(config, mode), stdout=log, stderr=log)

    def _name(self) -> str:
        """What its clients call it by: a certificate is for a name."""
        return "127.0.0.1" if self._files is None else "localhost"

    def _ports(self) -> str:
        if self._files is None:
            return serve_zookeeper.plain(self._port)
        pair = self._folder / "pair.pem"
        pair.write_bytes(self._files.key.read_bytes() + self._files.certificate.read_bytes())
        stores = f"keyStore.location={pair} keyStore.type=PEM trustStore.location={self._files.authority}"
        told = [
            f"{scope}.{each}" for scope in ("ssl", "ssl.quorum") for each in f"{stores} trustStore.type=PEM".split()
        ]
        factory = "org.apache.zookeeper.server.NettyServerCnxnFactory"
        provider = "org.apache.zookeeper.server.auth.X509AuthenticationProvider"
        return "\n".join(
            [
                f"secureClientPort={self._port}",
                "secureClientPortAddress=127.0.0.1",
                f"serverCnxnFactory={factory}",
                f"authProvider.x509={provider}",
                "ssl.clientAuth=need",
                "sslQuorum=true",
                *told,
                "",
            ]
        )

    def await_answer(self) -> None:
        """Wait until it serves requests."""
        assert self._process is not None
        ends = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < ends, "ZooKeeper did not start in time"

    def freeze(self) -> None:
        """Stop the server in its tracks: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut of the process would; `start` brings it back with its data."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """The running server's process."""
        assert self._process is not None
        return self._process.pid

    def _signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def leads(self) -> bool:
        """Whether it leads its ensemble now."""
        return b"Mode: leader" in self._told()

    def only_reads(self) -> bool:
        """Whether it has lost most of its ensemble, and serves those who but read."""
        return b"Mode: read-only" in self._told()

    def _answers(self) -> bool:
        if self._told().startswith(b"Zookeeper"):
            return True
        threading.Event().wait(0.05)
        return False

    def _told(self) -> bytes:
        """What it says of itself; nothing while it does not answer."""
        told = b""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as plain:
                connection = plain if self._files is None else self._secured(plain, self._files)
                connection.sendall(b"srvr")
                while part := connection.recv(4096):
                    told += part
        except OSError:
            return b""
        return told

    def _secured(self, plain: socket.socket, files: Files) -> socket.socket:
        context = certificates.read(files.certificate, files.key, files.authority).client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context.wrap_socket(plain, server_hostname="localhost")


class Ensemble:
    """Three servers that stand in for one another."""

    def __init__(self, folder: Path, authority: Authority | None = None, *, serves_readers: bool = False) -> None:
        files = [authority.issue(f"zookeeper{number}") if authority else None for number in (1, 2, 3)]
        self.servers = [
            Server(folder / str(number), number, files[number - 1], serves_readers=serves_readers)
            for number in (1, 2, 3)
        ]
        for server in self.servers:
            server.members = tuple(each.member for each in self.servers)
        self.hosts = ",".join(server.hosts for server in self.servers)

    def start(self, *members: Server) -> None:
        """Start them, or those that are named; all of these answer when this returns."""
        for server in members or self.servers:
            server.begin()
        for server in members or self.servers:
            server.await_answer()

    def hosts_but_for(self, first: str) -> str:
        """What a client connects to that is to reach the first server there."""
        return ",".join([first, *(server.hosts for server in self.servers[1:])])

    def leader(self) -> Server | None:
        """Who leads now."""
        return next((server for server in self.servers if server.leads()), None)

    def kill(self) -> None:
        """End them all."""
        for server in self.servers:
            server.kill()


@contextlib.contextmanager
def running_ensemble(
    folder: Path, authority: Authority | None = None, *, serves_readers: bool = False
) -> Iterator[Ensemble]:
    """``authority``: they speak TLS alone, with certificates that it issues; ``serves_readers`` as of `Server`."""
    ensemble = Ensemble(folder, authority, serves_readers=serves_readers)
    ensemble.start()
    try:
        yield ensemble
    finally:
        ensemble.kill()


@contextlib.contextmanager
def running_server(folder: Path, files: Files | None = None) -> Iterator[Server]:
    server = Server(folder, files=files)
    server.start()
    try:
        yield server
    finally:
        server.kill()
