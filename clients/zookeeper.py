"""One small adapter over both ZooKeeper clients: kazoo for real, zake inside a lab.

ZooKeeper is a work list and a doorbell, never a record: whatever is lost here is made anew from the journal.
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
"""Of the sessions of a lab, which end only when they are closed."""

_AT_ONCE: Final = 200
"""Deletes in one transaction, which is to stay well below the largest request that a server takes."""

_RETRY: Final = {"max_tries": 5, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
_RECONNECT: Final = {**_RETRY, "max_tries": -1}


def host_path(host: str) -> str:
    """Where everything of one host lies."""
    return f"{HOSTS}/{host}"


def command_path(host: str, key: str = "") -> str:
    """The node of a command, or the folder of the host's commands."""
    return f"{host_path(host)}/commands/{key}".rstrip("/")


def result_path(host: str, key: str = "") -> str:
    """The node of a command's result, or the folder of them."""
    return f"{host_path(host)}/results/{key}".rstrip("/")


def progress_path(host: str, key: str = "") -> str:
    """The node that says how far a command is, or the folder of them."""
    return f"{host_path(host)}/progress/{key}".rstrip("/")


def query_path(host: str, number: str = "") -> str:
    """The node of a query, or the folder of those to the host."""
    return f"{host_path(host)}/inquiries/{number}".rstrip("/")


def page_path(host: str, name: str = "") -> str:
    """The node of a page of an answer to a query, or the folder of them."""
    return f"{host_path(host)}/answers/{name}".rstrip("/")


def worker_path(host: str) -> str:
    """The ephemeral node that stands while the host's worker is up; it holds its `droveway.wire.commands.Registration`.

    It has a folder of its own, since a worker may make and remove nothing beside it.
    """
    return f"{host_path(host)}/worker/registration"


def move_path(move: str) -> str:
    """The folder of what the hosts are told of a move."""
    return f"{MOVES}/{move}"


def epoch_path(move: str) -> str:
    """The mirror of a move's epoch: a decimal number, or `TOMBSTONE` once the move has ended."""
    return f"{move_path(move)}/epoch"


def step_path(move: str) -> str:
    """The mark of the last step that the journal has begun for a move (`droveway.engines.conductor.step_marks`)."""
    return f"{move_path(move)}/step"


def record_path(move: str) -> str:
    """The mirror of what the journal recorded of a running move (`droveway.engines.conductor.recorded`)."""
    return f"{move_path(move)}/recorded"


TOMBSTONE: Final = b"ended"


def epoch_in(data: bytes) -> int | None:
    """The epoch in its node; None for a tombstone, and for what nobody of us has written."""
    return int(data) if data.isdigit() and len(data) < _DIGITS else None


_DIGITS: Final = 20
"""More than any column's number has."""


