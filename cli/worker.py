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
        from droveway.clients.references import References
        from droveway.clients.volume import Volumes
        from droveway.conf import services
        from droveway.workers.daemon import Worker
        from droveway.workers.hypervisors.configured import configured

        host = parsed_args.host
        hypervisor = configured(conf, host)
        stack.callback(hypervisor.close)
        references = References(Volumes(services.Proxy(conf, "cinder")))
        Path(conf.worker.run_path).mkdir(mode=0o711, parents=True, exist_ok=True)
        session = connect(conf)
        stack.callback(session.close)
        address = f"unix:{Path(conf.worker.run_path) / f'{host}.sock'}"
        worker = Worker(host, Path(conf.worker.state_path), hypervisor, references, session, transfer_address=address)
        worker.start()
        stack.callback(worker.stop)
        return [worker.turned]
