"""What a move writes of a server before it touches the guest, and what it leaves to somebody who was there first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, faults_cleared, stage

from droveway.errors import StepError
from droveway.persistence.nova.cell import BlockDeviceMapping, Instance, Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("marks") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers on host1: whatever a test moved is brought back."""
    with faults_cleared(built):
        yield built
    built.bring_back()
    built.assert_balanced()


def columns(lab: Stage, name: str) -> tuple[str | None, str | None, int | None]:
    """The server's vm_state, task_state and power_state, read as rows."""
    query = sa.select(Instance.vm_state, Instance.task_state, Instance.power_state)
    with lab.lab.cell_databases["cell1"].read() as session:
        return tuple(session.execute(query.where(Instance.display_name == name)).one())  # type: ignore[return-value]


def write(lab: Stage, name: str, **values: Any) -> None:
    """Change columns of the server's row as somebody beside Droveway does."""
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).where(Instance.display_name == name).values(**values))


class Watch:
    """Calls what is to happen once, at one boundary of a step, and notes the server's columns at every boundary."""

    def __init__(self, lab: Stage, name: str) -> None:
        self.lab, self.name = lab, name
        self.seen: dict[tuple[str, str, str], tuple[str | None, str | None, int | None]] = {}
        self.then: dict[tuple[str, str, str], Callable[[], None]] = {}

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        self.seen[step, direction, phase] = columns(self.lab, self.name)
        self.then.pop((step, direction, phase), lambda: None)()


def test_the_first_mark_is_one_that_a_restarting_nova_compute_leaves_alone(lab: Stage) -> None:
    watch = Watch(lab, "web")
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web")
    assert watch.seen["accept", "execute", "after"] == ("active", "resize_migrated", 1)
    assert "resize_prep" not in {task for _, task, _ in watch.seen.values()}
    assert "resize_migrating" not in {task for _, task, _ in watch.seen.values()}


def test_a_guest_is_off_only_while_its_rows_say_so(lab: Stage) -> None:
    """power_state is 4 before the guest is stopped, in a move and in its revert, and 1 again once it runs."""
    watch = Watch(lab, "web")
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web")
        assert watch.seen["stop_guest", "execute", "before"] == ("active", "resize_migrated", 4)
        assert watch.seen["start_guest", "execute", "before"] == ("active", "resize_finish", 4)
        assert columns(lab, "web") == ("resized", None, 1)
        lab.cli("server", "revert", "web")
    assert watch.seen["start_guest", "execute", "before"] == ("resized", "resize_reverting", 4)
    assert columns(lab, "web") == ("active", None, 1)


@pytest.mark.parametrize("name", ["web", "idle"])
def test_an_undo_gives_power_state_back(lab: Stage, name: str) -> None:
    before = columns(lab, name)
    lab.arm("switch_records", "fail")
    lab.cli("server", "migrate", name, code=3)
    assert columns(lab, name) == before
    lab.cli("server", "migrate", name)
    moved = columns(lab, name)
    lab.arm("switch_records", "fail")
    lab.cli("server", "revert", name, code=3)
    assert columns(lab, name) == moved


def test_a_stopped_server_stays_stopped_in_all_its_columns(lab: Stage) -> None:
    lab.cli("server", "migrate", "idle")
    assert columns(lab, "idle") == ("resized", None, 4)
    lab.cli("server", "revert", "idle")
    assert columns(lab, "idle") == ("stopped", None, 4)
    assert lab.starts("idle") == []


def test_a_server_that_is_stopped_before_it_is_marked_is_not_moved(lab: Stage) -> None:
    watch = Watch(lab, "web")
    watch.then["accept", "execute", "before"] = lambda: write(lab, "web", vm_state="stopped", power_state=4)
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web", code=3)
    assert lab.move("web").state == "failed"
    assert columns(lab, "web") == ("stopped", None, 4)
    assert [row.step for row in lab.history(lab.move("web").id) if row.step == "stop_guest"] == []
    write(lab, "web", vm_state="active", power_state=1)


