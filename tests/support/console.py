"""Console blocks of the documents: found, run in one shell, and compared with what stands below each command."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

DIRECTIVE: Final = ".. code-block:: "
PROMPT: Final = "$ "
LAB: Final = "/tmp/lab"
"""Where the documents' lab lies; a test puts its own directory in the place."""

_MARK: Final = "@@ended"
_CHECKER: Final = doctest.OutputChecker()


class Command(NamedTuple):
    """One command line and the output that the page shows below it."""

    line: int
    text: str
    shown: str


class Ran(NamedTuple):
    """What a command did: both outputs, as on a terminal."""

    output: str
    code: int


def commands(page: str) -> list[Command]:
    """The commands of a page's console blocks, in order."""
    found: list[Command] = []
    for first, block in _blocks(page.splitlines(), "console"):
        for number, line in enumerate(block, first):
            if line.startswith(PROMPT):
                found.append(Command(number, line.removeprefix(PROMPT), ""))
            else:
                assert found, f"line {number}: output before any command"
                found[-1] = found[-1]._replace(shown=f"{found[-1].shown}{line}\n")
    return found


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks in that language, in order."""
    return ["\n".join(block) for _, block in _blocks(page.splitlines(), language)]


def _blocks(lines: list[str], language: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each block's first line, and the block without its indentation."""
    starts = [number for number, line in enumerate(lines) if line == f"{DIRECTIVE}{language}"]
    for start in starts:
        end = start + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
            end += 1
        yield start + 3, textwrap.dedent("\n".join(lines[start + 2 : end])).rstrip().splitlines()


def run(wanted: list[Command], lab: Path, *, seconds: float, path: str | None = None) -> list[Ran]:
    """Run the commands one after the other in one shell, so that what one exports the next one has.

    ``path``: the PATH of the shell, else one on which the environment's own commands are.
    """
    script = []
    for command in wanted:
        script += [command.text.replace(LAB, str(lab)), f"__code=$?; printf '\\n{_MARK} %s\\n' $__code; (exit $__code)"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DROVEWAY")}
    environment["PATH"] = path or f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "exec 2>&1\n" + "\n".join(script)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
        timeout=seconds,
        check=False,
    )
    parts = re.split(rf"\n{_MARK} (\d+)\n", done.stdout.replace(str(lab), LAB))
    return [Ran(output, int(code)) for output, code in zip(parts[::2], parts[1::2], strict=False)]


def agrees(shown: str, output: str) -> bool:
    """Whether the output is what the page shows.

    ``...`` stands for anything, on a line of its own also for no line at all; runs of spaces are one.
    """
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    wanted = re.sub(r"\s*^\.\.\.$\s*", "...", shown, flags=re.MULTILINE)
    return _CHECKER.check_output(wanted.strip() + "\n", output.strip() + "\n", flags)
