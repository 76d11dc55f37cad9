"""Defines `droveway flow`, which shows the graphs of the operations from the code."""

from __future__ import annotations

import argparse

from droveway.cli.base import Command


class Graph(Command):
    """Show the steps of an operation, where each runs and how it is undone."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for the kind and the form of the picture."""
        parser = super().get_parser(prog_name)
        parser.add_argument("kind", metavar="KIND", help="resize, migrate, confirm, revert ...")
        parser.add_argument(
            "-f", "--format", choices=("mermaid", "dot", "text"), default="text", help="the picture (default text)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the graph."""
        from droveway.flows import pictures, registry

        picture = {"mermaid": pictures.mermaid, "dot": pictures.dot, "text": pictures.text}[parsed_args.format]
        print(picture(registry.latest(parsed_args.kind)))
        return 0
