"""The documents agree with the code: generated pages, tables, commands, tests and words."""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from support import console

from droveway.cli.main import Droveway
from droveway.cli.registry import COMMANDS
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.conf import settings
from droveway.doctor.findings import MEANINGS
from droveway.errors import IllegalTransition
from droveway.flows import registry
from droveway.persistence.journal.states import ENDED, State, check_transition

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = sorted(path for path in DOCS.rglob("*.rst") if "reference" not in path.parts or path.name == "index.rst")
SCREEN = 60
"""Lines that an operator's terminal shows at once."""
SERVED = ("try-daemons", "three-in-the-morning", "first-move")
"""The pages of which tests/integration/test_lab_serve.py runs the blocks for a second terminal."""
LOGGING = ("engines", "flows", "workers", "cli")
"""The packages that write into the daemons' logs."""
LIFE = {
    State.QUEUED: {State.RUNNING, State.CANCELLED, State.DELETING},
    State.RUNNING: {State.VERIFYING, State.DONE, State.UNDOING, State.FAILED, State.CANCELLED, State.DELETING},
    State.VERIFYING: {State.CONFIRMING, State.REVERTING, State.CANCELLED, State.DELETING},
    State.CONFIRMING: {State.DONE, State.VERIFYING, State.CANCELLED, State.DELETING},
    State.REVERTING: {State.REVERTED, State.VERIFYING, State.CANCELLED, State.DELETING},
    State.UNDOING: {State.FAILED, State.CANCELLED, State.DELETING},
    State.DELETING: {State.DONE, State.CANCELLED},
    State.DONE: set(),
    State.REVERTED: set(),
    State.FAILED: set(),
    State.CANCELLED: set(),
}
"""Which state may follow which, written by hand: as docs/reference/states.rst tells it, with the cancel of a move that
an evacuation or a person ends where it stands; without the detour over needs-operator."""

# Words that mean something else, or that this product has another word for.
NEVER_SAID = re.compile(
    r"\b(VMs?|instances?|workflows?|tasks? flows?|evacuat\w+|rebuild\w*|live.migrat\w+|suspend\w*|tokens?|slaves?)\b",
    re.IGNORECASE,
)


def parser_of(name: str) -> argparse.ArgumentParser:
    module, _, kind = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(f"droveway.cli.commands.{module}"), kind)
    parser: argparse.ArgumentParser = command(Droveway(), None, cmd_name=name).get_parser(f"droveway {name}")
    return parser


def options_of(name: str) -> dict[str, argparse.Action]:
    return {word: action for action in parser_of(name)._actions for word in action.option_strings}


def test_the_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The table of differences.


def differences() -> dict[str, tuple[str, str]]:
    """The table of resize-and-migrate.rst: what differs, and its two cells."""
    text = (DOCS / "resize-and-migrate.rst").read_text(encoding="utf-8")
    table = text[text.index(":name: differences") : text.index("The same in both")]
    rows = re.findall(r"^   \* - (.+)\n     - (.+)\n     - (.+)$", table, re.MULTILINE)
    return {what: (resize, migrate) for what, resize, migrate in rows}


def test_the_table_of_differences_is_the_codes() -> None:
    """R0-25, R0-01, R0-15: commands, options and rules in which resize and cold migrate differ."""
    rows = differences()
    assert set(rows) == {
        *("What", "Command", "Kind of flow", "Flavor", "Present flavor", "Destination host", "Hosts that are tried"),
        *("Present host", "Disks", "``migrations.migration_type``"),
    }
    commands = [cell.strip("`").removeprefix("droveway ") for cell in rows["Command"]]
    assert commands == ["server resize", "server migrate"]
    resize, migrate = (options_of(name) for name in commands)
    assert (resize["--flavor"].required, "--flavor" in migrate) == (True, False)
    assert rows["Flavor"] == ("``--flavor``, needed", "kept")
    assert ("--host" in resize, migrate["--host"].required) == (False, False)
    assert rows["Destination host"][0] == "none may be named"
    assert rows["Destination host"][1].startswith("``--host``")
    assert set(resize) - set(migrate) == {"--flavor"}
    assert set(migrate) - set(resize) == {"--host"}
    kinds = [cell.strip("`") for cell in rows["Kind of flow"]]
    assert registry.latest(kinds[0]).names() == registry.latest(kinds[1]).names()


def test_every_option_that_a_page_names_is_there() -> None:
    known = {(module.GROUP.name, option.dest) for module in settings.MODULES for option in module.OPTS}
    named = set()
    for path in WRITTEN:
        named |= set(re.findall(r"``\[(\w+)\]\s+(\w+)``", path.read_text(encoding="utf-8")))
    assert named
    assert named - known == set()


