"""A whole crash matrix that was cut off goes on where it was, and counts each point once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from proofs.matrix import clouds as matrix_clouds
from proofs.matrix import full as matrix_full
from proofs.matrix.full import Choice

from droveway.errors import DrovewayError

POINT = "resize:execute:copy_disks:kill:after"
PARTS = 2 * len(matrix_clouds.CLOUDS) * 5
"""Of each cloud: single and double faults, and the confirms of three other kinds; by two processes."""


class Parts:
    """Stands in for the processes that run the parts; ends them with ``code`` from the ``broken``-th on."""

    def __init__(self, *, broken: int = 2 * PARTS, code: int = 0) -> None:
        self.begun: list[Path] = []
        self._broken, self._code = broken, code

    def __call__(self, words: list[str], **_options: object) -> Parts:
        report = Path(words[words.index("--report") + 1])
        self.begun.append(report)
        told = [words[words.index("--cloud") + 1], "asked", POINT, True, False, 1]
        report.write_text(json.dumps(told) + "\n" if len(self.begun) <= self._broken else "torn")
        return self

    def wait(self) -> int:
        return self._code if len(self.begun) > self._broken else 0


def test_a_part_that_runs_no_point_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(Parts):
        def __call__(self, words: list[str], **_options: object) -> Parts:
            Path(words[words.index("--report") + 1]).write_text("")
            return self

    monkeypatch.setattr(matrix_full.subprocess, "Popen", Empty(code=1))
    with pytest.raises(DrovewayError, match="ran no point"):
        matrix_full.run(2, Choice(0), tmp_path / "page.rst", tmp_path / "reports")


def test_what_has_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports, page = tmp_path / "reports", tmp_path / "page.rst"
    cut = Parts(broken=7, code=-9)
    monkeypatch.setattr(matrix_full.subprocess, "Popen", cut)
    with pytest.raises(DrovewayError, match="-9"):
        matrix_full.run(2, Choice(0), page, reports)
    assert not page.exists()
    assert len(cut.begun) == 8
    rest = Parts()
    monkeypatch.setattr(matrix_full.subprocess, "Popen", rest)
    assert matrix_full.run(2, Choice(0), page, reports) == 0
    assert {path.name for path in cut.begun[:6]}.isdisjoint({path.name for path in rest.begun})
    assert len(rest.begun) == PARTS - 6
    assert f"crash matrix: {PARTS} points, {PARTS} converged, 0 leaks" in page.read_text()
    other = Parts()
    monkeypatch.setattr(matrix_full.subprocess, "Popen", other)
    for jobs, choice in ((4, Choice(0)), (2, Choice(1)), (2, Choice(0, sample=3)), (2, Choice(0, whole=True))):
        other.begun.clear()
        assert matrix_full.run(jobs, choice, page, reports) == 0
        assert len(other.begun) == PARTS // 2 * jobs
        assert f"crash matrix: {PARTS // 2 * jobs} points," in page.read_text()


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    monkeypatch.setattr(matrix_full.subprocess, "Popen", parts)
    assert matrix_full.run(2, Choice(0), tmp_path / "page.rst") == 0
    assert len(parts.begun) == PARTS
    assert not any(path.exists() or path.parent.exists() for path in parts.begun)
