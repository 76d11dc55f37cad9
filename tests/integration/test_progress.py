"""What takes longer than a second shows on a terminal how far it is, and nothing to a pipe or a program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.terminal import on_terminal

CLOUD: Final = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base}
  idle: {flavor: small, host: host1, image: base, state: stopped}
"""
CONFIGURATION: Final = """
[zookeeper]
hosts = 127.0.0.1:1
session_timeout = 1
[journal]
connection = sqlite:///{folder}/journal.sqlite
[api_database]
connection = sqlite:///{folder}/api.sqlite
"""
LOOKING: Final = "comparing databases, services and hosts"


def left_behind(folder: Path) -> Path:
    """Build a lab, with what its terminal said in a file beside it, and leave a move in it by a SIGKILL."""
    (folder / "cloud.yaml").write_text(CLOUD)
    lab = folder / "lab"
    built = on_terminal("lab", "create", str(lab), "--cloud", str(folder / "cloud.yaml"))
    assert built.code == 0
    (folder / "built").write_text(built.said)
    fault = ("--step", "copy_disks", "--phase", "before", "--action", "kill")
    assert on_terminal("--lab", str(lab), "lab", "fault", "arm", *fault).code == 0
    assert on_terminal("--lab", str(lab), "server", "migrate", "idle").code == -signal.SIGKILL
    return lab


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab with a move that nobody carries on."""
    lab = left_behind(tmp_path_factory.mktemp("progress"))
    yield lab
    assert on_terminal("lab", "destroy", str(lab)).code == 0


def test_a_lab_that_is_built_tells_how_many_servers_are(lab: Path) -> None:
    said = (lab.parent / "built").read_text()
    assert "building servers" in said
    assert "of 2" in said
    assert "\x1b[?25h" in said, "the cursor is shown again"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("audit",), LOOKING),
        (("audit", "--heal", "--yes"), LOOKING),
        (("db", "check"), "reading the journal"),
        (("db", "purge", "--older-than", "1d"), "removing moves"),
        (("db", "sync"), "migrating the journal"),
    ],
)
def test_a_terminal_is_told(lab: Path, words: tuple[str, ...], what: str) -> None:
    assert what in on_terminal("--lab", str(lab), *words).said


def test_a_move_that_is_waited_for_is_named_with_its_step(lab: Path) -> None:
    listed = on_terminal("--lab", str(lab), "move", "list", "-f", "json")
    move = listed.said.split('"id": "')[1][:8]
    shown = on_terminal("--lab", str(lab), "move", "wait", move, "--timeout", "2")
    assert shown.code == 124
    assert "waiting for moves" in shown.said
    assert "0 of 1" in shown.said
    assert f"{move} copy_disks" in shown.said


@pytest.mark.parametrize("words", [("audit",), ("db", "check")])
def test_a_program_is_not_told(lab: Path, words: tuple[str, ...]) -> None:
    assert "\x1b" not in on_terminal("--lab", str(lab), *words, "-f", "json").said


def test_a_pipe_is_not_told(lab: Path, tmp_path: Path) -> None:
    shown = on_terminal("--lab", str(lab), "audit", piped=tmp_path / "piped")
    assert "\x1b" not in shown.said
    assert "the books balance" in shown.said
    assert (tmp_path / "piped").read_text() == ""


@pytest.mark.parametrize(("words", "count"), [(("doctor",), "of 8"), (("upgrade", "check"), "of 3")])
def test_a_look_at_an_installation_tells_how_many_checks_are_done(
    words: tuple[str, ...], count: str, tmp_path: Path
) -> None:
    (tmp_path / "droveway.conf").write_text(CONFIGURATION.format(folder=tmp_path))
    shown = on_terminal(*words, "--config-file", str(tmp_path / "droveway.conf"))
    assert shown.code == 2
    assert "looking" in shown.said
    assert count in shown.said


def test_moves_that_are_carried_on_are_named_and_guests_stopped(tmp_path: Path) -> None:
    lab = left_behind(tmp_path)
    shown = on_terminal("--lab", str(lab), "move", "resume")
    assert shown.code == 0
    assert "carrying moves on" in shown.said
    assert "verifying" in shown.said
    ended = on_terminal("lab", "destroy", str(lab))
    assert ended.code == 0
    assert "stopping guests" in ended.said
