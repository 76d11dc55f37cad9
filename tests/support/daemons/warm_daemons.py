"""Daemons as processes forked from one that has imported everything: their imports are most of their start's time.

`serve` is a program of its own, one for each process that starts daemons, and lives as long as that.  It has no thread
and no connection but to the starter, and runs nothing itself: what a daemon finds is what it had imported anyhow.
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
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from droveway.cli import main

DAEMONS: Final = (
    "droveway.cli.commands.conductor",
    "droveway.cli.commands.worker",
    "droveway.clients.access",
    "droveway.clients.references",
    "droveway.clients.volume",
    "droveway.clients.zookeeper",
    "droveway.clients.sessions",
    "droveway.conf.services",
    "droveway.conf.settings",
    "droveway.engines.site.installation",
    "droveway.engines.start",
    "droveway.workers.daemon",
    "droveway.workers.transfer.endpoints",
    "droveway.workers.hypervisors.configured",
    "droveway.workers.hypervisors.sandbox.hypervisor",
    "keystoneauth1.noauth",
    "keystoneauth1.token_endpoint",
    "openstack.connection",
    "oslo_log.log",
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
)
"""What conductors and workers import, whatever their databases."""

_ENVIRONMENT: Final = dict(os.environ)
"""The warm process's: no test has changed it yet."""

_READ_BY_DAEMONS: Final = ("OS_", "NOTIFY_SOCKET", "PYTEST_CURRENT_TEST")
"""How the names of variables begin that nothing has read by the time a daemon's modules are imported."""

_REQUEST: Final = 1 << 17
"""Bytes that a request may have."""


class Forked:
    """A daemon that was forked, with what tests use of `subprocess.Popen`, and as it means it.

    Its parent, the warm process, tells its end once it has waited for it.  Signals go through a handle that the parent
    has made while the pid was surely its child's, so that they meet this process or none.
    """

    def __init__(self, control: socket.socket, words: list[str], environment: dict[str, str], output: int) -> None:
        """``output``: the open file that is to be its stdout and stderr."""
        self.args = words
        self.returncode: int | None = None
        """The exit code, or the negative number of the signal that it died of; None as long as nobody has asked."""
        self._told, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with telling:
            request = json.dumps([words, str(Path.cwd()), environment]).encode()
            socket.send_fds(control, [request], [telling.fileno(), output])
        pid, handles, _flags, _sender = socket.recv_fds(self._told, 16, 1)
        if not handles:
            raise ChildProcessError("the process that forks daemons has ended")
        self.pid = int(pid)
        self._handle = handles[0]

    def poll(self) -> int | None:
        """As Popen's."""
        if self.returncode is None and readable(self._told, seconds=0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As Popen's, with its `subprocess.TimeoutExpired`."""
        if self.returncode is None and not readable(self._told, seconds=timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """As Popen's: to a process that has ended none is sent."""
        if self.poll() is None:
            try:
                signal.pidfd_send_signal(self._handle, number)
            except ProcessLookupError:
                # It ended in between.
                self.wait()

    def terminate(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As Popen's."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        code = self._told.recv(16)
        if not code:
            raise ChildProcessError(f"the process that forks daemons has ended, and with it {self.pid}")
        self.returncode = int(code)
        self._told.close()
        os.close(self._handle)


def start(words: list[str], environment: dict[str, str], output: int) -> Forked | subprocess.Popen[bytes]:
    """Start ``droveway`` with these words, this environment and stdout and stderr in the open file ``output``.

    It is forked unless a variable differs on which its imports or its interpreter may depend.
    """
    names = {name for name in {*environment, *_ENVIRONMENT} if environment.get(name) != _ENVIRONMENT.get(name)}
    if all(name.startswith(_READ_BY_DAEMONS) for name in names):
        return Forked(_warm(), words, environment, output)
    return start_apart(words, environment, output)


def start_apart(words: list[str], environment: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    """The same as a process of its own from the start, whose command line is its own too."""
    command = [sys.executable, "-m", "droveway.cli.main", *words]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


@functools.cache
def _warm() -> socket.socket:
    """The starter's end of the connection to its warm process, which ends with it."""
    control, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with served:
        # Safe paths: this file's folder is none to import from.
        words = [sys.executable, "-P", __file__, str(served.fileno())]
        process = subprocess.Popen(
            words, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, pass_fds=[served.fileno()], start_new_session=True
        )
    # In the order of their calls from the last: the connection ends, then the process.
    atexit.register(process.wait)
    atexit.register(control.close)
    return control


def readable(*files: Any, seconds: float | None = None) -> list[Any]:
    """Return those of the files that can be read, once there is one; none after that many seconds.

    `select.select` takes no file with a number above 1,023, and a process that runs many tests has such ones.
    """
    with selectors.PollSelector() as waiting:
        for each in files:
            waiting.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _events in waiting.select(seconds)]


def serve(control: socket.socket) -> list[str] | None:
    """Fork a daemon for each request, and tell how it ends; returns in each of them, with the words of its command.

    In the process itself it returns None, once the starter has gone and all daemons were killed.
    """
    daemons: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in readable(control, *daemons):
            if isinstance(ready, int):
                pid, telling = daemons.pop(ready)
                _tell_end(pid, telling)
                os.close(ready)
                continue
            request, files, _flags, _sender = socket.recv_fds(control, _REQUEST, 2)
            if not request:
                for handle, (pid, _telling) in daemons.items():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    os.waitpid(pid, 0)
                return None
            words, directory, environment = json.loads(request)
            telling, output = socket.socket(fileno=files[0]), files[1]
            assert threading.active_count() == 1
            pid = os.fork()
            if pid == 0:
                for held in (control, telling, *(theirs for _pid, theirs in daemons.values())):
                    held.close()
                for handle in daemons:
                    os.close(handle)
                _be_a_daemon(directory, environment, output)
                return [str(word) for word in words]
            os.close(output)
            handle = os.pidfd_open(pid)
            daemons[handle] = (pid, telling)
            with contextlib.suppress(ConnectionError):  # of a starter that has gone: the next look at it ends this
                socket.send_fds(telling, [str(pid).encode()], [handle])


def _tell_end(pid: int, telling: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    with telling, contextlib.suppress(ConnectionError):  # where nobody is left who would ask
        telling.send(str(os.waitstatus_to_exitcode(status)).encode())


def _be_a_daemon(directory: str, environment: dict[str, str], output: int) -> None:
    os.setsid()
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)


def run(number: int) -> int:
    """Import, then serve over the open socket of this number; the exit code of this process or of a daemon."""
    for name in DAEMONS:
        importlib.import_module(name)
    # What is imported is no child's to collect: the pages stay shared.
    gc.collect()
    gc.freeze()
    words = serve(socket.socket(fileno=number))
    if words is None:
        return 0
    sys.argv = [main.__file__, *words]
    return main.main()


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1])))
