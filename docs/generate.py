"""Writes docs/reference from the code: commands, manual pages, options, states, graphs, errors, what programs read.

python docs/generate.py            write the pages
python docs/generate.py --check    write nothing; name the pages that are out of date and end with 1
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import manual
import preconditions
from oslo_config import cfg, types

from droveway import errors
from droveway.audit.findings import Kind
from droveway.audit.heal.healing import RULES
from droveway.cli import main
from droveway.cli.commands import audit as audit_command
from droveway.cli.commands import db, debt, doctor, explain, host, move, request, server
from droveway.cli.registry import COMMANDS
from droveway.cli.view.explanations import EXPLANATIONS
from droveway.conf import settings
from droveway.doctor.findings import MEANINGS
from droveway.engines.operations import move_requests, plan
from droveway.errors import IllegalTransition
from droveway.flows import pictures, registry
from droveway.flows.graph import NO_RETURN, Graph
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import ADVICE, ENDED, State, check_transition
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import copied_tables

REFERENCE: Final = Path(__file__).parent / "reference"
NOTE: Final = ".. Written by docs/generate.py from the code: change the code and run it again.\n"
EVERYWHERE: Final = {"help", "lab"}
WIDTH: Final = 110
ORPHANS: Final = {
    Kind.GUEST: "a guest that is off, marked with an ended move, on a host where its server does not live",
    Kind.DISK: "a copy marked with an ended move while the server's own disks are where it lives; an ended move's "
    "unfinished copy or storage probe",
    Kind.BINDING: "an INACTIVE binding on a host of an ended move, beside the server's own ACTIVE one",
    Kind.ATTACHMENT: "an attachment that an ended move reserved and that nothing names",
    Kind.ALLOCATION: "what an ended move still holds in Placement",
    Kind.HOST: "a debt that was written off although its host is back",
}
"""What `audit --heal` removes for each kind of finding; other kinds are left to a person."""

Pages = dict[str, str]


def pages() -> Pages:
    """Return every page by its path below docs/reference."""
    found = {
        "options.rst": options(),
        "preconditions.rst": checks(),
        "states.rst": states(),
        "errors.rst": error_codes(),
        "findings.rst": findings(),
        "output.rst": output(),
        "cell-tables.rst": cell_tables(),
        "commands/index.rst": command_index(),
        "graphs/index.rst": graph_index(),
    }
    found |= {f"commands/{noun}.rst": commands(noun) for noun in manual.nouns()}
    found |= {f"man/{name}": page for name, page in manual.pages(exit_codes()).items()}
    for kind in registry.kinds():
        graph = registry.latest(kind)
        found[f"graphs/{kind}.rst"] = graph_page(graph)
        found[f"graphs/{kind}.mmd"] = f"{pictures.mermaid(graph)}\n"
        found[f"graphs/{kind}.dot"] = f"{pictures.dot(graph)}\n"
    return found


def title(text: str, line: str = "=") -> str:
    """Return a heading with the label that other pages refer to."""
    return f"{text}\n{line * len(text)}\n"


def prose(text: str) -> str:
    """Return a paragraph in lines of the usual length."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], widths: str = "") -> str:
    """Return a list-table; cells are reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1"]
    if widths:
        lines.append(f"   :widths: {widths}")
    lines.append("")
    for row in (header, *rows):
        lines += [f"   {'*' if not number else ' '} - {cell}".rstrip() for number, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def toctree(names: Iterable[str]) -> str:
    """Return the toctree of an index."""
    return ".. toctree::\n   :maxdepth: 1\n\n" + "".join(f"   {name}\n" for name in names)


# Commands.


def command_index() -> str:
    """Return the page of all commands with their summaries and common options."""
    rows = [(f":ref:`droveway {name} <{label(name)}>`", summary) for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            NOTE,
            title("Commands"),
            "``droveway NOUN VERB``. Options that every command has:\n",
            table(
                ("Option", "Meaning"),
                (
                    ("``--lab DIR``", f"the lab's directory, before or after the noun (else ``{main.LAB_VARIABLE}``)"),
                    ("``--help``", "show the command's options and end"),
                    ("``--debug``", "before the noun: show tracebacks"),
                    ("``--version``", "before the noun: show the version and end"),
                ),
                "25 75",
            ),
            prose(
                "Commands that print a list take ``-f table|json|yaml|csv|value`` and ``-c COLUMN``, once for each "
                "column; those that print one record take the same without ``csv``. :doc:`../output` has the columns "
                "and the exit codes."
            ),
            prose(
                "A table is wrapped to the width of its terminal, or to ``COLUMNS``. Elsewhere it is as wide as it "
                "takes: ``--fit-width`` wraps it there too, and ``--max-width N`` to N columns (0: not at all). "
                "``CLIFF_FIT_WIDTH=1`` and ``CLIFF_MAX_TERM_WIDTH=N`` in the environment do the same."
            ),
            table(("Command", "What it does"), rows, "35 65"),
            toctree(manual.nouns()),
        )
    )


def label(name: str) -> str:
    """Return the label of a command's section."""
    return f"droveway-{name.replace(' ', '-')}"


