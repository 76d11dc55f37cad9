"""Writes into a database that was put back from an older copy what the journal left there of one move.

Only at a rest, and after the end.  Hosts are asked first: the one that the server is to live on shows its disks whole,
and its guest runs nowhere else.  Nothing is started, moved or deleted.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines
from droveway.clients.zookeeper import Coordination
from droveway.engines import fencing
from droveway.engines.proofs import Resting, Witnesses
from droveway.engines.site import Site
from droveway.errors import Fenced, Refused, ServerDeleted
from droveway.flows.before import Before, before, shows_disks
from droveway.flows.steps.rows import compute_node, new_migration
from droveway.persistence import cell, devices, moves, objects, servers, swap_devices, usage
from droveway.persistence.database import database_time
from droveway.persistence.journal import OPERATOR, Claim, Move, MoveFlow, MoveStep
from droveway.persistence.moves import FORWARD_KINDS, SHORT
from droveway.persistence.states import ENDED, State
from droveway.persistence.vm_states import MigrationStatus, PowerState, TaskState, VmState
from droveway.scheduler.hosts import zone_of

API: Final = "api"
"""The name under which the API database is given."""

STEP: Final = "settle_cell"
"""The history's row of it."""

_STATUS: Final = {
    State.VERIFYING: MigrationStatus.FINISHED,
    State.DONE: MigrationStatus.CONFIRMED,
    State.REVERTED: MigrationStatus.REVERTED,
    State.FAILED: MigrationStatus.ERROR,
}
"""The rests of which the journal knows what it left, and the migration's status there."""

_TASKS: Final = frozenset(
    {
        None,
        TaskState.RESIZE_PREP,
        TaskState.RESIZE_MIGRATED,
        TaskState.RESIZE_FINISH,
        TaskState.RESIZE_REVERTING,
    }
)
"""What an older copy may say that the move itself wrote; in any other task somebody is at work on the server."""

_LATEST: Final = (
    sa.select(Move.id).where(Move.server == sa.bindparam("server")).order_by(Move.created_at.desc()).limit(1)
)
_FLOW: Final = (
    sa.select(MoveFlow).where(MoveFlow.move_id == sa.bindparam("move")).order_by(MoveFlow.created_at.desc()).limit(1)
)
_LAST_STEP: Final = sa.select(sa.func.max(MoveStep.seq)).where(MoveStep.move_id == sa.bindparam("move"))
_LATER: Final = sa.select(cell.Migration.uuid).where(
    cell.Migration.instance_uuid == sa.bindparam("server"),
    cell.Migration.uuid != sa.bindparam("move"),
    cell.Migration.id > sa.bindparam("after"),
    cell.Migration.deleted == 0,
)


@dataclasses.dataclass
class _Writing:
    """Changes rows and tells what it changed."""

    told: list[str] = dataclasses.field(default_factory=list)

    def set(self, row: Any, **wanted: Any) -> None:
        for column, value in wanted.items():
            present = getattr(row, column)
            if present != value:
                self.told.append(f"{row.__tablename__}.{column}: {present} -> {value}")
                setattr(row, column, value)

    def set_json(self, row: Any, column: str, wanted: dict[str, Any] | None) -> None:
        present = getattr(row, column)
        if (None if present is None else objects.decode(present)) != wanted:
            self.told.append(f"{row.__tablename__}.{column}: as the move left it")
            setattr(row, column, None if wanted is None else objects.encode(wanted))


@dataclasses.dataclass(frozen=True)
class _Case:
    site: Site
    move: Move
    record: Before
    flow: MoveFlow
    running: bool

    @property
    def moved(self) -> bool:
        """Whether the server lives on its destination."""
        return self.move.state in (State.VERIFYING, State.DONE)

    @property
    def home(self) -> str:
        return (self.move.dest_host or "") if self.moved else self.move.source_host

    @property
    def flavor(self) -> dict[str, Any]:
        return self.record.new_flavor if self.moved else self.record.old_flavor


