"""Settles a database that was put back from an older copy: writes what one move had left there, by its journal.

This is done for a move that is at a rest, or parked anywhere.  Hosts are asked first, except for Placement: the guest
must run nowhere but where the server is to live.  At a rest that host must also show the server's disks whole.  Nothing
is started or moved.  Only two things are deleted: rows in a cell that the server has left, and attachments of the
server's volumes in whose place another one stands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines
from droveway.clients.volume import ATTACHED
from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import fencing, incarnation
from droveway.engines.operations import left, settling_books, settling_copies, settling_volumes
from droveway.engines.operations.left import Left
from droveway.engines.operations.proofs import HostChecks, Resting
from droveway.engines.operations.settling import overtaken, seen
from droveway.engines.operations.settling_copies import API, Writing
from droveway.engines.operations.settling_volumes import CINDER
from droveway.engines.site.site import Site
from droveway.errors import Evacuated, Fenced, Refused, ServerDeleted
from droveway.flows.before import shows_disks
from droveway.flows.stands import Side
from droveway.flows.steps.rows import compute_node, new_migration
from droveway.persistence.database import database_time
from droveway.persistence.journal import kinds, moves
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveFlow, MoveStep
from droveway.persistence.nova import actions, catalog, cell, devices, objects, servers, swap_devices, usage
from droveway.persistence.nova.actions import ActionRef
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS, MigrationStatus
from droveway.printable import SHORT
from droveway.scheduler.hosts import zone_of

PLACEMENT: Final = "placement"
"""The name under which Placement's database is given."""

STEP: Final = "settle_cell"
"""What stands for the step in the history's row of such a settlement."""

_KNOWN: Final = frozenset({*left.RESTS, State.NEEDS_OPERATOR, State.DELETING})
"""The states in which a move may be settled; a move that is held may be settled in any state.

`settle` refuses a move all the same while a conductor has claimed it.
"""

_LEFT_ALONE: Final = (Evacuated.code, "left-as-is")
"""Error codes of moves that ended as they stood, without bringing their server to a known state."""

_ENDED_AS: Final = {State.DONE: MigrationStatus.CONFIRMED, State.REVERTED: MigrationStatus.REVERTED}
"""The status with which the migration of an ended move ends; for any other end it is ``error``."""

