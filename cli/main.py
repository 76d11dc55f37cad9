"""Runs the `droveway` command: finds the command of the words, runs it, and ends with its exit code."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import importlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO, cast

from cliff import app, command, commandmanager

from droveway.cli.base import LAB_VARIABLE
from droveway.cli.output import INTERRUPTED, Output, OutputLost, standard
from droveway.cli.registry import COMMANDS
from droveway.errors import DrovewayError
from droveway.printable import printable

LOG = logging.getLogger("droveway")

DAEMONS: Final = ("conductor run", "worker run")

BROKEN_PIPE: Final = 141
USAGE: Final = 2

INTERNAL: Final = 1
_SIMILAR: Final = 0.7
"""How similar to a command the typed words must be, from 0 to 1, so that the command is offered in their place."""

COLLECT_EVERY: Final = 250_000
"""How many new objects the interpreter allows between two searches for garbage.

The imports of a command make fewer objects than that, and none of them is garbage. So no search slows the imports down.
"""

_MENDABLE: Final = {
    errno.EACCES: "give the user who runs this command access to it",
    errno.EPERM: "give the user who runs this command access to it",
    errno.EROFS: "mount its file system writable",
    errno.ENOSPC: "make room on its file system",
    errno.EDQUOT: "make room within the user's quota of its file system",
    errno.ENOTDIR: "a part of its path is a file: name another path",
}
"""What an operator does about an error of a file."""
_BROKEN_DATABASE: Final = (
    "readonly database",
    "unable to open",
    "not a database",
    "malformed",
    "disk I/O error",
    "no such table",
    "is full",
)

DESCRIPTION: Final = "Moves servers from host to host: every move ends, done or undone."


class LazyCommand:
    """Names a command's class, and imports it when the command is run."""

    def __init__(self, name: str, value: str, summary: str) -> None:
        self.name = name
        self.value = value
        self.summary = summary

    def load(self) -> type[command.Command]:
        """Import and return the command's class."""
        module, _, kind = self.value.partition(":")
        found: type[command.Command] = getattr(importlib.import_module(module), kind)
        return found


class Commands(commandmanager.CommandManager):
    """Holds the table of commands, where cliff would search through entry points."""

    def _load_commands(self) -> None:
        for name, (target, summary) in COMMANDS.items():
            self.commands[name] = LazyCommand(name, f"droveway.cli.commands.{target}", summary)  # type: ignore[assignment]

    def add_command(self, name: str, command_class: type[command.Command]) -> None:
        """Add a command that cliff brings along, unless the table has one of that name."""
        if name not in self.commands:
            super().add_command(name, command_class)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: the look-up is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_parsed: Any) -> None:
        from importlib.metadata import version

        # `parser.exit` would print it on stderr.
        sys.stdout.write(f"{parser.prog} {version('droveway')}\n")
        parser.exit()


