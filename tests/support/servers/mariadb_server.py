"""A real MariaDB server, from Debian's package, in a directory and behind a socket of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymysql
from support.labs.small_lab import until
from support.servers.certificates import Files

from droveway.lab.serve_ports import free_port

PASSWORD = "canary-mariadb-93be"
STARTS_WITHIN = 180.0
_USER = "mysql"
_LOGIN = "tests"


class Server:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self.socket = folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 3306
        self._network = ["--skip-networking"]

    def url(self, database: str) -> str:
        """Of one of its databases."""
        return f"mysql+pymysql://{_LOGIN}:{PASSWORD}@localhost/{database}?unix_socket={self.socket}"

    def tls_url(self, database: str, authority: Path, *, name: str = "localhost") -> str:
        """Of one of its databases, through TLS, at the name that its certificate has to be for."""
        checks = f"ssl_ca={authority}&ssl_check_hostname=true"
        return f"mysql+pymysql://{_LOGIN}:{PASSWORD}@{name}:{self._port}/{database}?{checks}"

    def url_through(self, port: int, database: str) -> str:
        """Of one of its databases, through a proxy at this port."""
        return f"mysql+pymysql://{_LOGIN}:{PASSWORD}@127.0.0.1:{port}/{database}?ssl_disabled=true"

    def plain_url(self, database: str) -> str:
        """The same without TLS."""
        return f"mysql+pymysql://{_LOGIN}:{PASSWORD}@127.0.0.1:{self._port}/{database}?ssl_disabled=true"

    def take_certificate(self, files: Files) -> None:
        """Listen for TLS, and for nothing else, from the next start on."""
        self._port = free_port()
        self._network = ["--bind-address=127.0.0.1", f"--port={self._port}", "--require-secure-transport=ON"]
        for path, option in ((files.certificate, "cert"), (files.key, "key")):
            copied = self._folder / path.name
            shutil.copy(path, copied)
            shutil.chown(copied, *([_USER] if os.geteuid() == 0 else [os.geteuid()]))
            self._network.append(f"--ssl-{option}={copied}")

    def make(self) -> None:
        """Make its files."""
        made = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={self._data}", *_as_user(), "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr

    def start(self) -> None:
        """Start it; it answers when this returns."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "mariadbd",
                    "--no-defaults",
                    f"--datadir={self._data}",
                    f"--socket={self.socket}",
                    *self._network,
                    "--max-connections=300",
                    *_as_user(),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._answers, "MariaDB", STARTS_WITHIN)

    def kill(self) -> None:
        """End it, as a power cut of the process would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def create(self, *databases: str) -> None:
        """Make empty databases, and who may use them."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER IF NOT EXISTS {_LOGIN}@localhost IDENTIFIED BY %s", (PASSWORD,))
            for database in databases:
                cursor.execute(f"CREATE DATABASE `{database}` CHARACTER SET utf8mb4")
                cursor.execute(f"GRANT ALL ON `{database}`.* TO {_LOGIN}@localhost")

    def _connect(self) -> pymysql.Connection:
        return pymysql.connect(unix_socket=str(self.socket), user=pwd.getpwuid(os.geteuid()).pw_name)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
        try:
            self._connect().close()
        except pymysql.OperationalError:
            return False
        return True


@contextlib.contextmanager
def running_server(certificate: Files | None = None) -> Iterator[Server]:
    """A new one, where its own user can go."""
    assert shutil.which("mariadbd"), "the Debian package mariadb-server is missing: apt-get install mariadb-server"
    folder = Path(tempfile.mkdtemp(prefix="droveway-mariadb-"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam(_USER)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
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


def _as_user() -> list[str]:
    return [f"--user={_USER}"] if os.geteuid() == 0 else []
