"""What settling a cell asks of journal, hosts and rows before it writes, and which rows it writes then."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.rigs.answering_hosts import AnsweringHosts
from support.rows.moving_rows import (
    ATTACHMENT,
    CELL,
    DESTINATION,
    FLAVOR,
    FLOW,
    MIB,
    MOVE,
    NOW,
    SERVER,
    SOURCE,
    VOLUME,
    Moving,
    disk,
    guest,
    record,
)

from droveway.clients.volume import Attachment
from droveway.clients.zookeeper import TOMBSTONE, epoch_path
from droveway.engines.conductor import fencing, incarnation
from droveway.engines.operations import left, settling_cells
from droveway.errors import CoordinationLost, Fenced, Refused
from droveway.flows.before import as_json
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import moves
from droveway.persistence.journal import tables as journal
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveFlow, MoveStep
from droveway.persistence.nova import api, objects, usage
from droveway.persistence.nova import base as nova_base
from droveway.persistence.nova.cell import (
    BlockDeviceMapping,
    Instance,
    InstanceExtra,
    InstanceSystemMetadata,
    Migration,
)
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.cells import FENCE_KEY
from droveway.persistence.restored import EPOCH, INCARNATION
from droveway.wire.commands import GuestState

LARGE: Final = {
    **FLAVOR,
    "nova_object.data": {**FLAVOR["nova_object.data"], "id": 2, "vcpus": 3, "memory_mb": 768, "swap": 1024},
}
SPEC: Final = {
    "nova_object.name": "RequestSpec",
    "nova_object.namespace": "nova",
    "nova_object.version": "1.14",
    "nova_object.data": {"flavor": FLAVOR, "availability_zone": "az1"},
}
THERE: Final = "11111111-0000-4a63-8d4e-2a0f2a0c9b08"
"""The attachment that Cinder has on the destination."""
RUNS: Final = guest(disk("disk", 5 * MIB), running=True)
OFF: Final = guest(disk("disk", 5 * MIB))
EMPTY: Final = guest()
WORDS: Final = {"who": "ann", "reason": "last night's copy"}


class Restored:
    """A move that rests, and a cell in which the server stands as it was before the move."""

    def __init__(self, folder: Path) -> None:
        self.moving = Moving(folder)
        self.hosts = AnsweringHosts()
        self.api = Database(sqlite_url(folder / "api.sqlite"))
        nova_base.ApiBase.metadata.create_all(self.api.engine)
        self.attachments = [Attachment(THERE, VOLUME, SERVER, "attached", DESTINATION)]
        self.site: Any = SimpleNamespace(
            journal=self.moving.journal,
            api=self.api,
            cells=self.moving.cells,
            cell_databases={CELL: self.moving.cell},
            conf=SimpleNamespace(conductor=SimpleNamespace(step_deadline=60.0)),
            cloud=SimpleNamespace(
                placement=SimpleNamespace(provider_inventories=lambda _node: {"MEMORY_MB": {"reserved": 512}}),
                volumes=SimpleNamespace(for_server=lambda _server: self.attachments, shown=self._shown),
            ),
        )
        self.moving.cells.drop_fence(CELL, SERVER, 1)
        self._put_cell_back()
        with self.api.write() as session:
            session.add(api.RequestSpec(instance_uuid=SERVER, spec=objects.encode(SPEC)))
        with self.moving.journal.write() as session:
            session.add(MoveFlow(uuid=FLOW, move_id=MOVE, kind="resize", version=1, digest="d", created_at=NOW))
            session.add(Claim(move_id=MOVE, epoch=3, owner="c", claimed_at=NOW, released_at=NOW))
            session.add(journal.Counter(name=EPOCH, value=3))
        known = record(
            availability_zone="az1", new_flavor=LARGE, request_spec=objects.encode(SPEC), guest=OFF, node=SOURCE
        )
        self.rest("verifying", kind="resize", before=as_json(known))
        self.show(EMPTY, RUNS)

    def close(self) -> None:
        self.hosts.close()
        self.api.close()
        self.moving.close()

    def rest(self, state: str, **columns: Any) -> None:
        """Let the journal say how the move rests."""
        with self.moving.journal.write() as session:
            session.execute(sa.update(Move).values(state=state, **columns))

    def show(self, source: GuestState, destination: GuestState) -> None:
        """Let the hosts answer so."""
        self.hosts.say(SOURCE, "describe_guest", source)
        self.hosts.say(DESTINATION, "describe_guest", destination)

    def settle(self, where: str = CELL, **words: Any) -> list[str]:
        return settling_cells.settle(
            self.site,
            self.hosts,  # type: ignore[arg-type]
            MOVE[:8],
            where,
            **WORDS | words,
        )

    def one(self, kind: type[Any], *where: Any) -> Any:
        """The one row of a table of the cell that is not deleted."""
        with self.moving.cell.read() as session:
            return session.scalars(sa.select(kind).where(kind.deleted == 0, *where)).one()

    def rows(self) -> dict[str, list[Any]]:
        """All that the cell holds, whatever is in it."""
        with self.moving.cell.read() as session:
            return {
                table.name: [tuple(row) for row in session.execute(sa.select(table))]
                for table in nova_base.CellBase.metadata.sorted_tables
            }

    def noted(self) -> list[MoveStep]:
        with self.moving.journal.read() as session:
            return list(session.scalars(sa.select(MoveStep).where(MoveStep.step == "settle_cell")))

    def claim(self) -> Claim:
        with self.moving.journal.read() as session:
            return session.scalars(sa.select(Claim)).one()

    def _put_cell_back(self) -> None:
        with self.moving.cell.write() as session:
            for number, host in enumerate((SOURCE, DESTINATION), 1):
                session.add(
                    ComputeNode(
                        id=number, uuid=f"node-{number}", host=host, hypervisor_hostname=host,
                        host_ip=f"10.0.0.{number}", vcpus=8, memory_mb=8192, local_gb=100,
                        vcpus_used=9, memory_mb_used=9, local_gb_used=9,
                        hypervisor_type="QEMU", hypervisor_version=1, cpu_info="{}", deleted=0,
                    )
                )  # fmt: skip
            session.execute(
                sa.update(Instance).values(
                    host=SOURCE, node=SOURCE, compute_id=1, vm_state="active", task_state=None, power_state=1,
                    availability_zone="az1", vcpus=1, memory_mb=256, root_gb=1, ephemeral_gb=0, instance_type_id=1,
                )
            )  # fmt: skip
            session.execute(sa.delete(Migration))
            slots = {"cur": FLAVOR, "old": None, "new": None}
            session.execute(sa.update(InstanceExtra).values(flavor=objects.encode(slots)))

    @staticmethod
    def _shown(attachment: str) -> dict[str, Any]:
        return {
            "id": attachment,
            "volume_id": VOLUME,
            "connection_info": {"driver_volume_type": "local", "path": "/v"},
        }


@pytest.fixture(name="restored")
def fixture_restored(tmp_path: Path) -> Iterator[Restored]:
    made = Restored(tmp_path)
    yield made
    made.close()


LANDED: Final = {
    "verifying": ("resized", "finished"),
    "done": ("active", "confirmed"),
}


@pytest.mark.parametrize("state", LANDED)
def test_a_server_that_the_journal_left_on_its_destination_stands_there_again(restored: Restored, state: str) -> None:
    restored.rest(state)
    told = restored.settle()
    vm_state, status = LANDED[state]
    row, migration, volume = (
        restored.one(Instance),
        restored.one(Migration),
        restored.one(BlockDeviceMapping, BlockDeviceMapping.destination_type == "volume"),
    )
    assert (row.host, row.node, row.compute_id, row.availability_zone) == (DESTINATION, DESTINATION, 2, "nova")
    assert (row.vcpus, row.memory_mb, row.instance_type_id) == (3, 768, 2)
    assert (row.vm_state, row.task_state, row.power_state) == (vm_state, None, 1)
    assert (migration.uuid, migration.status, migration.migration_type) == (MOVE, status, "resize")
    assert (migration.old_instance_type_id, migration.new_instance_type_id) == (1, 2)
    assert (migration.source_compute, migration.source_node, migration.hidden) == (SOURCE, SOURCE, False)
    assert (migration.dest_compute, migration.dest_node, migration.dest_compute_id, migration.dest_host) == (
        DESTINATION, DESTINATION, 2, "10.0.0.2",
    )  # fmt: skip
    assert (volume.attachment_id, objects.decode(volume.connection_info)["serial"]) == (THERE, VOLUME)
    assert restored.one(BlockDeviceMapping, BlockDeviceMapping.guest_format == "swap").volume_size == 1024
    nodes = {host: restored.one(ComputeNode, ComputeNode.host == host) for host in (SOURCE, DESTINATION)}
    waits = state == "verifying"
    assert (nodes[SOURCE].vcpus_used, nodes[DESTINATION].vcpus_used) == (1 if waits else 0, 3)
    assert nodes[DESTINATION].memory_mb_used == 768 + 512
    assert any(line.startswith("migrations: the row of move") for line in told)
    assert f"instances.host: {SOURCE} -> {DESTINATION}" in told


def test_what_stands_while_the_server_waits_goes_when_it_does_not(restored: Restored) -> None:
    """The flavors, the migration's context, the state before."""

    def traces() -> tuple[Any, bool, str | None]:
        extra = restored.one(InstanceExtra)
        slots = objects.decode(extra.flavor)
        with restored.moving.cell.read() as session:
            was = session.scalar(
                sa.select(InstanceSystemMetadata.value).where(InstanceSystemMetadata.key == "old_vm_state")
            )
        return [slot for slot in ("old", "new") if slots[slot]], extra.migration_context is not None, was

    restored.settle()
    assert traces() == (["old", "new"], True, "active")
    assert objects.flavor_data(objects.decode(restored.one(InstanceExtra).flavor)["cur"])["vcpus"] == 3
    assert restored.settle() == []
    restored.rest("done")
    restored.settle()
    assert traces() == ([], False, None)


