"""What Nova's users are shown of a failure, and what goes with a server that is deleted."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from droveway.flows.run import Context
from droveway.flows.steps.records.delete import free_volumes
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import actions, cell, faults
from droveway.persistence.times import utcnow

SERVER = str(uuid.uuid4())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(sqlite_url(tmp_path / "cell.sqlite"))
    cell.CellBase.metadata.create_all(made.engine)
    with made.write() as session:
        session.add(cell.Instance(uuid=SERVER, deleted=0))
    yield made
    made.close()


def test_a_fault_is_recorded_once(database: Database) -> None:
    """Undos run again after a crash; another attempt's failure with the same words is another fault."""
    for attempt in (1, 1, 2):
        fault = faults.Fault(message="m" * 300, details=f"attempt {attempt}: m", host="host1")
        with database.write() as session:
            faults.record(session, SERVER, fault)
    with database.read() as session:
        rows = list(session.scalars(sa.select(cell.InstanceFault).order_by(cell.InstanceFault.id)))
    assert [(row.code, row.message, row.details, row.host, row.deleted) for row in rows] == [
        (500, "m" * 255, f"attempt {attempt}: m", "host1", 0) for attempt in (1, 2)
    ]


def test_a_failed_action_says_why_beside_the_event_that_was_open(database: Database) -> None:
    ref = actions.ActionRef(SERVER, "req-1")
    with database.write() as session:
        assert not actions.fail(session, ref, "it broke")
        actions.begin(session, ref, "resize", user_id="u", project_id="p")
        for event in ("first", "second", "third"):
            actions.open_event(session, ref, event, "host1")
        actions.close_event(session, ref, "first")
        actions.fail_event(session, ref, "second", "it broke here")
        assert actions.fail(session, ref, "it broke")
    with database.read() as session:
        events = session.scalars(sa.select(cell.InstanceActionEvent).order_by(cell.InstanceActionEvent.id))
        assert [(row.event, row.result, row.details) for row in events] == [
            ("first", "Success", None),
            ("second", "Error", "it broke here"),
            ("third", "Error", "it broke"),
        ]
        assert session.scalars(sa.select(cell.InstanceAction.message)).all() == ["Error"]


def test_what_is_said_of_an_action_again_is_said_once(database: Database) -> None:
    """Steps run again after a crash: nothing is opened or closed twice, and a failure keeps its first time."""
    ref, moment = actions.ActionRef(SERVER, "req-1"), utcnow() - dt.timedelta(days=1)
    for _ in range(2):
        with database.write() as session:
            actions.begin(session, ref, "resize", user_id="u", project_id="p")
            for event in ("first", "second"):
                actions.open_event(session, ref, event, "host1")
    for _ in range(2):
        with database.write() as session:
            actions.close_event(session, ref, "first")
            session.execute(sa.update(cell.InstanceActionEvent).values(finish_time=moment).where(_has_ended()))
    with database.write() as session:
        assert actions.fail(session, ref, "it broke")
        session.execute(sa.update(cell.InstanceAction).values(updated_at=moment))
        assert not actions.fail(session, ref, "it broke again")
    with database.read() as session:
        (action,) = session.scalars(sa.select(cell.InstanceAction))
        assert (action.action, action.user_id, action.project_id, action.deleted) == ("resize", "u", "p", 0)
        assert (action.message, action.updated_at) == ("Error", moment)
        assert action.start_time is not None
        assert action.created_at is not None
        first, second = session.scalars(sa.select(cell.InstanceActionEvent).order_by(cell.InstanceActionEvent.id))
        assert (first.result, first.finish_time, first.details) == ("Success", moment, None)
        assert (second.result, second.details, second.host, second.deleted) == ("Error", "it broke", "host1", 0)


