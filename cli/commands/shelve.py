"""Defines `droveway server shelve` and `unshelve`: a server becomes an image, and is started from it again."""

from __future__ import annotations

import argparse

from droveway.cli.base import OfServer
from droveway.cli.commands import request


class Shelve(OfServer):
    """Turn a server into an image and free its host; volumes, ports and addresses stay the server's."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option that gives up what no image holds."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--discard-ephemeral",
            action="store_true",
            help="also shelve a server with an ephemeral disk: no image holds that disk, and it comes back empty",
        )
        request.add_asking(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the move and carry it on."""
        from droveway.engines.operations import shelving

        site = self.site(parsed_args)
        move = shelving.shelve(
            site, parsed_args.server, discard_ephemeral=parsed_args.discard_ephemeral, reason=parsed_args.reason
        )
        return request.carry(self, site, move, "done", lines=parsed_args.wait)


class Unshelve(OfServer):
    """Start a shelved server again, on a host of its cell or of another one."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="HOST", help="the host; else the scheduler chooses")
        parser.add_argument("--to-cell", metavar="CELL", help="only hosts of this cell")
        request.add_asking(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the move and carry it on."""
        from droveway.engines.operations import shelving

        site = self.site(parsed_args)
        move = shelving.unshelve(
            site,
            parsed_args.server,
            host=parsed_args.host,
            to_cell=parsed_args.to_cell,
            reason=parsed_args.reason,
        )
        return request.carry(self, site, move, "done", lines=parsed_args.wait)