class Droveway(app.App):
    """Runs one command after the options before the noun were read."""

    NAME = "droveway"

    def __init__(self, output: Output | None = None) -> None:
        self._output = output or Output(sys.stdout)
        super().__init__(DESCRIPTION, None, Commands(), stdout=cast("TextIO", self._output), stderr=sys.stderr)
        self.touched = ""
        """The id of the move that the command made or changed; empty when it has changed none."""
        self.lab: Path | None = None
        """The lab that the command is for; None until the command has asked, and for an installation."""
        self.closing = contextlib.ExitStack()
        """Closes what the command has opened, once it has run."""

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,  # noqa: ARG002 - cliff's signature
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        """Return the parser of the options before the noun."""
        parser = argparse.ArgumentParser(
            prog=self.NAME,
            description=description,
            usage=f"{self.NAME} [--lab DIR] NOUN VERB ...",
            add_help=False,
            **(argparse_kwargs or {}),
        )
        parser.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
        parser.add_argument("-h", "--help", action="store_true", help="show this and end")
        parser.add_argument("--debug", action="store_true", help="show tracebacks")
        parser.add_argument("--lab", metavar="DIR", help=f"the lab's directory (else {LAB_VARIABLE})")
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        return parser

    def run(self, argv: list[str]) -> int:
        """Run one command and return its exit code."""
        try:
            self.options = self.parser.parse_args(argv)
            # Warnings go to the lab's log. Without a handler Python would print them on the terminal.
            logging.getLogger().addHandler(logging.NullHandler())
            words = self.options.words
            if self.options.help or not words:
                self._print_help([])
                code = 0
            else:
                code = self.run_subcommand(words)
            self._output.flush()
        except BrokenPipeError:
            self._output.abandon()
            if self.touched:
                self._say(f"nobody reads the output; {self._stands()}")
            return BROKEN_PIPE
        except OutputLost as error:
            self._output.abandon()
            self._say(f"{error}; {self._stands()}" if self.touched else str(error))
            return error.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        return code

    def run_subcommand(self, argv: list[str]) -> int:
        """Find the command of the words and run it."""
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError:
            return self._unknown(argv)
        try:
            found = factory(self, self.options, cmd_name=name)
            with self.closing:
                return found.run(found.get_parser(f"{self.NAME} {name}").parse_args(rest))
        except DrovewayError as error:
            if self.options.debug or isinstance(error, OutputLost):
                raise
            return self._failed(str(error), error.exit_code)
        except Exception as error:
            if self.options.debug or isinstance(error, BrokenPipeError):
                raise
            if (sentence := _unusable(error)) is not None:
                return self._failed(sentence, USAGE)
            kept = "the traceback is in its log" if name in DAEMONS else self._keep(error)
            return self._failed(f"{name} met {type(error).__name__} inside; {kept}", INTERNAL)

    def _failed(self, sentence: str, code: int) -> int:
        """Say why the command failed, and return its exit code.

        A command that has made or changed a move does not end with the code of a refusal, since a script would repeat
        it.
        """
        self._say(f"{sentence}; {self._stands()}" if self.touched and code == USAGE else sentence)
        return INTERNAL if self.touched and code == USAGE else code

    def _say(self, sentence: str) -> None:
        self.stderr.write(f"{self.NAME}: {printable(sentence)}\n")

    def _stands(self) -> str:
        return f"what was asked of move {self.touched} stands: droveway move show {self.touched}"

    def _unknown(self, argv: list[str]) -> int:
        noun = argv[0]
        if any(name.split()[0] == noun for name, _ in self.command_manager):
            helping = len(argv) == 1 or argv[1] in ("-h", "--help")
            if not helping:
                self.stderr.write(f"{self.NAME}: {noun} has no verb {argv[1]}\n")
            self._print_help([noun])
            return 0 if argv[1:] and helping else USAGE
        import difflib

        near = difflib.get_close_matches(" ".join(argv[:2]), COMMANDS, cutoff=_SIMILAR)
        near = near or difflib.get_close_matches(noun, {name.split()[0] for name in COMMANDS}, cutoff=_SIMILAR)
        mend = f"did you mean: {', '.join(near)}?" if near else f"{self.NAME} --help lists the commands"
        self.stderr.write(f"{self.NAME}: there is no command {' '.join(argv[:2])}; {mend}\n")
        return USAGE

    def _keep(self, error: Exception) -> str:
        """Write the traceback to the lab's log, else to a new file of this user; return a sentence that says where."""
        try:
            file, path = _log_of(self.lab if self.lab is not None and (self.lab / "lab.json").exists() else None)
        except OSError:
            return "run it again with  droveway --debug ...  to see the traceback"
        handler = logging.StreamHandler(os.fdopen(file, "a", encoding="utf-8"))
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        LOG.addHandler(handler)
        LOG.error("a command failed", exc_info=error)
        LOG.removeHandler(handler)
        handler.stream.close()
        return f"the traceback is in {path}"

    def _print_help(self, nouns: Sequence[str]) -> None:
        if not nouns:
            self.parser.print_help(self.stdout)
            self.stdout.write("\n")
        known = {name: summary for name, (_, summary) in COMMANDS.items() if not nouns or name.split()[0] in nouns}
        width = max(map(len, known))
        self.stdout.write("commands:\n")
        for name, summary in known.items():
            self.stdout.write(f"  {name:<{width}}  {summary}\n")


def _log_of(lab: Path | None) -> tuple[int, str]:
    """Open a file for a traceback; return its descriptor and path. Raises OSError when the log is a link or no file."""
    if lab is None:
        # Other users may write to that directory too, so the name must not be predictable.
        return tempfile.mkstemp(prefix="droveway-", suffix=".log")
    path = str(lab / "droveway.log")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file, path
    os.close(file)
    raise OSError(errno.EEXIST, "it is no file", path)


def _unusable(error: Exception) -> str | None:
    """Return the sentence on a file or database that is corrupt, full or not accessible; None for any other error."""
    if isinstance(error, OSError) and error.errno in _MENDABLE:
        return f"{error.filename or 'a file'} cannot be used ({error.strerror}): {_MENDABLE[error.errno]}"
    database = sys.modules.get("sqlalchemy.exc")
    if database is not None and isinstance(error, database.DBAPIError):
        told = str(error.orig)
        if any(words in told for words in _BROKEN_DATABASE):
            file = next(iter(getattr(error, "__notes__", ())), "")
            name = f"the database {file}" if file else "a database"
            return f"{name} cannot be used ({told}): give yourself access to it, make room, or restore it"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of this process's arguments, and return its exit code."""
    gc.set_threshold(COLLECT_EVERY)
    # At its end the interpreter would search all objects for cycles, which takes a fifth of a command's time.
    atexit.register(gc.freeze)
    with standard() as output:
        return Droveway(output).run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
