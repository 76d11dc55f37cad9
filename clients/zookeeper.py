"""Speaks to ZooKeeper by kazoo, and to the embedded one of a lab by zake.

ZooKeeper holds the list of work and wakes those who wait. It is no record: if ZooKeeper loses its nodes, conductors
make them again from the journal. An epoch is the number of a move's present claim, and a newer claim has a higher one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import select
import socket
import ssl
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState

from droveway.certificates import Identity
from droveway.clients.access import Access, Protection, require_root
from droveway.clients.access import protection as protection_of
from droveway.clients.watches import LeafWatch, Listing, NodeWatch, WhenChanged
from droveway.errors import CoordinationLost, Fenced, Refused

if TYPE_CHECKING:
    from oslo_config import cfg

ROOT: Final = "/droveway"
BOARD: Final = f"{ROOT}/board"
MOVES: Final = f"{ROOT}/moves"
HOSTS: Final = f"{ROOT}/hosts"

EMBEDDED_TIMEOUT: Final = 10.0
"""The seconds that a lab's sessions give as their time-out. In truth they end only when they are closed."""

_AT_ONCE: Final = 200
"""How many deletes go into one transaction, so that it stays well below the largest request that ZooKeeper takes."""

_RETRY: Final = {"max_tries": 5, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
_RECONNECT: Final = {**_RETRY, "max_tries": -1}


def host_path(host: str) -> str:
    """Return the folder of all that concerns one host."""
    return f"{HOSTS}/{host}"


def command_path(host: str, key: str = "") -> str:
    """Return the node of a command, or the folder of the host's commands."""
    return f"{host_path(host)}/commands/{key}".rstrip("/")


def result_path(host: str, key: str = "") -> str:
    """Return the node of a command's result, or the folder of the host's results."""
    return f"{host_path(host)}/results/{key}".rstrip("/")


def progress_path(host: str, key: str = "") -> str:
    """Return the node of a command's progress, or the folder of these nodes."""
    return f"{host_path(host)}/progress/{key}".rstrip("/")


def query_path(host: str, number: str = "") -> str:
    """Return the node of a query, or the folder of the queries to the host."""
    return f"{host_path(host)}/inquiries/{number}".rstrip("/")


def page_path(host: str, name: str = "") -> str:
    """Return the node of a page of an answer to a query, or the folder of the pages."""
    return f"{host_path(host)}/answers/{name}".rstrip("/")


def worker_path(host: str) -> str:
    """Return the ephemeral node of a worker that is up, which holds its `droveway.wire.commands.Registration`.

    The node has a folder of its own: a worker may make and delete nodes there, and in no other host's folder.
    """
    return f"{host_path(host)}/worker/registration"


def move_path(move: str) -> str:
    """Return the folder of a move's nodes, which workers read."""
    return f"{MOVES}/{move}"


def epoch_path(move: str) -> str:
    """Return the node with a move's epoch: a decimal number, or `TOMBSTONE` once the move has ended."""
    return f"{move_path(move)}/epoch"


def step_path(move: str) -> str:
    """Return the node of the last step whose begin is in the journal (`droveway.engines.conductor.step_marks`)."""
    return f"{move_path(move)}/step"


def record_path(move: str) -> str:
    """Return the node with a copy of a running move's records (`droveway.engines.conductor.recorded`)."""
    return f"{move_path(move)}/recorded"


TOMBSTONE: Final = b"ended"


def epoch_in(data: bytes) -> int | None:
    """Return the epoch in a node's data; None for a tombstone, and for data that Droveway has not written."""
    return int(data) if data.isdigit() and len(data) < _DIGITS else None


_DIGITS: Final = 20
"""More digits than any number in a column has."""


class Coordination:
    """A session with ZooKeeper.

    Every method raises `droveway.errors.CoordinationLost` when the service cannot be reached within the client's
    retries; whether the call took effect is then unknown, which is why each of them is safe to repeat.
    """

    def __init__(self, client: Any, access: Access | None = None, *, timeout: float = EMBEDDED_TIMEOUT) -> None:
        self.timeout = timeout
        """Seconds after which ZooKeeper ends a session that it does not hear from; see `EMBEDDED_TIMEOUT` for a lab."""
        self.client = client
        """The client, with kazoo's interface."""
        self.access = access
        """The access lists that nodes are made with; None when nodes are not protected."""
        self._session: int | None = None
        self._lock = threading.Lock()
        self._shared: dict[str, LeafWatch] = {}

    @property
    def session(self) -> int | None:
        """Return the session's number, which its ephemeral nodes have as their owner; None once the session has ended.

        While only the connection is lost, the session may live on, and the number is returned.
        """
        if self.live():
            self._session = self.client.client_id[0] if self._is_kazoo() else self.client.session_id
        elif not self._is_kazoo() or self.client.state == KazooState.LOST:
            self._session = None
        return self._session

    def live(self) -> bool:
        """Say whether the session is known to be alive now."""
        if self._is_kazoo():
            return bool(self.client.state == KazooState.CONNECTED)
        return bool(self.client.connected and not self.client.expired)

    def get(self, path: str, *, sync: bool = False) -> tuple[bytes, int] | None:
        """Return the node's data and version, or None; with ``sync`` they are not older than this call."""
        return self.get_each([path], sync=sync)[0]

    def get_each(self, paths: Sequence[str], *, sync: bool = False) -> list[tuple[bytes, int] | None]:
        """Return each node's data and version, or None for a missing node; the nodes are read in their order.

        All requests are sent at once, so that there is one wait. With ``sync`` no answer is older than this call:
        ZooKeeper answers the requests of a session in their order, and the sync is the first of them.
        """
        with self._translated():
            return self.client.retry(self._get_each, paths, sync=sync)  # type: ignore[no-any-return]

    def exists(self, path: str, watch: WhenChanged | None = None) -> bool:
        """Say whether the node exists; ``watch`` is called once, with kazoo's event, when that or its data changes."""
        with self._translated():
            return self.client.retry(self.client.exists, path, watch=watch) is not None

    def owner(self, path: str) -> int | None:
        """Return the session that owns an ephemeral node, None when the node is missing; not older than this call."""
        with self._translated():
            stat = self.client.retry(self._together, ("sync", path), ("exists", path))[1]
            return stat.ephemeralOwner if stat is not None else None

    def born(self, path: str) -> float | None:
        """Return when the node was made, in seconds since 1970 by ZooKeeper's clock; None when it is missing."""
        with self._translated():
            stat = self.client.retry(self.client.exists, path)
            return stat.ctime / 1000 if stat is not None else None

    def children(self, path: str, watch: WhenChanged | None = None) -> list[str]:
        """Return the names below the node, sorted; none when it is missing.

        ``watch`` is called once, with kazoo's event, when they change; never, when the node is missing.
        """
        with self._translated():
            try:
                return sorted(self.client.retry(self.client.get_children, path, watch=watch))
            except exceptions.NoNodeError:
                return []

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        """Return what `children` does, for each node, with one wait for all."""
        with self._translated():
            found = self.client.retry(self._together, *(("get_children", path) for path in paths))
            return [sorted(names or ()) for names in found]

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Create the node and its parents once; False when it exists."""
        with self._translated():
            try:
                self._create(path, data, ephemeral=ephemeral)
            except exceptions.NodeExistsError:
                return False
            return True

    def clock(self, folder: str) -> dt.datetime | None:
        """Return ZooKeeper's time in UTC, without a zone; None when this daemon may not make a node in the folder.

        It is the time of a node that is made in the folder for this. With access lists, a worker may not make the
        folder, so it gets None until a conductor has made it.
        """
        path = f"{folder}/clock"
        stat = None
        with self._translated():
            while stat is None:
                try:
                    self._create(path, b"", ephemeral=True)
                except exceptions.NodeExistsError:
                    # A process that was killed has left it. The node goes when that process's session ends.
                    self.put(path, b"")
                except (exceptions.NoAuthError, exceptions.NoNodeError):
                    return None
                stat = self.client.retry(self.client.exists, path)
            self.delete(path)
        return dt.datetime.fromtimestamp(stat.mtime / 1000, dt.UTC).replace(tzinfo=None)

    def ensure(self, path: str) -> None:
        """Make the node and its parents unless they exist, each with its access list."""
        with self._translated():
            self._make_folder(path)
            if self.access is not None and self.client.retry(self.client.get_acls, path)[0] != self.access.of(path):
                self.client.retry(self.client.set_acls, path, self.access.of(path))

    def create_guarded(self, path: str, data: bytes, *, guard: str, version: int) -> bool:
        """Create the node once, in one transaction with a check that the node ``guard`` has that version.

        False when it exists; raises `droveway.errors.Fenced` when the guard is at another version or gone.
        """
        with self._translated():
            checked, created = self.client.retry(self._commit_guarded, path, data, guard, version)
            if isinstance(created, exceptions.NoNodeError):
                # The folder is missing. That is too rare to ask before each call.
                self._make_folder(path.rpartition("/")[0])
                checked, created = self.client.retry(self._commit_guarded, path, data, guard, version)
            if isinstance(checked, (exceptions.BadVersionError, exceptions.NoNodeError)):
                raise Fenced(f"{guard} is no longer at version {version}: a newer claim stands or the move has ended")
            if isinstance(created, exceptions.NodeExistsError):
                return False
            for outcome in (checked, created):
                if isinstance(outcome, Exception):
                    raise outcome
            return True

    def put(self, path: str, data: bytes, *, version: int = -1) -> bool:
        """Replace the node's data; False when it is missing or at another version than ``version`` (-1: any)."""
        with self._translated():
            try:
                self.client.retry(self.client.set, path, data, version=version)
            except (exceptions.NoNodeError, exceptions.BadVersionError):
                return False
            return True

    def delete(self, path: str) -> bool:
        """Delete the node and all below it; False when it is missing."""
        with self._translated():
            try:
                self.client.retry(self.client.delete, path)
            except exceptions.NoNodeError:
                return False
            except exceptions.NotEmptyError:
                self.client.retry(self.client.delete, path, recursive=True)
            return True

    def delete_together(self, paths: Sequence[str]) -> None:
        """Delete nodes that should all exist, in transactions of up to `_AT_ONCE` nodes.

        A process that is killed leaves either all nodes of a transaction or none. If one of them is missing or has
        children, the nodes of that transaction are deleted one by one, in their order.
        """
        with self._translated():
            for start in range(0, len(paths), _AT_ONCE):
                some = paths[start : start + _AT_ONCE]
                if len(some) == 1 or not self.client.retry(self._delete_together, some):
                    for path in some:
                        self.delete(path)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on every change of the node's data or children, and when it is made or deleted.

        ``callback`` is also called on each reconnection, since a change may have been missed, and may be called without
        a change. It runs on the client's thread, so it may do no more than set an event. Returns a function that ends
        the watch.
        """
        return NodeWatch(self, path, callback).stop

    def watch_leaf(self, path: str) -> LeafWatch:
        """Return a watch on a node without children; it reads the node at the first `look`."""
        return LeafWatch(self, path)

    def shared_watch(self, path: str) -> LeafWatch:
        """Return this session's only watch on a node without children, which all callers share until the session ends.

        Such watches are never removed, so they are for nodes of which there are few, such as those of the workers.
        """
        with self._lock:
            return self._shared.setdefault(path, LeafWatch(self, path))

    def listing(self, path: str, callback: Callable[[], None]) -> Listing:
        """Return a `Listing` of the names below the node, which it reads again only when they may have changed."""
        return Listing(self, path, callback)

    def close(self) -> None:
        """End the session; ZooKeeper deletes its ephemeral nodes."""
        self.client.stop()
        if self._is_kazoo():
            self.client.close()

    def _is_kazoo(self) -> bool:
        return isinstance(self.client, KazooClient)

    def _acl(self, path: str) -> list[Any] | None:
        return None if self.access is None else self.access.of(path)

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        # Kazoo's makepath would give the parents the access list of the node.
        while True:
            try:
                self.client.retry(self.client.create, path, data, acl=self._acl(path), ephemeral=ephemeral)
            except exceptions.NoNodeError:
                self._make_folder(path.rpartition("/")[0])
            else:
                return

    def _make_folder(self, path: str) -> None:
        with contextlib.suppress(exceptions.NodeExistsError):
            self._create(path, b"")

    def _commit_guarded(self, path: str, data: bytes, guard: str, version: int) -> list[Any]:
        transaction = self.client.transaction()
        transaction.check(guard, version)
        transaction.create(path, data, acl=self._acl(path))
        outcome: list[Any] = transaction.commit()
        return outcome

    def _delete_together(self, paths: Sequence[str]) -> bool:
        """Delete the nodes in one transaction, and say whether they were deleted: all of them or none."""
        transaction = self.client.transaction()
        for path in paths:
            transaction.delete(path)
        return not any(isinstance(each, Exception) for each in transaction.commit())

    def _get_each(self, paths: Sequence[str], *, sync: bool) -> list[tuple[bytes, int] | None]:
        first = [("sync", paths[0])] if sync else []
        found = self._together(*first, *(("get", path) for path in paths))[len(first) :]
        return [None if each is None else (each[0], each[1].version) for each in found]

    def _together(self, *calls: tuple[str, str]) -> list[Any]:
        """Send these calls, each a method and its path, and wait for all answers; a missing node answers None."""
        if self._is_kazoo():
            answers = [getattr(self.client, f"{method}_async")(path).get for method, path in calls]
        else:
            answers = [functools.partial(getattr(self.client, method), path) for method, path in calls]
        return [_or_none(answer) for answer in answers]

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exceptions.NoAuthError as error:
            raise CoordinationLost(
                "ZooKeeper lets others do this, not this daemon. The cause may be that its host is not mapped to a "
                "cell, that no conductor has run since the host was mapped, or that [zookeeper] conductor_identity or "
                "worker_identity differs between daemons"
            ) from error
        except (exceptions.KazooException, self.client.handler.timeout_exception) as error:
            raise CoordinationLost(f"ZooKeeper did not answer ({type(error).__name__})") from error


def _or_none(answer: Callable[[], Any]) -> Any:
    try:
        return answer()
    except exceptions.NoNodeError:
        return None


class _Client(KazooClient):
    """Refuses requests while the connection is away, so that the retries end; kazoo lets them wait without a limit."""

    def _call(self, request: Any, async_object: Any) -> Any:
        """Send a request; while the connection is away it fails at once with ConnectionLoss."""
        if self._state == KeeperState.CONNECTING:
            async_object.set_exception(exceptions.ConnectionLoss())
            return False
        return super()._call(request, async_object)


class _Handler(SequentialThreadingHandler):
    """Waits for sockets by one call of the kernel; kazoo makes and closes an epoll for each wait."""

    def select(
        self, reads: Sequence[Any], writes: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait up to ``timeout`` seconds; return the sockets that can be read, those that can be written, and none."""
        poll = select.poll()
        for wanted, event in ((reads, select.POLLIN), (writes, select.POLLOUT)):
            for each in wanted:
                poll.register(each, event)  # raises ValueError for a closed socket, as kazoo's own method does
        ready = {number for number, _event in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [each for each in reads if each.fileno() in ready],
            [each for each in writes if each.fileno() in ready],
            [],
        )


class _SecureHandler(_Handler):
    """Connects with the daemon's certificate, and only to servers with a certificate of its authority for their name.

    Kazoo would also trust every authority of the machine. Of a refusal it would only say that the connection was lost.
    """

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self._identity = identity
        self.refusal = ""
        """Why a TLS handshake failed the last time; empty when none has failed."""

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """Connect to a server with TLS; ``timeout`` is in seconds."""
        context = self._identity.client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # what servers speak by default
        plain = socket.create_connection(address, timeout)
        try:
            stream = context.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            self.refusal = f"{hostname} was not accepted, or did not accept this daemon: {error}"
            raise
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream


def connect(hosts: str, *, timeout: float, protection: Protection | None = None) -> Coordination:
    """Open a session with a ZooKeeper at ``hosts`` (``name:port,name:port``).

    ``timeout`` is the session's, in seconds: for so long the claims of a process that died are still held. Raises
    `droveway.errors.CoordinationLost` when no ZooKeeper answers, and `droveway.errors.Refused` when Droveway's root
    node there has another access list than it should have.
    """
    access = protection.access if protection is not None else None
    handler = _Handler() if protection is None else _SecureHandler(protection.identity)
    client = _Client(
        hosts=hosts,
        timeout=timeout,
        command_retry=dict(_RETRY),
        connection_retry=_RECONNECT,
        handler=handler,
        use_ssl=protection is not None,
        default_acl=access.of(BOARD) if access is not None else None,
    )
    try:
        client.start(timeout=max(timeout, 5.0))
        require_root(client, ROOT, access)
    except (exceptions.KazooException, client.handler.timeout_exception) as error:
        _end(client)
        why = f" ({handler.refusal})" if isinstance(handler, _SecureHandler) and handler.refusal else ""
        raise CoordinationLost(f"no ZooKeeper answers at {hosts}{why}: start it or correct its address") from error
    except Refused:
        _end(client)
        raise
    return Coordination(client, access, timeout=timeout)


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def embedded_store() -> Any:
    """Make the store of an embedded ZooKeeper's nodes, which all sessions of one process share."""
    _zake()
    from droveway.clients.embedded.nodes import Store

    return Store()


def connect_configured(conf: cfg.ConfigOpts, host: str | None = None) -> Coordination:
    """Open the session that the configuration describes, of the worker of ``host`` or else of a conductor.

    Raises `droveway.errors.Refused` when no server answers, and when the session cannot be protected as it should be.
    """
    protection = protection_of(conf, host)
    try:
        return connect(conf.zookeeper.hosts, timeout=conf.zookeeper.session_timeout, protection=protection)
    except CoordinationLost as error:
        raise Refused(str(error)) from None


def connect_embedded(store: Any) -> Coordination:
    """Open a session with an embedded ZooKeeper."""
    _zake()
    from zake.fake_client import FakeClient

    client = FakeClient(storage=store)
    client.start()
    return Coordination(client)


def _zake() -> None:
    # zake asks pkg_resources for its own version, and setuptools no longer has that module.
    if "pkg_resources" not in sys.modules:
        sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")
        try:
            import zake.fake_client  # noqa: F401
        finally:
            del sys.modules["pkg_resources"]
