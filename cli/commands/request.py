"""Defines `droveway move create`, `confirm` and the other commands that change moves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from droveway.cli.base import Command, OfServer
from droveway.cli.commands.move import OfMove, nobody, unattended
from droveway.cli.view.spans import seconds, seconds_or_none, timeout
from droveway.cli.view.way import way
from droveway.errors import Refused
from droveway.persistence.journal import transfers
from droveway.printable import SHORT, printable

if TYPE_CHECKING:
    from droveway.cli.view.picture import Picture
    from droveway.engines.operations.submit import MoveSpec
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.tables import Move


class Create(OfServer):
    """Move a server at once: to another flavor with --flavor, else to another host.

    `droveway move plan`, with the same options, shows first what would be done and changes nothing.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for the destination and the confirm policy."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--flavor", metavar="FLAVOR", help="resize to this flavor")
        parser.add_argument("--to-host", "--host", metavar="HOST", dest="host", help="migrate to this host")
        add_policy(parser)
        parser.add_argument(
            "--from-plan",
            metavar="PLAN",
            dest="plan",
            help="move as this plan says; refused if it would go elsewhere by now",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the move and carry it on."""
        return create(self, parsed_args, flavor=parsed_args.flavor, host=parsed_args.host)


class _MoveRequest(OfMove):
    """Asks one thing of a move and carries the move on."""

    def carried(self, parsed_args: argparse.Namespace, request: Callable[..., None], *wanted: str) -> int:
        """Write the request, carry the move on where no daemons do, and print how the move stands."""
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        return carry(self, site, move_requests.file_request(site, parsed_args.move, request), *wanted)


class Confirm(_MoveRequest):
    """Keep the moved server and remove what is left on its source."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the confirm and carry it on until the source's copy is gone."""
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        return carry(self, site, move_requests.end(site, parsed_args.move, "confirm"), "done")


class Revert(_MoveRequest):
    """Bring the server back to where it was."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the revert and carry it on until the server is back."""
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        return carry(self, site, move_requests.end(site, parsed_args.move, "revert"), "reverted")


class Cancel(_MoveRequest):
    """Undo a move that has not passed its point of no return."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the cancel and carry it on until all is as it was."""
        from droveway.engines.operations import move_requests

        return self.carried(parsed_args, move_requests.cancel, "cancelled")


class Pause(OfMove):
    """Hold a move at its next step boundary."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the hold, which the conductor finds before the next step."""
        from droveway.persistence.journal import moves, requests

        with self.site(parsed_args).journal.write() as session:
            move = moves.get(session, moves.find(session, parsed_args.move).id, lock=True)
            requests.pause(session, move)
        self.note(move)
        print(f"move {move.id[:SHORT]} is held: droveway move resume {move.id[:SHORT]}")
        return 0


class Resume(Command):
    """Lift a hold; without a move, run all unfinished moves of a lab that are not held."""

    subject = OfMove.subject._replace(optional=True)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Carry on what can go on, and return the worst exit code."""
        from droveway.cli.view import watching
        from droveway.cli.view.picture import Watcher
        from droveway.engines.operations import move_requests
        from droveway.lab import operations
        from droveway.lab.session import Lab
        from droveway.persistence.journal import requests

        if parsed_args.move is not None:
            site = self.site(parsed_args)
            return carry(self, site, move_requests.file_request(site, parsed_args.move, requests.resume), *AT_REST)
        lab = self.site(parsed_args)
        if not isinstance(lab, Lab):
            raise Refused(
                "without MOVE this command is for a lab, and an installation is named, whose daemons carry all moves "
                "on by themselves: name the MOVE that is held, or give --lab DIR"
            )
        going = [Watcher(lab, move_id) for move_id in operations.going(lab)]

        def told() -> str:
            seen = [watcher.read() for watcher in going]
            return "; ".join(watching.running(picture) for picture in seen if not picture.rests)

        with (
            self.progress(parsed_args, "carrying moves on", told),
            watching.stoppable(lambda: print(watching.STOPPING, file=sys.stderr)),
        ):
            found = operations.carry_all(lab)
        for move in found:
            self.note(move)
        if not found:
            print("no move can go on by itself")
        return max((finish(lab, move, *AT_REST) for move in found), default=0)


class PurgeKept(OfMove):
    """Have what is kept of a move's source deleted before its time is over."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the request; the host carries it out, at once if its worker is up."""
        from droveway.engines.operations import move_requests
        from droveway.lab import operations
        from droveway.persistence.journal import debts, requests

        site = self.site(parsed_args)
        move = move_requests.file_request(site, parsed_args.move, requests.purge_kept)
        self.note(move)
        if site.runs_here:
            operations.carry_all(self.lab(parsed_args))
        with site.journal.read() as session:
            purged = debts.kept(session, move.id) is None
        short = move.id[:SHORT]
        print(
            f"nothing is kept of the source of move {short} any more"
            if purged
            else f"host {move.source_host} purges it as soon as it can: droveway debt list --move {short}"
        )
        return 0


class Retry(_MoveRequest):
    """Enter again the step at which a move asked for an operator."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Carry the move on from that step."""
        from droveway.persistence.journal import requests

        return self.carried(parsed_args, requests.retry, *AT_REST)


class Wait(Command):
    """Wait until each of the moves rests or has ended; the exit code is the worst of theirs."""

    subject = OfMove.subject._replace(several=True)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the time."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--timeout", metavar="SECONDS", type=timeout, help="end with 124 after this time")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Wait until all rest, and print how each stands then; it does not run a lab itself."""
        from droveway.cli.view import watching
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        waiting = list(dict.fromkeys(move_requests.find_move(site, name).id for name in parsed_args.move))
        codes, seen, count = [], dict[str, str](), len(waiting)

        def see(picture: Picture) -> None:
            seen[picture.move.id] = watching.running(picture)

        def told() -> str:
            return "; ".join([seen[each] for each in tuple(waiting) if each in seen])

        resting = watching.wait(site, tuple(waiting), parsed_args.timeout, see)
        while True:
            # The display shows the moves that still go on. `finish` prints the move that has come to rest.
            with self.progress(parsed_args, "waiting for moves", told) as shown:
                shown.tell(count - len(waiting), count)
                move = next(resting, None)
            if move is None:
                break
            waiting.remove(move.id)
            codes.append(finish(site, move, *AT_REST))
            self.app.stdout.flush()
        for move_id in waiting:
            short = move_id[:SHORT]
            self.app.stderr.write(f"move {short} goes on after {parsed_args.timeout:g} s: droveway move show {short}\n")
        return TIMED_OUT if waiting else max(codes)


class Watch(OfMove):
    """Follow a move step by step until it rests; Ctrl-C ends the watching, not the move."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print one line for each change, or a live view on a terminal."""
        from droveway.cli.view import watching

        site = self.site(parsed_args)
        return finish(site, watching.follow(site, parsed_args.move, self.app.stdout), *AT_REST)


