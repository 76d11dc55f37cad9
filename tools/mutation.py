"""Seeded defects: one at a time is planted in a copy of the tree, and what is run there has to find it.

`tools/mutate` runs this; tools/mutants/ holds the defects.  A defect counts as caught only when a point of the
crash matrix did not converge, or a named test failed by an assertion: a tree that does not even run proves nothing.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import concurrent.futures
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import yaml
from proofs import scratch, verdicts
from proofs.matrix import effects

ROOT: Final = Path(__file__).resolve().parents[1]
MUTANTS: Final = ROOT / "tools" / "mutants"
PAGE: Final = ROOT / "docs" / "mutants.rst"
OWN_PAGES: Final = {
    ROOT / "docs" / "mutants-cells.rst": ("*-cells*.yaml", "*-shelving.yaml", "*-image-way.yaml", "*-elsewhere.yaml"),
    ROOT / "docs" / "mutants-ports.rst": ("*-ports.yaml",),
}
"""Each page of its own, and the files whose mutants are on it; all other mutants are on `PAGE`."""
TITLES: Final = {
    "mutants": "Mutants",
    "mutants-cells": "Mutants of moves between cells and of shelves",
    "mutants-ports": "Mutants of guaranteed ports",
}

GRAPH: Final = "--graph"
"""As the first argument, it asks for the mutants that are made from the graphs."""

SECONDS: Final = 900
"""The seconds after which a run counts as having found nothing."""
CHUNK: Final = 10
"""How many points of the unmutated tree one process runs."""

_PROOF: Final = re.compile(r"[Aa]ssert|DID NOT RAISE|droveway\.errors\.")
"""Matches the output of a test that failed by an assertion or by one of the product's errors."""
_BAD: Final = re.compile(r"^(\S+)  BAD  .*\n  (.*)$", re.MULTILINE)


class OutOfDateError(Exception):
    """A mutant's function, or the lines that it changes, are not in the file exactly once."""


@dataclasses.dataclass(frozen=True)
class Hunk:
    """A change inside one function of one file, as lines of a patch; their common indentation does not matter.

    ``function`` is the qualified name of a function or class, such as ``Claim.undo``; empty means the whole file.
    """

    file: str
    function: str
    lines: tuple[tuple[str, str], ...]

    def apply(self, text: str) -> str:
        """Return the text with the defect in it; raises OutOfDateError."""
        present = text.splitlines()
        old = [line for mark, line in self.lines if mark != "+"]
        first, last = self._span(text)
        starts = [
            start
            for start in range(first, last - len(old) + 1)
            if _dedent(present[start : start + len(old)]) == _dedent(old)
        ]
        if len(starts) != 1:
            raise OutOfDateError(f"{self} has the lines that the patch changes {len(starts)} times")
        margin = _margin(present[starts[0] : starts[0] + len(old)]) - _margin(old)
        new = [" " * margin + line if line else "" for mark, line in self.lines if mark != "-"]
        return "\n".join([*present[: starts[0]], *new, *present[starts[0] + len(old) :], ""])

    def __str__(self) -> str:
        """Return the address, as the patch has it."""
        return f"{self.file} {self.function}".rstrip()

    def _span(self, text: str) -> tuple[int, int]:
        if not self.function:
            return 0, text.count("\n")
        spans = [span for name, span in _functions(ast.parse(text)) if name == self.function]
        if len(spans) != 1:
            raise OutOfDateError(f"{self.file} has the function {self.function} {len(spans)} times")
        return spans[0]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One defect, and what has to find it: points of the matrix on a cloud, points of two faults, or tests."""

    name: str
    what: str
    hunks: tuple[Hunk, ...]
    points: tuple[str, ...]
    cloud: str
    faults: tuple[tuple[str, str], ...]
    """Pairs of a kind of two faults at once and one of its points."""
    tests: tuple[str, ...]

    def plant(self, tree: Path) -> None:
        """Change the files of a tree; raises OutOfDateError, which names the mutant."""
        for hunk in self.hunks:
            path = tree / hunk.file
            try:
                changed = hunk.apply(path.read_text(encoding="utf-8"))
            except OutOfDateError as error:
                raise OutOfDateError(f"the mutant {self.name} is out of date: {error}") from None
            path.write_text(changed, encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a run found: the point or test, and the beginning of its message; ``by`` is empty when it found nothing."""

    by: str
    words: str


