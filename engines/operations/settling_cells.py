"""Writes into a database that was put back from an older copy what the journal left there of one move.

At a rest, after the end, and wherever the move is parked.  Hosts are asked first: the guest runs nowhere but where the
server is to live, and at a rest that host shows its disks whole.  Nothing is started, moved or deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines
from droveway.clients.volume import ATTACHED
from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import fencing, incarnation
from droveway.engines.operations import left, settling_books
from droveway.engines.operations.left import Left
from droveway.engines.operations.proofs import HostChecks, Resting
from droveway.engines.site.site import Site
from droveway.errors import Evacuated, Fenced, Refused, ServerDeleted
from droveway.flows.before import shows_disks
from droveway.flows.stands import Side
from droveway.flows.steps.rows import compute_node, new_migration
from droveway.persistence.database import database_time
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveFlow, MoveStep
from droveway.persistence.nova import actions, cell, devices, objects, servers, swap_devices, usage
from droveway.persistence.nova.actions import ActionRef
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, MigrationStatus
from droveway.printable import SHORT
from droveway.scheduler.hosts import zone_of

API: Final = "api"
"""The name under which the API database is given."""

PLACEMENT: Final = "placement"
"""The same of Placement."""

STEP: Final = "settle_cell"
"""The history's row of it."""

_KNOWN: Final = frozenset({*left.RESTS, State.NEEDS_OPERATOR, State.DELETING})
"""Where no conductor is at the move; one that is held is not either."""

_LEFT_ALONE: Final = (Evacuated.code, "left-as-is")
"""Codes of moves that ended where they stood."""

_ENDED_AS: Final = {State.DONE: MigrationStatus.CONFIRMED, State.REVERTED: MigrationStatus.REVERTED}
"""How the migration of a move ends; any other's with an error."""

_MARKED: Final = sa.select(MoveStep.move_id).where(
    MoveStep.step == "accept",
    MoveStep.direction == "execute",
    MoveStep.ended_at.is_not(None),
    MoveStep.error.is_(None),
)
_LATEST: Final = (
    sa.select(Move.id)
    .where(
        Move.server == sa.bindparam("server"),
        # A move that ended before it marked its server has written nothing.
        sa.or_(
            Move.id == sa.bindparam("move"),
            Move.state.not_in([state.value for state in ENDED]),
            Move.kind.not_in([kind.name for kind in kinds.KINDS if kind.begins_with_accept]),
            Move.id.in_(_MARKED),
        ),
    )
    .order_by(Move.created_at.desc())
    .limit(1)
)
_LAST_STEP: Final = sa.select(sa.func.max(MoveStep.seq)).where(MoveStep.move_id == sa.bindparam("move"))
_OPEN: Final = sa.select(cell.Migration).where(
    cell.Migration.instance_uuid == sa.bindparam("server"),
    cell.Migration.uuid != sa.bindparam("move"),
    cell.Migration.status.not_in(sorted(ENDED_MIGRATIONS)),
    cell.Migration.deleted == 0,
)


@dataclasses.dataclass
class _Writing:
    """Changes rows and tells what it changed."""

    written: list[str] = dataclasses.field(default_factory=list)

    def set(self, row: Any, **wanted: Any) -> None:
        for column, value in wanted.items():
            present = getattr(row, column)
            if present != value:
                self.written.append(f"{row.__tablename__}.{column}: {present} -> {value}")
                setattr(row, column, value)

    def set_json(self, row: Any, column: str, wanted: dict[str, Any] | None) -> None:
        present = getattr(row, column)
        if (None if present is None else objects.decode(present)) != wanted:
            self.written.append(f"{row.__tablename__}.{column}: as the move left it")
            setattr(row, column, None if wanted is None else objects.encode(wanted))


@dataclasses.dataclass(frozen=True)
class _Case:
    site: Site
    left: Left
    flow: MoveFlow
    running: bool

    @property
    def move(self) -> Move:
        return self.left.move


