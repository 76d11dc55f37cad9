"""Defines `droveway lab fault`: faults that are armed in a lab."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, Final

from droveway.cli.base import Command, Lister, Subject
from droveway.cli.view.columns import Blank
from droveway.cli.view.spans import number
from droveway.errors import Refused

LISTED: Final = ("id", "step", "direction", "phase", "action", "host", "count", "class", "process")


class Arm(Command):
    """Let a step fail, stall, be killed, meet a full disk or a flipped byte."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options that say where the fault fires and what it does."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--step", metavar="STEP", required=True)
        parser.add_argument("--direction", choices=("execute", "revert"), default="execute")
        parser.add_argument(
            "--phase",
            choices=("before", "during", "after", "stored"),
            required=True,
            help="when it fires: before, during or after the step's work, or once its result is stored",
        )
        parser.add_argument("--action", choices=("fail", "stall", "kill", "enospc", "corrupt"), required=True)
        parser.add_argument("--host", metavar="HOST", help="only when the step runs on this host")
        parser.add_argument(
            "--count", metavar="N", type=number("number of times", 1), default=1, help="how often it fires (default 1)"
        )
        parser.add_argument(
            "--class",
            dest="fault",
            choices=("move", "destination"),
            default="move",
            help="whose fault the failure is: the next alternate is tried only after a fault of the destination",
        )
        parser.add_argument(
            "--process",
            choices=("conductor", "worker"),
            help="in which process it fires during a step on a host (default: the one that reaches the phase first)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Arm the fault and print its number."""
        from droveway.flows import registry
        from droveway.lab import faults

        lab = self.lab(parsed_args)
        known = {name for graph in registry.GRAPHS.values() for name in graph.names()}
        if parsed_args.step not in known:
            raise Refused(f"there is no step {parsed_args.step}: droveway flow graph KIND lists the steps of a kind")
        if parsed_args.host is not None:
            lab.host(parsed_args.host)
        wanted = faults.Fault(
            id=0,
            step=parsed_args.step,
            direction=parsed_args.direction,
            phase=parsed_args.phase,
            action=parsed_args.action,
            host=parsed_args.host,
            count=parsed_args.count,
            fault=parsed_args.fault,
            process=parsed_args.process,
        )
        print(faults.arm(lab.layout, wanted).id)
        return 0


class List(Lister):
    """List the armed faults."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by number."""
        from droveway.lab import faults

        return LISTED, [
            (
                *(each.id, each.step, each.direction, each.phase, each.action, Blank(each.host)),
                *(each.count, each.fault, Blank(each.process)),
            )
            for each in faults.armed(self.lab(parsed_args).layout)
        ]


class Clear(Command):
    """Disarm faults and release what they stall."""

    subject = Subject("id", "one of them; else all", kind=number("number of a fault", 1), optional=True)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Clear them and print how many there were."""
        from droveway.lab import faults

        print(f"{faults.clear(self.lab(parsed_args).layout, parsed_args.id)} faults cleared")
        return 0