@pytest.mark.parametrize(("state", "status"), [("reverted", "reverted"), ("failed", "error")])
def test_a_server_that_came_back_stands_on_its_source(restored: Restored, state: str, status: str) -> None:
    restored.settle()
    restored.rest(state)
    restored.show(RUNS, EMPTY)
    restored.attachments = [Attachment(ATTACHMENT, VOLUME, SERVER, "attached", SOURCE)]
    restored.settle()
    row = restored.one(Instance)
    assert (row.host, row.compute_id, row.availability_zone, row.vcpus) == (SOURCE, 1, "az1", 1)
    assert (row.vm_state, row.power_state, restored.one(Migration).status) == ("active", 1, status)
    assert restored.one(BlockDeviceMapping, BlockDeviceMapping.destination_type == "volume").attachment_id == ATTACHMENT
    with restored.moving.cell.read() as session:
        swap = sa.select(BlockDeviceMapping).where(
            BlockDeviceMapping.guest_format == "swap", BlockDeviceMapping.deleted == 0
        )
        assert session.scalar(swap) is None


@pytest.mark.parametrize(("state", "told"), [("verifying", "resized"), ("done", "stopped")])
def test_a_guest_that_is_off_is_told_as_off(restored: Restored, state: str, told: str) -> None:
    restored.rest(state)
    restored.show(EMPTY, OFF)
    restored.settle()
    assert (restored.one(Instance).power_state, restored.one(Instance).vm_state) == (4, told)


