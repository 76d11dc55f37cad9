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

    def url(self, database: str) -> str:
        """Of one of its databases."""
        return f"postgresql+psycopg://{_USER}:{PASSWORD}@/{database}?host={self._folder}"

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
        settings = f"-c listen_addresses='' -c unix_socket_directories={self._folder} -c max_connections=200"
        self._run("pg_ctl", "-D", self._data, "-l", self._folder / "log", "-w", "-o", settings, "start")

    def kill(self) -> None:
        """End it, as a power cut of the process would."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def create(self, *databases: str) -> None:
        """Make empty databases."""
        for database in databases:
            self._run("createdb", "-h", self._folder, "-U", _USER, database)

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
def running_server() -> Iterator[Server]:
    """A new one; it refuses to run as root, and lies where its own user can go."""
    folder = Path(tempfile.mkdtemp(prefix="droveway-postgres-"))
    _own(folder)
    server = Server(folder)
    server.make()
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