def test_events_turn_at_once_and_a_repeat_changes_nothing(database: Database) -> None:
    ref, moment = actions.ActionRef(SERVER, "req-1"), utcnow() - dt.timedelta(days=1)

    def turn(**changes: Any) -> None:
        with database.write() as session:
            actions.turn(session, ref, **changes)

    def shown() -> list[tuple[Any, ...]]:
        columns = (cell.InstanceActionEvent.event, cell.InstanceActionEvent.result, cell.InstanceActionEvent.host)
        with database.read() as session:
            return [tuple(row) for row in session.execute(sa.select(*columns).order_by(cell.InstanceActionEvent.id))]

    turn(begun=["first"], host="host1")
    assert shown() == []
    with database.write() as session:
        actions.begin(session, ref, "resize", user_id="u", project_id="p")
        actions.begin(session, actions.ActionRef(SERVER, "req-2"), "other", user_id="u", project_id="p")
    turn(begun=["first", "second"], host="host1")
    turn(over=["first", "second"], begun=["third"], host="host2")
    first, second = ("first", "Success", "host1"), ("second", "Success", "host1")
    assert shown() == [first, second, ("third", None, "host2")]
    with database.write() as session:
        session.execute(sa.update(cell.InstanceAction).values(updated_at=moment))
        session.execute(sa.update(cell.InstanceActionEvent).values(finish_time=moment).where(_has_ended()))
    turn(over=["first", "second"], begun=["third"], host="host3")
    assert shown() == [first, second, ("third", None, "host2")]
    with database.read() as session:
        assert session.scalars(sa.select(cell.InstanceAction.updated_at)).all() == [moment, moment]
        assert (
            session.scalars(sa.select(cell.InstanceActionEvent.finish_time).where(_has_ended())).all() == [moment] * 2
        )
    turn(over=["third"], host=None)
    assert shown() == [first, second, ("third", "Success", "host2")]
    with database.read() as session:
        times = session.scalars(sa.select(cell.InstanceAction.updated_at).order_by(cell.InstanceAction.id)).all()
    assert [time != moment for time in times] == [True, False]


def _has_ended() -> sa.ColumnElement[bool]:
    return cell.InstanceActionEvent.finish_time.is_not(None)


class Volumes:
    """Volumes with the servers that each is attached to."""

    def __init__(self, **attached: set[str]) -> None:
        self.attached = attached

    def for_server(self, server: str) -> list[Any]:
        return [
            SimpleNamespace(id=f"{volume}/{server}", volume=volume)
            for volume, servers in self.attached.items()
            if server in servers
        ]

    def attachments(self, volume: str) -> list[str]:
        return sorted(self.attached.get(volume, ()))

    def delete_attachment(self, attachment: str) -> None:
        volume, _, server = attachment.partition("/")
        self.attached[volume].discard(server)

    def delete_volume(self, volume: str) -> None:
        assert not self.attached.pop(volume, None)


def test_a_volume_that_another_server_has_too_stays(database: Database) -> None:
    """What goes along goes once nobody has it any more; run again, the same."""
    with database.write() as session:
        for volume, goes in (("goes", True), ("stays", False), ("shared", True)):
            session.add(
                cell.BlockDeviceMapping(
                    instance_uuid=SERVER,
                    volume_id=volume,
                    destination_type="volume",
                    delete_on_termination=goes,
                    deleted=0,
                )
            )
    volumes = Volumes(goes={SERVER}, stays={SERVER}, shared={SERVER, "another"})
    run = SimpleNamespace(
        cloud=SimpleNamespace(volumes=volumes),
        cells=SimpleNamespace(database=lambda _name: database),
        intent=lambda _service, _call: contextlib.nullcontext(),
    )
    ctx = cast("Context", SimpleNamespace(run=run, cell="cell1", move=SimpleNamespace(server=SERVER)))
    assert free_volumes(ctx) == (3, ["goes"])
    assert volumes.attached == {"stays": set(), "shared": {"another"}}
    free_volumes(ctx)
    assert volumes.attached == {"stays": set(), "shared": {"another"}}
