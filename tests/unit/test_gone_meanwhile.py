"""A step takes out of a guest that is off what was detached meanwhile, before it starts the guest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, PORT, SOURCE, VOLUME, Moving, guest

from droveway.flows.run import Context
from droveway.flows.steps.hosts import redefining
from droveway.persistence.nova.cell import BlockDeviceMapping


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    made.place(DESTINATION, "resize_finish", "post-migrating")
    made.says[DESTINATION] = guest()
    yield made
    made.close()


def detach(moving: Moving) -> None:
    with moving.cell.write() as session:
        session.execute(sa.update(BlockDeviceMapping).values(deleted=1))


def unplug(moving: Moving) -> None:
    moving.ports.clear()


def take_out(moving: Moving) -> list[str]:
    """What is done on the destination."""

    def redefine(_ctx: Context) -> None:
        moving.commands.append((DESTINATION, "redefined", ""))

    redefining.without_gone(moving.context("start_guest"), DESTINATION, redefine)
    assert all(host == DESTINATION for host, _, _ in moving.commands)
    return [action for _, action, _ in moving.commands]


@pytest.mark.parametrize(
    ("change", "volumes", "ports"), [(detach, [VOLUME], []), (unplug, [], [PORT])], ids=["volume", "port"]
)
def test_a_guest_that_is_off_is_defined_without_what_went(
    moving: Moving, change: Any, volumes: list[str], ports: list[str]
) -> None:
    """Else it could not start: libvirt asks for each of its devices."""
    change(moving)
    assert take_out(moving) == ["disconnect", "redefined"]
    gone = moving.told[0]
    assert ([each.volume for each in gone.volumes], [each.port for each in gone.ports]) == (volumes, ports)


def test_nothing_is_done_where_nothing_went(moving: Moving) -> None:
    del moving.says[DESTINATION]
    assert take_out(moving) == []


def test_a_guest_that_runs_keeps_what_it_runs_with(moving: Moving) -> None:
    """A step that is entered again finds it started."""
    detach(moving)
    moving.says[DESTINATION] = guest(running=True)
    assert take_out(moving) == []


def test_a_server_that_goes_is_not_defined_again(moving: Moving) -> None:
    detach(moving)
    moving.change(task_state="deleting")
    assert take_out(moving) == []


def test_on_one_host_the_steps_before_have_done_it(moving: Moving) -> None:
    """There the rows name the host all the time."""
    detach(moving)
    moving.row.source_host = DESTINATION
    moving.row.source_cell = moving.chosen.cell = "cell1"
    assert take_out(moving) == []
    moving.row.source_host = SOURCE
    assert take_out(moving) == ["disconnect", "redefined"]