def load(folder: Path = MUTANTS, files: str = "*.yaml") -> list[Mutant]:
    """Return the mutants of all files, in their order."""
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(files))]
    return [_mutant(name, facts) for file in found for name, facts in file.items()]


def pages() -> dict[Path, list[Mutant]]:
    """Return each page with its mutants."""
    own = {path: [each for files in patterns for each in load(files=files)] for path, patterns in OWN_PAGES.items()}
    elsewhere = [mutant for mutants in own.values() for mutant in mutants]
    return {PAGE: [mutant for mutant in load() if mutant not in elsewhere]} | own


def page(title: str, rows: Iterable[tuple[Mutant, Found]], order: Iterable[Mutant] = (), before: str = "") -> str:
    """Return the list of mutants and what caught each; those in ``order`` that did not run keep their old lines."""
    known = dict(re.findall(r"^(   \* - \*\*([^*]+)\*\*:.*\n(?:     .*\n)*)", before, re.MULTILINE))
    known = {name: text for text, name in known.items()} | {mutant.name: _row(mutant, found) for mutant, found in rows}
    names = [mutant.name for mutant in order] or list(known)
    lines = [
        ".. Written by tools/mutate: change tools/mutants/ and run it again.",
        "",
        "=" * len(title),
        title,
        "=" * len(title),
        "",
        "Does the proof find a defect when there is one? ``tools/mutate`` plants these in a copy of the tree, one at a",
        "time, and runs only what touches them: points of the crash matrix (see ``tools/matrix``) with its audit, or a",
        "test with a conductor that lost its claim, a host that is away or a power cut. The same runs pass without the",
        "defect. What is quoted is the first that was found.",
        "",
        ".. list-table::",
        "   :widths: 45 55",
        "   :header-rows: 1",
        "",
        "   * - Defect",
        "     - Caught by",
    ]
    return "\n".join([*lines, ""]) + "".join(known.get(name, "") for name in names)


def _row(mutant: Mutant, found: Found) -> str:
    files = ", ".join(f"``{file}``" for file in dict.fromkeys(hunk.file for hunk in mutant.hunks))
    quoted = found.words.replace("`", "'")
    # Two lines a mutant: the page is as long as the list.
    return f"   * - **{mutant.name}**: {mutant.what}. In {files}.\n     - ``{found.by}``: ``{quoted}``\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the chosen mutants and run what has to find them; 0 when every one was caught."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [GRAPH]:
        return effects.main(given[1:])
    parser = argparse.ArgumentParser(
        prog="tools/mutate", description=__doc__.splitlines()[0], epilog=f"mutants made from the graphs: {GRAPH} --help"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="only this mutant; may be repeated")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at a time (2)")
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    options = parser.parse_args(given)
    mutants = [mutant for mutant in load() if not options.only or mutant.name in options.only]
    if options.list:
        print("\n".join(f"{mutant.name}: {mutant.what}" for mutant in mutants))
        return 0
    for name in set(options.only or ()) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {name}")
    with tempfile.TemporaryDirectory(prefix="droveway-mutants-") as folder:
        return _judge(Path(folder), mutants, options.jobs, whole=not options.only)


def _mutant(name: str, facts: dict[str, Any]) -> Mutant:
    return Mutant(
        name=name,
        what=facts["what"],
        hunks=tuple(hunks(facts["patch"])),
        points=tuple(facts.get("points", ())),
        cloud=facts.get("cloud", "three-hosts"),
        faults=tuple((kind, point) for kind, points in facts.get("faults", {}).items() for point in points),
        tests=tuple(facts.get("tests", ())),
    )


