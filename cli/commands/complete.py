"""Defines `droveway complete`, which completes commands, options and names in a shell."""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import io
import itertools
import os
import shlex
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cliff import columns

from droveway.cli.base import Command
from droveway.cli.registry import COMMANDS
from droveway.printable import printable

if TYPE_CHECKING:
    from cliff import app

FILES: Final = ":files"
"""What is printed when the last word is to name a file. The shell then completes that name itself."""
PATIENCE: Final = 3.0
"""Seconds after which nothing is offered: a database may not answer, and the shell waits at its prompt."""

_LISTS: Final = {
    "CELL": ("cell list", "name"),
    "CONDUCTOR": ("conductor list", "name"),
    "DEBT": ("debt list", "id"),
    "FLAVOR": ("flavor list", "name"),
    "HOST": ("host list", "name"),
    "MOVE": ("move list --limit 20", "id"),
    "SERVER": ("server list", "name"),
}
"""Maps an argument's name in the help to the command that lists its values, and to the column."""
_SCRIPTS: Final = {"bash": "droveway", "zsh": "_droveway"}
"""Maps each shell to the name of its script, by which the shell finds it where it is installed."""
_SITES: Final = ("--lab", "--config-file")


class Complete(Command):
    """Print the completion for bash: source <(droveway complete); for zsh: source <(droveway complete --shell zsh)."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Take the shell, and the words of a command line that is being typed."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--shell", choices=tuple(_SCRIPTS), default="bash", help="whose script is printed (default bash)"
        )
        parser.add_argument(
            "words",
            metavar="WORD",
            nargs="*",
            default=[],
            help="print what may replace the last of these words, instead of the script; the script asks for this",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the script, or the possible words; print no names when the lab or installation cannot be read."""
        if not parsed_args.words:
            script = importlib.resources.files("droveway.cli").joinpath("completion", _SCRIPTS[parsed_args.shell])
            self.app.stdout.write(script.read_text(encoding="utf-8"))
            return 0
        patience = threading.Timer(PATIENCE, os._exit, (0,))
        patience.daemon = True
        patience.start()
        try:
            found = candidates(self.app, parsed_args.words)
        finally:
            patience.cancel()
        self.app.stdout.write("".join(f"{word}\n" for word in found))
        return 0


def candidates(application: app.App, words: Sequence[str]) -> list[str]:
    """Return what may replace the last word, in order; `FILES` alone when that is a file's name."""
    # Bash makes a word of its own of each "=", zsh does not.
    given = [part for word in words[:-1] if word != "=" for part in _parts(word)]
    try:
        *before, typed = [_unquoted(word) for word in (*given, *_parts(words[-1].removeprefix("=")))]
    except ValueError:
        # A quotation mark is open.
        return []
    found = list(_possible(application, before, typed))
    if found == [FILES]:
        return found
    return sorted({word for word in found if word.startswith(typed) and printable(word) == word})


def _parts(word: str) -> Sequence[str]:
    """Return ``--option=value`` as two words."""
    option, _, value = word.partition("=")
    return (option, value) if option.startswith("--") and "=" in word else (word,)


def _unquoted(word: str) -> str:
    return "".join(shlex.split(word))


def _possible(application: app.App, before: Sequence[str], typed: str) -> Iterable[str]:
    """Return what may come next; of what is typed of it, only a hyphen at its beginning counts."""
    pending, plain = _read(application.parser, before)
    if pending is not None and not plain:
        return _values(application, pending, before)
    words = list(before[plain[0] :]) if plain else []
    name = next((" ".join(words[:count]) for count in (3, 2, 1) if " ".join(words[:count]) in COMMANDS), None)
    verbs = [each.split()[len(words)] for each in COMMANDS if each.split()[: len(words)] == words != each.split()]
    if name is None:
        return _options(application.parser) if typed.startswith("-") and not words else verbs
    factory, _, _ = application.command_manager.find_command(name.split())
    parser = factory(application, application.options, cmd_name=name).get_parser(name)
    pending, plain = _read(parser, words[len(name.split()) :])
    wanted = pending or _positional(parser, len(plain))
    if pending is None and (typed.startswith("-") or (wanted is None and not verbs)):
        return _options(parser)
    return [*verbs, *(_values(application, wanted, before) if wanted is not None else ())]


def _read(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Action | None, list[int]]:
    """Return the option whose value comes next, and which of the words are neither options nor their values."""
    pending, plain = None, []
    for at, word in enumerate(words):
        if pending is not None:
            pending = None
        elif not word.startswith("-"):
            plain.append(at)
        else:
            action = _by_option(parser).get(word)
            pending = action if action is not None and action.nargs != 0 else None
    return pending, plain


def _by_option(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return parser._option_string_actions  # noqa: SLF001 - argparse has no public name for them


def _options(parser: argparse.ArgumentParser) -> Iterable[str]:
    return _by_option(parser)


def _positional(parser: argparse.ArgumentParser, count: int) -> argparse.Action | None:
    """Return the positional argument after the first ``count``; None when there is none."""
    found = parser._get_positional_actions()  # noqa: SLF001 - argparse has no public name for them
    if found and count >= len(found) and found[-1].nargs in ("*", "+"):
        return found[-1]
    return found[count] if count < len(found) else None


def _values(application: app.App, action: argparse.Action, before: Sequence[str]) -> Iterable[str]:
    """Return the values that an argument may have, as far as they are known."""
    if action.choices is not None:
        return map(str, action.choices)
    match action.metavar:
        case "DIR" | "FILE":
            return [FILES]
        case "CODE":
            from droveway.cli.view.explanations import EXPLANATIONS

            return EXPLANATIONS
        case "KIND":
            from droveway.flows import registry

            return registry.kinds()
        case "STATE":
            from droveway.persistence.journal.states import State

            return State
        case str(listed) if listed in _LISTS:
            return _names(application, *_LISTS[listed], before)
    return ()


def _names(application: app.App, lister: str, column: str, before: Sequence[str]) -> list[str]:
    """Return a column of a list, of the lab or installation that the words before the cursor name."""
    named = [(option, value) for option, value in itertools.pairwise(before) if option in _SITES]
    factory, name, rest = application.command_manager.find_command(lister.split())
    command = factory(application, application.options, cmd_name=name)
    told = application.stderr
    # The list runs for a completion, so its errors are not shown: the command shows them when it is run.
    application.stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(application.stderr), contextlib.suppress(Exception, SystemExit):
            for option, value in named:
                rest += [option, str(Path(value).expanduser())]
            header, rows = command.take_action(command.get_parser(name).parse_args(rest))
            at = list(header).index(column)
            return [_plain(row[at]) for row in rows]
    finally:
        application.stderr = told
    return []


def _plain(value: Any) -> str:
    return str(value.machine_readable() if isinstance(value, columns.FormattableColumn) else value)
