"""The `droveway` command as a process forked from one that has imported everything: three quarters of a command's time.

`serve` is a program of its own.  What stands for ``droveway`` on the PATH hands it its words, directory, environment
and open files, and ends as the forked command did, by the same signal if it was one.  Commands run one after another.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from droveway.cli.main import main

OPERATORS: Final = (
    "droveway.audit.run",
    "droveway.cli.commands.debt",
    "droveway.cli.commands.freeze",
    "droveway.cli.commands.host",
    "droveway.cli.commands.plan",
    "droveway.cli.commands.request",
    "droveway.cli.commands.worker",
    "droveway.engines.operations.submit",
    "cliff.formatters.json_format",
    "cliff.formatters.table",
    "openstack.connection",
)
"""What an operator's commands on an installation import."""

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


@functools.cache
def of(names: tuple[str, ...]) -> str:
    """Return the path of such a command, which needs ``names``, for as long as this process lives."""
    stack = contextlib.ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stack.enter_context(on_path(folder, names))
    atexit.register(stack.close)
    return str(folder / "droveway")


@contextlib.contextmanager
def on_path(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """A PATH on which ``droveway`` is such a command, which needs ``names``, for as long as the block takes."""
    address, client = str(folder / "commands"), folder / "droveway"
    client.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        number = listening.fileno()
        words = [sys.executable, __file__, str(number), *names]
        server = subprocess.Popen(words, pass_fds=[number], stdin=subprocess.PIPE)
    # Only the server listens: once it is gone a command is refused instead of waiting for it.
    try:
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"
    finally:
        server.communicate()


def serve(listening: socket.socket, names: Sequence[str]) -> None:
    """Run one command after the other, for as long as somebody holds the other end of stdin."""
    for name in names:
        importlib.import_module(name)
    # What is imported is no child's to collect: the pages stay shared.
    gc.freeze()
    waiting = selectors.PollSelector()
    for each in (listening, sys.stdin):
        waiting.register(each, selectors.EVENT_READ)
    while sys.stdin not in [key.fileobj for key, _events in waiting.select()]:
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
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
