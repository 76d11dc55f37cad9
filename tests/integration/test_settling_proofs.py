"""A person's word that a copy or a guest is gone is believed where the hosts show it; and a move may be left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, changes, photograph, stage

from droveway.persistence.nova.cell import Instance, Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  mail: {flavor: small, host: host1, image: base, ports: [{}]}
"""
BETWEEN = CLOUD.replace(
    "{cell1: {hosts: {host1: {}, host2: {}}}}", "{cell1: {hosts: {host1: {}}}, cell2: {hosts: {host2: {}}}}"
)
BETWEEN = f"options: {{cross_cell: true}}{BETWEEN}"
WHY = ("--reason", "it was looked at")


@pytest.fixture(name="cloud")
def fixture_cloud() -> str:
    return CLOUD


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path, cloud: str) -> Iterator[Stage]:
    with stage(tmp_path / "lab", cloud) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        yield made


def park(lab: Stage, step: str, *words: str, direction: str = "execute") -> str:
    """The move of web, which rests at the step of the flow that the command asks for."""
    lab.arm(step, "fail", direction=direction, count=1)
    lab.cli(*words, code=4)
    move = lab.move("web")
    assert (move.state, move.step) == ("needs-operator", step)
    return move.id[:8]


def parked_confirm(lab: Stage) -> str:
    """After it was asked for at least once, so that nobody takes it for a proof that it never began."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    lab.arm("discard_source", "fail", phase="after", count=1)
    lab.cli("server", "confirm", "web", code=4)
    return lab.move("web").id[:8]


def refuse(lab: Stage, move: str, step: str, why: str) -> None:
    """The word is refused with one sentence that names the command, and books and disks are as they were."""

    def seen() -> dict[str, object]:
        return {name: what for name, what in photograph(lab.root).items() if not _is_of_workers(name)}

    before = seen()
    said = lab.refused("move", "settle", move, step, "--as", "done", *WHY)
    assert why in said
    assert f"droveway move retry {move}" in said
    assert changes(before, seen()) == []


def _is_of_workers(name: str) -> bool:
    """What hosts note of a question, and what a lab notes of them."""
    return any(part in name for part in ("worker", "marks", ".log", "lock", "probe", ".sock"))


def restore_source(lab: Stage) -> None:
    """As if what the confirm deletes had come back."""
    aside = lab.directory("host1", "web", "_resize")
    shutil.copytree(lab.directory("host2", "web"), aside)


def test_what_is_still_set_aside_is_not_gone(lab: Stage) -> None:
    move = parked_confirm(lab)
    restore_source(lab)
    refuse(lab, move, "discard_source", "host1 still holds what was set aside")
    shutil.rmtree(lab.directory("host1", "web", "_resize"))
    lab.cli("move", "settle", move, "discard_source", "--as", "done", *WHY)
    assert lab.json("move", "show", move)["state"] == "done"
    lab.assert_balanced()


def test_a_source_does_not_count_as_gone_beside_a_copy_that_is_not_whole(lab: Stage) -> None:
    move = parked_confirm(lab)
    with (lab.directory("host2", "web") / "disk").open("r+b") as disk:
        disk.truncate(0)
    refuse(lab, move, "discard_source", "host2 does not show its copy whole")


def test_a_host_that_is_away_shows_nothing_unless_a_person_declared_it_down(lab: Stage) -> None:
    move = parked_confirm(lab)
    lab.cli("lab", "worker", "stop", "host1")
    refuse(lab, move, "discard_source", "droveway host down host1 --i-made-sure TEXT")
    lab.cli("host", "down", "host1", "--i-made-sure", "it burnt")
    lab.cli("move", "settle", move, "discard_source", "--as", "done", *WHY)
    assert lab.json("move", "show", move)["state"] == "done"


def test_a_destination_that_is_declared_down_shows_no_copy(lab: Stage) -> None:
    move = parked_confirm(lab)
    lab.cli("lab", "worker", "stop", "host2")
    lab.cli("host", "down", "host2", "--i-made-sure", "it burnt")
    refuse(lab, move, "discard_source", "host2 is declared down and cannot show its copy")


def test_a_destination_does_not_count_as_gone_before_the_source_shows_its_disks(lab: Stage) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = park(lab, "discard_destination", "server", "revert", "web")
    disk = lab.directory("host1", "web") / "disk"
    hidden = disk.rename(lab.root / "hidden")
    refuse(lab, move, "discard_destination", "host1 does not show the server's disks whole")
    hidden.rename(disk)
    refuse(lab, move, "discard_destination", "host2 holds disks of the server")
    lab.cli("move", "retry", move)
    lab.assert_balanced()


def test_a_guest_that_runs_does_not_count_as_gone(lab: Stage) -> None:
    lab.cli("lab", "server", "delete", "mail")
    lab.arm("define_guest", "fail", count=1)
    lab.arm("copy_disks", "fail", direction="revert", count=1)
    lab.cli("server", "migrate", "web", "--host", "host2", code=4)
    move = lab.move("web").id[:8]
    aside = lab.directory("host1", "web", "_resize")
    hidden = aside.rename(lab.root / "hidden")
    refuse(lab, move, "copy_disks", "host1 does not show its copy whole")
    hidden.rename(aside)
    lab.cli("move", "retry", move, code=3)
    lab.assert_balanced()


ENDS = {
    "discard_source": ("confirm", "host1 still holds what was set aside"),
    "remove_source_records": ("confirm", "cell cell1 has rows of the server"),
    "discard_destination": ("revert", "host2 holds disks of the server"),
    "remove_target_records": ("revert", "cell cell2 has rows of the server"),
}


@pytest.mark.parametrize("cloud", [BETWEEN])
@pytest.mark.parametrize("step", ENDS)
def test_hosts_and_cells_of_a_move_between_cells_are_asked_too(lab: Stage, step: str) -> None:
    end, why = ENDS[step]
    lab.cli("server", "migrate", "web", "--to-cell", "cell2")
    move = park(lab, step, "server", end, "web")
    refuse(lab, move, step, why)
    lab.cli("move", "retry", move)
    lab.assert_balanced()


@pytest.mark.parametrize(
    ("step", "direction", "host"), [("finish_records", "execute", "host2"), ("set_aside", "revert", "host1")]
)
def test_a_move_that_is_left_ends_and_touches_nothing(lab: Stage, step: str, direction: str, host: str) -> None:
    if direction == "revert":
        lab.arm("define_guest", "fail", count=1)
    move = park(lab, step, "server", "migrate", "web", "--host", "host2", direction=direction)
    standing, starts = lab.standing("web"), lab.starts("web")
    lab.cli("move", "settle", move, step, "--as", "left", *WHY)
    shown = lab.json("move", "show", move)
    assert (shown["state"], shown["error_code"]) == ("cancelled", "left-as-is")
    assert "it was looked at" in shown["error"]
    after = lab.standing("web")
    assert (after.runs, after.directories, after.bindings, after.attachments) == (
        standing.runs,
        standing.directories,
        standing.bindings,
        standing.attachments,
    )
    assert (lab.starts("web"), after.host, after.status) == (starts, host, "ERROR")
    assert (list(after.held), lab.held(lab.move("web").id)) == ([host], {})
    with lab.lab.cell_databases["cell1"].read() as session:
        assert session.scalar(sa.select(Migration.status).where(Migration.uuid == lab.move("web").id)) == "error"
        assert session.scalar(sa.select(Instance.task_state).where(Instance.uuid == lab.id_of("web"))) is None


def test_a_move_that_waits_can_be_left_too(lab: Stage) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    move = lab.move("web").id[:8]
    assert "needs a reason" in lab.refused("move", "settle", move, "finish_records", "--as", "left", "--reason", " ")
    assert "only a move that is needs-operator" in lab.refused(
        "move", "settle", move, "copy_disks", "--as", "left", *WHY
    )
    lab.cli("move", "settle", move, "finish_records", "--as", "left", *WHY)
    assert lab.json("move", "show", move)["state"] == "cancelled"
    assert lab.standing("web").runs == ["host2"]