class Coordination:
    """A session with ZooKeeper.

    Every method raises `droveway.errors.CoordinationLost` when the service cannot be reached within the client's
    retries; whether the call took effect is then unknown, which is why each of them is safe to repeat.
    """

    def __init__(self, client: Any, access: Access | None = None, *, timeout: float = EMBEDDED_TIMEOUT) -> None:
        self.timeout = timeout
        """Seconds after which a session that says nothing more ends."""
        self.client = client
        """The client itself, with kazoo's interface."""
        self.access = access
        """What every node is made with; None where anybody may do everything."""
        self._session: int | None = None
        self._lock = threading.Lock()
        self._shared: dict[str, LeafWatch] = {}

    @property
    def session(self) -> int | None:
        """The session's number (what an ephemeral node names as its owner); None once it has ended.

        While the connection is merely away the session may live on, and its number stands.
        """
        if self.live():
            self._session = self.client.client_id[0] if self._is_kazoo() else self.client.session_id
        elif not self._is_kazoo() or self.client.state == KazooState.LOST:
            self._session = None
        return self._session

    def live(self) -> bool:
        """Whether the session is known to be alive right now."""
        if self._is_kazoo():
            return bool(self.client.state == KazooState.CONNECTED)
        return bool(self.client.connected and not self.client.expired)

    def get(self, path: str, *, sync: bool = False) -> tuple[bytes, int] | None:
        """The node's data and version, or None; with ``sync`` not older than this call."""
        return self.get_each([path], sync=sync)[0]

    def get_each(self, paths: Sequence[str], *, sync: bool = False) -> list[tuple[bytes, int] | None]:
        """Each node's data and version, or None; each is read after those before it, all with one wait.

        With ``sync`` none is older than this call: ZooKeeper answers the calls of a session in their order, so that
        what is sent behind a sync is read after it, though nobody has waited for the sync alone.
        """
        with self._translated():
            return self.client.retry(self._get_each, paths, sync=sync)  # type: ignore[no-any-return]

    def exists(self, path: str, watch: WhenChanged | None = None) -> bool:
        """Whether the node is there; ``watch`` is called once, with kazoo's event, when that or its data changes."""
        with self._translated():
            return self.client.retry(self.client.exists, path, watch=watch) is not None

    def owner(self, path: str) -> int | None:
        """The session that owns an ephemeral node, or None when the node is missing; never older than this call."""
        with self._translated():
            stat = self.client.retry(self._together, ("sync", path), ("exists", path))[1]
            return stat.ephemeralOwner if stat is not None else None

    def born(self, path: str) -> float | None:
        """When the node was made, in seconds since 1970 by ZooKeeper's clock; None when it is missing."""
        with self._translated():
            stat = self.client.retry(self.client.exists, path)
            return stat.ctime / 1000 if stat is not None else None

    def children(self, path: str, watch: WhenChanged | None = None) -> list[str]:
        """The names below the node, sorted; none when it is missing.

        ``watch`` is called once, with kazoo's event, when they change; never, when the node is missing.
        """
        with self._translated():
            try:
                return sorted(self.client.retry(self.client.get_children, path, watch=watch))
            except exceptions.NoNodeError:
                return []

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        """As `children`, of each node, all with one wait."""
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
        """ZooKeeper's clock, UTC and naive, told by a node that is made in the folder for it; None where none may be.

        Nobody may make one before a conductor has made the folder.
        """
        path = f"{folder}/clock"
        with self._translated():
            try:
                self._create(path, b"", ephemeral=True)
            except exceptions.NodeExistsError:  # of a process that was killed
                self.client.retry(self.client.set, path, b"")
            except (exceptions.NoAuthError, exceptions.NoNodeError):
                return None
            _, stat = self.client.retry(self.client.get, path)
            self.client.retry(self.client.delete, path)
        return dt.datetime.fromtimestamp(stat.mtime / 1000, dt.UTC).replace(tzinfo=None)

    def ensure(self, path: str) -> None:
        """Have the node and its parents, each with the access list that it should have."""
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
                # Its folder is missing, which is so rare that nobody should ask before.
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
        """Delete nodes that should all be there, in one transaction: whoever is killed leaves all of them or none.

        Where one of them is missing, or has something below it, each is deleted by itself, in their order.
        """
        with self._translated():
            for start in range(0, len(paths), _AT_ONCE):
                some = paths[start : start + _AT_ONCE]
                if len(some) == 1 or not self.client.retry(self._is_deleted, some):
                    for path in some:
                        self.delete(path)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on every change of the node's data or children, on its creation and its end.

        The call may come once too often (also on each reconnection, when something may have been missed) and never
        too seldom.  It runs on the client's own thread: it must only set an event.  Returns what ends the watch.
        """
        return NodeWatch(self, path, callback).stop

    def watch_leaf(self, path: str) -> LeafWatch:
        """A watch on a node that has nothing below it; nothing is asked before somebody looks."""
        return LeafWatch(self, path)

    def shared_watch(self, path: str) -> LeafWatch:
        """The one watch of this session on such a node, for whoever wants to know of it, for as long as it lives.

        Only for nodes of which there are few, as those of the workers.
        """
        with self._lock:
            return self._shared.setdefault(path, LeafWatch(self, path))

    def listing(self, path: str, callback: Callable[[], None]) -> Listing:
        """The names below the node, which are asked for again only when they may have changed."""
        return Listing(self, path, callback)

    def close(self) -> None:
        """End the session; ephemeral nodes go with it."""
        self.client.stop()
        if self._is_kazoo():
            self.client.close()

    def _is_kazoo(self) -> bool:
        return isinstance(self.client, KazooClient)

    def _acl(self, path: str) -> list[Any] | None:
        return None if self.access is None else self.access.of(path)

    def _create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        # Not with kazoo's makepath, which gives the parents the access list of the node.
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

    def _is_deleted(self, paths: Sequence[str]) -> bool:
        transaction = self.client.transaction()
        for path in paths:
            transaction.delete(path)
        return not any(isinstance(each, Exception) for each in transaction.commit())

    def _get_each(self, paths: Sequence[str], *, sync: bool) -> list[tuple[bytes, int] | None]:
        first = [("sync", paths[0])] if sync else []
        found = self._together(*first, *(("get", path) for path in paths))[len(first) :]
        return [None if each is None else (each[0], each[1].version) for each in found]

    def _together(self, *calls: tuple[str, str]) -> list[Any]:
        """Send these calls, each a method and its path, and wait for all answers; None for a node that is missing."""
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
                "ZooKeeper lets others do this, not this daemon: its host is not mapped to a cell, no conductor has "
                "run since, or [zookeeper] conductor_identity and worker_identity differ between daemons"
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
        """Kazoo's one way to send a request."""
        if self._state == KeeperState.CONNECTING:
            async_object.set_exception(exceptions.ConnectionLoss())
            return False
        return super()._call(request, async_object)