def settle(site: Site, coordination: Coordination, name: str, where: str, *, who: str, reason: str) -> list[str]:
    """Write it, and return what differed; nothing is written where nothing does.

    Raises `droveway.errors.Refused` for a move that a conductor may be at, another cell, a server on which somebody is
    at work, and when the hosts do not show what the rows are to say, and raises as
    `droveway.engines.conductor.incarnation.require` does.
    """
    if not reason.strip():
        raise Refused("settling a cell needs a reason: say with --reason which copy was put back")
    with site.journal.read() as session:
        move = moves.find(session, name)
        short = move.id[:SHORT]
        _require_known(session, move, where)
        found = left.of(session, move)
        flow = session.scalars(moves.NEWEST_FLOW, {"move": move.id}).one()
        claim = session.get(Claim, move.id)
    if claim is not None and claim.released_at is None:
        raise Refused(f"conductor {claim.owner} is still clearing up after move {short}: ask again when it has")
    # What is held in Placement does not depend on what runs where.
    asks = where != PLACEMENT
    with _claimed(site, coordination, move, who, asks=asks) as epoch:
        case = _Case(site, found, flow, running=asks and _shown(site, coordination, found, flow))
        try:
            with deadlines.running(STEP, site.conf.conductor.step_deadline):
                written = _write(case, where, epoch)
        except ServerDeleted:
            raise Refused(
                f"cell {move.source_cell} has no row of server {move.server_name}, and there is no other copy of it: "
                "put a newer copy of that database back"
            ) from None
        except Fenced:
            raise Refused(
                f"somebody took move {short} over meanwhile: nothing was written, ask again when it rests"
            ) from None
        if written:
            _note(case, epoch, {"settled": where, "by": who, "reason": reason, "wrote": written})
    return written


@contextlib.contextmanager
def _claimed(site: Site, coordination: Coordination, move: Move, who: str, *, asks: bool) -> Iterator[int]:
    """Claim the move, and give it back; with ``asks`` hosts take questions meanwhile, of a move that has ended too."""
    epoch = fencing.claim(site.journal, move.id, f"{OPERATOR}{who}", quarantine_after=sys.maxsize)
    opens = asks and State(move.state) in ENDED
    try:
        if asks:
            # Before any host is told of it, as with each other epoch.
            incarnation.raise_mark(coordination, incarnation.require(coordination, site.journal), epoch)
        if opens:
            fencing.clear_tombstone(site.journal, coordination, move.id, epoch)
        yield epoch
    finally:
        # The claim stays where the tombstone could not be written: a conductor clears up after it.
        if opens:
            fencing.write_tombstone(coordination, move.id, epoch)
        fencing.release(site.journal, move.id, epoch)


def _write(case: _Case, where: str, epoch: int) -> list[str]:
    if where == API:
        return _write_api(case)
    return settling_books.write(case.site, case.left) if where == PLACEMENT else _write_cell(case, epoch)


def _require_known(session: orm.Session, move: Move, where: str) -> None:
    short, state = move.id[:SHORT], State(move.state)
    if kinds.of(move.kind).crosses_cells:
        raise Refused(
            f"move {short} of {move.server_name} leads from cell {move.source_cell} into cell {move.dest_cell}, and "
            "what such a move left in a database is not written by a command yet: droveway audit names what differs"
        )
    if where not in (API, PLACEMENT, move.source_cell):
        raise Refused(f"move {short} of {move.server_name} is in cell {move.source_cell}, not in {where}")
    if not kinds.of(move.kind).leaves_known_rows or not (state in _KNOWN or move.hold):
        raise Refused(
            f"move {short} of {move.server_name} is {move.state}, and what it left in a database is known where it "
            f"rests: droveway move show {short} tells what can be done"
        )
    if state in ENDED and move.delete_requested:
        raise Refused(f"server {move.server_name} was deleted with move {short}, so nothing of it is written")
    if move.error_code in _LEFT_ALONE:
        raise Refused(
            f"move {short} of {move.server_name} ended where it stood ({move.error_code}), so nobody knows what the "
            "rows should say: openstack server show tells what Nova has"
        )
    latest = session.scalar(_LATEST, {"server": move.server, "move": move.id})
    if latest != move.id:
        raise Refused(f"server {move.server_name} was moved since: settle its last move, {str(latest)[:SHORT]}")