AT_REST: Final = ("verifying", "done", "reverted")
"""The states in which a move that rests or has ended counts as a success: the command ends with 0.

A move also rests or ends in the states failed, cancelled and needs-operator, which count as failures.
"""
ARRIVED: Final = ("verifying", "done")
"""The states that count as a success of a new move: the server is at its destination.

A move that its policy has reverted ends as reverted, which is no success here.
"""
TIMED_OUT: Final = 124


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that requests a move which waits for its confirm or revert at the end."""
    parser.add_argument(
        "--confirm",
        choices=("deadline", "auto", "healthy", "manual"),
        default="deadline",
        help="deadline (the default): waits for confirm or revert, and is confirmed after --deadline (24h), which "
        "deletes the source's disks; auto: confirmed at once; healthy: as soon as the guest is healthy, or reverted at "
        "the deadline (10min); manual: waits for confirm or revert for as long as it takes",
    )
    parser.add_argument(
        "--to-cell",
        metavar="CELL",
        help="only hosts of this cell; a cell other than the server's needs [cross_cell] allowed",
    )
    parser.add_argument("--deadline", metavar="TIME", type=seconds, help="when the policy acts, such as 90s or 24h")
    parser.add_argument(
        "--keep-source",
        metavar="TIME",
        type=seconds_or_none,
        help="keep the source's disks for this time after confirm, such as 12h; 0: delete them; default as configured",
    )
    parser.add_argument(
        "--transfer",
        choices=transfers.ALL,
        help="how the disks go into another cell: from worker to worker, through the image service, or (auto) directly "
        "where the workers reach each other; default as configured",
    )
    parser.add_argument(
        "--keep-image",
        action="store_true",
        help="of a move into another cell: upload each disk, and keep the images until the move is confirmed or "
        "reverted",
    )
    add_asking(parser)


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that requests a move."""
    parser.add_argument("--reason", metavar="TEXT", help="why; kept with the move")
    parser.add_argument(
        "--wait", action="store_true", help="wait until the move rests or has ended; in a lab this is always so"
    )


