"""`droveway move settle`: what a person found where nobody else can look."""

from __future__ import annotations

import argparse

from droveway.cli.move import OfMove
from droveway.cli.request import AT_REST, carry


class Settle(OfMove):
    """Say what became of the step at which a move rests: as done it goes on behind it, else the step is entered anew.

    A move at verifying rests behind finish_records. As done, its server's rows are written anew as that step left them,
    where somebody put the server in a state that bars confirm and revert.

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

        from droveway.engines import asking, outcomes, settling, waiting
        from droveway.persistence.states import State

        site = self.site(parsed_args)
        found = asking.find_move(site, parsed_args.move)
        if found.state == State.VERIFYING:
            kind = outcomes.of_move(site, found)
            if kind is not None:
                return carry(self, site, asking.end(site, found.id, kind), *AT_REST)
            done = parsed_args.found == settling.DONE
            words = {"who": getpass.getuser(), "reason": parsed_args.reason}
            return carry(self, site, waiting.settle(site, found, parsed_args.step, done=done, **words), *AT_REST)
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
