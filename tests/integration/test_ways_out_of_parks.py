"""Every code with which a move may rest has a way out: `move show` names a command, and that command ends the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import codes
from support.labs.operations import Stage, stage
from support.labs.park_causes import CAUSES, FORWARD, REVERT, UNDO, Broken
from support.labs.small_lab import is_idle, until
from support.two_faults.ways_out import commands

from droveway.errors import StepError

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, state: stopped, ports: [{}], volumes: [{size_gb: 1}]}
  live: {flavor: small, host: host1, image: base}
"""
PLACES = ("flows/", "engines/", "workers/", "clients/", "errors.py")
CODES = sorted(code for code, files in codes.raised().items() if any(file.startswith(PLACES) for file in files))
"""What steps may fail with, found in the code: a new code is among them by being there."""


UNPLANTED: dict[str, str] = {
    "it ends a move, a claim or a command, and no step rests with it": "cancelled coordination-lost deleted evacuated "
    "fenced illegal-transition left-as-is next-graph parked refused settled",
    "a lab comes to it before the point of no return alone, where the move is undone and ends": "address "
    "allocation-conflict backing-file binding-missing binding-refused cell-owes certificate changed checksum "
    "connect-refused "
    "declared-down definition destination-fault disk-format disks-unreachable group-policy missing no-allocation "
    "no-capacity image-gone no-compute-node no-image-service not-begun not-offered overtaken permission-void protocol "
    "second-copy source-changed source-unreachable start-failed volume-connected-elsewhere volume-unconnected",
    "only a defect makes it, a stranger, or a failure that has no code of its own": "bad-answer flow-stopped internal "
    "step-failed",
    "it wants libvirt, or a service that no step asks": "hypervisor-away image-failed image-overdue image-unavailable",
    "it is its sibling's rest after minutes of silence": "deadline network-overdue overdue placement-overdue "
    "volume-overdue",
    "tests of their own plant it: conductors that die, older copies, a power cut, a full disk, an evacuation, "
    "a dying guest, a cell that is away": "attachment-gone being-evacuated cell-away cell-put-back disk-full "
    "quarantined record-lost restored start-unknown went-off",
}
"""Why the cause of a code is not planted here, and the codes; the walk below plants their errors."""


class World:
    """A lab whose steps fail with the code that is set, and before which the world breaks that is to break."""

    def __init__(self, made: Stage) -> None:
        self.lab = made
        self.at: dict[tuple[str, str], str] = {}
        """Step and direction → the code with which it fails."""
        self.breaks: dict[tuple[str, str], Callable[[Broken], object]] = {}
        """Step and direction → what is done before it, once."""
        self.broken: Broken

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        if phase != "before":
            return
        if breaks := self.breaks.pop((step, direction), None):
            breaks(self.broken)
        if code := self.at.get((step, direction)):
            raise StepError(f"{step} was planted to fail", code=code)


@pytest.fixture(scope="module", name="world")
def fixture_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("parks")
    with stage(folder / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nretry_for = 0\nhost_away = 0.3\n")
        world = World(made)
        with made.running(world) as workers:
            world.broken = Broken(made, workers)
            yield world


def test_the_codes_are_found() -> None:
    assert {"start-unknown", "last-copy", "host-unreachable", "not-this-moves", "internal"} <= set(CODES)


ENDED_BY = {UNDO: (3, "failed"), FORWARD: (0, "verifying"), REVERT: (0, "reverted")}
UNDONE_AT = "switch_records"
"""The step with whose failure an undo begins that comes by each step of `CAUSES`."""
CODE_TOLD = re.compile(r"droveway explain ([\w-]+) says how")


@pytest.mark.parametrize("code", CAUSES)
def test_what_really_brings_a_move_to_rest_is_mended_and_the_named_command_ends_it(world: World, code: str) -> None:
    """Before it is mended the same command comes to the same rest; afterwards it ends it, and nothing is left over."""
    lab, cause = world.lab, CAUSES[code]
    direction = "revert" if cause.way == UNDO else "execute"
    words = ["server", "migrate", cause.server, "--host", "host2", "--wait"]
    if cause.way == UNDO:
        world.at = {(UNDONE_AT, "execute"): "planted"}
    if cause.way == REVERT:
        lab.cli(*words)
        words = ["server", "revert", cause.server]
    world.breaks = {(cause.at, direction): cause.breaks}
    try:
        lab.cli(*words, code=4)
        assert world.breaks == {}
        # Its server's row may be what is wrong.
        move = lab.json("move", "list")[0]["id"]
        shown = lab.json("move", "show", move)
        assert (shown["state"], shown["error_code"], shown["step"]) == ("needs-operator", code, cause.at), shown[
            "error"
        ]
        assert CODE_TOLD.search(shown["next"])[1] == code
        (way,) = [each for each in commands(shown["next"]) if not each.wants]
        (left,) = [each for each in commands(shown["next"]) if each.wants]
        assert left.is_told()
        lab.cli(*way.words, code=4)
        assert lab.json("move", "show", move)["error_code"] == code
    finally:
        world.broken.mend()
        world.at, world.breaks = {}, {}
    ends, state = ENDED_BY[cause.way]
    lab.cli(*way.words, code=ends)
    assert lab.json("move", "show", move)["state"] == state
    if state == "verifying":
        lab.cli("server", "revert", cause.server)
    until(lambda: is_idle(lab.lab), "that nobody clears up after it any more")
    lab.assert_balanced()


def test_each_code_has_its_cause_or_a_reason_why_not() -> None:
    unplanted = [code for named in UNPLANTED.values() for code in named.split()]
    assert sorted([*CAUSES, *unplanted]) == CODES


@pytest.mark.parametrize("codes", [CODES[number::8] for number in range(8)], ids=lambda codes: codes[0])
def test_a_move_that_rests_names_the_command_that_ends_the_rest(world: World, codes: list[str]) -> None:
    """Past the point of no return one move rests with each of the codes in turn: each time it goes on to the next."""
    plans = [{("finish_records", "execute"): code} for code in codes]
    rest_and_go_on(world, codes, plans, step="finish_records", ends=(0, "verifying"))


def test_an_undo_that_rests_names_the_command_that_ends_the_rest(world: World) -> None:
    """Let an undo rest with some of the codes: it rests by the same words as a move that goes on."""
    codes = CODES[::8]
    plans = [{("define_guest", "execute"): "planted", ("set_aside", "revert"): code} for code in codes]
    rest_and_go_on(world, codes, plans, step="set_aside", ends=(3, "failed"))


def rest_and_go_on(
    world: World, codes: list[str], plans: list[dict[tuple[str, str], str]], *, step: str, ends: tuple[int, str]
) -> None:
    """Let a move rest at the step as each plan has it, and end each rest by the command that it names."""
    lab = world.lab
    command = ["server", "migrate", "web", "--host", "host2", "--wait"]
    for code, world.at in zip(codes, plans, strict=True):
        lab.cli(*command, code=4)
        move = lab.move("web").id[:8]
        shown = lab.json("move", "show", move)
        assert (shown["state"], shown["error_code"], shown["step"]) == ("needs-operator", code, step)
        assert f"droveway move settle {move} {step} --as left --reason TEXT" in shown["next"]
        (way,) = [each for each in commands(shown["next"]) if not each.wants]
        command = way.words
    world.at = {}
    status, state = ends
    lab.cli(*command, code=status)
    assert lab.json("move", "show", move)["state"] == state
    lab.bring_back()
