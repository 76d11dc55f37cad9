"""Defines `droveway host`: the hypervisor hosts."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from droveway.cli.base import Lister, OfHost, ShowOne
from droveway.cli.view.columns import Blank, Joined

if TYPE_CHECKING:
    from droveway.persistence.nova.catalog import Host

LISTED: Final = ("name", "cell", "status", "state", "zone", "servers", "vcpus", "memory_mb", "disk_gb")


class List(Lister):
    """List the hosts, with what they have and what is used of it."""

    spare = ("zone", "disk_gb", "memory_mb", "vcpus")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return the rows, sorted by cell and name."""
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        away = site.away()
        rows = []
        for host in catalog.hosts(site.api, self.answering_cells(site)):
            cells = _cells(host, away) | {
                "vcpus": f"{host.vcpus_used}/{host.vcpus}",
                "memory_mb": f"{host.memory_mb_used}/{host.memory_mb}",
                "disk_gb": f"{host.disk_gb_used}/{host.disk_gb}",
            }
            rows.append([cells[name] for name in LISTED])
        return LISTED, rows


class Show(ShowOne, OfHost):
    """Show one host, with the servers on it."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts."""
        from droveway.persistence.nova import catalog

        site = self.site(parsed_args)
        cells = self.answering_cells(site)
        host = catalog.find_host(site.api, site.known_cells, parsed_args.host)
        names = [each.name for each in catalog.servers(site.api, cells) if each.host == host.name]
        return self.dict2columns(
            _cells(host, site.away())
            | {
                "disabled_reason": Blank(host.disabled_reason),
                "hypervisor": host.hypervisor,
                "node": host.node,
                "vcpus": host.vcpus,
                "vcpus_used": host.vcpus_used,
                "memory_mb": host.memory_mb,
                "memory_mb_used": host.memory_mb_used,
                "disk_gb": host.disk_gb,
                "disk_gb_used": host.disk_gb_used,
                "server_names": Joined(names),
            }
        )


class Enable(OfHost):
    """Let a host take servers again."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Enable its service and clear its trait in Placement."""
        from droveway.engines.operations import hosts

        hosts.set_enabled(self.site(parsed_args), parsed_args.host, enabled=True, reason=None)
        print(f"host {parsed_args.host} is enabled: it takes servers again")
        return 0


class Disable(OfHost):
    """Let a host take no more servers; those on it stay."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for the reason."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", metavar="TEXT", help="why; kept with the host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Disable its service and set its trait in Placement."""
        from droveway.engines.operations import hosts

        hosts.set_enabled(self.site(parsed_args), parsed_args.host, enabled=False, reason=parsed_args.reason)
        print(f"host {parsed_args.host} is disabled: it takes no more servers, those on it stay")
        return 0


class Down(OfHost):
    """Declare a host to be off: it takes no servers, and what it owes may be forgotten."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option that says how that is known."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--i-made-sure",
            metavar="TEXT",
            required=True,
            help="how you know that it is off and stays off, for example that its power was cut; kept with the host",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Force its service down and disable it; `host enable` takes both back."""
        from droveway.engines.operations import hosts

        hosts.declare_down(self.site(parsed_args), parsed_args.host, reason=parsed_args.i_made_sure)
        print(
            f"host {parsed_args.host} is declared to be off and takes no servers; "
            f"to write off what it owes: droveway host forget {parsed_args.host}"
        )
        return 0


class Forget(OfHost):
    """Write off what a host that is off for good still owes."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Write the debts off, and print how many."""
        from droveway.cli.commands.debt import owed
        from droveway.engines.operations import hosts
        from droveway.persistence.journal import debt_views

        site = self.site(parsed_args)
        forgotten = [debt_views.get(site.journal, number) for number in hosts.forget(site, parsed_args.host)]
        count = len(forgotten)
        self.app.stdout.write(f"host {parsed_args.host}: {count} debt{'s' * (count != 1)} written off\n")
        for debt in forgotten:
            self.app.stdout.write(f"  debt {debt.id}  {owed(debt)}\n")
        return 0


def _cells(host: Host, away: Collection[str]) -> dict[str, Any]:
    return {
        "name": host.name,
        "cell": host.cell,
        "status": "enabled" if host.enabled else "disabled",
        "state": "down" if host.forced_down or host.name in away else "up",
        "zone": Blank(host.zone),
        "servers": host.servers,
    }
