"""Bounds the time of each HTTP request as a whole, however slowly its answer comes.

The time-out of the library requests limits only the wait for the next byte. With it alone, a client would wait without
end for a server that sends a byte now and then.
"""

from __future__ import annotations

import http.client
import io
import socket
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

import requests
from keystoneauth1.session import TCPKeepAliveAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from droveway import deadlines

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Session(requests.Session):
    """A session whose ``timeout`` is that of a whole request; the running step's deadline bounds it too."""

    def __init__(self, **options: Any) -> None:
        """Take the options of keystoneauth's `TCPKeepAliveAdapter`."""
        super().__init__()
        self._environment: dict[tuple[Any, ...], Any] = {}
        for scheme in list(self.adapters):
            self.mount(scheme, _Adapter(**options))

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Return the settings of the environment as the base class does, but read them once for each peer."""
        if proxies:
            return super().merge_environment_settings(url, proxies, stream, verify, cert)
        peer = urllib.parse.urlsplit(url)
        key = (peer.scheme, peer.netloc, stream, verify, cert)
        if key not in self._environment:
            self._environment[key] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        found = self._environment[key]
        return {**found, "proxies": dict(found["proxies"])}

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request and receive the answer, with its whole body unless the caller streams that.

        Raises `requests.RequestException` when the time is over.
        """
        with deadlines.within(options.get("timeout")):
            left = deadlines.left()
            if left is not None and left <= 0:
                raise requests.Timeout("no time is left for this request")
            options["timeout"] = left
            return super().send(request, **options)


class _Raw(io.RawIOBase):
    """The bytes that a connection receives; each read waits no longer than the time that is left."""

    def __init__(self, connection: socket.socket, received: io.RawIOBase) -> None:
        self._connection = connection
        self._received = received

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int | None:
        left = deadlines.left()
        if left is not None:
            if left <= 0:
                raise TimeoutError("the answer took too long")
            # urllib3 sets the connection's time-out anew for each request, so that this one does not stay.
            self._connection.settimeout(left)
        return self._received.readinto(buffer)

    def close(self) -> None:
        self._received.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        raw: Any = self.fp
        self.fp = io.BufferedReader(_Raw(sock, raw.detach()))


class _Connection(HTTPConnection):
    response_class = _Response


class _SecureConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS: Final = {"http": _Pool, "https": _SecurePool}


class _Adapter(TCPKeepAliveAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager
