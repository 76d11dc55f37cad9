"""What a document names exists, and what it shows is run: commands, options, codes, steps, files."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support import console

from droveway.cli.main import Droveway
from droveway.cli.registry import COMMANDS
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.doctor.findings import MEANINGS
from droveway.persistence.journal.states import State

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
MEASURED: Final = re.compile(r"(trace|benchmarks|graph-mutants|mutants.*|crash-matrix.*)\.rst")
"""Pages that a run of tools/ writes: they tell of the tree in which it ran."""

PAGES: Final = [
    *sorted(
        path
        for path in DOCS.rglob("*.rst")
        if ("reference" not in path.parts or path.name == "index.rst") and not MEASURED.fullmatch(path.name)
    ),
    ROOT / "README.rst",
    ROOT / "CONTRIBUTING.rst",
    ROOT / "tests" / "README.rst",
]
RUN: Final = [DOCS / "tutorial.rst", *sorted((DOCS / "howto").glob("*.rst"))]
"""Pages whose console blocks tests/integration/test_docs_console.py runs."""

FOREIGN: Final = {
    "--backing-chain": "qemu-img's option",
    "--namespace": "oslo-config-generator's option",
    "OS_JOURNAL__CONNECTION": "a variable that oslo.config reads",
    "bash-completion": "Debian's package",
    "bind-address": "MariaDB's option",
    "binding-extended": "Neutron's extension",
    "default-jre-headless": "Debian's package",
    "guest-ping": "a command of QEMU's guest agent",
    "guest-sync": "a command of QEMU's guest agent",
    "host-evacuate-live": "a command of Nova's client",
    "instances_path": "Nova's option",
    "log_file": "oslo.log's option",
    "nova-conductor": "Nova's daemon",
    "oslo-config-generator": "a command of oslo.config",
    "port-resource-request": "Neutron's extension",
    "qemu-guest-agent": "Debian's package",
    "valid_interfaces": "keystoneauth's option",
    "build/docs": "where tools/docs writes",
}
"""What belongs to others, or is made, and whose it is."""

NO_OPTION: Final = {"-f", "-c", "--format", "--column"}
"""Options that cliff gives to every list and every page."""

EVERY_PAGE: Final = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def quotes(text: str) -> list[str]:
    """What a page sets in double backquotes, each in one line."""
    return [" ".join(quote.split()) for quote in re.findall(r"``([^`]+)``", text)]


def name_of(words: list[str]) -> str | None:
    """The command that the words begin with."""
    return next((name for n in (3, 2, 1) if (name := " ".join(words[:n])) in COMMANDS), None)


def options(words: Iterable[str]) -> set[str]:
    """The options among the words, without their values."""
    return {word.partition("=")[0].strip("[],") for word in words if re.match(r"\[?--?[a-z]", word)}


@functools.cache
def offered(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    module, _, kind = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(f"droveway.cli.commands.{module}"), kind)
    parser: argparse.ArgumentParser = command(Droveway(), None, cmd_name=name).get_parser(f"droveway {name}")
    return parser


def known_options() -> set[str]:
    """Every option of a command, of `droveway` itself, and of a program in tools/."""
    actions = [action for name in COMMANDS for action in offered(name)._actions]
    actions += Droveway().parser._actions
    programs = [*(ROOT / "tools").rglob("*"), *(ROOT / "tests" / "proofs").rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in programs if path.is_file() and path.suffix != ".pyc"]
    return {word for action in actions for word in action.option_strings} | set(
        re.findall(r"--[a-z][\w-]*", "\n".join(texts))
    )


@functools.cache
def known_codes() -> set[str]:
    """Every error code, finding, state, and value that an option of a command takes."""
    choices = [action.choices or () for name in COMMANDS for action in offered(name)._actions]
    values = {str(value) for each in choices for value in each}
    return set(EXPLANATIONS) | set(MEANINGS) | {state.value for state in State} | values


@functools.cache
def words_of_the_tree() -> set[str]:
    """Every word with an underscore that code, configuration or a test's data has."""
    found: set[str] = set()
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT)
        if path.suffix in {".py", ".sample", ".yaml", ".conf", ".cfg", ".json"} and inside.parts[0] not in {
            *(".venv", ".git", "docs"),
        }:
            found |= set(re.findall(r"\b[A-Za-z]\w*_\w+\b", path.read_text(encoding="utf-8")))
    return found


