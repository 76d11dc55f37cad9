"""`droveway worker`: the daemon that carries out on a hypervisor host what moves need done there."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from droveway.cli.daemon import Daemon, Turned, connect

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.certificates import Identity
    from droveway.workers.endpoints import Endpoint


class Run(Daemon):
    """Carry out the commands for one host, until SIGTERM."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="NAME", required=True, help="the host's name as Nova knows it")
        return parser

    def running(
        self, conf: cfg.ConfigOpts, parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[Turned]:
        """The host's worker over a session of its own."""
        from droveway import certificates
        from droveway.clients.references import References
        from droveway.clients.volume import Volumes
        from droveway.conf import services
        from droveway.workers.daemon import Worker
        from droveway.workers.hypervisors.configured import configured
        from droveway.workers.limits import MIB, Limits

        host = parsed_args.host
        identity = certificates.load(conf)
        endpoint = _endpoint(conf, host, identity)
        limits = Limits(host=conf.worker.transfer_limit * MIB, each=conf.worker.transfer_limit_each * MIB)
        hypervisor = configured(conf, host)
        stack.callback(hypervisor.close)
        references = References(Volumes(services.Proxy(conf, "cinder")))
        session = connect(conf, host)
        stack.callback(session.close)
        state = Path(conf.worker.state_path)
        worker = Worker(
            host, state, hypervisor, references, session, endpoint=endpoint, identity=identity, limits=limits
        )
        worker.start()
        stack.callback(worker.stop)
        return [worker.turned]


def _endpoint(conf: cfg.ConfigOpts, host: str, identity: Identity | None) -> Endpoint:
    """Where disks are served; raises `droveway.errors.Refused` for what would serve them without proof of who asks."""
    from droveway import certificates
    from droveway.errors import Refused
    from droveway.workers.endpoints import TlsEndpoint, UnixEndpoint

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
    return TlsEndpoint(host, listen, identity, told=conf.worker.transfer_address or "")
