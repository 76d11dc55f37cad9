"""`droveway move settle`: what a person found where nobody else can look."""

from __future__ import annotations

import argparse

from droveway.cli.move import OfMove
from droveway.cli.request import AT_REST, carry


class Settle(OfMove):
    """Say what became of the step at which a move rests: as done it goes on behind it, else the step is entered anew.

    It is believed: look twice. For whatever the step does not need a person, droveway move retry is the better one.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The step, what was found, and why that is known."""
        parser = super().get_parser(prog_name)
        parser.add_argument("step", metavar="STEP", help="the step at which the move rests; move show names it")
        parser.add_argument("--as", choices=("done", "not-done"), dest="found", required=True, help="what was found")
        parser.add_argument("--reason", metavar="TEXT", required=True, help="how that is known; kept in the history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write it down and carry the move on."""
        import getpass

        from droveway.engines import settling

        site = self.site(parsed_args)
        with site.journal.write() as session:
            move = settling.settle(
                session,
                parsed_args.move,
                parsed_args.step,
                done=parsed_args.found == settling.DONE,
                who=getpass.getuser(),
                reason=parsed_args.reason,
            )
        return carry(self, site, move, *AT_REST)
