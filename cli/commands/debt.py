"""Defines `droveway debt`: the clean-ups that hosts and cells still have to do, now or at a later time."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister, ShowOne, Subject
from droveway.cli.view.columns import Blank, Short, Time
from droveway.cli.view.spans import number
from droveway.printable import SHORT

if TYPE_CHECKING:
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.debt_views import DebtView

LISTED: Final = ("id", "host", "state", "move", "server_name", "step", "error", "created", "due", "settled")
SHOWN: Final = (
    *("id", "host", "state", "move", "server", "server_name", "step", "action", "error", "written_off_by"),
    *("created", "due", "settled", "next"),
)


class List(Lister):
    """List the open debts, in the order in which they were made."""

    spare = ("settled", "created", "due")

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options that narrow the list or widen it."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="HOST", help="only what this host or cell owes")
        parser.add_argument("--move", metavar="MOVE", help="only what is owed for this move")
        parser.add_argument("--all", action="store_true", help="also what was settled or written off")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by number."""
        from droveway.persistence.journal import debt_views, move_views

        site = self.site(parsed_args)
        host = parsed_args.host
        if host is not None and not debt_views.listing(site.journal, host=host, ended=True):
            host = _known(site, host)
        move = None if parsed_args.move is None else move_views.find(site.journal, parsed_args.move).id
        found = debt_views.listing(site.journal, host=host, move=move, ended=parsed_args.all)
        return LISTED, [[_cells(debt)[name] for name in LISTED] for debt in found]


def _known(site: Site, name: str) -> str:
    """Return the name of a host, or of a cell that may be named by its id, of which the journal has no debt.

    Raises `droveway.errors.NotFound` for an unknown one. No cell's database needs to answer.
    """
    from droveway.persistence.nova import catalog

    for cell in catalog.cells_of(site.api):
        if name in (cell.name, cell.id):
            return cell.name
    catalog.require_mapped(site.api, name)
    return name


class Show(ShowOne):
    """Show one debt, and what to do about it."""

    subject = Subject("debt", "its number", kind=number("number of a debt", 1))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import debt_views

        cells = _cells(debt_views.get(self.site(parsed_args).journal, parsed_args.debt))
        return self.dict2columns({name: cells[name] for name in SHOWN})


def owed(debt: DebtView) -> str:
    """Return what is owed, in words."""
    if debt.cell is not None:
        return f"{debt.action} (rows of the server), for the move {debt.move[:SHORT]} of {debt.server_name}"
    undo = f"the undo of {debt.step}" if debt.is_undo else debt.step
    what = "the purge of what is kept of the source" if debt.is_kept else undo
    if debt.is_rename:
        what = "the renaming of the copy that the host keeps"
    return f"{what}, for the move {debt.move[:SHORT]} of {debt.server_name}"


def _cells(debt: DebtView) -> dict[str, Any]:
    return {
        "id": debt.id,
        "host": debt.host,
        "state": debt.state,
        "move": Short(debt.move),
        "server": debt.server,
        "server_name": debt.server_name,
        "step": debt.step,
        "action": debt.action,
        "error": Blank(debt.error),
        "written_off_by": Blank(debt.written_off_by),
        "created": Time(debt.created),
        "due": Time(debt.due),
        "settled": Time(debt.settled),
        "next": _next(debt),
    }


def _next(debt: DebtView) -> str:
    if debt.state == "settled":
        done = "undone" if debt.is_undo and debt.cell is None else "done"
        return f"nothing to do: it is {'purged' if debt.is_kept else done}"
    if debt.state == "void":
        return f"nothing to do: {debt.void}"
    if debt.state == "written-off":
        return f"nothing to do while {debt.host} is off; if it comes back, droveway audit tells what lies there"
    if debt.cell is not None:
        first = "mend what the error names" if debt.error else f"start the database of cell {debt.cell}"
        return f"{first}, and daemons do it by themselves; in a lab: droveway move resume"
    if debt.error:
        return (
            f"mend what the error names on {debt.host}; daemons try again within a minute, in a lab: "
            "droveway move resume"
        )
    if debt.is_kept:
        return (
            f"nothing to do: {debt.host} deletes it when it is due and its worker is there; before that: "
            f"droveway move purge-kept {debt.move[:SHORT]}"
        )
    if debt.after:
        return (
            f"nothing to do: {debt.host} keeps its copy until {debt.after} is back and shows the disks of "
            f"{debt.server_name}, then deletes its copy; if {debt.after} is off for good, this copy is the only one of "
            "those disks"
        )
    return (
        f"bring {debt.host} and its worker back, and it is {'undone' if debt.is_undo else 'done'} by itself; if "
        "the host is off for good: "
        f'droveway host down {debt.host} --i-made-sure "how you know", then droveway host forget {debt.host}'
    )