def test_a_task_that_is_begun_before_the_mark_is_left_to_who_began_it(lab: Stage) -> None:
    watch = Watch(lab, "web")
    watch.then["accept", "execute", "before"] = lambda: write(lab, "web", task_state="rebooting")
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web", code=3)
    assert lab.move("web").state == "failed"
    assert columns(lab, "web") == ("active", "rebooting", 1)
    write(lab, "web", task_state=None)


def test_a_volume_that_is_changed_before_the_mark_is_not_moved_as_it_was(lab: Stage) -> None:
    rows = sa.update(BlockDeviceMapping).where(BlockDeviceMapping.volume_id.is_not(None))
    with lab.lab.cell_databases["cell1"].read() as session:
        kept = session.scalar(
            sa.select(BlockDeviceMapping.attachment_id).where(BlockDeviceMapping.volume_id.is_not(None))
        )

    def swap(attachment: str | None) -> None:
        with lab.lab.cell_databases["cell1"].write() as session:
            session.execute(rows.values(attachment_id=attachment))

    watch = Watch(lab, "web")
    watch.then["accept", "execute", "before"] = lambda: swap("another")
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web", code=3)
    assert (lab.move("web").state, lab.move("web").error_code) == ("failed", "changed")
    swap(kept)


@pytest.mark.parametrize(("ending", "status"), [("confirm", "reverting"), ("revert", "confirming")])
def test_who_ended_the_move_before_the_mark_keeps_what_he_wrote(lab: Stage, ending: str, status: str) -> None:
    """The flow goes back to verifying with the reason, and its undo takes nothing of the other one's back."""
    lab.cli("server", "migrate", "web")

    def write_status(status: str) -> None:
        with lab.lab.cell_databases["cell1"].write() as session:
            session.execute(sa.update(Migration).where(Migration.uuid == lab.move("web").id).values(status=status))

    watch = Watch(lab, "web")
    watch.then[f"mark_{ending}ing", "execute", "before"] = lambda: write_status(status)
    with lab.running(probe=watch):
        lab.cli("server", ending, "web", code=3)
    assert lab.move("web").state == "verifying"
    with lab.lab.cell_databases["cell1"].read() as session:
        assert session.scalar(sa.select(Migration.status).where(Migration.uuid == lab.move("web").id)) == status
    write_status("finished")


def test_a_flow_that_an_earlier_release_marked_goes_on_and_is_undone(lab: Stage) -> None:
    """Such a flow stands at `resize_prep` between its acceptance and the shutdown."""
    watch = Watch(lab, "web")
    watch.then["record_migration", "execute", "after"] = lambda: write(lab, "web", task_state="resize_prep")
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web")
    assert columns(lab, "web") == ("resized", None, 1)
    lab.cli("server", "revert", "web")
    watch = Watch(lab, "web")
    watch.then["record_migration", "execute", "after"] = lambda: write(lab, "web", task_state="resize_prep")
    watch.then["mark_migrating", "execute", "before"] = fail
    with lab.running(probe=watch):
        lab.cli("server", "migrate", "web", code=3)
    assert columns(lab, "web") == ("active", None, 1)


def fail() -> None:
    """Make the step fail that the move is in."""
    raise StepError("it broke", code="fault")


def test_a_port_that_is_attached_before_the_mark_is_not_left_behind(lab: Stage) -> None:
    network = lab.lab.cloud.network
    known = {port.id for port in network.ports(lab.id_of("web"))}
    ports = type(network).listed_ports

    class Late:
        seen = False

    def later(self: Any, server: str) -> Any:
        found = ports(self, server)
        return [*found, type(found[0])(**{**_fields(found[0]), "id": "late"})] if Late.seen else found

    watch = Watch(lab, "web")

    def attach() -> None:
        Late.seen = True

    watch.then["accept", "execute", "before"] = attach
    with pytest.MonkeyPatch.context() as patched, lab.running(probe=watch):
        patched.setattr(type(network), "listed_ports", later)
        lab.cli("server", "migrate", "web", code=3)
        Late.seen = False
    assert (lab.move("web").state, lab.move("web").error_code) == ("failed", "changed")
    assert {port.id for port in network.ports(lab.id_of("web"))} == known


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