class _Handler(SequentialThreadingHandler):
    """Waits for sockets by one call of the kernel, where kazoo makes and ends an epoll for each wait: three a reply."""

    def select(
        self, reads: Sequence[Any], writes: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Kazoo's one way to wait."""
        poll = select.poll()
        for wanted, event in ((reads, select.POLLIN), (writes, select.POLLOUT)):
            for each in wanted:
                poll.register(each, event)  # raises ValueError for one that was closed, as kazoo's own does
        ready = {number for number, _event in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [each for each in reads if each.fileno() in ready],
            [each for each in writes if each.fileno() in ready],
            [],
        )


class _SecureHandler(_Handler):
    """Connects by the daemon's own certificate, to servers of its own authority alone, each of the name it goes by.

    Kazoo's own way trusts every authority of the machine besides, and says of a refusal only that it lost a connection.
    """

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self._identity = identity
        self.refusal = ""
        """Why the last connection was refused, when it was."""

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        """Kazoo's one way to connect."""
        context = self._identity.client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # all that servers speak that were told nothing else
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
    """A session with a real ZooKeeper at ``hosts`` (``name:port,name:port``).

    ``timeout`` is the session's, in seconds: so long after a process died are its claims still held.  Raises
    `droveway.errors.Refused` when the nodes that stand there are not protected as ours are to be.
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
    """The nodes of an embedded ZooKeeper, shared by all sessions of one process."""
    _zake()
    from droveway.clients.embedded.nodes import Store

    return Store()


def connect_configured(conf: cfg.ConfigOpts, host: str | None = None) -> Coordination:
    """Open the session of the worker of ``host``, or of a conductor, as an installation's configuration describes it.

    Raises `droveway.errors.Refused` when none answers, and for whatever keeps it from being a protected one.
    """
    protection = protection_of(conf, host)
    try:
        return connect(conf.zookeeper.hosts, timeout=conf.zookeeper.session_timeout, protection=protection)
    except CoordinationLost as error:
        raise Refused(str(error)) from None


def connect_embedded(store: Any) -> Coordination:
    """A session with an embedded ZooKeeper."""
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
