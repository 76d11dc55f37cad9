"""A real PostgreSQL server, from Debian's package, in a directory and behind a socket of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.servers.certificates import Files

from droveway.lab.serve_ports import free_port

PASSWORD = "canary-postgres-4f1c"
_USER = "postgres"


class Server:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        assert binaries, "the Debian package postgresql is missing: apt-get install postgresql"
        self._bin = binaries[-1]
        self._port = 5432
        self._settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=200"

    def url(self, database: str) -> str:
        """Of one of its databases."""
        return f"postgresql+psycopg://{_USER}:{PASSWORD}@/{database}?host={self._folder}"

    def tls_url(self, database: str, authority: Path, *, name: str = "localhost") -> str:
        """Of one of its databases, through TLS, at the name that its certificate has to be for."""
        where = f"{name}:{self._port}/{database}?hostaddr=127.0.0.1"
        return f"postgresql+psycopg://{_USER}:{PASSWORD}@{where}&sslmode=verify-full&sslrootcert={authority}"

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._folder / "log"

    @property
    def pid(self) -> int:
        """The server's first process, of which all others are children."""
        return int((self._data / "postmaster.pid").read_text(encoding="ascii").split()[0])

    @property
    def socket(self) -> Path:
        """Where it listens unless it has a certificate."""
        return self._folder / f".s.PGSQL.{self._port}"

    def url_through(self, port: int, database: str) -> str:
        """Of one of its databases, through a proxy at this port."""
        return f"postgresql+psycopg://{_USER}:{PASSWORD}@127.0.0.1:{port}/{database}?sslmode=disable"

    def plain_url(self, database: str) -> str:
        """The same without TLS."""
        return f"postgresql+psycopg://{_USER}:{PASSWORD}@127.0.0.1:{self._port}/{database}?sslmode=disable"

    def take_certificate(self, files: Files) -> None:
        """Listen for TLS, and for nothing else, from the next start on."""
        self._port = free_port()
        for path, name in ((files.certificate, "server.crt"), (files.key, "server.key")):
            shutil.copy(path, self._data / name)
            _own(self._data / name)
        rules = self._data / "pg_hba.conf"
        rules.write_text(rules.read_text().replace("host  ", "hostssl"))
        self._settings += f" -c ssl=on -c listen_addresses=127.0.0.1 -c port={self._port}"

    def make(self) -> None:
        """Make its files."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        _own(secret)
        self._run(
            "initdb",
            "-D",
            self._data,
            "-U",
            _USER,
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "-N",
        )

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self._run("pg_ctl", "-D", self._data, "-l", self.log, "-w", "-o", self._settings, "start")

    def kill(self) -> None:
        """End it, as a power cut of the process would."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def create(self, *databases: str) -> None:
        """Make empty databases."""
        for database in databases:
            self._run("createdb", "-h", self._folder, "-p", str(self._port), "-U", _USER, database)

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self._folder,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            user=_USER if os.geteuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"


@contextlib.contextmanager
def running_server(certificate: Files | None = None) -> Iterator[Server]:
    """A new one; it refuses to run as root, and lies where its own user can go."""
    folder = Path(tempfile.mkdtemp(prefix="droveway-postgres-"))
    _own(folder)
    server = Server(folder)
    server.make()
    if certificate is not None:
        server.take_certificate(certificate)
    server.start()
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def _own(path: Path) -> None:
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_USER)
        os.chown(path, owner.pw_uid, owner.pw_gid)