@pytest.mark.parametrize("module", settings.MODULES, ids=lambda module: module.GROUP.name)
def test_every_option_is_in_the_reference(module: object) -> None:
    page = (DOCS / "reference" / "options.rst").read_text(encoding="utf-8")
    options: tuple[cfg.Opt, ...] = module.OPTS  # type: ignore[attr-defined]
    assert all(f"``{option.dest}``" in page for option in options)
    wrong = [
        option.dest
        for option in options
        for values in re.findall(rf"\* - ``{option.dest}``\n +- ``{re.escape(str(option.default))}``\n +- (.*)", page)
        if (values == "true, false") != isinstance(option, cfg.BoolOpt)
    ]
    assert wrong == []


# Commands and tests that pages name.


def shown_commands() -> Iterator[tuple[str, str]]:
    """Every droveway command of the console blocks, and of the sentences between them."""
    for path in (*WRITTEN, ROOT / "README.rst"):
        text = path.read_text(encoding="utf-8")
        for command in console.commands(text):
            for part in re.findall(r"droveway [^|;>)]*", re.sub(r"\$\(([^()]*)\)", "WORD", command.text)):
                yield path.name, part.replace("$", "")
        for line in re.findall(r"^    (droveway .*?)(?:  +#.*)?$", text, re.MULTILINE):
            yield path.name, line.replace("$", "")
        for block in re.findall(r"``(droveway [^`]*)``", text):
            yield path.name, " ".join(block.split())