def test_what_was_written_is_in_the_history_once_and_the_claim_is_given_back(restored: Restored) -> None:
    told = restored.settle()
    (step,) = restored.noted()
    assert step.result == {"settled": CELL, "by": "ann", "reason": "last night's copy", "wrote": told}
    assert step.epoch == restored.claim().epoch > 3
    assert restored.settle() == []
    assert len(restored.noted()) == 1
    assert restored.claim().released_at is not None
    with restored.moving.cell.read() as session:
        fence = sa.select(InstanceSystemMetadata).where(InstanceSystemMetadata.key == FENCE_KEY)
        assert session.scalar(fence) is None
    assert restored.hosts.left() == []


@pytest.mark.parametrize(("state", "buried"), [("done", True), ("verifying", False)])
def test_the_grave_of_a_move_that_is_over_is_closed_again(restored: Restored, state: str, *, buried: bool) -> None:
    restored.rest(state)
    restored.hosts.create(epoch_path(MOVE), TOMBSTONE if buried else b"3")
    restored.settle()
    node = restored.hosts.get(epoch_path(MOVE))
    assert (node[0] == TOMBSTONE) is buried


def test_hosts_are_asked_under_a_claim_that_stands(restored: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    """By it the grave is closed again of a command that is killed meanwhile, and no later journal gives it out anew."""
    post, stood = restored.hosts.create_guarded, []

    def look(path: str, data: bytes, **guard: Any) -> bool:
        claim, mark = restored.claim(), incarnation.read_mark(restored.hosts)  # type: ignore[arg-type]
        stood.append((claim.owner, claim.released_at, mark is not None and mark.epoch == claim.epoch))
        return post(path, data, **guard)

    with restored.moving.journal.write() as session:
        session.add(journal.Counter(name=INCARNATION, value=7))
    restored.rest("done")
    restored.hosts.create(epoch_path(MOVE), TOMBSTONE)
    monkeypatch.setattr(restored.hosts, "create_guarded", look)
    restored.settle()
    assert stood == [(f"{OPERATOR}ann", None, True)] * 2
    assert {each.epoch for each in restored.hosts.asked} == {restored.claim().epoch}


@pytest.mark.parametrize("shown", [RUNS, EMPTY])
def test_a_grave_that_could_not_be_closed_keeps_the_claim(
    restored: Restored, monkeypatch: pytest.MonkeyPatch, shown: GuestState
) -> None:
    """Once its command counts as dead a conductor clears up after it, whatever the hosts have shown."""

    def lose(*_facts: object) -> None:
        raise CoordinationLost("ZooKeeper did not answer")

    restored.rest("done", flow_uuid=None)
    restored.show(EMPTY, shown)
    restored.hosts.create(epoch_path(MOVE), TOMBSTONE)
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "write_tombstone", lose)
        with pytest.raises(CoordinationLost):
            restored.settle()
    assert restored.hosts.get(epoch_path(MOVE))[0] == str(restored.claim().epoch).encode()
    with restored.moving.journal.write() as session:
        session.execute(sa.update(MoveFlow).values(ended_at=NOW))
        session.execute(sa.update(Claim).values(claimed_at=NOW - moves.OPERATOR_WRITES))
        assert [move.id for move, _flow in moves.unreleased_flows(session)] == [MOVE]


