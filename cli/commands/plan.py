"""Defines `droveway move plan`, which shows what a move would do and changes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cliff.columns import FormattableColumn

from droveway.cli.base import OfServer, ShowOne
from droveway.cli.commands import request
from droveway.cli.view.columns import Joined, size
from droveway.cli.view.downtime import Downtime
from droveway.persistence.journal import kinds


class Plan(ShowOne, OfServer):
    """Show what a move would do, and change nothing.

    The plan has destination and alternates, each check, storage, bytes, downtime, and the steps with their undo.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options of `move create`."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--flavor", metavar="FLAVOR", help="resize to this flavor")
        parser.add_argument("--to-host", "--host", metavar="HOST", dest="host", help="migrate to this host")
        request.add_policy(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the plan's facts."""
        from droveway.engines.operations import plan

        found = plan.plan(
            self.site(parsed_args), request.move_spec(parsed_args, flavor=parsed_args.flavor, host=parsed_args.host)
        )
        return self.dict2columns({key: _column(value) for key, value in found.items()})

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Any) -> int:
        """Print a page for people, or the record for programs."""
        if parsed_args.formatter != "table" or parsed_args.columns:
            return super().produce_output(parsed_args, column_names, data)
        values = (value.machine_readable() if isinstance(value, FormattableColumn) else value for value in data)
        self.app.stdout.write(page(dict(zip(column_names, values, strict=True))))
        return 0


def _column(value: Any) -> Any:
    if isinstance(value, dict):
        return Downtime(value)
    return Joined(value) if isinstance(value, list) else value


def page(plan: Mapping[str, Any]) -> str:
    """Return the plan as people read it."""
    kind = kinds.of(plan["kind"])
    change = f", {plan['old_flavor']} → {plan['new_flavor']}" if kind.changes_flavor else ""
    then = f", then {', '.join(plan['alternates'])}" if plan["alternates"] else ", no alternates"
    cell = f" in cell {plan['cell']}" if kind.crosses_cells else ""
    wire = "" if plan["bytes"] is None else f", {size(plan['bytes'])} over the wire"
    lines = [
        f"{plan['kind']} {plan['server']} from {plan['source']}{change}",
        "",
        f"  destination  {plan['destination']}{cell}{then}",
        f"  storage      {plan['storage']}{wire}: {plan['storage_reason']}",
        *_transfer(plan),
        "  downtime     " + Downtime(plan["downtime"]).human_readable().replace("\n", "\n" + " " * 15),
        "  checks       " + "\n               ".join(_check(check) for check in plan["checks"]),
        "",
    ]
    steps = plan["steps"]
    names, places = (max(len(str(step[key])) for step in steps) for key in ("step", "where"))
    for number, step in enumerate(steps, 1):
        lines.append(f"  {number:>2}  {step['step']:<{names}}  {step['where']:<{places}}  {step['undo']}")
        if step["no_return"]:
            lines.append(f"      {'── no way back from here ──':^{names + places}}")
    option = f" --flavor {plan['new_flavor']}" if kind.changes_flavor else ""
    lines += ["", "Nothing has been changed. Run it:", ""]
    return "\n".join(lines) + f"  droveway move create {plan['server']}{option} --from-plan {plan['id']}\n"


def _transfer(plan: Mapping[str, Any]) -> list[str]:
    kept = ["  images       kept until the move is confirmed or reverted"] if plan["keep_image"] else []
    sent = [f"  transfer     {plan['transfer']}: {plan['transfer_reason']}"] if plan["transfer"] else []
    return sent + kept


def _check(check: Mapping[str, Any]) -> str:
    return f"✓ {check['detail']}" if check["ok"] else f"- {check['detail']} ({check['check']})"