def _shown(site: Site, coordination: Coordination, found: Left, flow: MoveFlow) -> bool:
    """Whether the guest runs where the server is to live; raises Refused unless the hosts show that it may."""
    move = found.move
    with site.journal.read() as session:
        sequence = session.scalar(_LAST_STEP, {"move": move.id}) or 0
    checks = HostChecks(
        site,
        coordination,
        Resting(move, flow, STEP, "execute", sequence, found.record),
        so=f"so nothing of move {move.id[:SHORT]} is written: mend that, then ask again",
    )
    home = found.home
    other = move.source_host if found.stands.side is Side.DESTINATION else checks.destination
    try:
        state = checks.state(home)
        elsewhere = checks.state(other) if other != home else None
    except Fenced as error:
        raise checks.refused(str(error)) from None
    if elsewhere is not None and elsewhere.running:
        raise checks.refused(f"the guest runs on host {other}, and the journal left the server on {home}")
    if found.rests and (state is None or not shows_disks(state, found.record)):
        raise checks.refused(f"host {home}, on which the journal left the server, does not show its disks whole")
    return state is not None and state.running


def _write_cell(case: _Case, epoch: int) -> list[str]:
    move, found, cells, writing = case.move, case.left, case.site.cells, _Writing()
    hosts = [host for host in (move.source_host, move.dest_host) if host]
    with case.site.api.read() as session:
        zone = found.record.availability_zone
        if found.stands.zone is Side.DESTINATION:
            zone = zone_of(session, found.host_of(Side.DESTINATION))
    with case.site.journal.read() as session:
        ended = _ended_moves(session, move)
    cells.raise_fence(move.source_cell, move.server, epoch)
    try:
        with cells.transaction(move.source_cell, move.server, epoch) as session:
            row = servers.live(session, move.server, deleting=True)
            left.require_own(session, found, row)
            migration = _migration(session, case, writing)
            _end_earlier(session, move, ended, writing)
            nodes = {host: compute_node(session, host) for host in hosts}
            reserved = {
                host: usage.reserved_of(case.site.cloud.placement.provider_inventories(node.uuid or ""))
                for host, node in nodes.items()
            }
            _write_server(session, case, writing, row, nodes[found.home], zone)
            _write_traces(session, case, writing, migration)
            _write_volumes(session, case, writing)
            if found.action:
                record, action = found.record, ActionRef(move.server, f"req-{move.flow_uuid}")
                actions.begin(session, action, found.action, user_id=record.user_id, project_id=record.project_id)
            session.flush()
            usage.recompute(session, *hosts, reserved=reserved)
    finally:
        # A flow that is parked has its fence until it ends.
        if found.rests:
            cells.drop_fence(move.source_cell, move.server, epoch)
    return writing.written


def _ended_moves(session: orm.Session, move: Move) -> dict[str, str]:
    """The server's other moves that ended, by their uuids: how their migrations did."""
    ended = sa.select(Move.id, Move.state).where(
        Move.server == move.server, Move.id != move.id, Move.state.in_([state.value for state in ENDED])
    )
    return {row.id: _ENDED_AS.get(State(row.state), MigrationStatus.ERROR) for row in session.execute(ended)}


def _end_earlier(session: orm.Session, move: Move, ended: dict[str, str], writing: _Writing) -> None:
    """What the copy has of earlier moves as under way has ended since."""
    for row in session.scalars(_OPEN, {"server": move.server, "move": move.id}).all():
        if row.uuid in ended:
            writing.set(row, status=ended[row.uuid])


