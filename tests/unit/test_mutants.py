"""The seeded defects of `tools/mutate` are kept up: each can still be planted, and what is to find it is there."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from droveway.flows import registry
from droveway.lab import crash_points, matrix_clouds

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
    for edit in mutant.edits:
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / edit.file).write_bytes((ROOT / edit.file).read_bytes())
    mutant.plant(tmp_path)
    for edit in mutant.edits:
        assert ast.dump(ast.parse((tmp_path / edit.file).read_text())) != ast.dump(
            ast.parse((ROOT / edit.file).read_text())
        )


@pytest.mark.parametrize("name", MUTANTS)
def test_what_has_to_find_a_defect_is_there(name: str) -> None:
    mutant = MUTANTS[name]
    assert mutant.points or mutant.tests
    assert mutant.cloud in matrix_clouds.CLOUDS
    for text in mutant.points:
        point = crash_points.parse(text)
        names = registry.latest(point.kind).names()
        assert all(spot.step in (*names, crash_points.END_OF_FLOW) for spot in point.spots), text
    for test in mutant.tests:
        path, *function = test.partition("[")[0].split("::")
        source = (ROOT / path).read_text()
        assert all(f"def {each}(" in source for each in function), test


def test_there_are_enough_of_every_layer() -> None:
    assert len(MUTANTS) >= 20
    assert {edit.file.partition("/")[0] for mutant in MUTANTS.values() for edit in mutant.edits} >= LAYERS


def test_the_page_names_each() -> None:
    page = (ROOT / "docs" / "mutants.rst").read_text()
    rows = [line.partition(" In ``")[0] for line in page.splitlines() if line.startswith("   * - **")]
    assert rows == [f"   * - **{mutant.name}**: {mutant.what}." for mutant in MUTANTS.values()]


def test_an_old_text_that_is_not_there_or_twice_is_out_of_date() -> None:
    text = "def f():\n    a()\n    b()\n\n    a()\n"
    edit = TOOL.Edit("x.py", "a()\nb()\n", "b()\n")
    assert edit.apply(text) == "def f():\n    b()\n\n    a()\n"
    for old in ("a()\n", "c()\n"):
        with pytest.raises(TOOL.OutOfDateError):
            TOOL.Edit("x.py", old, "c()\n").apply(text)
