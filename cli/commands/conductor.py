"""Defines `droveway conductor`: the daemons that run the flows of moves."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister, ShowOne, Subject
from droveway.cli.daemon import IGNORE_HELP, Daemon, LastTick
from droveway.cli.view.columns import Blank, Joined, Time

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.persistence.journal.tables import Daemon as Row


LISTED: Final = ("name", "host", "pid", "version", "state", "started", "seen")


class List(Lister):
    """List the conductors that are up, and those that ended within the last day."""

    spare = ("started", "version")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by name."""
        from droveway.persistence.journal import daemons

        with self.installation(parsed_args).journal.read() as session:
            found = daemons.listing(session, daemons.CONDUCTOR)
        return LISTED, [[_cells(row, up=up)[name] for name in LISTED] for row, up in found]


class Show(ShowOne):
    """Show one conductor, with the flows that it can run and the moves that it runs."""

    subject = Subject("conductor", "its name")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import daemons

        with self.installation(parsed_args).journal.read() as session:
            row, up = daemons.find(session, daemons.CONDUCTOR, parsed_args.conductor)
            moves = daemons.moves_of(session, row.name)
        flows = Joined(daemons.kinds(row.knows))
        return self.dict2columns(_cells(row, up=up) | {"flows": flows, "moves": Joined(moves)})


def _cells(row: Row, *, up: bool) -> dict[str, Any]:
    return {
        "name": row.name,
        "host": row.host,
        "pid": row.pid,
        "version": row.version,
        "state": "up" if up else "down",
        "started": Time(row.started_at),
        "seen": Time(row.seen_at),
        "ended": Blank(None) if row.gone_at is None else Time(row.gone_at),
    }


class Run(Daemon):
    """Claim moves and run their flows, side by side with other conductors, until SIGTERM."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option that names hosts whose workers are not asked which steps they have seen."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--ignore-host", action="append", default=[], metavar="HOST", help=IGNORE_HELP)
        return parser

    def running(
        self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[LastTick]:
        """Start a conductor and a keeper over one session with ZooKeeper."""
        from droveway.clients.zookeeper import connect_configured
        from droveway.engines import start
        from droveway.engines.site.installation import Installation

        site = Installation(conf)
        stack.callback(site.close)
        site.open()
        session = connect_configured(conf)
        stack.callback(session.close)
        site.require_services()
        if session.access is not None:
            stack.callback(start.host_nodes(site, session).stop)
        # Each process has a new name, so that a claim says which process has it.
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        daemon_registry = start.daemon_registry(site, session, name=name)
        stack.callback(daemon_registry.stop)
        conductor = start.conductor(site, session, name=name, ignored=parsed_args.ignore_host)
        stack.callback(conductor.stop)
        keeper = start.keeper(site, session)
        stack.callback(keeper.stop)
        return [conductor.last_tick, keeper.last_tick, daemon_registry.last_tick]
