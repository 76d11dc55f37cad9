"""Holds the database of a lab's ports, volumes and images, and answers the requests to their services."""

from __future__ import annotations

import functools
import json
import re
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from sqlalchemy import (
    JSON,
    Connection,
    Engine,
    ForeignKey,
    Select,
    bindparam,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from droveway.errors import Refused

_BUSY_SECONDS = 60


class Base(DeclarativeBase):
    """The tables of services.sqlite."""

    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012


class NetworkHost(Base):
    """A host on which ports can be bound, as an agent's row says in a real Neutron."""

    __tablename__ = "network_hosts"

    name: Mapped[str] = mapped_column(primary_key=True)


class Port(Base):
    """A port."""

    __tablename__ = "ports"

    id: Mapped[str] = mapped_column(primary_key=True)
    mac: Mapped[str]
    server: Mapped[str] = mapped_column(index=True)
    network_id: Mapped[str]
    device_owner: Mapped[str]
    revision: Mapped[int] = mapped_column(default=1)


class Binding(Base):
    """A port's binding to a host; one of a port's bindings at most is ACTIVE."""

    __tablename__ = "port_bindings"

    port: Mapped[str] = mapped_column(ForeignKey("ports.id", ondelete="CASCADE"), primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]
    profile: Mapped[dict[str, Any]]


class VolumeRow(Base):
    """A volume; its bytes are a file of that name in the folder of volumes."""

    __tablename__ = "volumes"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    status: Mapped[str]
    size_gb: Mapped[int]
    bootable: Mapped[bool] = mapped_column(default=False)


class Attachment(Base):
    """A volume's attachment to a server; it has a connector once the volume is exported to a host."""

    __tablename__ = "attachments"

    id: Mapped[str] = mapped_column(primary_key=True)
    volume: Mapped[str] = mapped_column(ForeignKey("volumes.id"), index=True)
    server: Mapped[str] = mapped_column(index=True)
    status: Mapped[str]
    connector: Mapped[dict[str, Any] | None]


class ImageRow(Base):
    """An image; its bytes are a file of that name in the folder of images."""

    __tablename__ = "images"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    status: Mapped[str]
    size: Mapped[int | None]
    min_disk: Mapped[int]
    properties: Mapped[dict[str, Any]]


_Row = TypeVar("_Row", bound=Base)


NO_HEADERS: Final[Mapping[str, str]] = types.MappingProxyType({})


class RefusalError(Exception):
    """The service answers with this status and changes nothing."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        """Take the status and the message; ``kind`` is the ``type`` of one of Neutron's own errors."""
        super().__init__(message)
        self.status = status
        self.kind = kind

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        if self.kind:
            return {"NeutronError": {"type": self.kind, "message": str(self), "detail": ""}}
        return {"message": str(self)}


class Answer:
    """A response, with as much of requests.Response as Droveway's clients use."""

    def __init__(
        self,
        status_code: int,
        body: Any = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        file: BinaryIO | None = None,
    ) -> None:
        """Take the parts of a response; its body may be a ``file``, read from its present position on."""
        self.status_code = status_code
        self.text = "" if body is None else json.dumps(body)
        self.headers = headers
        self.file = file

    def json(self) -> Any:
        """Return the body."""
        return json.loads(self.text)

    def iter_content(self, chunk_size: int) -> Iterator[bytes]:
        """Yield the file's bytes, part by part."""
        assert self.file is not None  # noqa: S101 - nobody streams what is no file
        while data := self.file.read(chunk_size):
            yield data

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


class Request:
    """Gives a handler the open transaction and the parts of the request."""

    def __init__(self, session: Session, names: dict[str, str], options: dict[str, Any]) -> None:
        self.session = session
        self.names = names
        self.body: dict[str, Any] = options.get("json") or {}
        self.params: dict[str, str] = options.get("params") or {}
        self.headers: dict[str, str] = options.get("headers") or {}

    def find(self, kind: type[_Row], key: Any) -> _Row:
        """Return the row; raises the refusal 404 when it does not exist."""
        parts = key if isinstance(key, tuple) else (key,)
        row: _Row | None = self.session.scalar(
            _by_key(kind), {f"key_{number}": part for number, part in enumerate(parts)}
        )
        if row is None:
            raise RefusalError(404, f"there is no {kind.__tablename__.removesuffix('s')} {key}")
        return row


class Transfer:
    """Holds a request that sends or fetches the bytes of a file, for the handler of that request.

    The handler opens transactions of its own, and has none open while bytes are sent or received.
    """

    def __init__(self, engine: Engine, names: dict[str, str], options: dict[str, Any]) -> None:
        self._engine = engine
        self._options = options
        self.names = names
        self.headers: dict[str, str] = options.get("headers") or {}
        self.data: Any = options.get("data")
        """The body: a file or an iterable of bytes; None for no body."""

    @contextmanager
    def transaction(self) -> Iterator[Request]:
        """Open a transaction, which is committed unless the block raises."""
        with _transaction(self._engine) as session:
            yield Request(session, self.names, self._options)


@functools.cache
def _by_key(kind: type[_Row]) -> Select[_Row]:
    """Return the statement that selects a row by its key.

    It is made once for each table: `Session.get` would make it at each call, which takes longer than to carry it out.
    """
    return select(kind).where(
        *(column == bindparam(f"key_{number}") for number, column in enumerate(inspect(kind).primary_key))
    )


Handler = Callable[[Request], Answer]
TransferHandler = Callable[[Transfer], Answer]

_Routes = dict[tuple[str, str], Handler]
_Transfers = dict[tuple[str, str], TransferHandler]


class LocalService:
    """Answers the requests to one small service, in the place of keystoneauth's adapter.

    Each request is one transaction, unless it transfers a file's bytes.
    """

    def __init__(self, engine: Engine, routes: _Routes, *, transfers: _Transfers | None = None) -> None:
        self._engine = engine
        handlers = {where: _in_transaction(handler) for where, handler in routes.items()} | (transfers or {})
        self._routes = [(method, _pattern(path), handler) for (method, path), handler in handlers.items()]

    def request(self, url: str, method: str, **options: Any) -> Answer:
        """Answer one request; a refusal leaves everything as it was."""
        for expected, pattern, handler in self._routes:
            match = pattern.fullmatch(url)
            if expected == method and match:
                try:
                    return handler(Transfer(self._engine, match.groupdict(), options))
                except RefusalError as refusal:
                    return Answer(refusal.status, refusal.body())
                except (OSError, SQLAlchemyError) as error:
                    # For a full disk or a busy database the client sees a service that fails for a while.
                    return Answer(503, {"message": str(error)})
        return Answer(404, {"message": f"there is no {method} {url}"})

    def close(self) -> None:
        """Close every connection; the next request opens one again."""
        self._engine.dispose()


def _in_transaction(handler: Handler) -> TransferHandler:
    def handle(transfer: Transfer) -> Answer:
        with transfer.transaction() as request:
            return handler(request)

    return handle


@contextmanager
def _transaction(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        _begin(session.connection())
        yield session


def new_id() -> str:
    """Make an id as the services do."""
    return str(uuid.uuid4())


def services_engine(database: Path) -> Engine:
    """Return the engine over services.sqlite, and make its tables when they are missing.

    Writers wait for each other. Connections stay open from the first request on: the last one that closes writes the
    whole log back, which takes longer than a request's own commit. A process that forks closes them first. Raises
    `droveway.errors.Refused` when the file is no such database, or cannot be made.
    """
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare)
    try:
        with engine.begin() as connection:
            _begin(connection)
            Base.metadata.create_all(connection)
    except SQLAlchemyError as error:
        raise Refused(
            f"the lab's services database {database} cannot be used ({error.__cause__}): restore the file, or make its"
            " directory writable"
        ) from None
    finally:
        engine.dispose()
    return engine


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare(connection: Any, _record: Any) -> None:
    # The driver begins its transactions too late: two that read before they write would refuse each other.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))
