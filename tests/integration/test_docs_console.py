"""The commands that the documents show, run as they stand there, and what they print."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs.demo.command import WARM
from support import console
from support.daemons import warm_commands

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "tutorial.rst", *sorted(path for path in (DOCS / "howto").glob("*.rst") if path.stem != "index")]
SECONDS = 400.0


@pytest.fixture(name="path", scope="module")
def fixture_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the shell finds ``droveway``; `test_packaging` runs the command that is installed."""
    with warm_commands.on_path(tmp_path_factory.mktemp("bin"), WARM) as path:
        yield path


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Path]:
    """A directory for the page's lab; what a page that fails leaves is removed."""
    yield tmp_path / "lab"
    if (tmp_path / "lab").exists():
        subprocess.run(["droveway", "lab", "destroy", str(tmp_path / "lab")], check=False)


@pytest.mark.timeout(int(SECONDS) + 30)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_happens(page: Path, lab: Path, path: str) -> None:
    """Each output is as shown; a command ends with 0 unless the next one asks for its exit code."""
    wanted = console.commands(page.read_text(encoding="utf-8"))
    ran = console.run(wanted, lab, seconds=SECONDS, path=path)
    assert len(ran) == len(wanted)
    for number, (command, done) in enumerate(zip(wanted, ran, strict=True)):
        where = f"{page.name}:{command.line}: $ {command.text}\n"
        assert console.agrees(command.shown, done.output), f"{where}{done.output}\ninstead of\n{command.shown}"
        asked = wanted[number + 1 :][:1]
        assert done.code == 0 or (asked and asked[0].text == "echo $?"), f"{where}ended with {done.code}"
    assert not lab.exists()


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = "Text\n\n.. code-block:: console\n\n   $ echo one  two\n   one two\n   $ false\n   $ echo $?\n   1\n\nText\n"
    wanted = console.commands(page)
    assert [(command.line, command.text) for command in wanted] == [(5, "echo one  two"), (7, "false"), (8, "echo $?")]
    ran = console.run(wanted, tmp_path, seconds=90)
    assert [console.agrees(command.shown, done.output) for command, done in zip(wanted, ran, strict=True)] == [True] * 3
    assert [done.code for done in ran] == [0, 1, 0]
    assert not console.agrees("one three\n", ran[0].output)
    assert console.agrees("one ...\n", ran[0].output)
