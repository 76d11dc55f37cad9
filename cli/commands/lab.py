"""Defines `droveway lab`: a whole cloud in a directory, and what only a lab allows."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from droveway.cli.base import Command, OfHost, OfServer, ShowOne, Subject
from droveway.cli.view.columns import Joined
from droveway.cli.view.spans import number

_LARGEST: Final = 10_000
"""The size, in GB, of the largest volume that a file of any common file system can be."""
_MOST_PORTS: Final = 64
_gigabytes: Final = number("size of a volume", 1, _LARGEST, rest=" GB")


class Create(Command):
    """Build a cloud of its own in a directory: databases, services, hosts and running servers."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the arguments for the directory and the cloud file."""
        parser = super().get_parser(prog_name)
        parser.add_argument("dir", metavar="DIR", type=Path, help="a directory that is new or empty")
        parser.add_argument("--cloud", metavar="FILE", type=Path, help="what it holds; else the demo's cloud")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Build the lab and print how to use it."""
        from droveway.lab import build, cloud

        spec = cloud.read_cloud(parsed_args.cloud) if parsed_args.cloud else cloud.demo_cloud()
        with self.progress(parsed_args, "building servers") as shown:
            build.create(parsed_args.dir, spec, each=shown.over).close()
        hosts = sum(1 for _ in spec.hosts())
        print(f"lab {parsed_args.dir}: {len(spec.cells)} cells, {hosts} hosts, {len(spec.servers)} servers")
        print(f"use it with:  export DROVEWAY_LAB={parsed_args.dir.absolute()}")
        return 0


class Destroy(Command):
    """Stop the lab's guests and daemons and remove its directory."""

    subject = Subject("dir", "the lab (else --lab or DROVEWAY_LAB)", kind=Path, optional=True)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Remove the lab and print how many guests ran."""
        from droveway.lab import build, served
        from droveway.lab.layout import Layout

        root = parsed_args.dir or self.lab_path(parsed_args)
        served.require_not_served(Layout(root.absolute()))
        with self.progress(parsed_args, "stopping guests"):
            stopped = build.destroy(root)
        print(f"lab {root} removed, {stopped} guests stopped")
        return 0


class Show(ShowOne):
    """Show what the lab has."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        """Return its facts and counts."""
        from droveway.lab import show

        facts = show.summary(self.lab(parsed_args))
        return self.dict2columns(
            {key: Joined(value) if isinstance(value, list) else value for key, value in facts.items()}
        )


class ServerCreate(Command):
    """Build one more server; its options are the keys of a server in a cloud file."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the arguments for the server's name and its parts."""
        parser = super().get_parser(prog_name)
        parser.add_argument("name", metavar="NAME")
        parser.add_argument("--flavor", metavar="FLAVOR", required=True)
        parser.add_argument("--host", metavar="HOST", required=True)
        root = parser.add_mutually_exclusive_group(required=True)
        root.add_argument("--image", metavar="IMAGE", help="boot from a disk made of this image")
        root.add_argument("--boot-volume", metavar="GB", type=_gigabytes, help="boot from a new volume of this size")
        parser.add_argument(
            "--volume", metavar="GB", type=_gigabytes, action="append", default=[], help="one more volume"
        )
        parser.add_argument(
            "--ports",
            metavar="N",
            type=number("number of ports", 0, _MOST_PORTS),
            default=1,
            help="how many ports (default 1)",
        )
        parser.add_argument("--group", metavar="GROUP")
        parser.add_argument("--az", metavar="ZONE", help="the zone that it never leaves")
        parser.add_argument("--stopped", action="store_true", help="do not start it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Build the server and print its uuid."""
        from droveway.lab import operations
        from droveway.lab.cloud import Port, Server, Volume

        volumes = [Volume(size_gb=size) for size in parsed_args.volume]
        if parsed_args.boot_volume is not None:
            volumes.insert(0, Volume(size_gb=parsed_args.boot_volume, boot=True))
        spec = Server(
            flavor=parsed_args.flavor,
            host=parsed_args.host,
            image=parsed_args.image,
            ports=(Port(),) * parsed_args.ports,
            volumes=tuple(volumes),
            state="stopped" if parsed_args.stopped else "active",
            group=parsed_args.group,
            az=parsed_args.az,
        )
        print(operations.create_server(self.lab(parsed_args), parsed_args.name, spec))
        return 0


class ServerStart(OfServer):
    """Start a stopped server."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Start the server; nothing is done when it runs."""
        from droveway.lab import operations

        operations.start_server(self.lab(parsed_args), parsed_args.server)
        print(f"server {parsed_args.server} runs")
        return 0


class ServerStop(OfServer):
    """Stop a server."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Stop the server; nothing is done when it is off."""
        from droveway.lab import operations

        operations.stop_server(self.lab(parsed_args), parsed_args.server)
        print(f"server {parsed_args.server} is off")
        return 0


class ServerDelete(OfServer):
    """Delete a server, also one with a move under way: that move then ends as cancelled."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Delete the server; its volumes stay, except those with delete_on_termination."""
        from droveway.lab import operations

        operations.delete_server(self.lab(parsed_args), parsed_args.server)
        print(f"server {parsed_args.server} is deleted")
        return 0


class WorkerStop(OfHost):
    """Let a host's worker be away, as if its host were unreachable; its guests go on."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Mark the worker as stopped: from now on no command starts it."""
        from droveway.lab import stopped

        lab = self.lab(parsed_args)
        lab.host(parsed_args.host)
        stopped.stop(lab.layout, parsed_args.host)
        print(f"the worker of host {parsed_args.host} is away until  droveway lab worker start {parsed_args.host}")
        return 0


class WorkerStart(OfHost):
    """Let a host's worker come back."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Remove the mark: from now on commands start the worker again."""
        from droveway.lab import operations

        operations.start_worker(self.lab(parsed_args), parsed_args.host)
        print(f"the worker of host {parsed_args.host} is back: the next command starts it")
        return 0