_MARKED: Final = sa.select(MoveStep.move_id).where(
    MoveStep.step.in_(left.FIRST_MARKS),
    MoveStep.direction == "execute",
    MoveStep.ended_at.is_not(None),
    MoveStep.error.is_(None),
)
_LATEST: Final = (
    sa.select(Move.id)
    .where(
        Move.server == sa.bindparam("server"),
        # The last alternative: before one of the steps in `left.FIRST_MARKS` is done, a move has written nothing into
        # the server's rows.  An ended move that never came so far says nothing about them.
        sa.or_(
            Move.id == sa.bindparam("move"),
            Move.state.not_in([state.value for state in ENDED]),
            Move.kind.not_in([kind.name for kind in kinds.KINDS if kind.leaves_known_rows]),
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


@dataclasses.dataclass(frozen=True)
class _Case:
    site: Site
    left: Left
    flow: MoveFlow
    running: bool

    @property
    def move(self) -> Move:
        return self.left.move

    @property
    def cells(self) -> set[str]:
        """The cells of the move's source and destination: two for a move between cells, else one."""
        return {self.left.cell_of(side) for side in (Side.SOURCE, Side.DESTINATION)} - {""}


def settle(site: Site, coordination: Coordination, name: str, where: str, *, who: str, reason: str) -> list[str]:
    """Write into the database ``where`` what the move left there, and return what differed; empty if nothing did.

    ``where`` is a cell's name or id, or the word for one of the other databases.
    Raises `droveway.errors.Refused` in these cases: a conductor may have the move; ``where`` is none of its databases;
    somebody else is at work on the server; the hosts do not show what the rows should say.  Raises too as
    `droveway.engines.conductor.incarnation.require` does.
    """
    if not reason.strip():
        raise Refused("settling a cell needs a reason: say with --reason which copy was put back")
    with site.journal.read() as session:
        move = moves.find(session, name)
        short, where = move.id[:SHORT], _named(site, move, where)
        _require_known(session, move, where)
        found = left.of(session, move)
        if where == PLACEMENT and found.returning is not None:
            raise Refused(
                f"move {short} brings {move.server_name} to {found.returning.host} in the place of its source, and no "
                "command writes what it holds in Placement then: droveway audit names what differs"
            )
        flow = session.scalars(moves.NEWEST_FLOW, {"move": move.id}).one()
        claim = session.get(Claim, move.id)
    if claim is not None and claim.released_at is None:
        raise Refused(
            f"conductor {claim.owner} has not given move {short} back and may still be at it: ask again when it has"
        )
    # What is held in Placement does not depend on what runs where.
    asks = where != PLACEMENT
    with _claimed(site, coordination, move, claim, who, asks=asks) as epoch:
        shown = _shown(site, coordination, found, flow) if asks else _Shown(running=False)
        case = _Case(site, found, flow, running=shown.running)
        try:
            with (
                overtaken(move),
                deadlines.running(STEP, site.conf.conductor.step_deadline),
                fencing.guarding_calls(site.journal, move.id, epoch),
            ):
                written = _write(case, where, epoch, shown)
        except ServerDeleted:
            raise Refused(
                f"cell {found.mapped_cell if where in (API, CINDER) else where} has no row of server "
                f"{move.server_name}, and "
                "there is no other copy of it: put a newer copy of that database back"
            ) from None
        if written:
            _note(case, epoch, {"settled": where, "by": who, "reason": reason, "wrote": written})
    return written


@contextlib.contextmanager
def _claimed(
    site: Site, coordination: Coordination, move: Move, claim: Claim | None, who: str, *, asks: bool
) -> Iterator[int]:
    """Claim the move while the context lasts, then give it back; ``claim`` is its last one by which it rested.

    ``asks``: whether the caller asks hosts under the claim.  If so, and the move has ended, its tombstone is lifted for
    that time.
    """
    with overtaken(move):
        epoch = fencing.claim(
            site.journal, move.id, f"{OPERATOR}{who}", quarantine_after=sys.maxsize, seen=seen(move, claim)
        )
    opens = asks and State(move.state) in ENDED
    try:
        if asks:
            # The journal's mark in ZooKeeper gets the epoch before any host is told of it: see `incarnation`.
            incarnation.raise_mark(coordination, incarnation.require(coordination, site.journal), epoch)
        if opens:
            fencing.clear_tombstone(site.journal, coordination, move.id, epoch)
        yield epoch
    finally:
        # If the tombstone cannot be written, the claim is not released: a conductor then clears up.
        if opens:
            fencing.write_tombstone(coordination, move.id, epoch)
        fencing.release(site.journal, move.id, epoch)


@dataclasses.dataclass(frozen=True)
class _Shown:
    """What the hosts of a move have shown."""

    running: bool
    """Whether the guest runs where the server is to live."""
    connectors: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Host that answered → the connector by which it gets volumes."""


def _write(case: _Case, where: str, epoch: int, shown: _Shown) -> list[str]:
    if where == API:
        return _write_api(case, epoch)
    if where == PLACEMENT:
        return settling_books.write(case.site, case.left)
    with _fenced(case, epoch):
        if where == CINDER:
            return settling_volumes.write(case.site, case.left, shown.connectors, epoch, runs=shown.running)
        found = case.left.in_cell(where)
        if found.stands.here:
            return _write_cell(dataclasses.replace(case, left=found), where, epoch)
        return settling_copies.remove(case.site, found, where, epoch)


@contextlib.contextmanager
def _fenced(case: _Case, epoch: int) -> Iterator[None]:
    """Keep everybody else from writing the server's rows in the move's cells.

    Afterwards the fences are dropped only if the move is at a rest.  A parked flow still needs its fences.
    """
    cells, server = case.site.cells, case.move.server
    if away := cells.away(case.cells) if case.left.between else []:
        raise Refused(f"the database of cell {away[0]} does not answer, and the move has rows there: start it first")
    for each in sorted(case.cells):
        cells.raise_fence(each, server, epoch)
    try:
        yield
    finally:
        if case.left.rests:
            for each in sorted(case.cells):
                cells.drop_fence(each, server, epoch)


def _named(site: Site, move: Move, where: str) -> str:
    """Return the name of the cell if ``where`` is a cell's id, else ``where``.

    The API database, which may be away, is not asked for what the move itself names.
    """
    if where in (API, PLACEMENT, CINDER, move.source_cell, move.dest_cell):
        return where
    return next((each.name for each in catalog.cells_of(site.api) if each.id == where), where)


def _require_known(session: orm.Session, move: Move, where: str) -> None:
    short, state = move.id[:SHORT], State(move.state)
    kind = kinds.of(move.kind)
    if where == PLACEMENT and not kind.has_migration:
        raise Refused(
            f"what a {move.kind} holds in Placement is not written by a command yet: droveway audit names what differs "
            f"of {move.server_name}"
        )
    cells = {move.source_cell, *([move.dest_cell] if kind.crosses_cells and move.dest_cell else [])}
    if where not in (API, PLACEMENT, CINDER, *cells):
        named = " and ".join(sorted(cells))
        raise Refused(f"move {short} of {move.server_name} is in cell {named}, not in {where}")
    if not kinds.of(move.kind).leaves_known_rows or not (state in _KNOWN or move.hold):
        raise Refused(
            f"move {short} of {move.server_name} is {move.state}, and what it left in a database is known only while "
            f"it rests: droveway move show {short} tells what can be done"
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


def _shown(site: Site, coordination: Coordination, found: Left, flow: MoveFlow) -> _Shown:
    """Ask the hosts; raises Refused unless they show that the guest may run where the server is to live."""
    move = found.move
    with site.journal.read() as session:
        sequence = session.scalar(_LAST_STEP, {"move": move.id}) or 0
    checks = HostChecks(
        site,
        coordination,
        Resting(move, flow, STEP, "execute", sequence, found.record),
        ending=f"so nothing of move {move.id[:SHORT]} is written: mend that, then ask again",
    )
    home = found.home
    others = {move.source_host, checks.destination, found.host_of(Side.RETURN)} - {"", home}
    try:
        state = checks.state(home) if home else None
        elsewhere = {other: checks.state(other) for other in sorted(others)}
    except Fenced as error:
        raise checks.refused(str(error)) from None
    for other, there in elsewhere.items():
        if there is not None and there.running:
            raise checks.refused(
                f"the guest runs on host {other}, and the journal left the server on {home or 'no host'}"
            )
    if home and found.rests and (state is None or not shows_disks(state, found.record)):
        raise checks.refused(f"host {home}, on which the journal left the server, does not show its disks whole")
    answered = {host: there for host, there in {home: state, **elsewhere}.items() if there is not None}
    return _Shown(
        running=state is not None and state.running,
        connectors={host: there.connector for host, there in answered.items()},
    )


def _write_cell(case: _Case, where: str, epoch: int) -> list[str]:
    move, found, cells, writing = case.move, case.left, case.site.cells, Writing()
    written = settling_copies.insert(case.site, found, where, epoch)
    hosts = sorted(_hosts(case, where) | settling_copies.host_of_rows(case.site, where, move.server))
    with case.site.journal.read() as session:
        ended = _ended_moves(session, move)
    zone, shelved_on = _zone(case), settling_copies.shelved_on(case.site, found)
    named = _named_destination(case, where)
    reserved = _reserved(case, where, hosts)
    other = settling_copies.other(case.site, found, where)
    with contextlib.ExitStack() as claim, cells.transaction(where, move.server, epoch) as session:
        row = servers.live(session, move.server, deleting=True)
        left.require_own(session, found, row)
        if settling_copies.is_being_removed(session, move.server):
            return []
        was_hidden = bool(row.hidden)
        migration = _migration(session, case, writing, named)
        _end_earlier(session, move, ended, writing)
        _write_server(session, case, writing, row, zone)
        _write_traces(session, case, writing, migration)
        if not kinds.of(move.kind).has_migration:
            settling_copies.write_shelved(session, found, writing, shelved_on)
        if other is not None and writing.written and (was_hidden or not found.is_mapped):
            writing.written += settling_copies.carry(session, case.site, found, other)
        _write_volumes(session, case, writing)
        if found.action and (found.is_mapped or found.forward):
            record, action = found.record, ActionRef(move.server, f"req-{move.flow_uuid}")
            actions.begin(session, action, found.action, user_id=record.user_id, project_id=record.project_id)
        settling_copies.mark(session, found)
        session.flush()
        usage.recompute(session, *hosts, reserved=reserved)
        settling_copies.hold(claim, session, case.site, move, epoch)
    return [*written, *writing.written]


def _hosts(case: _Case, where: str) -> set[str]:
    """Return the move's hosts in that cell."""
    found = case.left
    sides = (Side.SOURCE, Side.RETURN, Side.DESTINATION)
    return {found.host_of(side) for side in sides if found.cell_of(side) == where} - {""}


def _reserved(case: _Case, where: str, hosts: Iterable[str]) -> dict[str, Any]:
    with case.site.cells.database(where).read() as session:
        nodes = {host: compute_node(session, host) for host in hosts}
    placement = case.site.cloud.placement
    return {host: usage.reserved_of(placement.provider_inventories(node.uuid or "")) for host, node in nodes.items()}


def _zone(case: _Case) -> str | None:
    found = case.left
    if found.stands.zone is Side.NOWHERE:
        return None
    there = found.host_of(found.stands.zone)
    if there == case.move.source_host and found.stands.zone is not Side.DESTINATION:
        return found.record.availability_zone
    with case.site.api.read() as session:
        return zone_of(session, there)


def _named_destination(case: _Case, where: str) -> dict[str, Any]:
    """Return what the migration should say of its destination; a node's number is only given in the node's own cell."""
    found = case.left
    if not found.stands.attempt or not (host := found.host_of(Side.DESTINATION)):
        return {}
    cell = where if found.destination is None else found.destination.cell
    with case.site.cells.database(cell).read() as session:
        node = compute_node(session, host)
    named = {
        "dest_compute": host,
        "dest_node": node.hypervisor_hostname,
        "dest_compute_id": node.id if cell == where else None,
        "dest_host": node.host_ip,
    }
    return named | ({"cross_cell_move": True} if found.between else {})


def _ended_moves(session: orm.Session, move: Move) -> dict[str, str]:
    """Return the id of each other move of the server that has ended → the status of its migration."""
    ended = sa.select(Move.id, Move.state).where(
        Move.server == move.server, Move.id != move.id, Move.state.in_([state.value for state in ENDED])
    )
    return {row.id: _ENDED_AS.get(State(row.state), MigrationStatus.ERROR) for row in session.execute(ended)}


def _end_earlier(session: orm.Session, move: Move, ended: dict[str, str], writing: Writing) -> None:
    """End the migrations of earlier moves that the older copy still has under way."""
    for row in session.scalars(_OPEN, {"server": move.server, "move": move.id}).all():
        if row.uuid in ended:
            writing.set(row, status=ended[row.uuid])


def _migration(session: orm.Session, case: _Case, writing: Writing, named: Mapping[str, Any]) -> cell.Migration | None:
    """Correct the move's migration; make one that is missing only if the journal knows that the move had made it."""
    move, found = case.move, case.left
    row = servers.migration(session, move.id)
    status = found.stands.status
    if status is None:
        if row is not None and found.rests:
            # The row was inserted, and the journal did not get to record it.
            writing.set(row, status=MigrationStatus.ERROR)
        return row
    if row is None:
        row = new_migration(move, found.record, status)
        session.add(row)
        writing.written.append(f"migrations: the row of move {move.id[:SHORT]} was gone")
    writing.set(row, status=status, **named)
    session.flush()
    return row


def _write_server(session: orm.Session, case: _Case, writing: Writing, row: cell.Instance, zone: str | None) -> None:
    found = case.left
    flavor = objects.flavor_data(found.flavor)
    extra = servers.extra_row(session, row.uuid)
    was = objects.flavor_data(servers.flavors(extra)["cur"])["swap"]
    if bool(row.hidden) != found.stands.hidden:
        writing.set(row, hidden=found.stands.hidden)
    writing.set(
        row,
        **_place(session, found),
        availability_zone=zone,
        instance_type_id=flavor["id"],
        memory_mb=flavor["memory_mb"],
        vcpus=flavor["vcpus"],
        root_gb=flavor["root_gb"],
        ephemeral_gb=flavor["ephemeral_gb"],
        vm_state=found.vm_state(running=case.running),
        task_state=found.task_state,
        power_state=found.power_state(running=case.running),
    )
    session.flush()
    if was != flavor["swap"]:
        back = found.flavor == found.record.old_flavor
        swap_devices.follow_flavor(session, row.uuid, was, flavor["swap"], back=back)


def _place(session: orm.Session, found: Left) -> dict[str, Any]:
    """Return what the row should name: host, node and the node's number.

    The host of a hidden copy is in the other cell, whose nodes have no number in this cell.
    """
    if not found.home:
        return {"host": None, "node": None, "compute_id": None}
    if found.stands.hidden:
        return {"host": found.home, "node": found.node_of(found.stands.side), "compute_id": None}
    node = compute_node(session, found.home)
    return {"host": found.home, "node": node.hypervisor_hostname, "compute_id": node.id}


def _write_traces(session: orm.Session, case: _Case, writing: Writing, migration: cell.Migration | None) -> None:
    """Write the flavors, the migration context and the old vm_state.

    The context and the old vm_state are removed if the move does not need them any more.
    """
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


def _write_volumes(session: orm.Session, case: _Case, writing: Writing) -> None:
    """Write into the rows which attachment each volume has in Cinder.

    If the server should be on a host, a volume's attachment has to be complete.  An attachment to the host where the
    journal has the volume comes before an attachment to another host.  If the server should be on no host, the
    attachment has to be connected to no host.  A hidden copy in the target's cell is left alone: its rows are written
    when the copy is shown.
    """
    if case.left.stands.hidden and not case.left.in_source:
        return
    volumes, side = case.site.cloud.volumes, case.left.stands.attachments
    home, nowhere = case.left.host_of(side), side is Side.NOWHERE
    held: dict[str, Any] = {}
    for each in volumes.for_server(case.move.server):
        fits = not each.connected if nowhere else each.status == ATTACHED
        if fits and (each.host == home or each.volume not in held):
            held[each.volume] = each
    for row in servers.volumes(session, case.move.server):
        attachment = held.get(row.volume_id or "")
        if attachment is not None and row.attachment_id != attachment.id:
            writing.set(row, attachment_id=attachment.id)
            if not nowhere:
                info = devices.connection_info(
                    volumes.shown(attachment.id), previous=objects.decode(row.connection_info or "{}")
                )
                row.connection_info = objects.encode(info)


def _write_api(case: _Case, epoch: int) -> list[str]:
    """Write the request spec, with the flavor that the move had written into it.

    For a move between cells also map the server to the cell where the journal left it.
    """
    writing, record = Writing(), case.left.record
    wanted = objects.decode(record.request_spec)
    if case.left.new_spec:
        requests = objects.pci_requests(instance_uuid=case.move.server)
        wanted = objects.change_request_spec(wanted, {"flavor": record.new_flavor, "pci_requests": requests})
    with contextlib.ExitStack() as claim, case.site.api.write() as session:
        if case.left.between:
            writing.written += settling_copies.map_home(session, case.site, case.left)
        writing.set_json(servers.request_spec(session, case.move.server), "spec", wanted)
        settling_copies.hold(claim, session, case.site, case.move, epoch)
    return writing.written


def _note(case: _Case, epoch: int, said: dict[str, Any]) -> None:
    with case.site.journal.write() as session:
        fencing.check(session, case.move.id, epoch)
        now = database_time(session)
        session.add(moves.intervention(case.move, case.flow, STEP, at=now, epoch=epoch, result=said))
