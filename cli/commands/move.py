"""Defines `droveway move`: lists and shows moves, and shows their history."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Command, Lister, ShowOne, Subject
from droveway.cli.view import choice, marks
from droveway.cli.view.columns import Blank, Dashed, Facts, Joined, Short, Time, Took, utc
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.cli.view.spans import moment, number, seconds
from droveway.errors import NotFound, Refused
from droveway.persistence.journal import transfers
from droveway.persistence.journal.stuck import BOUND
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.cli.sites import OperatedSite
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.move_views import View, Wanted
    from droveway.persistence.journal.tables import Move

HISTORY: Final = ("seq", "flow", "step", "direction", "attempt", "host", "started", "ended", "took", "result", "error")
TIMES: Final = ("created", "updated", "ended", "deadline", "progress_at", "claimed", "kept_until")
GOING: Final = ("queued", "running", "confirming", "reverting", "undoing", "deleting")
"""The states in which a conductor has to run the move."""
LIMIT: Final = 50
"""How many moves are listed by default."""
LISTED: Final = ("id", "kind", "server_name", "state", "step", "source", "destination", "created", "ended")

STUCK: Final = (*LISTED, "why")

_ENDS: Final = "droveway move confirm {move}  or  droveway move revert {move}"


class OfMove(Command):
    """A command on one move."""

    subject = Subject("move", "its id or the first letters of it")


class List(Lister):
    """List the moves, newest first."""

    spare = ("ended", "created", "step", "kind")

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options that narrow the list."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--server", metavar="SERVER", help="only moves of this server (name or id), also when it is deleted"
        )
        parser.add_argument("--host", metavar="HOST", help="only moves from or to this host")
        parser.add_argument("--cell", metavar="CELL", help="only moves from or to this cell")
        parser.add_argument("--project", metavar="PROJECT", help="only moves of the servers of this project (its id)")
        parser.add_argument("--state", metavar="STATE", action="append", default=[], help="only moves in this state")
        parser.add_argument(
            "--kind", metavar="KIND", action="append", default=[], help="only moves of this kind, as the list names it"
        )
        parser.add_argument(
            "--since",
            metavar="TIME",
            type=moment,
            help="only moves asked for at this time or later: an age such as 2h, or UTC such as 2026-11-30T09:31Z",
        )
        parser.add_argument(
            "--before", metavar="TIME", type=moment, help="only moves asked for earlier than this time, as --since"
        )
        parser.add_argument(
            "--stuck",
            action="store_true",
            help="only moves that do not get on by themselves or whose confirm or revert was undone, with the reason "
            "(why)",
        )
        parser.add_argument(
            "--for",
            metavar="TIME",
            type=seconds,
            dest="bound",
            default=BOUND,
            help="with --stuck: how long a move may be without progress before it counts as stuck, such as 90s or 2h "
            "(default 15min)",
        )
        length = parser.add_mutually_exclusive_group()
        length.add_argument(
            "--limit",
            metavar="N",
            type=number("number of moves", 1, rest=", or --all instead"),
            default=LIMIT,
            help=f"at most so many moves (default {LIMIT})",
        )
        length.add_argument("--all", action="store_true", help="every move, however many there are")
        parser.add_argument("--marker", metavar="MOVE", help="only moves older than this one: the next page behind it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, newest first; stderr says when there are more."""
        from droveway.persistence.journal import kinds, move_views, stuck
        from droveway.persistence.journal.states import State

        _require_known("state", parsed_args.state, [state.value for state in State])
        _require_known("kind", parsed_args.kind, [kind.name for kind in kinds.KINDS if kind.ends is None])
        site = self.site(parsed_args)
        now = move_views.now(site.journal)
        wanted = self._wanted(site, parsed_args, now)
        found = move_views.listing(site.journal, wanted, limit=None if parsed_args.all else parsed_args.limit)
        if not parsed_args.all and len(found) == parsed_args.limit:
            self._say_what_is_cut(move_views.count(site.journal, wanted), found)
        rows = [[_cell(facts(move), name) for name in LISTED] for move in found]
        if not parsed_args.stuck:
            return LISTED, rows
        whys = [stuck.reason(move, now, parsed_args.bound) for move in found]
        return STUCK, [[*row, why] for row, why in zip(rows, whys, strict=True)]

    def _say_what_is_cut(self, count: int, found: Sequence[View]) -> None:
        if count > len(found):
            older = f"--marker {found[-1].id[:SHORT]} the older ones"
            self.app.stderr.write(f"{len(found)} of {count} moves: --all shows every one, {older}\n")

    def _wanted(self, site: OperatedSite, parsed_args: argparse.Namespace, now: dt.datetime) -> Wanted:
        """Return what the options ask for.

        Raises `droveway.errors.NotFound` for a name that neither a move nor Nova has. Otherwise a misspelt name would
        give an empty list, as if a server or host of that name had no moves.
        """
        from droveway.persistence.journal.move_views import Wanted, count, find
        from droveway.persistence.nova import catalog

        server, host, cell, project = (getattr(parsed_args, name) for name in ("server", "host", "cell", "project"))
        journal = site.journal
        if server is not None and not count(journal, Wanted(server=server)):
            server = catalog.find_server(site.api, site.known_cells, server).id
        if host is not None and not count(journal, Wanted(host=host)):
            catalog.find_host(site.api, site.known_cells, host)
        if cell is not None and not count(journal, Wanted(cell=cell)):
            cell = catalog.find_cell(site.api, cell).name
        if project is not None and not count(journal, Wanted(project=project)):
            catalog.require_project(site.api, project)
        since, before = (
            now - given if isinstance(given, dt.timedelta) else given
            for given in (parsed_args.since, parsed_args.before)
        )
        if since is not None and before is not None and since >= before:
            raise Refused("--since is not earlier than --before, so no move is between: give --since an earlier time")
        return Wanted(
            server=server,
            host=host,
            cell=cell,
            project=project,
            states=parsed_args.state,
            kinds=parsed_args.kind,
            since=since,
            before=before,
            stuck_before=now - dt.timedelta(seconds=parsed_args.bound) if parsed_args.stuck else None,
            older_than=None if parsed_args.marker is None else find(journal, parsed_args.marker),
        )

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        """Return the sentence for an empty list; it says whether only stuck moves were asked for."""
        return "no move is stuck" if parsed_args.stuck else super().nothing(parsed_args)

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]
    ) -> int:
        """Print the rows; on a terminal each state has its mark."""
        out = self.app.stdout
        if parsed_args.formatter == "table" and marks.is_terminal(out):
            coloured, at = marks.wants_colour(out), LISTED.index("state")
            data = [[*row[:at], marks.Marked(row[at], coloured=coloured), *row[at + 1 :]] for row in data]
        return super().produce_output(parsed_args, column_names, data)


