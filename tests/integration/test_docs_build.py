"""The documents build without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_documents_build(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path / "html")
    assert (done.returncode, done.stderr) == (0, "")
    for page in ("index", "tutorial", "guarantees", "trace", "reference/errors", "reference/graphs/resize"):
        assert (tmp_path / "html" / f"{page}.html").stat().st_size > 1000


def test_a_reference_to_nothing_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text("root_doc = 'index'\nnitpicky = True\n")
    (source / "index.rst").write_text("Title\n=====\n\n:doc:`nowhere`\n")
    done = build(source, tmp_path / "html")
    assert done.returncode != 0
    assert "nowhere" in done.stderr
