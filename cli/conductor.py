"""`droveway conductor`: the daemon that runs the flows of moves."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING

from droveway.cli.daemon import Daemon, Turned, connect

if TYPE_CHECKING:
    from oslo_config import cfg


class Run(Daemon):
    """Claim moves and run their flows, with whatever other conductors there are, until SIGTERM."""

    def running(
        self, conf: cfg.ConfigOpts, _parsed_args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> Collection[Turned]:
        """A conductor and a keeper over one session."""
        from droveway.engines import start
        from droveway.engines.installation import Installation

        site = Installation(conf)
        stack.callback(site.close)
        site.open()
        session = connect(conf)
        stack.callback(session.close)
        site.require_services()
        if session.access is not None:
            stack.callback(start.host_folders(site, session).stop)
        # New for each process: a claim tells whose it is.
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        conductor = start.conductor(site, session, name=name)
        stack.callback(conductor.stop)
        keeper = start.keeper(site, session)
        stack.callback(keeper.stop)
        return [conductor.turned, keeper.turned]
