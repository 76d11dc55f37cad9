"""Settles what only moves between cells, shelves and unshelves have left in a database that was put back.

After a move between cells, a copy of the server that is missing in one cell is made anew from the copy in the other.  A
copy in a cell that the server has left is removed.  What users wrote is taken from the copy that still has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from droveway.engines.conductor import fencing
from droveway.engines.operations import left
from droveway.errors import Refused
from droveway.flows.stands import Power, Side, Vm
from droveway.flows.steps import images
from droveway.flows.steps.records import other_copy, shelving
from droveway.flows.steps.rows import compute_node
from droveway.persistence.database import database_time
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import copies, copy_removal, late_writes, mappings, objects, servers, usage
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.persistence.nova.cells import FENCE_KEY, GOING, MOVE_KEY
from droveway.persistence.nova.vm_states import PowerState
from droveway.persistence.times import utcnow
from droveway.printable import SHORT

if TYPE_CHECKING:
    from sqlalchemy import orm

    from droveway.engines.operations.left import Left
    from droveway.engines.site.site import Site

API: Final = "api"
"""The name under which the API database is given."""

_CARRIED: Final = (
    sa.select(MoveStep.result)
    .where(MoveStep.move_id == sa.bindparam("move"), MoveStep.result.is_not(None))
    .order_by(MoveStep.seq.desc())
)
_HOST: Final = sa.select(ComputeNode.host).where(
    ComputeNode.deleted == 0,
    ComputeNode.host.in_(sa.select(Instance.host).where(Instance.uuid == sa.bindparam("server"))),
)
_SHELVED_ON: Final = (
    sa.select(Move.source_host)
    .where(Move.server == sa.bindparam("server"), Move.kind == kinds.SHELVE.name, Move.state == State.DONE.value)
    .order_by(Move.created_at.desc())
    .limit(1)
)
_ROW: Final = sa.select(Instance).where(Instance.uuid == sa.bindparam("server")).with_for_update()


@dataclasses.dataclass
class Writing:
    """Changes rows, and keeps a list of what it changed."""

    written: list[str] = dataclasses.field(default_factory=list)

    def set(self, row: Any, **wanted: Any) -> None:
        """Set columns to these values."""
        for column, value in wanted.items():
            present = getattr(row, column)
            if present != value:
                self.written.append(f"{row.__tablename__}.{column}: {present} -> {value}")
                setattr(row, column, value)

    def set_json(self, row: Any, column: str, wanted: dict[str, Any] | None) -> None:
        """Set a column that holds JSON, unless it holds the same already, however written."""
        present = getattr(row, column)
        if (None if present is None else objects.decode(present)) != wanted:
            self.written.append(f"{row.__tablename__}.{column}: as the move left it")
            setattr(row, column, None if wanted is None else objects.encode(wanted))


def insert(site: Site, found: Left, cell: str, epoch: int) -> list[str]:
    """Make the copy that a cell lacks, by copying the rows in the other cell.

    The new copy is hidden.  The caller corrects its values after this function.
    Does nothing where the cell has rows of the server, even deleted ones.
    """
    move = found.move
    if not found.between or site.cells.has(cell, move.server):
        return []
    theirs = other(site, found, cell)
    if theirs is None:
        return []
    with contextlib.ExitStack() as claim, site.cells.database(cell).write() as session:
        copies.insert(
            session,
            theirs,
            host=None,
            node=None,
            task_state=found.stands.task_state,
            markers={FENCE_KEY: str(epoch)},
        )
        hold(claim, session, site, move, epoch)
    lost = sorted(key for key, value in known(site, move.id).items() if late_writes.values(theirs).get(key) != value)
    told = [f"instances: the rows of server {move.server_name} were gone, and are made anew from the other cell's"]
    why = "the other cell has another value, and what users wrote last is lost"
    return [*told, *(f"{key}: {why}" for key in lost if found.is_mapped)]


def host_of_rows(site: Site, cell: str, server: str) -> set[str]:
    """Find the host that the server's rows in this cell name now; empty for none.

    The usage of that host counts the server.  After the rows were put back it may be none of the move's hosts.
    """
    with site.cells.database(cell).read() as session:
        host = session.scalar(_HOST, {"server": server})
    return set() if host is None else {host}


def hold(claim: contextlib.ExitStack, session: orm.Session, site: Site, move: Move, epoch: int) -> None:
    """Lock the move's claim until the transaction ends: nobody can claim the move before these changes are committed.

    The exit stack ``claim`` holds the lock and gives it up when the caller leaves it.
    """
    session.flush()
    claim.enter_context(fencing.writing(site.journal, move.id, epoch))


def other(site: Site, found: Left, cell: str) -> copies.Copy | None:
    """Read the server's copy in the other cell of the move.

    None if the move left no copy there, if there is no copy, or if only a part of a copy is there.
    """
    move, side = found.move, Side.SOURCE
    if found.side_of(cell) is Side.SOURCE:
        side = Side.DESTINATION
    if not found.between or not found.copies.of(side).here:
        return None
    with site.cells.database(found.cell_of(side)).read() as session:
        if servers.is_gone(session, move.server) or is_being_removed(session, move.server):
            return None
        return copies.read(session, move.server)


def known(site: Site, move_id: str) -> dict[str, str]:
    """Find the digests of what users had written, from when the move last compared both copies."""
    with site.journal.read() as session:
        for result in session.scalars(_CARRIED, {"move": move_id}):
            if other_copy.DIGESTS in result:
                return dict(result[other_copy.DIGESTS])
    return {}


def carry(session: orm.Session, site: Site, found: Left, theirs: copies.Copy) -> list[str]:
    """Take into this copy, which was put back, what users wrote into the other copy; return what was taken or lost.

    A value may differ from its digest in the journal in both copies.  Then the value in the mapped copy counts,
    since users write into that copy.  If the mapped copy is the other one, its value is taken.  If the mapped copy is
    this one, its value stays.  But this copy was put back, so what users wrote into it last is lost.  The value is
    named as lost.
    """
    ours, compared = copies.read(session, found.move.server), known(site, found.move.id)
    new, old = late_writes.values(theirs), late_writes.values(ours)
    takes, told = [], []
    for key in sorted({*new, *old}):
        if new.get(key) == old.get(key) or old.get(key) == compared.get(key):
            continue
        if new.get(key) == compared.get(key) or not found.is_mapped:
            takes.append(key)
            told.append(f"{key}: as the other copy has it")
        else:
            told.append(f"{key}: it differs from the other copy, and what was written last is lost")
    late_writes.write(session, found.move.server, late_writes.changes(theirs, ours, takes))
    return told


def mark(session: orm.Session, found: Left) -> None:
    """Write the move's id into a copy that the move has made, while the move's forward flow is under way."""
    unmigrated = found.stands.hidden and not kinds.of(found.move.kind).has_migration
    if found.between and found.forward and (unmigrated or not found.in_source):
        servers.set_system_metadata(session, found.move.server, MOVE_KEY, found.move.id)


def is_being_removed(session: orm.Session, server: str) -> bool:
    """Tell whether the copy is being removed; then it may lack rows."""
    return servers.system_metadata(session, server).get(MOVE_KEY, "").endswith(GOING)


def remove(site: Site, found: Left, cell: str, epoch: int) -> list[str]:
    """Hide the copy in a cell that the server has left, and remove it for good; do nothing where there is none.

    Raises `droveway.errors.Refused` unless the server is mapped to the other cell, which has it whole and visible.
    """
    move, home = found.move, found.mapped_cell
    if not site.cells.has(cell, move.server):
        return []
    hosts = {found.host_of(side) for side in (Side.SOURCE, Side.DESTINATION) if found.cell_of(side) == cell} - {""}
    hosts |= host_of_rows(site, cell, move.server)
    with site.cells.database(cell).read() as session:
        nodes = {host: compute_node(session, host).uuid or "" for host in hosts}
    reserved = {
        host: usage.reserved_of(site.cloud.placement.provider_inventories(node)) for host, node in nodes.items()
    }
    remains = True
    while remains:
        _require_home(site, found, cell)
        with contextlib.ExitStack() as claim, site.cells.transaction(cell, move.server, epoch) as session:
            row = session.scalars(_ROW, {"server": move.server}).one()
            if row.deleted:
                raise Refused(
                    f"cell {cell} says that server {move.server_name} was deleted there, and it lives in cell {home}: "
                    "droveway audit says what else it finds"
                )
            if not is_being_removed(session, move.server):
                left.require_own(session, found, row)
                # A reader of the cell meanwhile finds a hidden copy whose guest is off.
                row.hidden, row.power_state, row.compute_id = True, PowerState.SHUTDOWN, None
                row.host, row.node = found.host_of(found.copies.home.side) or None, None
                servers.set_system_metadata(session, move.server, MOVE_KEY, f"{move.id}{GOING}")
            remains = copy_removal.remove(session, move.server, at_most=other_copy.ROWS)
            usage.recompute(session, *sorted(hosts), reserved=reserved)
            hold(claim, session, site, move, epoch)
    return [f"instances: the rows of server {move.server_name}, which lives in cell {home}, are removed"]


def map_home(session: orm.Session, site: Site, found: Left) -> list[str]:
    """Map the server to the cell where the journal left it; raises `droveway.errors.Refused` unless it is there."""
    move, home = found.move, found.mapped_cell
    present = mappings.cell_of(session, move.server)
    if present == home:
        return []
    with site.cells.database(home).read() as there:
        if servers.is_gone(there, move.server):
            raise Refused(
                f"cell {home}, to which server {move.server_name} is to be mapped, has no row of it: settle it first, "
                f"with droveway move settle {move.id[:SHORT]} --cell {home}"
            )
    mappings.switch(session, move.server, found.cell_of(_unmapped_side(found)), home, deleting=True)
    return [f"instance_mappings.cell_id: {present or 'none'} -> {home}"]


def shelved_on(site: Site, found: Left) -> str | None:
    """Name the host that the server was on when it was last shelved; None if Droveway did not shelve it."""
    with site.journal.read() as session:
        return found.move.source_host or session.scalar(_SHELVED_ON, {"server": found.move.server})


def write_shelved(session: orm.Session, found: Left, writing: Writing, host: str | None) -> None:
    """Write the system metadata and columns of a server that is shelved, or was, on that ``host``."""
    move, record, state = found.move, found.record, found.stands.vm_state
    row = servers.find(session, move.server)
    offloads = found.stands.side is Side.NOWHERE
    if offloads or found.stands.side is Side.DESTINATION:
        writing.set(row, launched_on=found.home or None)
    if state is Vm.ACTIVE and found.stands.power_state is Power.AGAIN and row.launched_at is None:
        writing.set(row, launched_at=move.ended_at or database_time(session))
    image, named = _image(found), servers.system_metadata(session, move.server)
    wanted = {servers.SHELVED_IMAGE: image}
    if image is None:
        wanted |= {shelving.AT: None, shelving.HOST: None}
    else:
        wanted |= {shelving.AT: named.get(shelving.AT) or utcnow().isoformat()}
        wanted |= {shelving.HOST: named.get(shelving.HOST) or host}
    if record.image_ref and (offloads or found.stands.task_state is not None):
        wanted["image_base_image_ref"] = record.image_ref
    for key, value in wanted.items():
        if named.get(key) != value:
            writing.written.append(f"instance_system_metadata.{key}: {named.get(key)} -> {value}")
            servers.set_system_metadata(session, move.server, key, value)


def _image(found: Left) -> str | None:
    """Return the image that the rows should name; None if they should name no image."""
    if found.stands.vm_state is Vm.ACTIVE or found.record.boot_from_volume:
        return None
    if kinds.of(found.move.kind).begins_offloaded:
        return found.record.image.image if found.record.image is not None else None
    shelved = found.stands.vm_state in (Vm.SHELVED, Vm.OFFLOADED)
    return images.image_of(found.move.id) if shelved else None


def _unmapped_side(found: Left) -> Side:
    return Side.SOURCE if found.copies.mapped is Side.DESTINATION else Side.DESTINATION


def _require_home(site: Site, found: Left, cell: str) -> None:
    move, home = found.move, found.mapped_cell
    with site.api.read() as session:
        mapped = mappings.cell_of(session, move.server)
    with site.cells.database(home).read() as session:
        stands = not servers.is_gone(session, move.server) and not servers.find(session, move.server).hidden
    if mapped == home and home != cell and stands:
        return
    raise Refused(
        f"the rows of server {move.server_name} in cell {cell} may be the only ones, so they stay: the journal left it "
        f"in cell {home}, which {'shows' if stands else 'does not show'} it, and it is mapped to {mapped or 'none'}; "
        f"settle that first, with --cell {home if mapped == home else API}"
    )
