"""Defines `droveway server`: the servers, and short forms of the commands for their moves."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister, OfServer, ShowOne
from droveway.cli.commands import request
from droveway.cli.view.columns import NONE, Blank, Dashed, Joined, Short, Time

if TYPE_CHECKING:
    from droveway.persistence.nova.catalog import Server

LISTED: Final = ("id", "name", "status", "vm_state", "task_state", "power_state", "host", "flavor", "cell")


class List(Lister):
    """List the servers."""

    spare = ("power_state", "task_state", "vm_state", "flavor")

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options that narrow the list."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="HOST", help="only those on this host")
        parser.add_argument("--cell", metavar="CELL", help="only those in this cell")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by name."""
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        cells = self.answering_cells(site)
        if parsed_args.host:
            catalog.find_host(site.api, site.known_cells, parsed_args.host)
        cell = catalog.find_cell(site.api, parsed_args.cell).name if parsed_args.cell else None
        found = [
            server
            for server in catalog.servers(site.api, cells)
            if parsed_args.host in (None, server.host) and cell in (None, server.cell)
        ]
        return LISTED, [[_cells(server)[name] for name in LISTED] for server in found]


class Show(ShowOne, OfServer):
    """Show one server, with its ports and volumes, and its move that has not ended."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.journal import move_views
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        server = catalog.find_server(site.api, site.known_cells, parsed_args.server)
        move = move_views.open_of(site.journal, server.id)
        ports = [f"{port.id} {port.mac} {port.host or NONE}" for port in site.cloud.network.ports(server.id)]
        volumes = [
            f"{each.volume} {each.status} {each.host or NONE}" for each in site.cloud.volumes.for_server(server.id)
        ]
        return self.dict2columns(
            _cells(server)
            | {
                "move": Blank(None) if move is None else Short(move),
                "availability_zone": Blank(server.availability_zone),
                "project": server.project,
                "locked": server.locked,
                "image": Blank(server.image),
                "created": Time(server.created),
                "ports": Joined(ports),
                "volumes": Joined(volumes),
            }
        )


class Resize(OfServer):
    """Move a server to another flavor."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the flavor; a resize takes no host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--flavor", metavar="FLAVOR", required=True)
        request.add_policy(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the move and carry it on."""
        return request.create(self, parsed_args, flavor=parsed_args.flavor, host=None)


class Migrate(OfServer):
    """Move a server to another host."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the host."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", metavar="HOST", help="the host; else the scheduler chooses")
        request.add_policy(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the move and carry it on."""
        return request.create(self, parsed_args, flavor=None, host=parsed_args.host)


class Confirm(OfServer):
    """Keep the moved server and remove what is left on its source."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the confirm and carry it on until the source's copy is gone."""
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        move = move_requests.move_of_server(site, parsed_args.server)
        return request.carry(self, site, move_requests.end(site, move.id, "confirm"), "done")


class Revert(OfServer):
    """Bring the server back to where it was."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Submit the revert and carry it on until the server is back."""
        from droveway.engines.operations import move_requests

        site = self.site(parsed_args)
        move = move_requests.move_of_server(site, parsed_args.server)
        return request.carry(self, site, move_requests.end(site, move.id, "revert"), "reverted")


def _cells(server: Server) -> dict[str, Any]:
    return {
        "id": Short(server.id),
        "name": server.name,
        "status": server.status,
        "vm_state": Blank(server.vm_state),
        "task_state": Blank(server.task_state),
        "power_state": server.power_state,
        "host": Dashed(server.host),
        "flavor": server.flavor,
        "cell": server.cell,
    }
