"""Holds what all commands share: the lab or installation that they use, their options and their output formats."""

from __future__ import annotations

import abc
import argparse
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from cliff import command, lister, show

from droveway.cli.view.spans import number
from droveway.errors import Refused

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.cli.sites import OperatedSite
    from droveway.cli.view.progress import Progress
    from droveway.engines.site.installation import Installation
    from droveway.lab.session import Lab
    from droveway.persistence.database import Database
    from droveway.persistence.journal.tables import Move

LAB_VARIABLE: Final = "DROVEWAY_LAB"
CONFIGURATION_VARIABLE: Final = "DROVEWAY_CONFIG_FILE"
CONFIGURATION: Final = Path("/etc/droveway/droveway.conf")
NO_DAEMONS: Final = (
    "this command is for an installation, which has daemons, and a lab is named. In a lab the droveway commands do the "
    "work of daemons, or  droveway lab serve  does it: name an installation with --config-file"
)

_FORMATTERS: Final = {
    "csv": "droveway.cli.view.plain:Csv",
    "html": "droveway.cli.view.timeline:Timeline",
    "json": "cliff.formatters.json_format:JSONFormatter",
    "table": "droveway.cli.view.tables:TableFormatter",
    "value": "droveway.cli.view.plain:Value",
    "yaml": "cliff.formatters.yaml_format:YAMLFormatter",
}
# The parsed arguments that formatters read; each formatter reads some of them.
_FORMATTER_SETTINGS: Final = {
    "noindent": False,
    "quote_mode": "minimal",
}


class Subject(NamedTuple):
    """The argument that names what a command is about."""

    name: str
    help: str | None = None
    kind: Callable[[str], Any] = str
    optional: bool = False
    several: bool = False
    """Whether it may be given more than once."""


