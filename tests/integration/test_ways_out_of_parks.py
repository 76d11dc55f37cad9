"""Every code with which a move may rest has a way out: `move show` names a command, and that command ends the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import codes
from support.operations import Stage, stage

from droveway.errors import StepError

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, state: stopped}
"""
PLACES = ("flows/", "engines/", "workers/", "clients/", "errors.py")
CODES = sorted(code for code, files in codes.raised().items() if any(file.startswith(PLACES) for file in files))
"""What steps may fail with, found in the code: a new code is among them by being there."""


class World:
    """A lab whose steps fail with the code that is set."""

    def __init__(self, made: Stage) -> None:
        self.lab = made
        self.at: dict[tuple[str, str], str] = {}
        """Step and direction → the code with which it fails."""

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        code = self.at.get((step, direction)) if phase == "before" else None
        if code is not None:
            raise StepError(f"{step} was planted to fail", code=code)


@pytest.fixture(scope="module", name="world")
def fixture_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("parks")
    with stage(folder / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nretry_for = 0\n")
        world = World(made)
        with made.running(world):
            yield world


def test_the_codes_are_found() -> None:
    assert {"start-unknown", "last-copy", "host-unreachable", "not-this-moves", "internal"} <= set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_move_that_rests_names_the_command_that_ends_the_rest(world: World, code: str) -> None:
    """Past the point of no return, and for some in an undo, which rests by the same words."""
    lab = world.lab
    undo = ({("define_guest", "execute"): "planted", ("set_aside", "revert"): code}, "set_aside", 3, "failed")
    rests = [({("finish_records", "execute"): code}, "finish_records", 0, "verifying")]
    if code in CODES[::8]:
        rests.insert(0, undo)
    for planted, step, ends, state in rests:
        world.at = planted
        lab.cli("server", "migrate", "web", "--host", "host2", "--wait", code=4)
        world.at = {}
        move = lab.move("web").id[:8]
        shown = lab.json("move", "show", move)
        assert (shown["state"], shown["error_code"], shown["step"]) == ("needs-operator", code, step)
        assert f"droveway move settle {move} {step} --as left --reason TEXT" in shown["next"]
        named = re.search(r"then: droveway (move \w+ \w+)", shown["next"])
        assert named is not None, shown["next"]
        lab.cli(*named[1].split(), code=ends)
        assert lab.json("move", "show", move)["state"] == state
    lab.bring_back()
