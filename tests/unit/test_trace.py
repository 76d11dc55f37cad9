"""The trace of requirement rows to tests is as the docstrings have it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "requirements"


@pytest.fixture(name="tool", scope="module")
def fixture_tool() -> Any:
    loader = SourceFileLoader("requirements_tool", str(TOOL))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_the_written_trace_is_what_the_tests_say() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("no test: ")] == []
    parts = "core 38 of 38, daemons 10 of 10, cross-cell 29 of 29, QoS 10 of 10"
    last = f"requirements: 87 of 87 rows have a test ({parts})"
    assert done.stdout.splitlines()[-1] == last


def test_every_row_is_read_once(tool: Any) -> None:
    rows = tool.rows(tool.ROWS.read_text())
    assert len(rows) == 130
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.sentence.endswith(".") for row in rows)
    assert {row.when for row in rows} == {
        *("core", "daemons", "cross-cell", "QoS", "OpenStack", "operators", "beside Nova", "later")
    }


def test_only_docstrings_of_tests_count(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "# R0-01\n"
        "class TestOf:\n"
        "    def test_it(self):\n"
        '        """R0-02, R1-22: it is so."""\n'
        "def helper():\n"
        '    """R0-03"""\n'
        "def test_other():\n"
        '    said = "R0-04"\n'
        "    # RC-01\n"
    )
    (tmp_path / "tests" / "support.py").write_text('"""R0-05"""\n')
    assert list(tool.tests(tmp_path)) == [
        ("R0-02", "tests/test_some.py::TestOf::test_it"),
        ("R1-22", "tests/test_some.py::TestOf::test_it"),
    ]


def test_a_row_without_a_test_is_shown_as_such(tool: Any) -> None:
    rows = [tool.Row("R0-01", "One.", "core"), tool.Row("R0-02", "Two.", "core"), tool.Row("R0-03", "Three.", "later")]
    page = tool.page(rows, {"R0-02": ["a::b", "c::d"]})
    assert "core: 1 of 2\n============\n" in page
    assert "   * - R0-01\n     - none\n   * - R0-02\n     - ``a::b``\n\n       ``c::d``\n" in page
    assert "R0-03" not in page