def hunks(patch: str) -> Iterator[Hunk]:
    """Take a patch apart: each hunk begins with ``@@ FILE FUNCTION``, as those of git name the function."""
    for part in re.split(r"^@@ ", patch, flags=re.MULTILINE)[1:]:
        address, *lines = part.rstrip("\n").splitlines()
        file, _, function = address.partition(" ")
        yield Hunk(file, function, tuple((line[:1] or " ", line[1:]) for line in lines))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Name each function and class of a module, with its first line, counted from 0, and the line behind its last."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield f"{prefix}{child.name}", (first - 1, child.end_lineno or first)
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _margin(lines: Iterable[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)


def _dedent(lines: Sequence[str]) -> list[str]:
    return [line[_margin(lines) :].rstrip() for line in lines]


def _judge(folder: Path, mutants: list[Mutant], jobs: int, *, whole: bool) -> int:
    base = _copy(folder / "base")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        sound = list(pool.map(lambda run: _run(base, *run), _union(mutants)))
        if found := [each for each in sound if each.by or each.words]:
            for each in found:
                print(f"without any defect: {each.by} {each.words}", file=sys.stderr)
            return 1
        print(f"without any defect {len(sound)} runs find nothing", flush=True)
        rows = list(pool.map(lambda mutant: (mutant, _hunt(base, folder / mutant.name, mutant)), mutants))
    caught = [row for row in rows if row[1].by]
    if len(caught) == len(rows):
        for path, order in pages().items():
            before = "" if whole else path.read_text(encoding="utf-8")
            path.write_text(page(TITLES[path.stem], rows, order, before), encoding="utf-8")
    print(f"mutants: {len(caught)} of {len(rows)} caught")
    return int(len(caught) != len(rows))


def _copy(folder: Path) -> Path:
    """Copy the checkout's files and compile them."""
    names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "droveway" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "droveway" / name)
    compileall.compile_dir(folder, quiet=1)
    return folder


def _union(mutants: list[Mutant]) -> Iterator[tuple[Any, ...]]:
    """Yield all that is run for any of the mutants, as arguments of `_run`."""
    clouds: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        clouds.setdefault(mutant.cloud, {}).update(dict.fromkeys(mutant.points))
    for cloud, points in clouds.items():
        wanted = list(points)
        for first in range(0, len(wanted), CHUNK):
            yield cloud, wanted[first : first + CHUNK], (), ()
    for fault in dict.fromkeys(fault for mutant in mutants for fault in mutant.faults):
        yield "", (), (fault,), ()
    for test in dict.fromkeys(test for mutant in mutants for test in mutant.tests):
        yield "", (), (), (test,)


def _hunt(base: Path, folder: Path, mutant: Mutant) -> Found:
    """Plant one mutant, run what has to find it, and return what was found."""
    shutil.copytree(base, folder)
    mutant.plant(folder / "droveway")
    found = _imported(folder, mutant) or _run(
        folder, mutant.cloud, mutant.points, mutant.faults, mutant.tests, _company(mutant)
    )
    if found.by:
        print(f"{mutant.name}: caught by {found.by}: {found.words}", flush=True)
    else:
        print(f"{mutant.name}: SURVIVED {found.words}", flush=True)
    shutil.rmtree(folder)
    return found


def _imported(folder: Path, mutant: Mutant) -> Found | None:
    """Return None when an interpreter imports the changed modules from the copy; else what went wrong."""
    modules = [f"droveway.{hunk.file.removesuffix('.py').replace('/', '.')}" for hunk in mutant.hunks]
    lines = [f"import {module}; print({module}.__file__)" for module in modules]
    done = _python(folder, ["-c", "\n".join(lines)])
    expected = [str(folder / "droveway" / hunk.file) for hunk in mutant.hunks]
    if done.stdout.split() == expected:
        return None
    return Found("", f"(it cannot be imported: {done.stdout} {done.stderr[-300:]})")


def _company(mutant: Mutant) -> list[str]:
    """Return points of the same flows to be run first, so that a state they passed cannot hide the defect."""
    flows = dict.fromkeys(tuple(point.split(":")[:2]) for point in mutant.points)
    others = ["--effect", "kill", "--phase", "before"]
    return [word for kind, way in flows for word in ("--kind", kind, "--direction", way, *others, "--and")]


