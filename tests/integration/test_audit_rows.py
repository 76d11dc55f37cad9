"""Each contradiction within and between the databases, planted in a real lab, is found, and nothing else is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from support.labs.audit_world import (
    HYPERVISORS,
    ROW_CHECKS,
    SERVICE_CHECKS,
    UNREAD_CHECKS,
    World,
    about,
    migration_row,
    planted,
    plants,
    reportable,
)

from droveway.audit import Kind, run
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Intent, Move, MoveFlow, MoveStep
from droveway.persistence.nova import api, cell, objects, servers
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.cells import FENCE_KEY

NOBODY = str(uuid.uuid4())
NOW = datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns have it


@pytest.fixture(scope="module", name="built", params=HYPERVISORS)
def fixture_built(libvirt_folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(libvirt_folder / request.param, request.param)
    yield world
    world.close()


@pytest.fixture(name="world")
def fixture_world(built: World) -> Iterator[World]:
    with built.restored() as world:
        yield world


def test_every_kind_that_is_reported_is_planted(world: World) -> None:
    assert world.hypervisor in HYPERVISORS
    assert planted(__name__) == reportable(ROW_CHECKS)


def test_no_check_and_no_kind_is_left_out() -> None:
    """What this file, its twin for services and hosts, and test_audit_unread.py plant is all that there is."""
    checks = (*SERVICE_CHECKS, *ROW_CHECKS, *UNREAD_CHECKS)
    assert {check.__module__ for check in run.CHECKS} == {check.__name__ for check in checks}
    assert reportable(checks) == set(Kind)


class TestRows:
    @plants(Kind.ROW)
    def test_hidden(self, world: World) -> None:
        with world.rows() as session:
            world.instance(session, "web").hidden = True
        finding = world.only("row")
        assert "has a hidden row in cell cell1" in finding.detail
        assert finding.mend == f"UPDATE instances SET hidden=0 WHERE instances.uuid = '{world.ids['web']}';"

    @plants(Kind.ROW)
    def test_hidden_copy_in_another_cell(self, world: World) -> None:
        with world.rows("cell2") as session:
            session.add(cell.Instance(uuid=world.ids["web"], host="host4", vm_state="active", hidden=True))
        assert about(world.only("row")) == (world.ids["web"], "host4", world.ids["web"], "")

    @plants(Kind.MAPPING)
    def test_mapped_to_a_cell_without_it(self, world: World) -> None:
        with world.lab.api.write() as session:
            other = session.scalars(sa.select(api.CellMapping.id).where(api.CellMapping.name == "cell2")).one()
            _mapping(session, world.ids["web"]).cell_id = other
        assert "is mapped to cell cell2, but its row is in cell cell1" in world.only("mapping").detail

    @plants(Kind.MAPPING)
    def test_mapped_but_gone(self, world: World) -> None:
        with world.lab.api.write() as session:
            cell_id = _mapping(session, world.ids["web"]).cell_id
            session.add(api.InstanceMapping(instance_uuid=NOBODY, cell_id=cell_id, project_id="p"))
        assert about(world.only("mapping")) == (NOBODY, "", NOBODY, "")

    @plants(Kind.MAPPING)
    def test_not_mapped(self, world: World) -> None:
        with world.lab.api.write() as session:
            session.delete(_mapping(session, world.ids["web"]))
        assert "no instance mapping" in world.only("mapping").detail

    @plants(Kind.MAPPING)
    def test_queued_for_delete_but_alive(self, world: World) -> None:
        with world.lab.api.write() as session:
            _mapping(session, world.ids["web"]).queued_for_delete = True
        assert "queued for delete" in world.only("mapping").detail

    @plants(Kind.TASK)
    @pytest.mark.parametrize("state", ["resize_prep", "resize_migrated", "resize_reverting", "deleting"])
    def test_task_state_stuck(self, world: World, state: str) -> None:
        with world.rows() as session:
            world.instance(session, "web").task_state = state
        finding = world.only("task")
        assert about(finding) == ("task_state", "host1", world.ids["web"], "")
        assert finding.mend == f"openstack server set --state active {world.ids['web']}"

    @plants(Kind.TASK, Kind.FLAVOR)
    @plants(Kind.TASK, Kind.FLAVOR)
    def test_resized_without_a_move(self, world: World) -> None:
        with world.rows() as session:
            world.instance(session, "idle").vm_state = "resized"
            servers.set_system_metadata(session, world.ids["idle"], "old_vm_state", "stopped")
        assert world.found() == {("task", "vm_state"), ("flavor", "old_vm_state")}

    @plants(Kind.TASK)
    def test_task_state_while_verifying(self, world: World) -> None:
        with world.rows() as session:
            world.instance(session, "moved").task_state = "resize_finish"
        assert "is resized/resize_finish" in world.only("task").detail

    @plants(Kind.FLAVOR)
    def test_flavor_columns_disagree(self, world: World) -> None:
        with world.rows() as session:
            world.instance(session, "web").memory_mb = 4096
        finding = world.only("flavor")
        assert finding.subject == "instances.memory_mb"
        assert "is 4096, but its flavor small says 512" in finding.detail

    @plants(Kind.FLAVOR)
    @pytest.mark.parametrize("slot", ["old", "new"])
    def test_flavor_of_an_ended_move(self, world: World, slot: str) -> None:
        with world.rows() as session:
            extra = servers.extra_row(session, world.ids["idle"])
            known = servers.flavors(extra)
            extra.flavor = objects.encode(objects.change_server_flavors(known, {slot: known["cur"]}))
        assert f"still has the {slot} flavor" in world.only("flavor").detail

    @plants(Kind.FLAVOR)
    def test_migration_context_of_an_ended_move(self, world: World) -> None:
        with world.rows() as session:
            context = objects.encode(objects.migration_context(world.ids["idle"], 77))
            servers.extra_row(session, world.ids["idle"]).migration_context = context
        assert "still has the context of migration 77" in world.only("flavor").detail

    @plants(Kind.FLAVOR)
    def test_migration_context_of_another_migration_while_verifying(self, world: World) -> None:
        with world.rows() as session:
            context = objects.encode(objects.migration_context(world.ids["moved"], 77))
            servers.extra_row(session, world.ids["moved"]).migration_context = context
        assert world.only("flavor").subject == "instance_extra.migration_context"

    @plants(Kind.FLAVOR)
    def test_old_flavor_missing_while_verifying(self, world: World) -> None:
        with world.rows() as session:
            extra = servers.extra_row(session, world.ids["moved"])
            extra.flavor = objects.encode(objects.change_server_flavors(servers.flavors(extra), {"old": None}))
        assert ("flavor", "instance_extra.flavor") in world.found()

    @plants(Kind.FLAVOR)
    def test_no_current_flavor(self, world: World) -> None:
        with world.rows() as session:
            extra = servers.extra_row(session, world.ids["idle"])
            extra.flavor = objects.encode(objects.change_server_flavors(servers.flavors(extra), {"cur": None}))
        details = [finding.detail for finding in world.audit().findings if finding.kind == "flavor"]
        assert details == ["idle has no current flavor in instance_extra"]

    @plants(Kind.FLAVOR)
    def test_another_flavor_than_the_move_gave_while_verifying(self, world: World) -> None:
        with world.rows() as session:
            extra = servers.extra_row(session, world.ids["moved"])
            known = servers.flavors(extra)
            extra.flavor = objects.encode(objects.change_server_flavors(known, {"new": known["old"]}))
        details = [finding.detail for finding in world.audit().findings if finding.kind == "flavor"]
        assert details == ["moved has the flavor big, but its move gave it small"]

    @plants(Kind.FLAVOR)
    def test_old_vm_state_missing_while_verifying(self, world: World) -> None:
        with world.rows() as session:
            servers.set_system_metadata(session, world.ids["moved"], "old_vm_state", None)
        assert about(world.only("flavor")) == ("old_vm_state", "host3", world.ids["moved"], world.move)

    @plants(Kind.ROW)
    def test_a_host_that_the_move_did_not_go_to(self, world: World) -> None:
        with world.rows() as session:
            world.instance(session, "moved").host = "host2"
        assert ("row", "instances.host") in world.found()

    @plants(Kind.FLAVOR)
    def test_unreadable(self, world: World) -> None:
        with world.rows("cell2") as session:
            servers.extra_row(session, world.ids["boot"]).flavor = "{"
        details = [finding.detail for finding in world.audit().findings if finding.kind == "flavor"]
        assert len(details) == 1
        assert "cannot be read" in details[0]

    @plants(Kind.FENCE)
    def test_fence_left(self, world: World) -> None:
        with world.rows() as session:
            servers.set_system_metadata(session, world.ids["moved"], FENCE_KEY, "12")
        finding = world.only("fence")
        assert "the fence of epoch 12 of moved" in finding.detail
        assert finding.mend.startswith("DELETE FROM instance_system_metadata WHERE")

    @plants(Kind.REQUEST)
    def test_request_spec_disagrees(self, world: World) -> None:
        with world.lab.api.write() as session:
            row = servers.request_spec(session, world.ids["web"])
            changed = {"flavor": servers.flavor(session, "big")}
            row.spec = objects.encode(objects.change_request_spec(objects.decode(row.spec), changed))
        assert about(world.only("request")) == ("request_specs", "host1", world.ids["web"], "")

    @plants(Kind.TASK)
    @pytest.mark.parametrize(
        ("name", "mend"),
        [("web", "openstack server set --state active"), ("idle", "openstack server reboot --hard")],
    )
    def test_in_error(self, world: World, name: str, mend: str) -> None:
        with world.rows() as session:
            world.instance(session, name).vm_state = "error"
        finding = world.only("task")
        assert about(finding)[::2] == ("vm_state", world.ids[name])
        assert finding.mend == f"{mend} {world.ids[name]}"

    @plants(Kind.USAGE)
    def test_usage_wrong(self, world: World) -> None:
        with world.rows() as session:
            row = session.scalars(sa.select(ComputeNode).where(ComputeNode.host == "host3")).one()
            row.vcpus_used += 1
        finding = world.only("usage")
        assert about(finding) == (world.node("host3"), "host3", "", "")
        assert "vcpus_used is 3, not 2" in finding.detail


class TestMigrations:
    @plants(Kind.MIGRATION)
    def test_in_progress_without_a_move(self, world: World) -> None:
        with world.rows("cell2") as session:
            session.add(migration_row(NOBODY, world.ids["boot"], "error"))
            session.add(migration_row(str(uuid.uuid4()), world.ids["boot"], "pre-migrating"))
        assert "is pre-migrating, and no move in the journal owns it" in world.only("migration").detail

    @plants(Kind.MIGRATION)
    def test_of_an_ended_move_that_is_in_progress(self, world: World) -> None:
        ended = world.ended_move("web", State.DONE, status="confirming")
        finding = world.only("migration")
        assert about(finding) == (ended, "host2", world.ids["web"], ended)
        assert finding.mend == f"UPDATE migrations SET status='confirmed' WHERE migrations.uuid = '{ended}';"

    @plants(Kind.MIGRATION)
    def test_that_ended_while_its_move_waits(self, world: World) -> None:
        with world.rows() as session:
            servers.the_migration(session, world.move).status = "post-migrating"
        assert "is post-migrating, but the move is verifying" in world.only("migration").detail

    @plants(Kind.MIGRATION)
    def test_missing_while_its_move_waits(self, world: World) -> None:
        with world.rows() as session:
            row = servers.the_migration(session, world.move)
            row.uuid = NOBODY
            row.status = "error"
        assert ("migration", world.move) in world.found()


class TestJournal:
    @plants(Kind.JOURNAL)
    def test_a_move_without_a_flow(self, world: World) -> None:
        move = world.submit("web")
        with world.lab.journal.write() as session:
            session.get_one(Move, move).flow_uuid = None
        assert "is queued, but has no flow" in world.only("journal").detail

    @plants(Kind.JOURNAL)
    def test_a_move_that_waits_with_a_flow_under_way(self, world: World) -> None:
        with world.lab.journal.write() as session:
            flow = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == world.move)).one()
            flow.ended_at = None
            session.get_one(Move, world.move).flow_uuid = flow.uuid
        assert "still has a flow under way" in world.only("journal").detail

    @plants(Kind.JOURNAL)
    def test_a_step_without_an_end_in_an_ended_flow(self, world: World) -> None:
        with world.lab.journal.write() as session:
            flow = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == world.move)).one()
            session.add(_step(world.move, flow.uuid))
        assert about(world.only("journal")) == (world.move, "host1", world.ids["moved"], world.move)

    @plants(Kind.JOURNAL)
    def test_a_begun_flow_of_an_ended_move_without_an_end(self, world: World) -> None:
        with world.lab.journal.write() as session:
            flow = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == world.move)).one()
            flow.ended_at = None
            step = _step(world.move, flow.uuid)
            step.ended_at = NOW
            session.add(step)
        assert "its resize flow" in world.only("journal").detail

    @plants(Kind.JOURNAL)
    def test_a_call_without_an_end(self, world: World) -> None:
        _intend(world, "open")
        assert "has a call to placement without an end" in world.only("journal").detail

    def test_a_late_call_of_a_move_that_goes_on_is_noted(self, world: World) -> None:
        _intend(world, "late")
        report = world.audit()
        assert report.clean
        assert [finding.subject for finding in report.noted] == [world.move]

    def test_a_move_that_waits_for_a_conductor_is_clean(self, world: World) -> None:
        world.submit("web")
        with world.rows() as session:
            servers.set_system_metadata(session, world.ids["web"], FENCE_KEY, "1")
        assert world.audit().findings == ()


def _mapping(session: orm.Session, server: str) -> api.InstanceMapping:
    return session.scalars(sa.select(api.InstanceMapping).where(api.InstanceMapping.instance_uuid == server)).one()


def _step(move_id: str, flow: str) -> MoveStep:
    return MoveStep(move_id=move_id, flow_uuid=flow, flow="resize", step="claim", direction="execute", started_at=NOW)


def _intend(world: World, state: str) -> None:
    with world.lab.journal.write() as session:
        session.add(Intent(move_id=world.move, epoch=1, service="placement", call="claim", state=state, created_at=NOW))