@functools.cache
def paths_of_the_tree() -> tuple[str, ...]:
    """Every file and folder, as ``/docs/howto``."""
    kept = [path for path in ROOT.iterdir() if path.name not in {".venv", ".git", "build"}]
    below = [each for path in kept if path.is_dir() for each in path.rglob("*")]
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for path in [*kept, *below])


def strange_options(text: str) -> set[str]:
    """Options that a page names and nothing has."""
    return {each for quote in quotes(text) for each in options(quote.split()) if each.startswith("--")} - (
        known_options() | set(FOREIGN)
    )


def strange_codes(text: str) -> set[str]:
    """Words with hyphens that a page names and that are no code, state or value, nor somebody else's."""
    named = {quote for quote in quotes(text) if re.fullmatch(r"[a-z]+(-[a-z]+)+", quote)}
    return named - known_codes() - set(FOREIGN)


def strange_words(text: str) -> set[str]:
    """Words with underscores that a page names and no code has."""
    named = {quote.removesuffix("()") for quote in quotes(text)}
    return {each for each in named if re.fullmatch(r"[A-Za-z]\w*_\w+", each)} - words_of_the_tree() - set(FOREIGN)


def strange_files(text: str) -> set[str]:
    """Paths that a page names and the repository does not have, from its root or from below."""
    named = {quote.split()[0].partition("::")[0] for quote in quotes(text)}
    paths = {
        each
        for each in named
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", each)
        and ("/" in each or re.search(r"\.(py|rst|cfg|toml|yaml|sample)$", each))
        and not re.search(r"\b(KIND|NAME|SERVICE|MOVE|SERVER)\b|^\.venv/", each)
    }
    there = {each for each in paths if any(path.endswith(_ends(each)) for path in paths_of_the_tree())}
    return paths - there - set(FOREIGN)


def _ends(named: str) -> tuple[str, str]:
    """How the path of a file or folder ends that a page names so, a module perhaps without its ending."""
    bare = f"/{named.rstrip('/')}"
    return bare, f"{bare}.py"


@EVERY_PAGE
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    assert strange_options(page.read_text(encoding="utf-8")) == set()


@EVERY_PAGE
def test_every_code_that_a_page_names_exists(page: Path) -> None:
    assert strange_codes(page.read_text(encoding="utf-8")) == set()


@EVERY_PAGE
def test_every_name_that_a_page_takes_from_the_code_exists(page: Path) -> None:
    assert strange_words(page.read_text(encoding="utf-8")) == set()


@EVERY_PAGE
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert strange_files(page.read_text(encoding="utf-8")) == set()


# Documents that code names.

DOCUMENT: Final = re.compile(r"(?<![\w*}{])(?:[\w-]+/)*[\w-]+\.(?:md|rst)\b")
ELSEWHERE: Final = re.compile(r"\b(?:design(?:'s)?|specification(?:'s)?) (?:section|chapter|document)\b", re.IGNORECASE)
"""How code speaks of a document that a reader of the repository does not have."""


WRITTEN_BY_TESTS: Final = {"page.rst"}


def strange_documents(text: str) -> set[str]:
    """Documents that the docstrings and comments of a module name and the repository does not have."""
    named = set(DOCUMENT.findall(text)) - WRITTEN_BY_TESTS
    gone = {each for each in named if not any(path.endswith(f"/{each}") for path in paths_of_the_tree())}
    return gone | set(ELSEWHERE.findall(text))


def test_every_document_that_code_names_is_there() -> None:
    code = [
        path for path in paths_of_the_tree() if path.endswith(".py") and path != f"/tests/unit/{Path(__file__).name}"
    ]
    found = {path: strange_documents((ROOT / path[1:]).read_text(encoding="utf-8")) for path in code}
    assert {path: gone for path, gone in found.items() if gone} == {}


