"""Defines `droveway worker`: the daemons on hypervisor hosts, which carry out the commands of moves."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Command, Lister, ShowOne, Subject
from droveway.cli.daemon import Daemon, LastTick
from droveway.cli.view.columns import Blank, Joined, Time

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.certificates import Identity
    from droveway.persistence.journal.tables import Daemon as Row
    from droveway.workers.transfer.endpoints import Endpoint


LOG = logging.getLogger(__name__)

LISTED: Final = ("host", "state", "since", "drained", "version", "pid")


class List(Lister):
    """List the workers that ever registered, as conductors see them."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by host; warn when no conductor is up, since then no change is seen."""
        from droveway.persistence.journal import daemons

        with self.installation(parsed_args).journal.read() as session:
            found = daemons.listing(session, daemons.WORKER)
            current = daemons.known_workers(session).current
        if not current:
            self.app.stderr.write("warning: no conductor is up, so this is what the last one saw\n")
        return LISTED, [[_cells(row, up=up)[name] for name in LISTED] for row, up in found]


class OfWorker(Command):
    """A command on one worker."""

    subject = Subject("host", "the worker's host")


class Show(ShowOne, OfWorker):
    """Show one worker, with what it can do."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import daemons

        with self.installation(parsed_args).journal.read() as session:
            row, up = daemons.find(session, daemons.WORKER, parsed_args.host)
        more = {"address": row.address, "drain_reason": Blank(row.drain_reason), "actions": Joined(row.knows)}
        return self.dict2columns(_cells(row, up=up) | more)


class Drain(OfWorker):
    """Stop new moves from choosing this host as their destination; moves under way there go on."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for the reason, and for the end of the drain."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", metavar="TEXT", help="why; told to whoever is refused the host")
        parser.add_argument("--off", action="store_true", help="let it be a destination again")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the drain, or its end, into the worker's row, where it stays when the worker is started again."""
        from droveway.persistence.journal import daemons

        with self.installation(parsed_args).journal.write() as session:
            daemons.drain(session, parsed_args.host, on=not parsed_args.off, reason=parsed_args.reason)
        if parsed_args.off:
            print(f"the worker of host {parsed_args.host} is no longer drained: new moves may go there again")
        else:
            print(f"the worker of host {parsed_args.host} is drained: it is no destination of new moves")
        return 0


def _cells(row: Row, *, up: bool) -> dict[str, Any]:
    return {
        "host": row.name,
        "state": "up" if up else "down",
        "since": Time(row.started_at if row.gone_at is None else row.gone_at),
        "drained": row.drained_at is not None,
        "version": row.version,
        "pid": row.pid,
    }


class Run(Daemon):
    """Carry out the commands for one host until SIGTERM."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="NAME", required=True, help="the host's name as Nova knows it")
        return parser

    def running(
        self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[LastTick]:
        """Start the host's worker over a session with ZooKeeper."""
        from oslo_utils import units

        from droveway import certificates, clocks
        from droveway.clients.configured import Services
        from droveway.clients.references import References
        from droveway.clients.zookeeper import connect_configured, progress_path
        from droveway.workers.daemon import Worker
        from droveway.workers.host_queries import HostQueries
        from droveway.workers.hypervisors.configured import configured, directory
        from droveway.workers.transfer.limits import Limits

        host = parsed_args.host
        _warn_of_databases(conf)
        identity = certificates.load(conf)
        endpoint = _endpoint(conf, host, identity)
        limits = Limits(host=conf.worker.transfer_limit * units.Mi, each=conf.worker.transfer_limit_each * units.Mi)
        hypervisor = configured(conf, host)
        stack.callback(hypervisor.close)
        services = Services(conf)
        references = References(services.volumes, services.images)
        session = connect_configured(conf, host)
        stack.callback(session.close)
        theirs = session.clock(progress_path(host))
        if theirs is not None:
            clocks.require(theirs, "ZooKeeper")
        state = directory(conf.worker.state_path, host)
        worker = Worker(
            host, state, hypervisor, references, session, endpoint=endpoint, identity=identity, limits=limits
        )
        worker.start()
        stack.callback(worker.stop)
        host_queries = HostQueries(host, hypervisor, session)
        host_queries.start()
        stack.callback(host_queries.stop)
        return [worker.last_tick]


def _warn_of_databases(conf: cfg.ConfigOpts) -> None:
    """Warn of passwords of databases that this host does not need: whoever takes over the host gets them too."""
    from droveway.conf import rights

    groups = tuple(f"[{group}]" for group in rights.DATABASES)
    found = [held for file in conf.config_file for held in rights.secrets(Path(file)) if held.startswith(groups)]
    if found:
        LOG.warning(
            "This host's configuration holds what no worker needs (%s): whoever takes the host has the databases too. "
            "Take it out here; on a machine that runs a conductor as well, give the worker a file of its own",
            ", ".join(found),
        )


def _endpoint(conf: cfg.ConfigOpts, host: str, identity: Identity | None) -> Endpoint:
    """Return where disks are served; raises `droveway.errors.Refused` when a peer would not have to prove its name."""
    from droveway import certificates
    from droveway.errors import Refused
    from droveway.workers.transfer.endpoints import TlsEndpoint, UnixEndpoint

    listen = conf.worker.transfer_listen
    if not listen:
        run = Path(conf.worker.run_path)
        run.mkdir(mode=0o711, parents=True, exist_ok=True)
        return UnixEndpoint(str(run / f"{host}.sock"))
    if identity is None:
        raise Refused(
            "[worker] transfer_listen is given without [tls], and disks go to other machines through mutual TLS alone: "
            "give certificate, key and authority of [tls]"
        )
    certificates.require_name(identity, host)
    return TlsEndpoint(host, listen, identity, advertised=conf.worker.transfer_address or "")