@pytest.mark.parametrize(("state", "where"), [("verifying", CELL), ("done", "placement")])
def test_a_claim_that_opened_no_grave_closes_none(
    restored: Restored, monkeypatch: pytest.MonkeyPatch, state: str, where: str
) -> None:
    restored.rest(state)
    monkeypatch.setattr(fencing, "write_tombstone", None)
    monkeypatch.setattr(settling_cells.settling_books, "write", lambda *_facts: [])
    restored.settle(where)
    assert restored.claim().released_at is not None


def test_the_request_spec_is_written_in_the_api_database_alone(restored: Restored) -> None:
    before = restored.rows()
    assert restored.settle("api") == ["request_specs.spec: as the move left it"]
    assert restored.rows() == before
    with restored.api.read() as session:
        spec = objects.decode(session.scalars(sa.select(api.RequestSpec.spec)).one())["nova_object.data"]
    assert objects.flavor_data(spec["flavor"])["vcpus"] == 3
    assert spec["availability_zone"] == "az1"
    restored.rest("reverted")
    restored.show(RUNS, EMPTY)
    restored.settle("api")
    with restored.api.read() as session:
        assert objects.decode(session.scalars(sa.select(api.RequestSpec.spec)).one()) == SPEC


def refused(restored: Restored, why: str, where: str = CELL, **words: Any) -> None:
    before = restored.rows()
    with pytest.raises(Refused, match=why):
        restored.settle(where, **words)
    assert restored.rows() == before
    assert restored.noted() == []
    assert restored.claim().released_at is not None


SHOWN: Final = [
    ("verifying", RUNS, RUNS, "the guest runs on host host1, and the journal left the server on host2"),
    ("verifying", OFF, EMPTY, "host host2, on which the journal left the server, does not show its disks whole"),
    ("done", EMPTY, guest(disk("disk", MIB)), "host host2, on which the journal left the server"),
    ("reverted", RUNS, RUNS, "the guest runs on host host2, and the journal left the server on host1"),
    ("reverted", EMPTY, OFF, "host host1, on which the journal left the server, does not show its disks whole"),
    ("failed", EMPTY, OFF, "host host1, on which the journal left the server, does not show its disks whole"),
]


@pytest.mark.parametrize(("state", "source", "destination", "why"), SHOWN)
def test_nothing_is_written_beside_hosts_that_show_something_else(
    restored: Restored, state: str, source: GuestState, destination: GuestState, why: str
) -> None:
    restored.rest(state)
    restored.show(source, destination)
    refused(restored, why)


