"""Defines `droveway lab serve`, which runs real daemons over a lab's hosts."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Final

from droveway.cli.base import Command, Subject
from droveway.cli.daemon import Signals
from droveway.cli.view.spans import number

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that stop it; SIGHUP comes when its terminal is closed."""
_MOST: Final = 100
"""How many conductors one machine runs at most."""


class Serve(Command):
    """Run ZooKeeper, the lab's services, conductors and workers as processes, until Ctrl-C or SIGTERM."""

    subject = Subject("dir", "the lab (else --lab or DROVEWAY_LAB)", kind=Path, optional=True)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for the number of conductors and for the hosts."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--conductors",
            metavar="N",
            type=number("number of conductors", 1, _MOST),
            default=1,
            help="how many conductors (default 1)",
        )
        parser.add_argument(
            "--host",
            metavar="HOST",
            action="append",
            default=[],
            help="start the worker of this host alone; may be given more than once (else all that are not stopped)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve the lab, and end with 0 when told to stop."""
        from droveway.lab import serve

        if parsed_args.dir is not None:
            parsed_args.lab = str(parsed_args.dir)
        lab = self.lab(parsed_args)
        # The end of a daemon ends the wait, so that the daemon is started again at once; it does not stop the command.
        signals = Signals(*_STOPS, signal.SIGCHLD)
        serve.serve(
            lab,
            conductors=parsed_args.conductors,
            hosts=parsed_args.host,
            say=self._say,
            wait=lambda seconds: signals.wait(seconds) in _STOPS,
        )
        return 0

    def _say(self, line: str) -> None:
        # A reader of a pipe gets each line at once.
        self.app.stdout.write(f"{line}\n")
        self.app.stdout.flush()