def _require_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for each in given:
        if each not in known:
            raise Refused(f"there is no {what} {each}: the {what}s are {', '.join(known)}")


class Show(ShowOne, OfMove):
    """Show one move, and what to do about it."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import debt_views, move_views, stuck

        site = self.site(parsed_args)
        move = move_views.find(site.journal, parsed_args.move)
        self._facts = facts(move) | owner(move_views.claim(site.journal, move.id))
        debts = debt_views.listing(site.journal, move=move.id, ended=True)
        self._facts["debts"] = [
            {"id": debt.id, "host": debt.host, "step": debt.step, "undo": debt.is_undo, "state": debt.state}
            for debt in debts
            if not debt.is_kept
        ]
        kept = next((debt for debt in debts if debt.is_kept and debt.state == debt_views.OWED), None)
        self._facts["kept_as"] = None if kept is None else f"{kept.server}_keep-{kept.move}"
        self._facts["kept_until"] = None if kept is None else kept.due
        self._facts["left_out"] = choice.left_out(move_views.history(site.journal, move.id))
        if move.state == "queued":
            from droveway.engines.keeper import admission, queue

            limits = admission.limits(site.conf)
            racks = queue.racks_of(site.api, site.conf)
            self._facts["waits_for"] = queue.waits_for(site.journal, move.id, limits, racks)
        elif move.state in GOING and not site.runs_here:
            from droveway.engines.keeper import queue

            self._facts["waits_for"] = queue.foreign(site.journal, move.id) or self._facts["waits_for"]
        if move.state == "verifying" and not move.hold and not move.delete_requested:
            self._facts["next"] = ways_out(site, move) or self._facts["next"]
        frozen = frozen_by(site, move)
        if frozen is not None:
            self._facts |= {"waits_for": frozen, "next": "it goes on by itself once that is thawed"}
        elif idle := unattended(site, move):
            self._facts["next"] = idle
        elif move.state in GOING and not site.runs_here:
            why = stuck.reason(move, move_views.now(site.journal))
            self._facts["next"] = f"{why}: droveway doctor tells what is missing" if why else self._facts["next"]
            self._facts["next"] = nobody(site) or self._facts["next"]
        return self.dict2columns({name: _cell(self._facts, name) for name in self._facts})

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print a page for people, or the record for programs."""
        if parsed_args.formatter != "table" or parsed_args.columns:
            return super().produce_output(parsed_args, column_names, data)
        from droveway.cli.view import move_page

        out = self.app.stdout
        out.write(move_page.page(self._facts, terminal=marks.is_terminal(out), coloured=marks.wants_colour(out)))
        return 0