class Command(command.Command, abc.ABC):
    """A command of the lab that `--lab` or DROVEWAY_LAB names, or of an installation."""

    app_dist_name = "droveway"
    strict: bool = True
    """Whether the command is refused when a database of the lab was restored from a copy, truncated or swapped."""
    subject: ClassVar[Subject | None] = None
    """The command's argument; None when it has none."""

    def _load_hooks(self) -> None:
        # There are no hooks of plugins, so entry points need not be searched.
        self._hooks = []

    def get_epilog(self) -> str:
        """Return an empty text: there are no plugins to name."""
        return ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the command's options; `--lab` may also stand before the noun."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--lab", metavar="DIR", default=argparse.SUPPRESS, help="the lab's directory (else DROVEWAY_LAB)"
        )
        parser.add_argument(
            "--config-file",
            metavar="FILE",
            help=f"an installation's configuration (else {CONFIGURATION_VARIABLE}, else {CONFIGURATION})",
        )
        if self.subject is not None:
            name, text, kind, optional, several = self.subject
            nargs = "+" if several else "?" if optional else None
            parser.add_argument(name, metavar=name.upper(), help=text, type=kind, nargs=nargs)
        return parser

    def site(self, parsed_args: argparse.Namespace) -> OperatedSite:
        """Return the lab or the installation that the command is for.

        The first one that is given counts: --config-file, --lab, the configuration in the environment, the lab in the
        environment, the installation's own configuration. Raises `droveway.errors.Refused` when there is none of them.
        """
        if parsed_args.config_file is None and (
            self._option(parsed_args)
            or (
                not os.environ.get(CONFIGURATION_VARIABLE)
                and (self._named_lab(parsed_args) or not CONFIGURATION.exists())
            )
        ):
            return self.lab(parsed_args)
        from droveway.cli.sites import DaemonSite

        site = DaemonSite(self.configuration(parsed_args))
        # A database server logs each connection that a process leaves open when it ends.
        self.app.closing.callback(site.close)  # type: ignore[attr-defined]
        return site

    def answering_cells(self, site: OperatedSite) -> dict[str, Database]:
        """Return the cell databases that answer, for a command that only reads; the others are named on stderr.

        Raises `droveway.persistence.database.DatabaseUnusable` where none answers, or one is configured wrongly.
        """
        from droveway.persistence.database import DatabaseAway, DatabaseUnusable

        found: dict[str, Database] = {}
        away = []
        for name, database in site.known_cells.items():
            try:
                database.require(f"of cell {name}")
            except DatabaseAway as error:
                away.append(error)
                continue
            except DatabaseUnusable:
                # In a lab, the read that follows raises the error about the database's file.
                if not site.runs_here:
                    raise
            found[name] = database
        if away and not found:
            raise away[0]
        for each in away:
            self.app.stderr.write(f"warning: {each}. The output leaves out what this cell has\n")
        return found

    def installation(self, parsed_args: argparse.Namespace) -> Installation:
        """Return the installation that the command is for; raises `droveway.errors.Refused` for a lab."""
        from droveway.engines.site.installation import Installation

        site = self.site(parsed_args)
        if not isinstance(site, Installation):
            raise Refused(NO_DAEMONS)
        return site

    def progress(self, parsed_args: argparse.Namespace, what: str, said: Callable[[], str] | None = None) -> Progress:
        """Return a display on stderr of how far the command is; ``said`` is handed on to `Progress`.

        It shows nothing unless both outputs are terminals and the output format is for people.
        """
        from droveway.cli.view.marks import is_terminal
        from droveway.cli.view.progress import Progress

        for_people = getattr(parsed_args, "formatter", "table") == "table"
        shown = for_people and is_terminal(self.app.stderr) and is_terminal(self.app.stdout)
        return Progress(self.app.stderr if shown else None, what, said)

    def note(self, move: Move) -> None:
        """Note that the command has made or changed this move.

        A failure after that ends with exit code 1 and not with 2, which says that nothing was changed.
        """
        self.app.touched = move.id  # type: ignore[attr-defined]

    def configuration(self, parsed_args: argparse.Namespace) -> cfg.ConfigOpts:
        """Return the installation's options."""
        from droveway.conf import settings

        named = parsed_args.config_file or os.environ.get(CONFIGURATION_VARIABLE)
        lab = self._option(parsed_args) if parsed_args.config_file is None else None
        if lab or (not named and self._named_lab(parsed_args) and not CONFIGURATION.exists()):
            raise Refused(NO_DAEMONS)
        if named and parsed_args.config_file is None and not Path(named).exists():
            raise Refused(
                f"{CONFIGURATION_VARIABLE} names the configuration {named}, which is missing: unset the variable, or "
                "write the file"
            )
        return settings.load_deployment(Path(named or CONFIGURATION))

    def lab(self, parsed_args: argparse.Namespace) -> Lab:
        """Return the lab that the command is for; raises `droveway.errors.Refused` when none can be used."""
        from droveway.lab import marks, served
        from droveway.lab.session import Lab

        lab = Lab.open(self.lab_path(parsed_args))
        served.require_not_served(lab.layout)
        if self.strict:
            with marks.Databases(lab.layout, lab.identity.hosts) as databases:
                databases.require()
        return lab

    def lab_path(self, parsed_args: argparse.Namespace) -> Path:
        """Return the lab's directory as it was named."""
        named = self._named_lab(parsed_args)
        installed = os.environ.get(CONFIGURATION_VARIABLE) or CONFIGURATION.exists()
        if parsed_args.config_file is not None or (installed and not named):
            raise Refused("this command is for a lab, and an installation is named: give --lab DIR")
        if not named:
            raise Refused(
                "this command is for a lab or an installation, and none is named: give --lab DIR (or set "
                f"{LAB_VARIABLE}) for a lab, --config-file FILE (or set {CONFIGURATION_VARIABLE}) for an installation, "
                f"or write {CONFIGURATION}"
            )
        path = Path(named)
        self.app.lab = path  # type: ignore[attr-defined]
        return path

    def _named_lab(self, parsed_args: argparse.Namespace) -> str | None:
        """Return the lab that an option or else the environment names; None when neither names one."""
        return self._option(parsed_args) or os.environ.get(LAB_VARIABLE)

    def _option(self, parsed_args: argparse.Namespace) -> str | None:
        """Return the lab that an option names; None when none does."""
        return getattr(parsed_args, "lab", None) or getattr(self.app_args, "lab", None)


