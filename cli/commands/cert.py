"""Defines `droveway cert`, which makes the certificates of daemons and of ZooKeeper's servers."""

from __future__ import annotations

import abc
import argparse
from pathlib import Path
from typing import Final

from droveway.cli.base import Command, Subject
from droveway.cli.view.spans import number
from droveway.errors import Refused

_LONGEST: Final = 36_500
"""The largest number of days that a certificate may hold."""


class _Certificates(Command, abc.ABC):
    """A command that makes certificates, which are of no lab and no installation."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; raises `droveway.errors.Refused` when an option names a lab or an installation."""
        lab = getattr(parsed_args, "lab", None) or getattr(self.app_args, "lab", None)
        option = "--lab" if lab else "--config-file"
        if lab or parsed_args.config_file is not None:
            raise Refused(f"droveway {self.cmd_name} is for no lab and no installation: leave {option} out")
        return int(super().run(parsed_args))


class Authority(_Certificates):
    """Make an authority that signs certificates: DIR gets authority.pem, which all may read, and its secret key."""

    subject = Subject("dir", "a new directory", kind=Path)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option for how long the authority holds."""
        parser = super().get_parser(prog_name)
        _add_days(parser, 3650)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Make the authority, and print what has to be kept secret."""
        from droveway import authority

        folder = parsed_args.dir
        ends = authority.make_authority(folder, parsed_args.days)
        self.app.stdout.write(
            f"authority {folder / authority.CERTIFICATE} holds until {ends:%Y-%m-%d %H:%M} UTC\n"
            f"keep {folder / authority.KEY} secret: whoever has it can command every host\n"
        )
        return 0


class Make(_Certificates):
    """Make the certificate of a conductor, a host's worker or a ZooKeeper server, in a new directory below DIR."""

    subject = Subject("dir", "the authority's directory", kind=Path)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options for whose certificate it is, and for how long it holds."""
        parser = super().get_parser(prog_name)
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--conductor", metavar="NAME", help="for the conductor on the machine of this name")
        whose.add_argument("--host", metavar="HOST", help="for the worker of this host, named as Nova knows the host")
        whose.add_argument(
            "--zookeeper", metavar="NAME", help="for the ZooKeeper server that [zookeeper] hosts calls by this name"
        )
        parser.add_argument(
            "--also",
            metavar="NAME",
            action="append",
            default=[],
            help="one more DNS name or address that the machine is reached by; may be given more than once",
        )
        _add_days(parser, 730)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Make the certificate, and print where it is."""
        from droveway import authority

        kind = next(each for each in ("conductor", "host", "zookeeper") if getattr(parsed_args, each) is not None)
        name = getattr(parsed_args, kind)
        authority.require_name(name)
        into = parsed_args.dir / f"{kind}-{name}"
        ends = authority.make_certificate(
            parsed_args.dir,
            into,
            authority.CONDUCTOR_SUBJECT if kind == "conductor" else name,
            [name, *parsed_args.also],
            parsed_args.days,
            one_file=kind == "zookeeper",
        )
        self.app.stdout.write(f"certificate {into} holds until {ends:%Y-%m-%d %H:%M} UTC\n")
        return 0


def _add_days(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--days",
        metavar="N",
        type=number("number of days", 1, _LONGEST),
        default=default,
        help=f"for how many days it holds (default {default})",
    )