def test_every_command_that_a_page_shows_can_be_typed() -> None:
    shown = list(shown_commands())
    assert len(shown) > 60
    for page, text in shown:
        words = shlex.split(text.replace("2", "").replace(">", ""))[1:]
        name = next((" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in COMMANDS), None)
        if name is None:
            known_nouns = {each.split()[0] for each in COMMANDS} | {"NOUN"}
            assert words[0].startswith("-") or words[0] in known_nouns, (page, text)
            continue
        known = options_of(name)
        for word in words[len(name.split()) :]:
            assert not word.startswith("--") or word in known, (page, text)


def test_every_tool_that_the_readme_names_is_there() -> None:
    text = (ROOT / "README.rst").read_text(encoding="utf-8")
    named = set(re.findall(r"``((?:tools|docs)/[\w.-]+)", text))
    assert {"tools/demo", "tools/test", "tools/docs", "docs/tutorial.rst"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_test_that_a_page_names_is_there() -> None:
    named = set()
    for path in (path for path in WRITTEN if path.name != "trace.rst"):
        named |= set(re.findall(r"``(tests/[\w/]+\.py)::(?:\w+::)?(test_\w+)``", path.read_text(encoding="utf-8")))
    assert len(named) > 30
    for file, test in sorted(named):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


# States, graphs and words.


def test_every_state_leads_to_one_of_the_same_ends() -> None:
    """R2-01: one set of ends for every kind, no state that is never reached, none without a way out."""
    page = (DOCS / "reference" / "states.rst").read_text(encoding="utf-8")
    assert all(f"* - ``{state}``" in page for state in State)
    assert all(f"* - ``{kind}``" in page for kind in registry.kinds())

    def legal(old: State, new: State) -> bool:
        try:
            check_transition(old, new)
        except IllegalTransition:
            return False
        return True

    follows = {old: {new for new in State if legal(old, new)} for old in State}
    assert {old: new - {State.NEEDS_OPERATOR} for old, new in follows.items() if old in LIFE} == LIFE, (
        "say in LIFE of this file, by hand, which state may follow which; where a new state has to be named besides is "
        "told in State of persistence/journal/states.py"
    )
    assert set(State) - set(LIFE) == {State.NEEDS_OPERATOR}
    assert follows[State.NEEDS_OPERATOR] == set(State) - {State.NEEDS_OPERATOR}
    assert all((State.NEEDS_OPERATOR in new) == (old not in ENDED) for old, new in follows.items() if old in LIFE)
    assert {state for state in State if not follows[state]} == ENDED
    # Without the detour over needs-operator, which may come from anywhere and go back.
    plain = {old: new - {State.NEEDS_OPERATOR} for old, new in follows.items() if old is not State.NEEDS_OPERATOR}
    reached = {State.QUEUED}
    while more := set(itertools.chain.from_iterable(plain[state] for state in reached)) - reached:
        reached |= more
    assert reached == set(plain)
    ending = set(ENDED)
    while more := {old for old, new in plain.items() if new & ending} - ending:
        ending |= more
    assert ending == set(plain)


@pytest.mark.parametrize("kind", registry.kinds())
def test_a_graphs_file_fits_one_screen(kind: str) -> None:
    """R2-09: an operation reads at a glance."""
    home = next(
        path
        for path in (ROOT / "flows").glob("*.py")
        if re.search(rf"kinds\.{kind.upper()}\b", path.read_text(encoding="utf-8"))
    )
    lines = len(home.read_text(encoding="utf-8").splitlines())
    assert lines <= SCREEN, (
        f"flows/{home.name} has {lines} lines, and a screen {SCREEN}: write steps in flows/steps, and an older version "
        "as the few lines by which it differs from the newest"
    )


def test_commands_use_the_words_of_the_glossary() -> None:
    """R2-08: cold migrate, resize and the rest are never mixed; a server is a server."""
    for name, (_, summary) in COMMANDS.items():
        parser = parser_of(name)
        said = [summary, parser.description or "", *(str(action.help or "") for action in parser._actions)]
        for text in said:
            assert not NEVER_SAID.search(text), f"{name}: {text}"


def test_the_glossary_has_every_noun_that_the_commands_have() -> None:
    terms = set(re.findall(r"^   (\w[\w ]*)$", (DOCS / "glossary.rst").read_text(encoding="utf-8"), re.MULTILINE))
    nouns = {name.split()[0] for name in COMMANDS} - {"audit", "cert", "complete", "doctor", "explain", "db", "upgrade"}
    assert nouns <= terms


# The runbook.


def command_of(text: str) -> str | None:
    """The command that a line or a literal begins with; None where it names none."""
    words = text.split()[1:]
    return next((" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in COMMANDS), None)


def test_each_section_of_the_page_for_the_night_means_looks_acts_and_forbids() -> None:
    page = (DOCS / "howto" / "three-in-the-morning.rst").read_text(encoding="utf-8")
    parts = re.split(r"^(?=.+\n(?:={4,}|-{4,})$)", page, flags=re.MULTILINE)
    sections = [part for part in parts if "**It means" in part]
    assert len(sections) >= 10
    for section in sections:
        title = section.splitlines()[0]
        marks = re.findall(r"^\*\*(It means|Look|Act|Never)|and \*\*(act)", section, re.MULTILINE)
        assert [(one or other).lower() for one, other in marks] == ["it means", "look", "act", "never"], title
        assert re.search(r"^   \$ droveway ", section, re.MULTILINE), title
    led = " ".join(section.splitlines()[0] for section in sections)
    for seen in ("never ends", "needs an operator", "host is dead", "audit", "ERROR", "disk is full", "cell is away"):
        assert seen in led
    assert "journal was restored" in led
    assert "ZooKeeper is away" in led


def test_every_command_that_the_page_for_the_night_names_is_run_by_a_test() -> None:
    """Those of console blocks are, and those of the pages that are run over served labs."""
    run = set()
    for path in (DOCS / "tutorial.rst", *(DOCS / "howto").glob("*.rst")):
        text = path.read_text(encoding="utf-8")
        served = text.replace("shell-session", "console") if path.stem in SERVED else text
        for command in console.commands(served):
            run |= {command_of(part) for part in re.findall(r"droveway [^|;>)]*", command.text)}
    page = (DOCS / "howto" / "three-in-the-morning.rst").read_text(encoding="utf-8")
    named = {command_of(" ".join(text.split())) for text in re.findall(r"``(droveway [^`]*)``", page)}
    assert len(named) > 10
    assert named - run == set()


def test_every_line_of_the_log_that_the_page_for_the_night_names_is_written() -> None:
    page = (DOCS / "howto" / "three-in-the-morning.rst").read_text(encoding="utf-8")
    lines = re.findall(r"^   \* - ``(.+)``$", page, re.MULTILINE)
    code = "".join(path.read_text(encoding="utf-8") for part in LOGGING for path in (ROOT / part).rglob("*.py"))
    assert len(lines) >= 5
    assert [line for line in lines if line not in code] == []


def test_the_runbook_has_every_state_code_and_finding() -> None:
    """docs/operate.rst leads to one page for each, and each page has all of them with what to do."""
    runbook = (DOCS / "operate.rst").read_text(encoding="utf-8")
    for page, names in {"states": set(State), "errors": set(EXPLANATIONS), "findings": set(MEANINGS)}.items():
        assert f":doc:`reference/{page}`" in runbook
        text = (DOCS / "reference" / f"{page}.rst").read_text(encoding="utf-8")
        assert [name for name in names if f"``{name}``" not in text] == []


def test_the_runbook_names_every_command_of_the_recovery() -> None:
    named = {text for page, text in shown_commands() if page == "operate.rst"}
    wanted = ("doctor", "move list --stuck", "move retry", "move settle", "db adopt", "db check", "db purge")
    assert [each for each in (*wanted, "upgrade check") if not any(f"droveway {each}" in text for text in named)] == []