class OfServer(Command):
    """A command on one server."""

    subject = Subject("server", "its name, its id or the first letters of that")


class OfHost(Command):
    """A command on one host."""

    subject = Subject("host")


class _Formatters:
    """Gives cliff its formatters in place of plugins, and imports a formatter when it is used."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    def names(self) -> list[str]:
        """Return the names of the formats."""
        return self._names

    def __iter__(self) -> Iterator[Any]:
        """Yield nothing: no formatter has options of its own."""
        return iter(())

    def __getitem__(self, name: str) -> argparse.Namespace:
        module, _, kind = _FORMATTERS[name].partition(":")
        return argparse.Namespace(obj=getattr(importlib.import_module(module), kind)())


class _Display(Command):
    """A command that prints records under stable column names."""

    formats: Sequence[str] = ()
    strict = False
    _formatter_group: argparse._ArgumentGroup

    def lab(self, parsed_args: argparse.Namespace) -> Lab:
        """Return the lab, and warn on stderr when a database was restored from a copy, truncated or swapped."""
        from droveway.lab import marks

        lab = super().lab(parsed_args)
        with marks.Databases(lab.layout, lab.identity.hosts) as databases:
            why = databases.contradiction()
        if why:
            self.app.stderr.write(f"warning: {why}\n")
        return lab

    def _load_formatter_plugins(self) -> Any:
        return _Formatters(self.formats)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser with the command's options, `-f`, `-c` and the width of tables."""
        parser = super().get_parser(prog_name)
        parser.set_defaults(**_FORMATTER_SETTINGS)
        self._formatter_group.add_argument(
            "--fit-width",
            action="store_true",
            default=os.environ.get("CLIFF_FIT_WIDTH", "0") not in ("", "0"),
            help="wrap a table to the width of the terminal (or COLUMNS), also when the output is no terminal; "
            "CLIFF_FIT_WIDTH=1 does the same",
        )
        self._formatter_group.add_argument(
            "--max-width",
            metavar="N",
            type=number("number of columns", 0, rest="; 0 is as many as it takes"),
            default=os.environ.get("CLIFF_MAX_TERM_WIDTH") or None,
            help="wrap a table to this many columns; 0: do not wrap "
            "(else CLIFF_MAX_TERM_WIDTH, else the terminal's width)",
        )
        return parser

    def _generate_columns_and_selector(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str]
    ) -> tuple[list[str], list[bool] | None]:
        wanted = [name.lower().strip().replace(" ", "_") for name in parsed_args.columns]
        for name in wanted:
            if name not in column_names:
                raise Refused(f"there is no column {name}: choose of {', '.join(column_names)}")
        if not wanted:
            return list(column_names), None
        return [name for name in column_names if name in wanted], [name in wanted for name in column_names]


class Lister(_Display, lister.Lister):
    """A command that prints a list."""

    formats: Sequence[str] = ("csv", "json", "table", "value", "yaml")
    spare: ClassVar[Sequence[str]] = ()
    """The columns that a table leaves out, the first one first, while it is too wide for the terminal.

    None of them tells rows apart.
    """

    def nothing(self, parsed_args: argparse.Namespace) -> str:  # noqa: ARG002 - for those whose options matter
        """Return the sentence for an empty list, with the command's noun."""
        return f"no {str(self.cmd_name).rpartition(' ')[0]}s"

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]
    ) -> int:
        """Print the rows; when a table has none or lacks columns, say so on stderr."""
        rows = list(data)
        parsed_args.spare = () if parsed_args.columns else self.spare
        code = super().produce_output(parsed_args, column_names, rows)
        if left_out := getattr(self.formatter, "left_out", ()):
            self.app.stdout.flush()
            self.app.stderr.write(
                f"left out to fit {self.formatter.room} columns: {', '.join(left_out)}; "  # type: ignore[attr-defined]
                "-c shows a column that it names, --max-width 0 shows all\n"
            )
        if not rows and parsed_args.formatter == "table":
            self.app.stdout.flush()
            self.app.stderr.write(f"{self.nothing(parsed_args)}\n")
        return code


class ShowOne(_Display, show.ShowOne):
    """A command that prints one record."""

    formats = ("json", "table", "value", "yaml")