def commands(noun: str) -> str:
    """Return the page of a noun's commands with their options."""
    parts = [NOTE, title(f"droveway {noun}")]
    for command, parser in manual.commands(noun):
        name = str(command.cmd_name)
        parts += [f".. _{label(name)}:\n", title(f"droveway {name}", "-"), f"{command.get_description()}\n"]
        parts.append(arguments(parser, name))
    return "\n".join(parts)


def arguments(parser: argparse.ArgumentParser, name: str) -> str:
    """Return the command's usage and a table of its own options."""
    own = [
        action
        for group in parser._action_groups  # noqa: SLF001 - argparse has no public name for them, nor for those below
        if group.title != manual.FORMATS
        for action in group._group_actions  # noqa: SLF001
        if action.dest not in EVERYWHERE
    ]
    words = [spelled(action) for action in own]
    usage = " ".join(["droveway", name, *(w if a.required else f"[{w}]" for a, w in zip(own, words, strict=True))])
    if not own:
        return f"``{usage}``\n"
    rows = [(f"``{word}``", meaning(action)) for action, word in zip(own, words, strict=True)]
    return f"``{usage}``\n\n" + table(("Argument", "Meaning"), rows, "35 65")


def spelled(action: argparse.Action) -> str:
    """Return the argument as it is typed."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"{value} [{value} ...]" if action.nargs == "+" else str(value)
    word = action.option_strings[-1]
    return word if action.nargs == 0 else f"{word} {value}"


def meaning(action: argparse.Action) -> str:
    """Return its help, and its default unless the help says it."""
    return literal(manual.meaning(action))


# Options.


def options() -> str:
    """Return the page of every configuration option by its group."""
    parts = [
        NOTE,
        title("Configuration options"),
        prose(
            "They stand in ``droveway.conf``; in a lab that file lies in the lab's directory. A wrong value is refused "
            "with the option's name."
        ),
    ]
    for module in settings.MODULES:
        parts += [title(f"[{module.GROUP.name}] {module.GROUP.title}", "-")]
        rows = [(f"``{option.dest}``", f"``{option.default}``", bounds(option), option.help) for option in module.OPTS]
        parts.append(table(("Option", "Default", "Values", "Meaning"), rows, "22 12 16 50"))
    return "\n".join(parts)


def bounds(option: cfg.Opt) -> str:
    """Return the values that the option may have."""
    kind = option.type
    if choices := getattr(kind, "choices", None):
        return ", ".join(choices)
    if (low := getattr(kind, "min", None)) is not None:
        return f"{low:g} to {kind.max:g}"
    return "true, false" if isinstance(kind, types.Boolean) else str(kind.type_name).removesuffix(" value")


# What is checked first.


def checks() -> str:
    """Return the page of what is checked before a move, and before its confirm or revert."""
    return "\n".join(
        (
            NOTE,
            title("What is checked before a move"),
            prose(preconditions.BEFORE_A_MOVE),
            table(preconditions.HEADER, preconditions.move_rows(), preconditions.WIDTHS),
            title("Before a shelve or an unshelve", "-"),
            prose(preconditions.BEFORE_A_SHELVE),
            table(preconditions.HEADER, preconditions.shelve_rows(), preconditions.WIDTHS),
            title("Before a confirm or a revert", "-"),
            prose(preconditions.BEFORE_AN_END),
            table(preconditions.HEADER, preconditions.end_rows(), preconditions.WIDTHS),
            prose(preconditions.WHILE_VERIFYING),
        )
    )


# States.


def states() -> str:
    """Return the page of states: what each means, what may follow it, and the states of each kind of flow."""
    rows = [(f"``{state}``", f"{sentence(state)}.", state_list(following(state)) if following(state) else "ended")
            for state in State]  # fmt: skip
    of_kinds = [
        (f"``{kind.name}``", f"``{kind.running}``", ends(kind.done), ends(kind.undone) if kind.undone else FORWARD_ONLY)
        for kind in map(kinds.of, registry.kinds())
    ]
    return "\n".join(
        (
            NOTE,
            title("States of a move"),
            prose(
                "Where a move stands, and what that asks of an operator. ``droveway move show`` prints the sentence as "
                "``next``."
            ),
            table(("State", "What to do", "May become"), rows, "16 50 34"),
            prose(
                f"The ended ones are {state_list(state for state in State if state in ENDED)}: no flow of such a move "
                "runs again, and its server may be moved anew. Being held (``droveway move pause``) is no state: a "
                "held move keeps its state and rests at its next step."
            ),
            title("By kind of flow", "-"),
            prose(
                "Every kind has the same words for its ends. Any state that has not ended may become "
                "``needs-operator`` and goes back from there to where it was."
            ),
            table(("Flow", "While it runs", "Done", "Undone"), of_kinds, "20 25 25 30"),
        )
    )


FORWARD_ONLY: Final = "it only goes forward"


def ends(ending: kinds.Ending) -> str:
    """Return the states in which a flow leaves its move."""
    return state_list(state for state in (ending.state, ending.never_confirmed, ending.cancelled) if state is not None)


def state_list(found: Iterable[State]) -> str:
    """Return the states as code."""
    return ", ".join(f"``{state}``" for state in found)


def sentence(state: State) -> str:
    """Return what an operator does in the state, with MOVE for the move."""
    said = ADVICE[state].format(move="MOVE")
    for command in sorted({name for name in COMMANDS if f"droveway {name} MOVE" in said}):
        said = said.replace(f"droveway {command} MOVE", f"``droveway {command} MOVE``")
    return " ".join(said.split())


def following(state: State) -> list[State]:
    """Return the states that may follow."""
    found = []
    for after in State:
        try:
            check_transition(state, after)
        except IllegalTransition:
            continue
        found.append(after)
    return found


# Graphs.


def graph_index() -> str:
    """Return the page of all kinds, with the point of no return of each."""
    rows = [
        (f":doc:`{kind}`", str(registry.latest(kind).version), str(len(registry.latest(kind).names())),
         f"``{registry.latest(kind).no_return.step_name()}``")
        for kind in registry.kinds()
    ]  # fmt: skip
    return "\n".join(
        (
            NOTE,
            title("Graphs"),
            prose(
                "Each kind of flow is one line of steps. The names of the steps are those of ``droveway move history`` "
                "and ``droveway lab fault``. The same comes from ``droveway flow graph KIND -f text|mermaid|dot``."
            ),
            table(("Kind", "Version", "Steps", "Point of no return"), rows),
            prose(
                "Before its point of no return a flow that fails is undone, last step first. From there on it only "
                "goes forward."
            ),
            toctree(registry.kinds()),
        )
    )


def graph_page(graph: Graph) -> str:
    """Return the page of a kind's steps, with its graph in the language of drawing tools."""
    rows = []
    tried = {step.step_name() for step in graph.tried}
    steps = {step.step_name(): step for step in graph.walk()}
    for number, name in enumerate(graph.names(), 1):
        step = steps.get(name)
        if step is None:
            rows.append((str(number), f"``{name}``", "conductor", "hand out the next alternate", "all is undone", ""))
            continue
        mark = " **no way back**" if step is graph.no_return else ""
        undo = step.undoes if not step.no_undo else f"none: {step.no_undo}"
        again = " ↻" if name in tried else ""
        cells = (f"``{name}``{again}{mark}", step.where.value, step.does, undo, f"{step.deadline:g} s")
        rows.append((str(number), *cells))
    return "\n".join(
        (
            NOTE,
            title(graph.kind),
            f"Version {graph.version}; point of no return: ``{graph.no_return.step_name()}`` ({NO_RETURN} in the text "
            "form).\n" + ("Steps marked ↻ run once for each alternate.\n" if tried else ""),
            table(("#", "Step", "Where", "Does", "Undo", "Deadline"), rows, "4 22 12 28 26 8"),
            "As mermaid:\n",
            f".. literalinclude:: {graph.kind}.mmd\n   :language: text\n",
            "As Graphviz dot:\n",
            f".. literalinclude:: {graph.kind}.dot\n   :language: text\n",
        )
    )


