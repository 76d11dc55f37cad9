"""Defines `droveway move settle`, by which an operator says how a step ended that Droveway cannot check itself."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Final

from droveway.cli.commands.move import OfMove
from droveway.cli.commands.request import AT_REST, carry
from droveway.errors import Refused
from droveway.printable import printable

if TYPE_CHECKING:
    from droveway.cli.sites import OperatedSite


_AS_HELP: Final = (
    "done: the step's work is done (where the step removes a copy or a guest, its host first has to show that it is "
    "gone); not-done: the step has to run again; left: the move ends as cancelled, and nothing of the server changes"
)


class Settle(OfMove):
    """Say how the step ended at which a move rests.

    After --as done the next step runs. After not-done the same step runs again. After left the move ends.

    A move at verifying rests after the step finish_records. With finish_records --as done, Droveway writes the server's
    rows again as that step left them. This helps when somebody changed the server's state, so that confirm and revert
    are refused.

    A database that was put back from a copy may be older than the move. --cell compares it with the journal and writes
    what differs. The command may be repeated.

    Droveway checks what you say only where a host can show that a copy or a guest is gone. Otherwise look twice. Where
    the step can run again, use droveway move retry.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the arguments for the step, what was found, and how that is known."""
        parser = super().get_parser(prog_name)
        parser.add_argument("step", metavar="STEP", nargs="?", help="the step at which it rests; move show names it")
        parser.add_argument(
            "--cell",
            metavar="CELL",
            help="the database that was put back from a copy: that of this cell (name or id), or api, placement or "
            "cinder; what the move had left there is written into it again",
        )
        parser.add_argument("--as", choices=("done", "not-done", "left"), dest="found", help=_AS_HELP)
        parser.add_argument("--reason", metavar="TEXT", required=True, help="how that is known; kept in the history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write what the operator found (--as) into the journal, and carry the move on."""
        import getpass

        from droveway.engines.keeper import outcomes
        from droveway.engines.operations import move_requests, settling, waiting
        from droveway.persistence.journal.states import State

        site = self.site(parsed_args)
        if parsed_args.cell is not None:
            return self._settle_cell(site, parsed_args)
        if parsed_args.step is None or parsed_args.found is None:
            raise Refused(
                "say which step (STEP) and what was found of it (--as), or which database was put back (--cell)"
            )
        resting = move_requests.find_move(site, parsed_args.move)
        if parsed_args.found == settling.LEFT:
            words = {"who": getpass.getuser(), "reason": parsed_args.reason}
            return carry(self, site, settling.leave(site, resting.id, parsed_args.step, **words), *AT_REST, "cancelled")
        if resting.state == State.VERIFYING:
            kind = outcomes.of_move(site.cell_databases, resting)
            if kind is not None:
                return carry(self, site, move_requests.end(site, resting.id, kind), *AT_REST)
            done = parsed_args.found == settling.DONE
            words = {"who": getpass.getuser(), "reason": parsed_args.reason}
            return carry(self, site, waiting.settle(site, resting, parsed_args.step, done=done, **words), *AT_REST)
        if parsed_args.found == settling.DONE:
            self._prove(site, resting.id, parsed_args.step)
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

    def _settle_cell(self, site: OperatedSite, parsed_args: argparse.Namespace) -> int:
        """Write the values that the move had written into the restored database again, and print what differed."""
        import getpass

        from droveway.engines.operations import settling_cells

        if parsed_args.step is not None or parsed_args.found is not None:
            raise Refused("--cell settles a database, not a step: leave STEP and --as out")
        with contextlib.ExitStack() as stack:
            written = settling_cells.settle(
                site,
                site.answering(stack),
                parsed_args.move,
                parsed_args.cell,
                who=getpass.getuser(),
                reason=parsed_args.reason,
            )
        for line in written or ["nothing differs from what the move left there"]:
            print(printable(line))
        return 0

    def _prove(self, site: OperatedSite, move: str, step: str) -> None:
        """Ask the hosts to prove that the step is done, where a host can do that; raises Refused when they do not."""
        from droveway.engines.operations import proofs, settling

        with site.journal.read() as session:
            rests = settling.resting(session, move, step)
        proof = proofs.of(rests)
        if proof is not None:
            with contextlib.ExitStack() as stack:
                proof(proofs.HostChecks(site, site.answering(stack), rests))
