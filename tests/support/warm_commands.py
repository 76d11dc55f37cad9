"""The `droveway` command as a process forked from one that has imported everything: three quarters of a command's time.

`serve` is a program of its own.  What stands for ``droveway`` on the PATH hands it its words, directory, environment
and open files, and ends as the forked command did, by the same signal if it was one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from droveway.cli.main import main
from droveway.lab.demo import WARM

_CLIENT: Final = """\
#!{python} -IS
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [request], [0, 1, 2])
code = int(connection.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

_REQUEST: Final = 1 << 17
"""Bytes that a request may have."""


@contextlib.contextmanager
def on_path(folder: Path) -> Iterator[str]:
    """A PATH on which ``droveway`` is such a command, for as long as the block takes."""
    address, client = str(folder / "commands"), folder / "droveway"
    client.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        number = listening.fileno()
        server = subprocess.Popen([sys.executable, __file__, str(number)], pass_fds=[number])
    # Only the server listens: once it is gone a command is refused instead of waiting for it.
    try:
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"
    finally:
        server.kill()
        server.wait()


def serve(listening: socket.socket) -> NoReturn:
    """Run one command after the other."""
    for name in WARM:
        importlib.import_module(name)
    while True:
        connection, _address = listening.accept()
        with connection:
            request, files, _flags, _sender = socket.recv_fds(connection, _REQUEST, 3)
            words, directory, environment = json.loads(request)
            child = os.fork()
            if child == 0:
                sys.exit(_command(words, directory, environment, files))
            for file in files:
                os.close(file)
            status = os.waitpid(child, 0)[1]
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _command(words: list[str], directory: str, environment: dict[str, str], files: list[int]) -> int:
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    return main(words)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