# Errors and output.


def error_codes() -> str:
    """Return the page of every stable error code."""
    parts = [
        NOTE,
        title("Error codes"),
        prose(
            "A move that failed or rests has its code under ``error_code`` in ``droveway move show``; the history has "
            "the code of each step that failed. ``droveway explain CODE`` prints what stands here."
        ),
    ]
    for code, explained in EXPLANATIONS.items():
        said = (explained.means, f"*What was done:* {explained.did}", f"*What to do:* {explained.mend}")
        parts.append(f"``{code}``\n" + "\n".join(textwrap.indent(prose(text), "   ") for text in said))
    return "\n".join(parts)


def findings() -> str:
    """Return the page of the doctor's findings and of the audit's findings that can be mended."""
    if ORPHANS.keys() != {*RULES, Kind.HOST}:
        raise LookupError("ORPHANS describes other kinds of findings than those that are mended")
    rows = [(f"``{code}``", str(each.level), each.means, each.mend) for code, each in MEANINGS.items()]
    return "\n".join(
        (
            NOTE,
            title("Findings"),
            prose("What ``droveway doctor`` and ``droveway upgrade check`` find, and what to do about it."),
            table(("Finding", "Level", "Means", "Mend"), rows, "20 10 35 35"),
            title("What an audit can mend", "-"),
            prose(
                "What ``droveway audit --heal`` takes away, provided that the journal names the move, the move is over "
                "in every respect, and no other move holds its server. All else it leaves alone and says why."
            ),
            table(
                ("Kind of finding", "Taken away"), ((f"``{kind}``", each) for kind, each in ORPHANS.items()), "20 80"
            ),
        )
    )


