"""Workers in processes of their own, as in a deployment, so that one can be killed while the conductor lives.

They share the embedded ZooKeeper of the process that forked them, over a pipe each.  A worker that was killed is
replaced as a service manager would do it; its session, and with it its registration, ends with the process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from droveway.clients.watches import Listing, WhenChanged
from droveway.clients.zookeeper import Coordination
from droveway.errors import CoordinationLost, DrovewayError
from droveway.lab import runner
from droveway.lab.runner import Probes, Runner
from droveway.lab.session import Lab

LIVES: Final = 2
"""Processes that are made ready for each host: forked before the first thread, since later it would be too late."""

ANSWER_SECONDS: Final = 60.0


class WorkerProcesses(Runner):
    """A runner whose workers are processes; made before the process has threads."""

    def __init__(self, lab: Lab, probes: Probes) -> None:
        super().__init__(lab, probes)
        self._ready: dict[str, list[_Child]] = {}
        for host in sorted(lab.identity.hosts):
            self._ready[host] = [_Child(lab, host, probes) for _ in range(LIVES)]
        self._made = [child for children in self._ready.values() for child in children]

    def start_worker(self, host: str) -> Callable[[], None]:
        """Start the host's worker, and the next one when it ends without having been told to."""
        service = _Service(self._ready.pop(host), self.connect)
        service.start()
        return service.stop

    def kill(self) -> None:
        """End every process of them, wherever it is."""
        for child in self._made:
            child.kill()


class _Service:
    """Keeps one host's worker running."""

    def __init__(self, children: list[_Child], connect: Callable[[], Coordination]) -> None:
        self._children = children
        self._connect = connect
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        for child in self._children:
            child.end()
        self._thread.join()

    def _serve(self) -> None:
        for child in self._children:
            if self._stopping:
                break
            child.serve(self._connect())