def _run(
    folder: Path,
    cloud: str,
    points: Sequence[str],
    faults: Sequence[tuple[str, str]],
    tests: Sequence[str],
    company: Sequence[str] = (),
) -> Found:
    """Run points together with others, two faults, then tests in the copy, and return the first that failed."""
    found = _run_points(folder, cloud, points, company) if points else Found("", "")
    for kind, point in faults:
        found = found if found.by else _run_fault(folder, kind, point)
    return found if found.by or not tests else _run_tests(folder, tests)


def _run_points(folder: Path, cloud: str, points: Sequence[str], company: Sequence[str]) -> Found:
    done = _python(folder, ["-m", "proofs.matrix.command", "--cloud", cloud, *company, *points])
    # A defect may make a place in a flow that there is not without it: never reached, it says nothing.
    bad = [
        each for each in _BAD.findall(done.stdout) if each[0] in points and not each[1].startswith(verdicts.UNREACHED)
    ]
    for point, trouble in bad:
        if not verdicts.BROKEN.search(done.stdout):
            on = "" if cloud == "three-hosts" else f" ({cloud})"
            return Found(f"{point}{on}", verdicts.first_words(trouble))
    undisturbed = re.search(r"^droveway: (.*)", done.stderr, re.MULTILINE)
    if undisturbed and not bad and not verdicts.BROKEN.search(done.stderr):
        # The matrix judges flows in which nothing happens before it disturbs any.
        return Found(f"a run without a fault, before {points[0]}", verdicts.first_words(undisturbed[1]))
    if bad or (done.returncode and verdicts.UNREACHED not in done.stdout):
        return Found("", f"({done.stdout[-1500:]} {done.stderr[-500:]})")
    return Found("", "")


def _run_fault(folder: Path, kind: str, point: str) -> Found:
    done = _python(folder, ["-m", "support.two_faults.command", kind, point])
    for trouble in re.findall(rf"^{kind} {re.escape(point)}  BAD  .*\n  (.*)$", done.stdout, re.MULTILINE):
        if not verdicts.BROKEN.search(done.stdout):
            return Found(f"{kind} {point}", verdicts.first_words(trouble))
    return Found("", f"({done.stdout[-1500:]} {done.stderr[-500:]})" if done.returncode else "")


def _run_tests(folder: Path, tests: Sequence[str]) -> Found:
    report = folder / f"{abs(hash(tuple(tests)))}.xml"
    options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "timeout=300", f"--junitxml={report}"]
    done = _python(folder, ["-m", "pytest", *options, *tests], within="droveway")
    if report.exists() and done.returncode == 1:
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own pytest wrote it
            for failure in case.iter("failure"):
                errors = re.findall(r"^E +(.*)", failure.text or "", re.MULTILINE)
                said = "\n".join(errors) or failure.get("message", "")
                if _PROOF.search(said) and not verdicts.BROKEN.search(said):
                    place = case.get("classname", "").replace(".", "/")
                    return Found(f"{place}.py::{case.get('name')}", verdicts.first_words(said))
    return Found("", f"({done.stdout[-1500:]} {done.stderr[-500:]})" if done.returncode else "")


def _python(folder: Path, arguments: list[str], within: str = ".") -> subprocess.CompletedProcess[str]:
    """Make an interpreter that imports `droveway` from the copy in the folder, and remove it after the block."""
    # A short path: labs have sockets, whose names are short.
    with tempfile.TemporaryDirectory(prefix="dm", dir=scratch.place(), ignore_cleanup_errors=True) as temporary:
        command = [sys.executable, *arguments]
        paths = [str(folder), str(folder / "droveway" / "tests")]
        try:
            return subprocess.run(
                command,
                cwd=folder / within,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": temporary},
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"took longer than {SECONDS} s")
        finally:
            _end_guests(temporary)


def _end_guests(folder: str) -> None:
    """Kill the sandbox guests of a lab that a defect kept from being taken down: their command lines name it."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OutOfDateError as error:
        sys.exit(f"tools/mutate: {error}")