def cell_tables() -> str:
    """Return the page of the tables with a server's rows, and what of each crosses to another cell."""
    parts = [
        NOTE,
        title("What crosses to another cell"),
        prose(
            "Each cell has a database of its own. A server that goes to another cell takes its live rows along; rows "
            "that Nova has soft-deleted stay behind, and go when the copy that was left is removed for good. Each "
            "table of a cell's database that names a server is in one of these lists. The ``shadow_`` tables, which "
            "Nova's archiver fills, stay where they are."
        ),
    ]
    said = {
        "copied": "Row by row, every column, ``created_at`` and ``updated_at`` too, but those that are named beside:",
        "made anew": "In the cell that the server goes to:",
        "removed with the copy": "Not copied, and gone with the copy that was left:",
        "kept where they are": "Not copied, and not removed with the copy that was left:",
        "must be empty": "What exists only in its cell: a server that has it is refused before anything is touched:",
        "legacy": "Tables that name no server of today's:",
    }
    for name, entries in copied_tables.LISTS.items():
        rows = [(f"``{each.table}``", literal(each.why), left_out(each)) for each in entries]
        header, widths = ("Table", "Why", "But"), "25 35 40"
        if not any(but for *_, but in rows):
            rows, header, widths = [row[:2] for row in rows], header[:2], "30 70"
        parts += [title(name.capitalize(), "-"), prose(said[name]), table(header, rows, widths)]
    parts += [
        title("Brought back on revert", "-"),
        prose("What changed in the other cell meanwhile, and is not lost when the server goes back:"),
        table(("Table", "What"), ((f"``{each.table}``", each.why) for each in copied_tables.BROUGHT_BACK), "30 70"),
    ]
    return "\n".join(parts)


def left_out(entry: copied_tables.Entry) -> str:
    """Return the columns of a table that are not copied, with what stands there instead."""
    said = {name: f"``{name}``" if name.replace("_", "").isalnum() else name for name in entry.left_out}
    return "; ".join(f"{said[name]}: {literal(instead)}" for name, instead in entry.left_out.items())


def literal(text: str) -> str:
    """Return a text of the code, with names marked as code."""
    return text.replace("`", "``")


