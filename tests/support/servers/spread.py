"""The databases of one installation, spread over servers of several makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from support.servers import mariadb_server, postgres_server
from support.servers.proxy import Proxy

Server = postgres_server.Server | mariadb_server.Server

_names = (f"test{number}-" for number in itertools.count(1))


class Spread:
    """One installation's databases, each on the server that is named for it."""

    def __init__(self, other: Server, **of: Server) -> None:
        """``of``: the server of a database by its name, ``-`` being ``_``; ``other`` has the rest."""
        self._prefix = next(_names)
        self._other = other
        self._of = {name.replace("_", "-"): server for name, server in of.items()}

    def url(self, database: str) -> str:
        """Of one of them."""
        return self.server(database).url(self._prefix + database)

    def create(self, *databases: str) -> None:
        """Make them, empty."""
        for database in databases:
            self.server(database).create(self._prefix + database)

    def server(self, database: str) -> Server:
        """Which server has it."""
        return self._of.get(database, self._other)

    def through(self, proxy: Proxy) -> Callable[[str], str]:
        """How they are reached through a proxy to the one server that has them all."""
        return lambda database: self._other.url_through(proxy.port, self._prefix + database)
