"""A failure is filed under the host where it happened, in the event of that part of the move (D6)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, stage

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, state: stopped}}
"""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("filed") / "lab", CLOUD) as made:
        yield made


def events(lab: Stage) -> list[tuple[str, str, str]]:
    """Of the last action: event, host, result."""
    with sqlite3.connect(lab.lab.layout.cell("cell1")) as cell:
        return cell.execute(
            "SELECT event, host, result FROM instance_actions_events WHERE action_id ="
            " (SELECT max(id) FROM instance_actions) AND event LIKE 'compute%' ORDER BY id"
        ).fetchall()


PREPARED = ("compute_prep_resize", "host2", "Success")
RESIZED = ("compute_resize_instance", "host1", "Success")


@pytest.mark.parametrize(
    ("step", "filed"),
    [
        ("stop_guest", [PREPARED, ("compute_resize_instance", "host1", "Error")]),
        ("copy_disks", [PREPARED, ("compute_resize_instance", "host1", "Error")]),
        ("connect_destination", [PREPARED, RESIZED, ("compute_finish_resize", "host2", "Error")]),
        ("define_guest", [PREPARED, RESIZED, ("compute_finish_resize", "host2", "Error")]),
    ],
)
def test_a_failure_is_filed_where_it_happened(lab: Stage, step: str, filed: list[tuple[str, str, str]]) -> None:
    lab.arm(step, "fail", phase="before")
    lab.cli("server", "migrate", "web", code=3)
    assert events(lab) == filed
    lab.cli("lab", "fault", "clear")
    lab.assert_balanced()


def test_an_undo_that_is_entered_again_files_it_once(lab: Stage) -> None:
    lab.arm("define_guest", "fail", phase="before")
    lab.arm("mark_migrating", "kill", direction="revert", phase="after")
    lab.killed("server", "migrate", "web")
    lab.cli("move", "resume", code=3)
    assert events(lab) == [PREPARED, RESIZED, ("compute_finish_resize", "host2", "Error")]
    lab.assert_balanced()