def test_a_document_that_is_not_there_is_found() -> None:
    said = "as design section 6 and interfaces.md have it, see docs/operate.rst and docs/contributor/gone.rst"
    assert strange_documents(said) == {"design section", "interfaces.md", "docs/contributor/gone.rst"}


# Commands.


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `droveway` of every command that a page shows, in a block or between backquotes."""
    lines = [quote for quote in quotes(text) if quote.startswith("droveway ")]
    for language in ("shell", "sh", "bash"):
        lines += [line for block in console.blocks(text, language) for line in block.splitlines()]
    lines += re.findall(r"^ {4}(droveway .*?)(?:  +#.*)?$", text, re.MULTILINE)
    lines += [command.text for command in console.commands(text)]
    for line in lines:
        for part in re.findall(r"(?<![\w/.-])droveway ([^|;>)#&]*)", line):
            words = part.split()
            if words and words[0] in {name.split()[0] for name in COMMANDS}:
                yield words


@functools.cache
def runs() -> dict[str, frozenset[str]]:
    """Which options tests give to each command: what their calls and lists say, and what is run of the pages."""
    found: dict[str, set[str]] = {}

    def note(words: list[str]) -> None:
        begins = next((number for number in range(len(words)) if name_of(words[number:])), None)
        if begins is not None:
            found.setdefault(str(name_of(words[begins:])), set()).update(options(words[begins:]))

    for path in set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests" / "unit").glob("test_docs*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call | ast.List | ast.Tuple):
                note(list(_said(node)))
    for page in RUN:
        for command in console.commands(page.read_text(encoding="utf-8")):
            for part in re.findall(r"droveway ([^|;>)]*)", command.text):
                note(part.split())
    return {name: frozenset(given) for name, given in found.items()}


def _said(node: ast.Call | ast.List | ast.Tuple) -> Iterator[str]:
    """The words of the texts that stand in a call or a list itself, in order; a dot for anything else."""
    for each in node.args if isinstance(node, ast.Call) else node.elts:
        is_text = isinstance(each, ast.Constant) and isinstance(each.value, str)
        yield from each.value.split() if is_text else ["."]  # type: ignore[attr-defined]


def never_run(text: str) -> list[str]:
    """The commands of a page that no test runs, or not with these options."""
    return [" ".join(words) for words in shown(text) if not _is_run(words)]


def _is_run(words: list[str]) -> bool:
    name = name_of(words)
    if name is None:
        # The name of several commands, as `lab fault`.
        return any(each.startswith(f"{' '.join(words)} ") for each in COMMANDS)
    return name in runs() and options(words[len(name.split()) :]) <= runs()[name] | NO_OPTION


@EVERY_PAGE
def test_every_command_that_a_page_shows_is_run_by_a_test(page: Path) -> None:
    assert never_run(page.read_text(encoding="utf-8")) == []


INVENTED: Final = """
``droveway move teleport`` ``--teleport`` ``disk-vanished`` ``flows/teleport.py``

.. code-block:: shell

   droveway move confirm MOVE --teleport

.. code-block:: console

   $ droveway server teleport web1
"""


def test_what_does_not_exist_is_found() -> None:
    """Otherwise the tests above could pass whatever the pages say."""
    assert strange_options(INVENTED) == {"--teleport"}
    assert strange_codes(INVENTED) == {"disk-vanished"}
    # Turned round, since this file is searched too.
    step = "hcnul_retfa_drocer"[::-1]
    assert strange_words(f"``{step}`` ``record_before``") == {step}
    assert strange_files(INVENTED) == {"flows/teleport.py"}
    assert never_run(INVENTED) == ["move teleport", "move confirm MOVE --teleport", "server teleport web1"]


def test_what_others_own_is_still_named() -> None:
    named = {word for page in PAGES for quote in quotes(page.read_text(encoding="utf-8")) for word in quote.split()}
    assert {each for each in FOREIGN if each not in named} == set()