def create(command: Command, parsed_args: argparse.Namespace, *, flavor: str | None, host: str | None) -> int:
    """Submit the move that the options describe and carry it on."""
    from droveway.engines.operations import submit

    site = command.site(parsed_args)
    move = submit.submit(site, move_spec(parsed_args, flavor=flavor, host=host))
    return carry(command, site, move, *ARRIVED, lines=parsed_args.wait)


def carry(command: Command, site: Site, move: Move, *wanted: str, lines: bool = False) -> int:
    """Carry the move as far as it goes by itself, print how it stands, and return the exit code.

    ``lines`` is what --wait says. If daemons run the move and ``lines`` is false, the command does not wait for it. If
    the command waits, a terminal shows the progress. Another output gets a line for each change if ``lines`` is true.
    """
    command.note(move)
    if not site.runs_here and not lines:
        print(f"{sentence(move, nobody(site))}\n  follow it with  droveway move watch {move.id[:SHORT]}")
        return 0
    from droveway.cli.view import watching
    from droveway.engines.operations import move_requests

    if not site.runs_here and (why := nobody(site)) is not None:
        command.app.stderr.write(f"warning: {why}\n")
    with watching.carrying(site, move.id, command.app.stderr, lines=lines):
        move = move_requests.carry(site, move.id)
    return finish(site, move, *wanted)


def move_spec(parsed_args: argparse.Namespace, *, flavor: str | None, host: str | None) -> MoveSpec:
    """Return what the options ask for."""
    from droveway.engines.operations.submit import MoveSpec

    return MoveSpec(
        server=parsed_args.server,
        flavor=flavor,
        host=host,
        to_cell=parsed_args.to_cell,
        policy=parsed_args.confirm,
        confirm_seconds=parsed_args.deadline,
        keep_seconds=parsed_args.keep_source,
        transfer=parsed_args.transfer,
        keep_image=parsed_args.keep_image,
        reason=parsed_args.reason,
        plan=getattr(parsed_args, "plan", None),
    )


def finish(site: Site, move: Move, *wanted: str) -> int:
    """Print how the move stands, and return the exit code of a command that wanted one of these states."""
    from droveway.engines.operations.move_requests import outcome
    from droveway.persistence.journal.states import State

    print(sentence(move, unattended(site, move)))
    return outcome(move, frozenset(State(state) for state in wanted))


def sentence(move: Move, instead: str | None = None) -> str:
    """Return one line on a move: its server and hosts, its state, why, and what can be done, or ``instead`` of that."""
    from droveway.cli.commands.move import facts

    shown = facts(move)
    hosts = way(shown["kind"], shown["state"], shown["source"], shown["destination"])
    name = printable(move.server_name)
    reason = shown["error"] or shown["waits_for"] or shown["health_reason"]
    why = f": {printable(reason)}" if reason else ""
    then = printable(instead or shown["next"])
    return f"move {move.id[:SHORT]}  {move.kind} {name}  {hosts}  {move.state}{why}\n  {then}"