class History(Lister, OfMove):
    """Show every run of every step and undo of a move; with `-f html` a timeline.

    Where a host or a cell owes a step, or owed it, the result column shows the debt and its state.
    """

    formats = (*Lister.formats, "html")
    spare = ("ended", "started", "flow", "attempt")

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        """Return the sentence that the move has run no step."""
        return f"no step of move {parsed_args.move} has run yet"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows in order."""
        from droveway.persistence.journal import debt_views, move_views

        journal = self.site(parsed_args).journal
        move = move_views.find(journal, parsed_args.move)
        steps = move_views.history(journal, move.id)
        made = debt_views.listing(journal, move=move.id, ended=True)
        debts = {debt.sequence: {"debt": debt.id, "state": debt.state} for debt in made}
        if parsed_args.formatter == "html":
            self.formatter.draw(facts(move), steps)  # type: ignore[attr-defined]
        return HISTORY, [
            (
                step.seq,
                step.flow,
                step.step,
                step.direction,
                step.attempt,
                Blank(step.host),
                Time(step.started_at),
                Time(step.ended_at),
                Took(None if step.ended_at is None else (step.ended_at - step.started_at).total_seconds()),
                choice.outcome(step, debts.get(step.seq, step.result)),
                Facts(step.error),
            )
            for step in steps
        ]


def facts(move: Move | View) -> dict[str, Any]:
    """Return the facts that `move show` prints, by their keys; a time is a datetime in UTC, without a zone."""
    from droveway.cli.view import rate
    from droveway.persistence.journal.states import ADVICE, State

    reported = rate.reported(move)
    speed, left = rate.rate(reported), rate.left(reported)
    return {
        "id": move.id,
        "kind": move.kind,
        "server": move.server,
        "server_name": move.server_name,
        "state": move.state,
        "hold": move.hold,
        "step": move.step,
        "step_number": move.step_number,
        "step_count": move.step_count,
        "attempt": move.attempt,
        "source": move.source_host or None,
        "destination": move.dest_host,
        "source_cell": move.source_cell,
        "target_cell": move.dest_cell or move.source_cell,
        "old_flavor": move.old_flavor,
        "new_flavor": move.new_flavor,
        "storage": move.storage,
        "transfer": move.transfer or (transfers.DIRECT if move.storage == "copy" else ""),
        "policy": move.policy,
        "deadline": move.deadline,
        "keep_source": move.keep_seconds,
        "health": move.health,
        "health_reason": move.health_reason,
        "waits_for": move.waits_for,
        "reason": move.reason,
        "asked_by": move.asked_by,
        "error": move.error,
        "error_code": move.error_code,
        "next": _advice(move, ADVICE[State(move.state)]),
        "created": move.created_at,
        "updated": move.updated_at,
        "ended": move.ended_at,
        "progress_done": move.progress_done,
        "progress_total": move.progress_total,
        "progress_kept": move.progress_kept,
        "progress_at": move.progress_at,
        "progress_rate": None if speed is None else round(speed),
        "progress_left": None if left is None else round(left, 1),
    }


def frozen_by(site: Site, move: View) -> str | None:
    """Return why a freeze stops an open move; None when none does."""
    from droveway.persistence.journal import freezes
    from droveway.persistence.journal.states import ENDED, State

    if State(move.state) in ENDED or site.runs_here:
        return None
    with site.journal.read() as session:
        return freezes.over(session, move.id)


def unattended(site: Site, move: Move | View) -> str | None:
    """Return the advice for a move that goes on only when a command runs its lab again; None when none is needed."""
    deleting = move.state == "verifying" and move.delete_requested
    if move.hold or not (deleting or move.state in GOING) or site.runs_moves():
        return None
    if deleting:
        # A server that Nova has deleted cannot be found by its name. A confirm then releases what its move still holds.
        gone = f"droveway move confirm {move.id[:SHORT]}"
        again = f"droveway lab server delete {move.server_name}" if is_known(site, move.server) else gone
        return f"its server is to be deleted: mend what the reason names, then: {again}"
    return f"nobody runs this lab now: droveway move resume {move.id[:SHORT]}"


def is_known(site: Site, server: str) -> bool:
    """Say whether the server with this id has a row in its cell and a mapping, so that its name can be used.

    A server that may be in a cell which does not answer counts as known.
    """
    from droveway.persistence.database import DatabaseAway
    from droveway.persistence.nova import catalog

    with contextlib.suppress(DatabaseAway):
        try:
            catalog.find_server(site.api, site.known_cells, server)
        except NotFound:
            return False
    return True


def nobody(site: Site) -> str | None:
    """Return what to do when no conductor is up; None when one is up, and in a lab, whose commands run moves."""
    from droveway.persistence.journal import daemons

    if site.runs_here:
        return None
    with site.journal.read() as session:
        if daemons.known_workers(session).current:
            return None
    return "no conductor is up, so nobody takes it: systemctl start droveway-conductor (droveway conductor list)"


def owner(claim: View | None) -> dict[str, Any]:
    """Return which conductor has the move: its epoch, since when, and how many before it never released the move."""
    held = claim is not None and claim.released_at is None
    return {
        "owner": claim.owner if claim is not None and held else None,
        "epoch": claim.epoch if claim is not None else None,
        "claimed": claim.claimed_at if claim is not None and held else None,
        "unclean": claim.unclean if claim is not None else 0,
    }


def _advice(move: Move | View, advice: str) -> str:
    if move.hold:
        return f"it is held: droveway move resume {move.id[:SHORT]}"
    if move.state == "verifying" and move.delete_requested:
        return "its server is to be deleted: mend what the reason names, and it goes on by itself"
    if move.state == "verifying" and move.error_code == "missing":
        advice = "nothing is there to go back to; to keep it where it is: droveway move confirm {move}"
    elif move.state == "verifying" and move.error_code:
        advice = f"mend what the reason names{_explained(move)}, and ask again: {_ENDS}"
    if move.state == "verifying":
        advice += _undecided(move)
    if move.state == "cancelled" and move.error_code in ("evacuated", "left-as-is"):
        advice = "nothing to do here: the server is as its rows say, and droveway audit names what the move left"
    if move.state == "needs-operator":
        advice = advice.replace("names, ", f"names{_explained(move)}, ")
    if move.state == "needs-operator" and move.step:
        advice += f"; if nobody can mend that: droveway move settle {{move}} {move.step} --as left --reason TEXT"
    return advice.format(move=move.id[:SHORT])


def _explained(move: Move | View) -> str:
    return f" (droveway explain {move.error_code} says how)" if move.error_code in EXPLANATIONS else ""


def ways_out(site: Site, move: View) -> str | None:
    """Return what to do with a waiting move that Nova has ended, or that cannot be confirmed or reverted; else None."""
    from droveway.engines.operations import ends
    from droveway.persistence.journal import moves

    short = move.id[:SHORT]
    with site.journal.read() as session:
        present = moves.get(session, move.id)
    if _has_ended(site, present):
        return f"Nova has ended this move, and Droveway soon ends it too; to end it now:  droveway move confirm {short}"
    barred = ends.barred(site, present)
    if len(barred) > 1:
        return barred["confirm"]
    for kind, other in (("confirm", "revert"), ("revert", "confirm")):
        if kind in barred:
            return f"droveway move {other} {short}; the other way is barred: {barred[kind]}"
    return None


def _has_ended(site: Site, move: Move) -> bool:
    """Say whether Nova's rows show an end of the move; no where its cell does not answer, which `ends.barred` tells."""
    from droveway.engines.keeper import outcomes
    from droveway.persistence.database import DatabaseAway, absence

    try:
        return outcomes.of_move(site.cell_databases, move) is not None
    except Exception as error:
        if not isinstance(error, DatabaseAway) and absence(error) is None:
            raise
        return False


def _undecided(move: Move | View) -> str:
    """Return what becomes of a waiting move when nobody confirms or reverts it."""
    from droveway.persistence.journal.policy_names import HEALTHY, MANUAL

    if move.deadline is None:
        undone = "" if move.policy == MANUAL else ", since its revert was undone"
        return f"; it waits for that as long as it takes{undone}"
    if move.policy == HEALTHY:
        return f"; without either it is confirmed once the guest is healthy, or reverted at {utc(move.deadline)}"
    kept = "" if move.keep_seconds else ", and the source's disks are deleted"
    return f"; without either it is confirmed at {utc(move.deadline)}{kept}"


def _cell(found: dict[str, Any], name: str) -> Any:
    value = found[name]
    if name in TIMES:
        return Time(value)
    if name == "id":
        return Short(value)
    if name == "source":
        return Dashed(value)
    if isinstance(value, list):
        return Joined(value)
    return Blank(value) if value is None else value
