"""Makes the manual pages from the commands' parsers, in the language of man(7): one of droveway, one of each noun."""

from __future__ import annotations

import argparse
import configparser
import importlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cliff.command import Command

from droveway.cli import main
from droveway.cli.base import CONFIGURATION, CONFIGURATION_VARIABLE
from droveway.cli.registry import COMMANDS

FORMATS: Final = "output formatters"
"""The name of cliff's group of options that say how rows are printed."""

_NOTE: Final = '.\\" Written by docs/generate.py from the code: change the code and run it again.'
_METADATA: Final = configparser.ConfigParser()
_METADATA.read(Path(__file__).parents[1] / "setup.cfg", encoding="utf-8")
_COMMON: Final = ("help", "lab", "config_file")
_ENVIRONMENT: Final = {
    CONFIGURATION_VARIABLE: "an installation's configuration, where neither `--config-file` nor `--lab` is given",
    main.LAB_VARIABLE: "the lab's directory, where none of these is given",
    "OS_GROUP__OPTION": "an option of the configuration, as `OS_JOURNAL__CONNECTION` is `connection` of `[journal]`",
    "CLIFF_FIT_WIDTH": "`1`: every command has `--fit-width`",
    "CLIFF_MAX_TERM_WIDTH": "every command has `--max-width` with this number",
    "COLUMNS": "the width of tables, where it differs from the terminal's",
    "NO_COLOR": "where it is set, nothing is coloured",
}
_FILES: Final = {
    str(CONFIGURATION): "the configuration of the installation, which commands are for where no lab is named",
    "LAB/droveway.conf": "the configuration of the lab in the directory LAB",
    "LAB/droveway.log": "tracebacks of the commands that were for this lab; others are in a file that the error names",
}


def pages(exit_codes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return every page by its file's name."""
    return {"droveway.1": _overview(exit_codes)} | {f"droveway-{noun}.1": _of_noun(noun) for noun in nouns()}


def nouns() -> list[str]:
    """Return every noun, in the order of the help."""
    return list(dict.fromkeys(name.split()[0] for name in COMMANDS))


def commands(noun: str) -> list[tuple[Command, argparse.ArgumentParser]]:
    """Return the commands of a noun with their parsers."""
    application = main.Droveway()
    found = []
    for name, (target, _summary) in COMMANDS.items():
        if name.split()[0] == noun:
            module, _, kind = target.partition(":")
            factory = getattr(importlib.import_module(f"droveway.cli.commands.{module}"), kind)
            command = factory(application, None, cmd_name=name)
            found.append((command, command.get_parser(f"droveway {name}")))
    return found


def meaning(action: argparse.Action) -> str:
    """Return an argument's help, and its default where the help does not say it."""
    said = str(action.help or "").strip() or "its name"
    default = action.default
    plain = default not in (None, False, [], argparse.SUPPRESS)
    return f"{said} (default `{default}`)" if plain and "default" not in said else said


def _overview(exit_codes: Iterable[tuple[str, str]]) -> str:
    arguments = [action for action in main.Droveway().parser._actions if action.option_strings]  # noqa: SLF001
    lines = [
        *_begin("droveway", "move OpenStack servers from host to host"),
        _paragraph(r"\fBdroveway\fR [\fB\-\-lab\fR \fIDIR\fR] \fINOUN\fR \fIVERB\fR [\fIARGUMENT\fR ...]"),
        ".SH DESCRIPTION",
        _paragraph(_text(main.DESCRIPTION)),
        _paragraph(
            _text(
                "A command is for the lab or the installation that the first of these names: `--config-file`, `--lab`, "
                f"`{CONFIGURATION_VARIABLE}`, `{main.LAB_VARIABLE}`. Else it is for the installation of "
                f"`{CONFIGURATION}`."
            )
        ),
        ".SH OPTIONS",
        *(line for action in arguments for line in _option(action)),
        ".SH COMMANDS",
        _paragraph(_text("`droveway-NOUN`(1) has the arguments of the noun's commands.")),
        *_terms({f"droveway {name}": summary for name, (_, summary) in COMMANDS.items()}),
        ".SH EXIT STATUS",
        *_terms({code: text.replace("``", "`") for code, text in exit_codes}),
        ".SH ENVIRONMENT",
        *_terms(_ENVIRONMENT),
        ".SH FILES",
        *_terms(_FILES),
        *_see_also("droveway"),
    ]
    return "\n".join(lines) + "\n"


def _of_noun(noun: str) -> str:
    found = commands(noun)
    common: dict[str, argparse.Action] = {}
    shown: dict[str, list[tuple[str, argparse.Action]]] = {}
    synopsis, described = [], []
    for command, parser in found:
        name = str(command.cmd_name)
        own, formats = [], []
        for group in parser._action_groups:  # noqa: SLF001 - argparse has no public name for them, nor for those below
            for action in group._group_actions:  # noqa: SLF001
                if action.dest in _COMMON:
                    common[action.dest] = action
                elif group.title == FORMATS:
                    formats.append(action)
                    shown.setdefault(_spelled(action, "FORMAT" if action.choices else ""), []).append((name, action))
                else:
                    own.append(action)
        words = [rf"\fB{_text(f'droveway {name}')}\fR", *map(_usage, own)]
        synopsis.append(
            _paragraph(
                " ".join([words[0], *(_usage(action) for action in own if action.required)]) + r" [\fIOPTION\fR ...]"
            )
        )
        described += [f".SS {_text(f'droveway {name}')}", _paragraph(" ".join(words))]
        described += [_paragraph(_text(part)) for part in command.get_description().split("\n\n")]
        described += [line for action in own for line in _option(action)]
    lines = [
        *_begin(f"droveway-{noun}", _purpose(noun)),
        *synopsis,
        ".SH COMMANDS",
        *described,
        ".SH COMMON OPTIONS",
        *(line for name in _COMMON for line in _option(common[name])),
    ]
    if shown:
        lines += [".SH OUTPUT OPTIONS", _paragraph(_text("Of the commands that print rows or a record:"))]
        for spelled, actions in shown.items():
            lines += [".TP", spelled, _text(meaning(actions[0][1])) + _choices(actions)]
    return "\n".join([*lines, *_see_also(f"droveway-{noun}")]) + "\n"


def _purpose(noun: str) -> str:
    """Return what the page is about, in a few words."""
    names = [name for name in COMMANDS if name.split()[0] == noun]
    if noun in COMMANDS or len(names) == 1:
        return COMMANDS[names[0]][1]
    said = str(importlib.import_module(f"droveway.cli.commands.{noun}").__doc__)
    return said.splitlines()[0].partition(": ")[2].rstrip(".")


def _begin(name: str, purpose: str) -> list[str]:
    version = f"Droveway {_METADATA['metadata']['version']}"
    return [
        _NOTE,
        f'.TH {_text(name.upper())} 1 "" "{version}" "Droveway"',
        # man may add no hyphens and no spaces to text that is copied to a shell.
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_text(name)} \\- {_text(purpose)}",
        ".SH SYNOPSIS",
    ]


