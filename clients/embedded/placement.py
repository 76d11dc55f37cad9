"""Runs the real Placement service in this process, on one SQLite file, without a socket.

Import this module late: it imports requests and keystoneauth, and the first request imports Placement itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import logging
import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import requests
from keystoneauth1 import session as keystone
from keystoneauth1 import token_endpoint
from requests.adapters import BaseAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.response import HTTPResponse

from droveway.errors import Refused

_BASE: Final = "http://placement.invalid"

# Two requests that read and then write at the same time end in "database is locked", without a wait. Placement also
# keeps its engine in a global, which is pointed at the database of the request that holds this lock.
_one_request = threading.RLock()

# A fork waits for the request under way, so that a child never inherits half of one.
os.register_at_fork(
    before=_one_request.acquire, after_in_parent=_one_request.release, after_in_child=_one_request.release
)

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Any]


def embedded_placement(database: Path) -> keystone.Session:
    """Return a keystoneauth session with a Placement on this SQLite file, which is made when it is missing.

    Every process and thread may use the file at the same time: requests are answered one after another, by a lock here
    and a lock file beside the database. A request raises `droveway.errors.Refused` when the directory cannot be
    written, or when the file is no database any more.
    """
    http = requests.Session()
    # Nothing leaves the process. Without this, each request would look for a proxy and a password file.
    http.trust_env = False
    http.mount(_BASE, _Transport(database.absolute()))
    return keystone.Session(auth=token_endpoint.Token(_BASE, "admin"), session=http)


def disconnect(database: Path) -> None:
    """Close this process's connections to the database; then the process may fork, or the file be replaced."""
    _application(database.absolute()).close()


class _Transport(BaseAdapter):
    """Hands the requests of a session to the WSGI application."""

    def __init__(self, database: Path) -> None:
        super().__init__()
        self._database = database

    def send(self, request: requests.PreparedRequest, *_args: Any, **_options: Any) -> requests.Response:
        with _one_request, _file_lock(self._database):
            status, headers, content = _application(self._database).answer(request)
        response = requests.Response()
        code, _, response.reason = status.partition(" ")
        response.status_code = int(code)
        response.headers = CaseInsensitiveDict(headers)
        response.encoding = "utf-8"
        response.url = str(request.url)
        response.request = request
        response.raw = HTTPResponse(
            body=io.BytesIO(content), headers=dict(headers), status=response.status_code, preload_content=False
        )
        return response

    def close(self) -> None:
        """Do nothing: nothing is open between two requests."""


@contextlib.contextmanager
def _file_lock(database: Path) -> Iterator[None]:
    """Keep other processes out by a record lock; a forked child would inherit a flock and so prolong it."""
    try:
        file = database.with_name(f"{database.name}.lock").open("ab")
    except OSError as error:
        raise Refused(
            f"the lab's Placement database {database} cannot be used ({error.strerror}): make its directory writable"
        ) from None
    with file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


class _Application:
    """Placement's WSGI application on one database."""

    def __init__(self, database: Path) -> None:
        from oslo_config import cfg
        from placement import conf, db_api, policy

        # Without a handler Python would print Placement's warnings to the operator's terminal.
        logging.getLogger("placement").addHandler(logging.NullHandler())
        self._database = database
        settings = cfg.ConfigOpts()
        conf.register_opts(settings)
        # The connection is a required option, so it is set before the settings are parsed.
        settings.set_default("connection", _url(database), group="placement_database")
        settings([], project="placement", default_config_files=[], default_config_dirs=[])
        settings.set_override("auth_strategy", "noauth2", group="api")
        self._shared_manager = db_api.placement_context_manager
        self._manager = _manager(self._shared_manager, database)
        self._wsgi = _pipeline(settings)
        policy.init(settings)

    def answer(self, request: requests.PreparedRequest) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the status line, headers and content of the application's answer."""
        if not self._database.exists():
            _create(self._database)
        _require_database(self._database)
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], _info: Any = None) -> None:
            started.append((status, headers))

        restore = self._shared_manager.patch_factory(self._manager)
        try:
            content = b"".join(self._wsgi(_environ(request), start_response))
        finally:
            restore()
        return *started[-1], content

    def close(self) -> None:
        """Close every connection."""
        self._manager.writer.get_engine().dispose()


@functools.cache
def _application(database: Path) -> _Application:
    return _Application(database)


def _pipeline(settings: Any) -> WsgiApplication:
    """Assemble the application as `placement.deploy` does for noauth2.

    That module also imports alembic, which would take a fifth of a second of every command that asks Placement.
    """
    from microversion_parse.middleware import MicroversionMiddleware
    from placement import auth, fault_wrap, handler, microversion, requestlog, util

    application: Any = MicroversionMiddleware(
        handler.PlacementHandler(config=settings),
        microversion.SERVICE_TYPE,
        microversion.VERSIONS,
        json_error_formatter=util.json_error_formatter,
    )
    layers = (fault_wrap.FaultWrapper, auth.PlacementKeystoneContext, auth.NoAuthMiddleware, requestlog.RequestLog)
    for middleware in layers:
        application = middleware(application)
    wsgi: WsgiApplication = application
    return wsgi


def _require_database(database: Path) -> None:
    """Raise `droveway.errors.Refused` when the file is no database.

    Placement would answer each request with an internal error that names neither the file nor the mend. Only SQLite may
    open the file: if this process opened the file itself and closed it, the system would drop every lock that SQLite
    holds on it in this process. The connection may write, since the next reader rolls back what a killed process had
    begun.
    """
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True)) as opened:
            tables = opened.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        tables = 0
    if not tables:
        raise Refused(f"the lab's Placement database {database} is no database any more: restore the file")


def _url(database: Path) -> str:
    return f"sqlite:///{database}"


def _manager(shared: Any, database: Path) -> Any:
    """Make a manager of transactions on this database, like Placement's shared one, which has no database."""
    manager = shared.make_new_manager()
    manager.configure(connection=_url(database))
    return manager


def _create(database: Path) -> None:
    """Make the database under another name first, so that a half made one is not taken for a whole one."""
    from placement import db_api
    from placement.db.sqlalchemy import migration
    from placement.objects import resource_class, trait

    new = database.with_name(f"{database.name}.new")
    new.unlink(missing_ok=True)
    restore = db_api.placement_context_manager.patch_factory(_manager(db_api.placement_context_manager, new))
    try:
        migration.upgrade("head")
        # Placement fills these tables once in a process. Here a process may make several databases.
        trait._TRAITS_SYNCED = False  # noqa: SLF001 - placement has no other name for it
        resource_class._RESOURCE_CLASSES_SYNCED = False  # noqa: SLF001 - as above
        context = db_api.DbContext()
        trait.ensure_sync(context)
        resource_class.ensure_sync(context)
    finally:
        restore()
    new.rename(database)
    directory = os.open(database.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _environ(request: requests.PreparedRequest) -> dict[str, Any]:
    """Return the request as WSGI describes it."""
    parts = urllib.parse.urlsplit(str(request.url))
    body = request.body or b""
    content = body.encode() if isinstance(body, str) else bytes(body)  # type: ignore[arg-type]
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": urllib.parse.unquote(parts.path) or "/",
        "QUERY_STRING": parts.query,
        "SERVER_NAME": parts.hostname,
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(content)) if content else "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(content),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        text = value.decode() if isinstance(value, bytes) else str(value)
        if key == "CONTENT_TYPE":
            environ[key] = text
        elif key != "CONTENT_LENGTH":
            environ[f"HTTP_{key}"] = text
    return environ
