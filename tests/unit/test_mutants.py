"""The seeded defects of `tools/mutate` are kept up: each can still be planted, and what is to find it is there."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
from proofs.crash import points as crash_points
from proofs.matrix import clouds as matrix_clouds
from support.two_faults import command

from droveway.flows import registry

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"flows", "engines", "persistence", "workers", "clients", "audit", "scheduler"}


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "tools" / "mutation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(importlib.import_module("sys").modules, "mutation", module)
        spec.loader.exec_module(module)
    return module


TOOL = _tool()
MUTANTS = {mutant.name: mutant for mutant in TOOL.load()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_can_be_planted_and_leaves_valid_code(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    for hunk in mutant.hunks:
        (tmp_path / hunk.file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / hunk.file).write_bytes((ROOT / hunk.file).read_bytes())
    mutant.plant(tmp_path)
    for hunk in mutant.hunks:
        assert ast.dump(ast.parse((tmp_path / hunk.file).read_text())) != ast.dump(
            ast.parse((ROOT / hunk.file).read_text())
        )


@pytest.mark.parametrize("name", MUTANTS)
def test_what_has_to_find_a_defect_is_there(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.points or mutant.faults or mutant.tests
    assert {kind for kind, _ in mutant.faults} <= {*command.KINDS}
    assert mutant.cloud in (*matrix_clouds.CLOUDS, *matrix_clouds.GUARANTEED)
    for text in mutant.points:
        point = crash_points.parse(text)
        names = registry.latest(point.kind).names()
        assert all(spot.step in (*names, crash_points.END_OF_FLOW) for spot in point.spots), text
    for test in mutant.tests:
        path, *function = test.partition("[")[0].split("::")
        source = (ROOT / path).read_text()
        assert all(f"def {each}(" in source for each in function), test


def _missing(named: Iterable[str]) -> set[str]:
    """Return the cases among these tests that pytest does not collect."""
    cases = {test for test in named if "[" in test}
    files = sorted({test.partition("::")[0] for test in cases})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "--every-case", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return cases - {*done.stdout.splitlines()}


def test_each_case_that_has_to_find_a_defect_is_there() -> None:
    """A case whose parameters were renamed would let its defect live on without a word."""
    named = {test for mutant in MUTANTS.values() for test in mutant.tests}
    renamed = "tests/unit/test_mutants.py::test_what_has_to_find_a_defect_is_there[no such defect]"
    assert _missing({*named, renamed}) == {renamed}


def test_there_are_enough_of_every_layer() -> None:
    assert len(MUTANTS) >= 20
    assert {hunk.file.partition("/")[0] for mutant in MUTANTS.values() for hunk in mutant.hunks} >= LAYERS


def test_the_page_names_each() -> None:
    named = 0
    for page, mutants in TOOL.pages().items():
        lines = page.read_text().splitlines()
        rows = [line.partition(" In ``")[0] for line in lines if line.startswith("   * - **")]
        assert rows == [f"   * - **{mutant.name}**: {mutant.what}." for mutant in mutants]
        named += len(rows)
    assert named == len(MUTANTS)


TEXT = """\
class C:
    def f(self):
        a()

    @property
    def g(self):
        a()
        b()

        a()
"""


def _planted(patch: str) -> str:
    (hunk,) = TOOL.hunks(patch)
    return hunk.apply(TEXT)


def test_a_hunk_changes_the_lines_of_its_function_alone() -> None:
    assert _planted("@@ x.py C.f\n-a()\n+if True:\n+    c()\n") == TEXT.replace(
        "    a()\n\n    @", "    if True:\n            c()\n\n    @"
    )
    assert _planted("@@ x.py C.g\n-a()\n b()\n") == TEXT.replace("        a()\n        b()\n", "        b()\n")
    assert _planted("@@ x.py C.g\n b()\n\n-a()\n+c()\n") == TEXT.replace("b()\n\n        a()", "b()\n\n        c()")
    assert _planted("@@ x.py\n-@property\n") == TEXT.replace("    @property\n", "")


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("@@ x.py C.g\n-a()\n", "x.py C.g has the lines that the patch changes 2 times"),
        ("@@ x.py C.f\n-b()\n", "x.py C.f has the lines that the patch changes 0 times"),
        ("@@ x.py\n-c()\n", "x.py has the lines that the patch changes 0 times"),
        ("@@ x.py f\n-a()\n", "x.py has the function f 0 times"),
    ],
)
def test_a_patch_that_fits_nowhere_or_twice_is_out_of_date(patch: str, said: str) -> None:
    with pytest.raises(TOOL.OutOfDateError, match=f"^{said}$"):
        _planted(patch)