def _see_also(own: str) -> list[str]:
    others = [name for name in ("droveway", *(f"droveway-{noun}" for noun in nouns())) if name != own]
    return [".SH SEE ALSO", _paragraph(", ".join(rf"\fB{_text(name)}\fR(1)" for name in others))]


def _terms(found: dict[str, str]) -> list[str]:
    return [line for term, said in found.items() for line in (".TP", rf"\fB{_text(term)}\fR", _text(said))]


def _paragraph(text: str) -> str:
    return f".PP\n{text}"


def _option(action: argparse.Action) -> list[str]:
    return [".TP", _spelled(action), _text(meaning(action))]


def _spelled(action: argparse.Action, value: str = "") -> str:
    """Return an argument with all its spellings."""
    shown = rf"\fI{_text(value or _value(action))}\fR"
    if not action.option_strings:
        return shown
    return ", ".join(
        rf"\fB{_text(word)}\fR" + (f" {shown}" if action.nargs != 0 else "") for word in action.option_strings
    )


def _usage(action: argparse.Action) -> str:
    """Return an argument as it stands in a command line."""
    spelled = rf"\fI{_text(_value(action))}\fR"
    if action.option_strings:
        spelled = rf"\fB{_text(action.option_strings[-1])}\fR" + (f" {spelled}" if action.nargs != 0 else "")
    elif action.nargs in ("*", "+"):
        spelled += " ..."
    return spelled if action.required else f"[{spelled}]"


def _value(action: argparse.Action) -> str:
    return str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper())


def _choices(actions: Sequence[tuple[str, argparse.Action]]) -> str:
    """Return the values that an output option may have, with the commands that have it where others do not."""
    takers: dict[str, list[str]] = {}
    for name, action in actions:
        for value in action.choices or ():
            takers.setdefault(str(value), []).append(name)
    said = [
        f"`{value}`" + (f" (of {', '.join(names)})" if len(names) < len(actions) else "")
        for value, names in sorted(takers.items())
    ]
    return _text(f": {', '.join(said)}") if said else ""


def _text(said: str) -> str:
    """Return a text in the language of man(7): words in backticks become bold, and hyphens can be copied to a shell."""
    line = " ".join(said.split()).replace("\\", "\\e").replace("-", "\\-")
    line = re.sub("`+([^`]*)`+", r"\\fB\1\\fR", line)
    return f"\\&{line}" if line.startswith((".", "'")) else line