def output() -> str:
    """Return the page of exit codes and of the keys that commands print."""
    return "\n".join(
        (
            NOTE,
            title("Output for programs"),
            title("Exit codes", "-"),
            table(("Code", "Means"), exit_codes(), "10 90"),
            title("Columns and keys", "-"),
            prose(
                "The names are the same in every format and stay. In ``json`` and ``yaml`` ids are whole, times are "
                "UTC (``2026-11-21T15:43:06Z``) and what is not known is ``null``; ``took`` is a number of seconds. "
                "A table has the first letters of an id, how long ago a time was behind it, and spans of time with "
                "their unit. A list that is too wide for the terminal leaves out columns that it can spare in a table "
                "and names them on stderr; none of them tells rows apart."
            ),
            prose(
                "``downtime`` of a plan is a record: ``seconds`` for which the guest is estimated to be off, ``null`` "
                "where nobody can tell; ``at_most``, whether they are a limit; ``off_anyway``, whether the server is "
                "stopped now; ``bytes`` to send, and ``bytes_reason``; ``rate`` in bytes a second, ``null`` where "
                "nothing is sent; ``rate_moves``, in how many past moves the rate was measured, 0 for "
                "``[conductor] plan_rate``, and ``rate_between_hosts``, whether these were moves between the same two "
                "hosts; ``pause``, the seconds beside the copy, and ``pause_moves``, in how many past moves they were "
                "measured, 0 for ``[conductor] plan_pause``."
            ),
            table(
                ("Command", "Keys"), ((f"``droveway {name}``", code_list(keys)) for name, keys in printed()), "25 75"
            ),
        )
    )


def exit_codes() -> list[tuple[str, str]]:
    """Return every exit code with its meaning; the numbers come from the code."""
    rows = {
        move_requests.DONE: "done; or accepted, or clean; or resting where it was asked to go, as at ``verifying``",
        main.INTERNAL: "an error inside Droveway; the message says where its traceback is. Of ``doctor`` and ``upgrade "
        "check``: a warning",
        main.USAGE: "refused or bad usage: nothing was changed. Of ``doctor`` and ``upgrade check``: a failure",
        move_requests.UNDONE: "the move ended undone, its confirm or revert was undone, or ``audit`` or ``db "
        "check`` found something",
        move_requests.NEEDS_OPERATOR: "a move needs an operator",
        request.TIMED_OUT: "``move wait --timeout`` ran out",
        main.INTERRUPTED: "Ctrl-C: the watching ended, not the move",
        main.BROKEN_PIPE: "whoever read the output ended first",
    }
    clash = {
        errors.Refused.exit_code: main.USAGE,
        errors.StepError.exit_code: move_requests.UNDONE,
        audit_command.FOUND: move_requests.UNDONE,
    }
    if any(one != other for one, other in clash.items()):
        raise SystemExit(f"exit codes disagree: {clash}")
    return [(str(code), text) for code, text in rows.items()]


def printed() -> list[tuple[str, Sequence[str]]]:
    """Return the keys that each command prints."""
    shown = [
        *move.facts(Move(id="0" * 8, state=State.QUEUED.value)),
        *move.owner(None),
        "debts",
        "kept_as",
        "kept_until",
        "left_out",
    ]
    return [
        ("move list", move.LISTED),
        ("move list --stuck", move.STUCK),
        ("move show", shown),
        ("move plan", plan_keys()),
        ("move history", move.HISTORY),
        ("server list", server.LISTED),
        ("host list", host.LISTED),
        ("debt list", debt.LISTED),
        ("debt show", debt.SHOWN),
        ("audit", audit_command.COLUMNS),
        ("audit --heal", audit_command.PLANNED),
        ("doctor", doctor.COLUMNS),
        ("upgrade check", doctor.COLUMNS),
        ("db check", db.COLUMNS),
        ("explain", explain.COLUMNS),
    ]


def plan_keys() -> list[str]:
    """Return the keys of a plan, read from the source of the function that makes it, since a plan needs a lab."""
    tree = ast.parse(inspect.getsource(plan.plan))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    keys = [key.value for each in found for key in each.keys if isinstance(key, ast.Constant)]
    return sorted(map(str, keys), key=lambda key: key != "id")


def code_list(names: Iterable[str]) -> str:
    """Return the names as code."""
    return " ".join(f"``{name}``" for name in names)


def stale(wanted: Pages) -> list[Path]:
    """Return the pages that are missing, out of date, or no longer made."""
    there = {path for path in REFERENCE.rglob("*") if path.is_file() and path.name != "index.rst"}
    there |= set(REFERENCE.glob("*/index.rst"))
    paths = {REFERENCE / name: text for name, text in wanted.items()}
    old = [path for path, text in paths.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return sorted({*old, *(there - set(paths))})


def run(words: Sequence[str] | None = None) -> int:
    """Write the pages that are out of date, or only name them."""
    parser = argparse.ArgumentParser(prog="docs/generate.py")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when a page is out of date")
    check = parser.parse_args(words).check
    wanted = pages()
    old = stale(wanted)
    for path in old:
        name = str(path.relative_to(REFERENCE))
        print(f"docs/reference/{name} is out of date" + (": run docs/generate.py" if check else ""))
        if check:
            continue
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(run())
