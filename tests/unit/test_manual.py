"""The manual pages have every command and option of the parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from droveway.cli.main import LAB_VARIABLE, Droveway
from droveway.cli.registry import COMMANDS

PAGES = Path(__file__).parents[2] / "docs/reference/man"
NOUNS = sorted({name.split()[0] for name in COMMANDS})
REQUEST = re.compile(r"\.(TH|SH|SS|PP|TP|nh|ad|\\\")( |$)")
ESCAPE = re.compile(r"\\(f[BIR]|-|e|&)")


def sections(page: str, request: str) -> dict[str, str]:
    """The text below each heading, without the marks of roff."""
    found = (part.partition("\n") for part in read(page).split(f".{request} ")[1:])
    return {title: text for title, _, text in found}


def read(page: str) -> str:
    text = (PAGES / f"{page}.1").read_text(encoding="utf-8")
    return re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def parser_of(name: str) -> argparse.ArgumentParser:
    module, _, kind = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(f"droveway.cli.commands.{module}"), kind)
    parser: argparse.ArgumentParser = command(Droveway(), None, cmd_name=name).get_parser(f"droveway {name}")
    return parser


def lines_of(text: str) -> set[str]:
    """The words of the lines that name an argument: what stands right below a .TP."""
    named = re.findall(r"^\.TP\n(.+)$", text, re.MULTILINE)
    return {word.split()[0] for line in named for word in line.split(", ")}


def test_there_is_one_page_of_all_and_one_of_each_noun() -> None:
    assert {path.stem for path in PAGES.iterdir()} == {"droveway", *(f"droveway-{noun}" for noun in NOUNS)}


def test_the_first_page_has_every_command_global_option_and_exit_code() -> None:
    found = sections("droveway", "SH")
    for name, (_, summary) in COMMANDS.items():
        assert f"droveway {name}\n{summary}\n" in found["COMMANDS"], name
    options = {word for action in Droveway().parser._actions for word in action.option_strings}
    assert lines_of(found["OPTIONS"]) == options
    assert lines_of(found["EXIT STATUS"]) >= {"0", "1", "2", "3", "4", "124"}
    assert LAB_VARIABLE in lines_of(found["ENVIRONMENT"])
    assert all(f"droveway-{noun}(1)" in found["SEE ALSO"] for noun in NOUNS)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_page_has_every_command_and_argument_of_its_noun(noun: str) -> None:
    page = sections(f"droveway-{noun}", "SH")
    described = sections(f"droveway-{noun}", "SS")
    names = [name for name in COMMANDS if name.split()[0] == noun]
    assert list(described) == [f"droveway {name}" for name in names]
    shared = lines_of(page["COMMON OPTIONS"]) | lines_of(page.get("OUTPUT OPTIONS", ""))
    for name in names:
        assert f"droveway {name} " in page["SYNOPSIS"]
        own = lines_of(described[f"droveway {name}"].partition("\n.SH ")[0])
        for action in parser_of(name)._actions:
            for word in action.option_strings or [str(action.metavar)]:
                assert word in own | shared, f"{name} {word}"


@pytest.mark.parametrize("path", sorted(PAGES.iterdir()), ids=lambda path: path.stem)
def test_a_page_holds_only_marks_that_man_knows(path: Path) -> None:
    """Where a line begins with a dot or a word holds a backslash by accident, man would leave it out."""
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert REQUEST.match(line) or not line.startswith((".", "'")), line
        assert line.startswith('.\\"') or "\\" not in ESCAPE.sub("", line), line
    assert "`" not in text