def _migration(session: orm.Session, case: _Case, writing: _Writing) -> cell.Migration | None:
    """The move's row; one is only made where the journal knows that the move had made it."""
    move, found = case.move, case.left
    row = servers.migration(session, move.id)
    status = found.stands.status
    if status is None:
        if row is not None and found.rests:
            # Its insertion was committed and never noted.
            writing.set(row, status=MigrationStatus.ERROR)
        return row
    if row is None:
        row = new_migration(move, found.record, status)
        session.add(row)
        writing.written.append(f"migrations: the row of move {move.id[:SHORT]} was gone")
    writing.set(row, status=status)
    if found.stands.attempt and (host := found.host_of(Side.DESTINATION)):
        node = compute_node(session, host)
        writing.set(
            row,
            dest_compute=host,
            dest_node=node.hypervisor_hostname,
            dest_compute_id=node.id,
            dest_host=node.host_ip,
        )
    session.flush()
    return row


def _write_server(
    session: orm.Session, case: _Case, writing: _Writing, row: cell.Instance, node: Any, zone: str | None
) -> None:
    found = case.left
    flavor = objects.flavor_data(found.flavor)
    extra = servers.extra_row(session, row.uuid)
    was = objects.flavor_data(servers.flavors(extra)["cur"])["swap"]
    writing.set(
        row,
        host=found.home,
        node=node.hypervisor_hostname,
        compute_id=node.id,
        availability_zone=zone,
        instance_type_id=flavor["id"],
        memory_mb=flavor["memory_mb"],
        vcpus=flavor["vcpus"],
        root_gb=flavor["root_gb"],
        ephemeral_gb=flavor["ephemeral_gb"],
        vm_state=found.vm_state(running=case.running),
        task_state=found.stands.task_state,
        power_state=found.power_state(running=case.running),
    )
    session.flush()
    if was != flavor["swap"]:
        back = found.flavor == found.record.old_flavor
        swap_devices.follow_flavor(session, row.uuid, was, flavor["swap"], back=back)


def _write_traces(session: orm.Session, case: _Case, writing: _Writing, migration: cell.Migration | None) -> None:
    """The flavors, the migration's context and the state before, which stand while the move needs them."""
    found, server = case.left, case.move.server
    extra, stands = servers.extra_row(session, server), found.stands
    slots = {
        "cur": found.flavor,
        "old": found.flavor_of(stands.old),
        "new": found.flavor_of(stands.new),
    }
    writing.set_json(extra, "flavor", objects.change_server_flavors(servers.flavors(extra), slots))
    traced = stands.traces and migration is not None
    context = objects.migration_context(server, migration.id) if traced and migration is not None else None
    writing.set_json(extra, "migration_context", context)
    session.flush()
    servers.set_system_metadata(session, server, "old_vm_state", found.record.vm_state if traced else None)


def _write_volumes(session: orm.Session, case: _Case, writing: _Writing) -> None:
    """By Cinder: each volume's complete attachment, on the host that the journal has it on, or else where it is."""
    volumes, home = case.site.cloud.volumes, case.left.host_of(case.left.stands.attachments)
    held: dict[str, Any] = {}
    for each in volumes.for_server(case.move.server):
        if each.status == ATTACHED and (each.host == home or each.volume not in held):
            held[each.volume] = each
    for row in servers.volumes(session, case.move.server):
        attachment = held.get(row.volume_id or "")
        if attachment is not None and row.attachment_id != attachment.id:
            info = devices.connection_info(
                volumes.shown(attachment.id), previous=objects.decode(row.connection_info or "{}")
            )
            writing.set(row, attachment_id=attachment.id)
            row.connection_info = objects.encode(info)


def _write_api(case: _Case) -> list[str]:
    """The request spec, with the flavor that the move's steps have given it."""
    writing, record = _Writing(), case.left.record
    wanted = objects.decode(record.request_spec)
    if case.left.new_spec:
        requests = objects.pci_requests(instance_uuid=case.move.server)
        wanted = objects.change_request_spec(wanted, {"flavor": record.new_flavor, "pci_requests": requests})
    with case.site.api.write() as session:
        writing.set_json(servers.request_spec(session, case.move.server), "spec", wanted)
    return writing.written


def _note(case: _Case, epoch: int, said: dict[str, Any]) -> None:
    with case.site.journal.write() as session:
        fencing.check(session, case.move.id, epoch)
        now = database_time(session)
        session.add(moves.beside(case.move, case.flow, STEP, at=now, epoch=epoch, result=said))