class _Child:
    """One forked worker, which waits until it is served."""

    def __init__(self, lab: Lab, host: str, probes: Probes) -> None:
        self._pipe, other = Pipe()
        self._sending = threading.Lock()
        self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            _be_the_worker(lab, host, probes, other)
        # Names this process for as long as it is open: its number is another's once it was reaped.
        self._process = os.pidfd_open(self._pid)
        other.close()

    def end(self) -> None:
        """Let it end."""
        self._send(("end", 0, None))

    def kill(self) -> None:
        """Kill it; once it was reaped this signals nobody."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def serve(self, coordination: Coordination) -> None:
        """Let it begin, and answer what it asks until it ends."""
        self._send(("begin", coordination.session, None))
        watches: dict[int, Callable[[], None]] = {}
        try:
            while True:
                number, name, arguments, options = self._pipe.recv()
                self._send(("answer", number, self._answer(coordination, watches, name, arguments, options)))
        except (EOFError, ConnectionError):
            os.waitpid(self._pid, 0)
        finally:
            for stop in watches.values():
                stop()
            coordination.close()

    def _answer(
        self,
        coordination: Coordination,
        watches: dict[int, Callable[[], None]],
        name: str,
        arguments: Any,
        options: Any,
    ) -> tuple[bool, Any]:
        try:
            if name == "watch":
                path, watch = arguments
                watches[watch] = coordination.watch(path, lambda: self._send(("ring", watch, None)))
                return True, None
            if name == "unwatch":
                watches.pop(arguments[0])()
                return True, None
            return True, getattr(coordination, name)(*arguments, **options)
        except DrovewayError as error:
            return False, error

    def _send(self, message: tuple[str, Any, Any]) -> None:
        try:
            with self._sending:
                self._pipe.send(message)
        except (BrokenPipeError, OSError):
            return  # it has ended, which whoever reads finds out


class _Remote(Coordination):
    """A session that another process holds."""

    def __init__(self, pipe: Connection, session: int) -> None:
        super().__init__(None)
        self._pipe = pipe
        self._number = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._rings: dict[int, Callable[[], None]] = {}
        self._session = session
        self._ended = False

    @property
    def session(self) -> int | None:
        """The session's number."""
        return self._session

    def live(self) -> bool:
        """Whether the other process is there."""
        return not self._ended

    def get(self, path: str, *, sync: bool = False) -> tuple[bytes, int] | None:
        """See `Coordination.get`."""
        found: tuple[bytes, int] | None = self._ask("get", path, sync=sync)
        return found

    def get_each(self, paths: Sequence[str], *, sync: bool = False) -> list[tuple[bytes, int] | None]:
        """See `Coordination.get_each`."""
        found: list[tuple[bytes, int] | None] = self._ask("get_each", paths, sync=sync)
        return found

    def owner(self, path: str) -> int | None:
        """See `Coordination.owner`."""
        found: int | None = self._ask("owner", path)
        return found

    def born(self, path: str) -> float | None:
        """See `Coordination.born`."""
        found: float | None = self._ask("born", path)
        return found

    def children(self, path: str, watch: WhenChanged | None = None) -> list[str]:
        """See `Coordination.children`; watched it is by `listing` alone."""
        assert watch is None
        found: list[str] = self._ask("children", path)
        return found

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """See `Coordination.create`."""
        return bool(self._ask("create", path, data, ephemeral=ephemeral))

    def create_guarded(self, path: str, data: bytes, *, guard: str, version: int) -> bool:
        """See `Coordination.create_guarded`."""
        return bool(self._ask("create_guarded", path, data, guard=guard, version=version))

    def put(self, path: str, data: bytes, *, version: int = -1) -> bool:
        """See `Coordination.put`."""
        return bool(self._ask("put", path, data, version=version))

    def delete(self, path: str) -> bool:
        """See `Coordination.delete`."""
        return bool(self._ask("delete", path))

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """See `Coordination.watch`."""
        watch = next(self._number)
        self._rings[watch] = callback
        self._ask("watch", path, watch)
        return lambda: self._ask("unwatch", watch)

    def listing(self, path: str, callback: Callable[[], None]) -> Listing:
        """See `Coordination.listing`."""
        return _RemoteListing(self, path, callback)

    def listen(self) -> None:
        """Take answers and rings until the other process says that it is the end, or has ended."""
        try:
            while True:
                what, number, value = self._pipe.recv()
                if what == "end":
                    return
                if what == "ring":
                    self._rings[number]()
                else:
                    event, box = self._waiting.pop(number)
                    box.append(value)
                    event.set()
        except (EOFError, ConnectionError):
            self._ended = True
            for event, _box in list(self._waiting.values()):
                event.set()

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        number = next(self._number)
        event, box = threading.Event(), list[Any]()
        self._waiting[number] = event, box
        try:
            with self._lock:
                self._pipe.send((number, name, arguments, options))
        except (BrokenPipeError, OSError):
            self._ended = True
        if self._ended or not event.wait(ANSWER_SECONDS) or not box:
            raise CoordinationLost("the process that holds the session has ended")
        done, value = box[0]
        if not done:
            raise value
        return value


class _RemoteListing(Listing):
    """Lists by a call to the other process each time."""

    def __init__(self, remote: _Remote, path: str, callback: Callable[[], None]) -> None:
        self._remote = remote
        self._path = path
        self.stop = remote.watch(path, callback)  # type: ignore[method-assign]

    def names(self, *, fresh: bool = False) -> list[str]:
        """See `Listing.names`."""
        return self._remote.children(self._path)


def _be_the_worker(lab: Lab, host: str, probes: Probes, pipe: Connection) -> None:
    try:
        what, session, _ = pipe.recv()
        if what == "begin":
            remote = _Remote(pipe, session)
            started: list[Any] = []
            begin = threading.Thread(target=lambda: started.append(_start(lab, host, probes, remote)))
            begin.start()
            remote.listen()
            begin.join()
            end = threading.Thread(target=remote.listen, daemon=True)
            end.start()
            started[0].stop()
    except (EOFError, ConnectionError):
        os._exit(0)  # whom it worked for has ended before
    except BaseException:  # noqa: BLE001 - a child must end here, whatever it was
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _start(lab: Lab, host: str, probes: Probes, remote: _Remote) -> Any:
    return runner.start_worker(lab, host, remote, probe=probes.worker(host))