def settle(site: Site, coordination: Coordination, name: str, where: str, *, who: str, reason: str) -> list[str]:
    """Write it, and return what differed; nothing is written where nothing does.

    Raises `droveway.errors.Refused` for a move that does not rest, another cell, a server on which somebody is at work,
    and when the hosts do not show what the rows are to say.
    """
    if not reason.strip():
        raise Refused("settling a cell needs a reason: say with --reason which copy was put back")
    with site.journal.read() as session:
        move = moves.find(session, name)
        short = move.id[:SHORT]
        _require_rest(session, move, where)
        flow = session.scalars(_FLOW, {"move": move.id}).one()
        record = before(move)
        claim = session.get(Claim, move.id)
    if claim is not None and claim.released_at is None:
        raise Refused(f"conductor {claim.owner} is still clearing up after move {short}: ask again when it has")
    case = _Case(site, move, record, flow, running=_shown(site, coordination, move, flow, record))
    epoch = fencing.claim(site.journal, move.id, f"{OPERATOR}{who}", quarantine_after=sys.maxsize)
    try:
        with deadlines.running(STEP, site.conf.conductor.step_deadline):
            told = _write_api(case) if where == API else _write_cell(case, epoch)
    except ServerDeleted:
        raise Refused(
            f"cell {where} has no row of server {move.server_name}, and there is no other copy of it: put a newer copy "
            "of that database back"
        ) from None
    except Fenced:
        raise Refused(
            f"somebody took move {short} over meanwhile: nothing was written, ask again when it rests"
        ) from None
    else:
        if told:
            _note(case, epoch, {"settled": where, "by": who, "reason": reason, "wrote": told})
    finally:
        fencing.release(site.journal, move.id, epoch)
    return told


def _require_rest(session: orm.Session, move: Move, where: str) -> None:
    short = move.id[:SHORT]
    if where not in (API, move.source_cell):
        raise Refused(f"move {short} of {move.server_name} is in cell {move.source_cell}, not in {where}")
    if move.kind not in FORWARD_KINDS or State(move.state) not in _STATUS:
        raise Refused(
            f"move {short} of {move.server_name} is {move.state}, and what it left in a database is known at its rest "
            f"and after its end only: droveway move show {short} tells what can be done"
        )
    latest = session.scalar(_LATEST, {"server": move.server})
    if latest != move.id:
        raise Refused(f"server {move.server_name} was moved since: settle its last move, {str(latest)[:SHORT]}")


def _shown(site: Site, coordination: Coordination, move: Move, flow: MoveFlow, record: Before) -> bool:
    """Whether the guest runs where the server is to live; raises Refused unless the hosts show that it may."""
    with site.journal.read() as session:
        epoch = fencing.standing_epoch(session, move.id) or 0
        sequence = session.scalar(_LAST_STEP, {"move": move.id}) or 0
    if State(move.state) in ENDED:
        fencing.exhume(site.journal, coordination, move.id, epoch)
    who = Witnesses(
        site,
        coordination,
        Resting(move, flow, STEP, "execute", sequence, record),
        so=f"so nothing of move {move.id[:SHORT]} is written: mend that, then ask again",
    )
    moved = move.state in (State.VERIFYING, State.DONE)
    home, other = (who.destination, move.source_host) if moved else (move.source_host, who.destination)
    try:
        state = who.state(home)
        elsewhere = who.state(other) if other != home else None
    except Fenced as error:
        raise who.refused(str(error)) from None
    finally:
        if State(move.state) in ENDED:
            fencing.bury(coordination, move.id, epoch)
    if elsewhere is not None and elsewhere.running:
        raise who.refused(f"the guest runs on host {other}, and the journal left the server on {home}")
    if state is None or not shows_disks(state, record):
        raise who.refused(f"host {home}, on which the journal left the server, does not show its disks whole")
    return state.running


def _write_cell(case: _Case, epoch: int) -> list[str]:
    move, cells, writing = case.move, case.site.cells, _Writing()
    hosts = [host for host in (move.source_host, move.dest_host) if host]
    with case.site.api.read() as session:
        zone = zone_of(session, case.home) if case.moved else case.record.availability_zone
    cells.raise_fence(move.source_cell, move.server, epoch)
    try:
        with cells.transaction(move.source_cell, move.server, epoch) as session:
            row = servers.live(session, move.server)
            migration = _migration(session, case, writing)
            _require_idle(session, case, row, migration)
            nodes = {host: compute_node(session, host) for host in hosts}
            reserved = {
                host: usage.reserved_of(case.site.placement.provider_inventories(node.uuid or ""))
                for host, node in nodes.items()
            }
            _write_server(session, case, writing, row, nodes[case.home], zone)
            _write_traces(session, case, writing, migration)
            _write_volumes(session, case, writing)
            session.flush()
            usage.recompute(session, *hosts, reserved=reserved)
    finally:
        cells.drop_fence(move.source_cell, move.server, epoch)
    return writing.told


