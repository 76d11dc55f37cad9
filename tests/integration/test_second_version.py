"""A second version of a graph beside the first: flows of the first go on to every end, and a pin chooses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import second_version
from support.labs.operations import Stage, stage
from support.second_version import ACTION, BEFORE, LATER

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.lab import faults
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.tables import MoveFlow

FIRST = {kind: registry.latest(kind).version for kind in ("resize", "revert")}
NEXT = {kind: number + 1 for kind, number in FIRST.items()}
CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}, large: {vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        configure(made, "[conductor]\nretry_for = 0.2")
        yield made


def configure(lab: Stage, text: str) -> None:
    with lab.lab.layout.configuration.open("a") as file:
        file.write(f"{text}\n")


def hold_at(lab: Stage, move: str, step: str) -> None:
    """Let the move's flow run until it has done this step, and leave it there, held."""

    def hold(_move: str, at: str, direction: str, phase: str) -> None:
        if (at, direction, phase) == (step, "execute", "before"):
            with lab.lab.journal.write() as session:
                requests.pause(session, moves.get(session, move, lock=True))

    with lab.running(hold):
        assert move_requests.carry(lab.lab, move).hold


def begun(lab: Stage, step: str) -> str:
    """Begin a resize while there is one version of it, and leave it behind this step; the move."""
    move = submit(lab.lab, MoveSpec(server="web", flavor="large")).id
    hold_at(lab, move, step)
    assert version(lab, move, "resize") == FIRST["resize"]
    return move


def version(lab: Stage, move: str, kind: str) -> int:
    """The version of the move's last flow of this kind."""
    query = sa.select(MoveFlow.version).where(MoveFlow.move_id == move, MoveFlow.kind == kind)
    with lab.lab.journal.read() as session:
        return session.scalars(query.order_by(MoveFlow.created_at.desc())).first() or 0


def steps(lab: Stage, move: str) -> list[str]:
    return [row.step for row in lab.history(move)]


@pytest.mark.parametrize("step", ["record_before", "find_storage", "copy_disks", "start_guest"])
def test_a_flow_of_the_first_version_goes_on_as_it_began(lab: Stage, step: str) -> None:
    move = begun(lab, step)
    with second_version.planted("resize", "revert"):
        assert ACTION not in lab.cli("move", "show", move)
        lab.cli("move", "resume", move)
        assert (lab.move("web").state, version(lab, move, "resize")) == ("verifying", FIRST["resize"])
        assert ACTION not in steps(lab, move)
        lab.assert_balanced()
        lab.cli("server", "revert", "web")
        assert (lab.move("web").state, version(lab, move, "revert")) == ("reverted", NEXT["revert"])
        lab.cli("server", "resize", "web", "--flavor", "large")
        second = lab.move("web").id
        assert (lab.move("web").state, version(lab, second, "resize")) == ("verifying", NEXT["resize"])
        assert ACTION in steps(lab, second)
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["accept", "find_storage", "copy_disks", "define_guest"])
def test_a_flow_of_the_first_version_is_cancelled(lab: Stage, step: str) -> None:
    before = lab.standing("web")
    move = begun(lab, step)
    with second_version.planted("resize", "revert"):
        move_requests.file_request(lab.lab, move, move_requests.cancel)
        move_requests.file_request(lab.lab, move, requests.resume)
        with lab.running():
            move_requests.carry(lab.lab, move)
    assert (lab.move("web").state, lab.standing("web")) == ("cancelled", before)
    assert ACTION not in steps(lab, move)
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["mark_reverting", "restore_disks", "start_guest"])
def test_a_revert_of_the_first_version_goes_on_as_it_began(lab: Stage, step: str) -> None:
    before = lab.standing("web")
    lab.cli("server", "resize", "web", "--flavor", "large")
    move = lab.move("web").id
    move_requests.file_request(lab.lab, move, move_requests.revert)
    hold_at(lab, move, step)
    with second_version.planted("resize", "revert"):
        lab.cli("move", "resume", move)
    assert (lab.move("web").state, version(lab, move, "revert")) == ("reverted", FIRST["revert"])
    assert lab.standing("web") == before
    assert ACTION not in steps(lab, move)
    lab.assert_balanced()


def test_a_flow_of_the_first_version_is_settled(lab: Stage) -> None:
    lab.arm("finish_records", "fail", phase="after", count=1000)
    lab.cli("server", "resize", "web", "--flavor", "large", code=4)
    move = lab.move("web").id
    faults.clear(lab.lab.layout, None)
    with second_version.planted("resize"):
        lab.cli("move", "settle", move, "finish_records", "--as", "done", "--reason", "the rows say so")
        assert (lab.move("web").state, version(lab, move, "resize")) == ("verifying", FIRST["resize"])
        lab.cli("server", "confirm", "web")
    assert lab.move("web").state == "done"
    lab.assert_balanced()


def test_a_flow_whose_version_is_gone_is_left_alone(lab: Stage) -> None:
    """A release that lacks it can neither run nor cancel it: `upgrade check` says so before it is installed."""
    move = begun(lab, "copy_disks")
    with second_version.planted("resize"):
        second_version.forget_older("resize")
        assert f"this release does not know flow resize@{FIRST['resize']}" in lab.refused("move", "cancel", move)
    lab.cli("move", "resume", move)
    assert lab.move("web").state == "verifying"


def test_a_pinned_level_chooses_the_first_version(lab: Stage) -> None:
    """Workers of that level do all that it asks; the plan shows its steps."""
    configure(lab, f"[upgrade_levels]\nworker = {BEFORE}")
    with second_version.planted("resize", "revert", workers=False):
        plan = lab.json("move", "plan", "web", "--flavor", "large")
        assert ACTION not in [each["step"] for each in plan["steps"]]
        lab.cli("server", "resize", "web", "--flavor", "large")
        move = lab.move("web").id
        assert (lab.move("web").state, version(lab, move, "resize")) == ("verifying", FIRST["resize"])
        lab.cli("server", "revert", "web")
        assert (lab.move("web").state, version(lab, move, "revert")) == ("reverted", FIRST["revert"])
        lab.cli("server", "migrate", "web", "--confirm", "auto")
        second_version.forget_older("resize")
        assert f"{ACTION} came with protocol level {LATER}" in lab.refused(
            "server", "resize", "web", "--flavor", "large"
        )
    lab.assert_balanced()


def test_without_a_pin_the_second_version_is_chosen(lab: Stage) -> None:
    with second_version.planted("resize", "revert"):
        plan = lab.json("move", "plan", "web", "--flavor", "large")
        assert ACTION in [each["step"] for each in plan["steps"]]
        lab.cli("server", "resize", "web", "--flavor", "large", "--confirm", "auto")
        assert version(lab, lab.move("web").id, "resize") == NEXT["resize"]
    lab.assert_balanced()