@pytest.mark.parametrize("host", [SOURCE, DESTINATION])
def test_a_host_that_is_away_shows_nothing(restored: Restored, host: str) -> None:
    restored.hosts.stop(host)
    refused(restored, f"the worker of host {host} is away .*so nothing of move {MOVE[:8]} is written: mend that")


UNDER_WAY: Final = ("queued", "running", "confirming", "reverting", "undoing")


@pytest.mark.parametrize("state", UNDER_WAY)
def test_a_move_is_left_alone_while_a_conductor_may_be_at_it(restored: Restored, state: str) -> None:
    restored.rest(state)
    refused(restored, f"is {state}, and what it left .* droveway move show {MOVE[:8]} tells what can be done")
    restored.rest(state, hold=True)
    restored.show(RUNS, EMPTY)
    restored.settle()


def test_every_state_is_known_or_under_way() -> None:
    assert {*State} == {*UNDER_WAY} | settling_cells._KNOWN


@pytest.mark.parametrize(
    ("where", "words", "why"),
    [
        ("cell7", {}, "is in cell cell1, not in cell7"),
        (CELL, {"reason": " "}, "needs a reason"),
    ],
)
def test_a_question_that_is_none_is_refused(restored: Restored, where: str, words: Any, why: str) -> None:
    refused(restored, why, where, **words)
    assert restored.hosts.asked == []


def test_the_last_move_of_a_server_alone_says_where_it_is(restored: Restored) -> None:
    later = "aaaaaaaa-0000-4a63-8d4e-2a0f2a0c9b0b"
    with restored.moving.journal.write() as session:
        facts = {column.key: getattr(session.get(Move, MOVE), column.key) for column in sa.inspect(Move).columns}
        session.add(Move(**facts | {"id": later, "created_at": NOW + dt.timedelta(days=1)}))
    refused(restored, f"was moved since: settle its last move, {later[:8]}")


def test_who_still_clears_up_is_not_disturbed(restored: Restored) -> None:
    fencing.claim(restored.moving.journal, MOVE, "conductor-1")
    with pytest.raises(Refused, match="conductor conductor-1 has not given move"):
        restored.settle()
    assert restored.claim().released_at is None
    assert restored.hosts.asked == []


def test_who_took_the_move_over_meanwhile_has_it(restored: Restored) -> None:
    """The rows are behind its fence; what was written of them is undone with the transaction."""
    compute = usage.recompute

    def overtake(*words: Any, **facts: Any) -> None:
        compute(*words, **facts)
        raise Fenced("epoch 4 no longer stands")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(usage, "recompute", overtake)
        refused(restored, "somebody took move .* over meanwhile: nothing was written")


@pytest.mark.parametrize("task", ["rebuilding", "deleting-images", "resize_confirming"])
def test_a_server_on_which_somebody_is_at_work_is_left_alone(restored: Restored, task: str) -> None:
    restored.moving.change(task_state=task)
    refused(restored, f"has task {task}: wait until that ends")


@pytest.mark.parametrize("task", sorted(filter(None, left.TASKS)))
def test_a_task_of_the_move_itself_is_none(restored: Restored, task: str) -> None:
    restored.moving.change(task_state=task)
    restored.settle()
    assert restored.one(Instance).task_state is None


def test_who_moved_the_server_since_keeps_what_he_wrote(restored: Restored) -> None:
    """Told by the migrations' own numbers; one from before the move is no reason."""

    def migration(number: int, uuid: str) -> Migration:
        return Migration(id=number, uuid=uuid, instance_uuid=SERVER, status="done", deleted=0)

    with restored.moving.cell.write() as session:
        session.add(migration(1, "earlier"))
        session.add(migration(5, MOVE))
    assert restored.settle() != []
    with restored.moving.cell.write() as session:
        session.add(migration(9, "later"))
    before = restored.rows()
    with pytest.raises(Refused, match=r"was moved since by another than Droveway \(migration later\): its rows stay"):
        restored.settle()
    assert restored.rows() == before


def test_a_server_of_which_the_cell_has_no_row_is_told_so(restored: Restored) -> None:
    restored.moving.change(deleted=1)
    refused(restored, "cell cell1 has no row of server web, and there is no other copy of it: put a newer copy")