def _migration(session: orm.Session, case: _Case, writing: _Writing) -> cell.Migration:
    move, status = case.move, _STATUS[State(case.move.state)]
    row = servers.migration(session, move.id)
    if row is None:
        row = new_migration(move, case.record, status)
        session.add(row)
        writing.told.append(f"migrations: the row of move {move.id[:SHORT]} was gone")
    writing.set(row, status=status)
    if move.dest_host:
        node = compute_node(session, move.dest_host)
        writing.set(
            row,
            dest_compute=move.dest_host,
            dest_node=node.hypervisor_hostname,
            dest_compute_id=node.id,
            dest_host=node.host_ip,
        )
    session.flush()
    return row


def _require_idle(session: orm.Session, case: _Case, row: cell.Instance, migration: cell.Migration) -> None:
    name = case.move.server_name
    if row.task_state not in _TASKS:
        raise Refused(f"server {name} has task {row.task_state}: wait until that ends, then ask again")
    later = session.scalar(_LATER.limit(1), {"server": row.uuid, "move": case.move.id, "after": migration.id})
    if later is not None:
        raise Refused(f"server {name} was moved since by another than Droveway (migration {later}): its rows stay")


def _write_server(
    session: orm.Session, case: _Case, writing: _Writing, row: cell.Instance, node: Any, zone: str | None
) -> None:
    flavor = objects.flavor_data(case.flavor)
    state = case.record.vm_state
    if case.move.state == State.VERIFYING:
        state = VmState.RESIZED
    elif case.move.state == State.DONE:
        state = VmState.ACTIVE if case.running else VmState.STOPPED
    extra = servers.extra_row(session, row.uuid)
    was = objects.flavor_data(servers.flavors(extra)["cur"])["swap"]
    writing.set(
        row,
        host=case.home,
        node=node.hypervisor_hostname,
        compute_id=node.id,
        availability_zone=zone,
        instance_type_id=flavor["id"],
        memory_mb=flavor["memory_mb"],
        vcpus=flavor["vcpus"],
        root_gb=flavor["root_gb"],
        ephemeral_gb=flavor["ephemeral_gb"],
        vm_state=state,
        task_state=None,
        power_state=PowerState.RUNNING if case.running else PowerState.SHUTDOWN,
    )
    session.flush()
    if was != flavor["swap"]:
        swap_devices.follow_flavor(session, row.uuid, was, flavor["swap"], back=not case.moved)


def _write_traces(session: orm.Session, case: _Case, writing: _Writing, migration: cell.Migration) -> None:
    """The flavors, the migration's context and the state before, which stand while the server waits."""
    record, server = case.record, case.move.server
    extra, waits = servers.extra_row(session, server), case.move.state == State.VERIFYING
    slots = {
        "cur": case.flavor,
        "old": record.old_flavor if waits else None,
        "new": record.new_flavor if waits else None,
    }
    writing.set_json(extra, "flavor", objects.change_server_flavors(servers.flavors(extra), slots))
    writing.set_json(extra, "migration_context", objects.migration_context(server, migration.id) if waits else None)
    session.flush()
    servers.set_system_metadata(session, server, "old_vm_state", record.vm_state if waits else None)


def _write_volumes(session: orm.Session, case: _Case, writing: _Writing) -> None:
    """By Cinder: the attachment of each volume that is complete on the host that the server lives on."""
    volumes = case.site.cloud.volumes
    held = {each.volume: each for each in volumes.for_server(case.move.server) if each.host == case.home}
    for row in servers.volumes(session, case.move.server):
        attachment = held.get(row.volume_id or "")
        if attachment is not None and row.attachment_id != attachment.id:
            info = devices.connection_info(
                volumes.shown(attachment.id), previous=objects.decode(row.connection_info or "{}")
            )
            writing.set(row, attachment_id=attachment.id)
            row.connection_info = objects.encode(info)


def _write_api(case: _Case) -> list[str]:
    """The request spec, with the flavor that the server has."""
    writing = _Writing()
    wanted = objects.decode(case.record.request_spec)
    if case.moved:
        requests = objects.pci_requests(instance_uuid=case.move.server)
        wanted = objects.change_request_spec(wanted, {"flavor": case.record.new_flavor, "pci_requests": requests})
    with case.site.api.write() as session:
        writing.set_json(servers.request_spec(session, case.move.server), "spec", wanted)
    return writing.told


def _note(case: _Case, epoch: int, said: dict[str, Any]) -> None:
    with case.site.journal.write() as session:
        fencing.check(session, case.move.id, epoch)
        now = database_time(session)
        session.add(
            MoveStep(
                move_id=case.move.id,
                flow_uuid=case.flow.uuid,
                flow=case.flow.kind,
                step=STEP,
                direction="execute",
                attempt=case.move.attempt,
                epoch=epoch,
                started_at=now,
                ended_at=now,
                result=said,
            )
        )
