"""What the commands do: each writes its request; a lab then runs until the request has come to rest."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.engines.site import Site
from droveway.errors import DrovewayError, NotFound, Refused, StepError
from droveway.flows import registry
from droveway.lab import cloud, facts, runner, servers, stopped
from droveway.lab.session import Lab
from droveway.persistence import catalog, moves, objects, requests
from droveway.persistence import servers as rows
from droveway.persistence.database import database_time
from droveway.persistence.journal import Move
from droveway.persistence.states import ENDED, State
from droveway.persistence.vm_states import TaskState
from droveway.scheduler import preconditions

DONE: Final = 0
UNDONE: Final = 3
NEEDS_OPERATOR: Final = 4

_MIB_PER_GIB: Final = 1024


class StillMoving(DrovewayError):
    """A server's move does not end by itself, and what is asked of the server has to wait for that."""

    code = "still-moving"
    exit_code = NEEDS_OPERATOR


def carry(site: Site, move_id: str) -> Move:
    """Wait until the move rests, in a lab carry it on; the move as it was then, for others may let it go on at once."""
    seen: Move

    def rests() -> bool:
        nonlocal seen
        with site.journal.read() as session:
            seen = moves.get(session, move_id)
            return not runner.can_go_on(seen, database_time(session))

    return read_move(site, move_id) if site.settle(rests) else seen


def carry_all(lab: Lab) -> list[Move]:
    """Let the lab run until nothing goes on by itself; the moves that did."""
    with lab.journal.read() as session:
        now = database_time(session)
        going = [move.id for move in moves.open_moves(session) if runner.can_go_on(move, now)]
    runner.drive(lab, lambda: not runner.is_busy(lab))
    return [read_move(lab, move) for move in going]


def ask(site: Site, name: str, request: Callable[[orm.Session, Move], None]) -> Move:
    """Write what is asked of the move that has this id, or begins with it; nothing is carried on yet."""
    with site.journal.write() as session:
        move = moves.get(session, moves.find(session, name).id, lock=True)
        request(session, move)
    return move


def confirm(session: orm.Session, move: Move) -> None:
    """File the confirm flow."""
    requests.confirm(session, move, registry.reference("confirm"))


def revert(session: orm.Session, move: Move) -> None:
    """File the revert flow."""
    requests.revert(session, move, registry.reference("revert"))


def cancel(session: orm.Session, move: Move) -> None:
    """Ask that the forward flow be undone."""
    if move.flow_uuid is None:
        requests.cancel(session, move, frozenset())
        return
    flow = moves.flow_of(session, move.flow_uuid)
    requests.cancel(session, move, registry.beyond(flow.kind, flow.version))


def require_end(site: Site, name: str, kind: str) -> None:
    """Raise `droveway.errors.Refused` naming the first rule that a confirm or revert (``kind``) of the move breaks.

    Nothing for a move that does not wait for it, or whose server is gone: the request itself says what becomes of it.
    """
    move = find_move(site, name)
    if move.state != State.VERIFYING:
        return
    try:
        with contextlib.suppress(NotFound):
            preconditions.check_end(kind, facts.of_end(site, move))
    except Refused:
        # What was found may be the first writes of a confirm or revert that somebody else has asked for meanwhile.
        if read_move(site, move.id).state == State.VERIFYING:
            raise


def read_move(site: Site, move_id: str) -> Move:
    """The move as it is now."""
    with site.journal.read() as session:
        return moves.get(session, move_id)


def find_move(site: Site, name: str) -> Move:
    """The move by its id or the first letters of it."""
    with site.journal.read() as session:
        return moves.find(session, name)


def move_of_server(site: Site, name: str) -> Move:
    """The server's move that has not ended; raises `droveway.errors.Refused` when it has none."""
    server = catalog.find_server(site.api, site.cell_databases, name)
    with site.journal.read() as session:
        move = session.scalar(sa.select(Move).where(Move.active_server == server.id))
    if move is None:
        raise Refused(f"server {server.name} has no move under way: droveway server show {server.name}")
    return move


def outcome(move: Move, wanted: frozenset[State]) -> int:
    """The exit code of a command that wanted the move to reach one of these states."""
    state = State(move.state)
    if state in wanted or move.hold:
        return DONE
    return NEEDS_OPERATOR if state is State.NEEDS_OPERATOR else UNDONE


def create_server(lab: Lab, name: str, spec: cloud.Server) -> str:
    """Build one more server and return its uuid; raises `droveway.errors.Refused` for what the lab cannot build."""
    if any(server.name == name for server in catalog.servers(lab.api, lab.cell_databases)):
        raise Refused(f"there is a server {name} already: choose another name")
    catalog.find_host(lab.api, lab.cell_databases, spec.host)
    flavor = catalog.find_flavor(lab.api, spec.flavor)
    _check_image(lab, spec, flavor)
    try:
        return servers.create(lab, name, spec)
    except StepError as error:
        raise Refused(f"server {name} cannot be built on host {spec.host}: {error}") from None


def start_server(lab: Lab, name: str) -> bool:
    """Start a stopped server; False when it was active."""
    return servers.start(lab, _found(lab, name))


def stop_server(lab: Lab, name: str) -> bool:
    """Stop an active server; False when it was stopped."""
    return servers.stop(lab, _found(lab, name))


def delete_server(lab: Lab, name: str) -> None:
    """Delete the server; with a move under way, once that was confirmed, undone or has ended.  Repeated: the same.

    Raises `StillMoving` when that waits for something; what was asked stands, and goes on by itself or when asked
    again.
    """
    move = carry(lab, ask_to_delete(lab, name))
    if State(move.state) not in ENDED:
        short, server = move.id[: moves.SHORT], move.server_name
        raise StillMoving(
            f"server {server} is not deleted yet: its move {short} is {move.state} "
            f"({move.error or 'no reason was recorded'}); mend that, then  droveway lab server delete {server}"
        )


def start_worker(lab: Lab, host: str) -> None:
    """Let a host's worker come back, from the next command on; deletes that wait for it go on then."""
    lab.host(host)
    stopped.start(lab.layout, host)
    with lab.journal.write() as session:
        requests.host_is_back(session, host)


def ask_to_delete(lab: Lab, name: str) -> str:
    """Mark the server as Nova does and file its deletion; the id of the move that carries it out."""
    found = _found(lab, name)
    _mark_deleting(lab, found)
    with lab.journal.write() as session:
        move = session.scalar(sa.select(Move).where(Move.active_server == found.uuid).with_for_update())
        if move is None:
            move = moves.submit(session, _deletion(lab, found), registry.reference("delete"))
        else:
            requests.delete(session, move)
        return move.id


def _deletion(lab: Lab, found: servers.Found) -> moves.Request:
    with lab.cells.database(found.cell).read() as session:
        row = rows.find(session, found.uuid)
        current = rows.flavors(rows.extra_row(session, found.uuid))["cur"]
        project = row.project_id or ""
    flavor = objects.flavor_data(current)["name"]
    return moves.Request(
        kind="delete",
        server=found.uuid,
        server_name=found.name,
        cell=found.cell,
        host=found.host,
        old_flavor=flavor,
        new_flavor=flavor,
        asked_by=getpass.getuser(),
        project=project,
    )


def _mark_deleting(lab: Lab, found: servers.Found) -> None:
    with lab.cells.database(found.cell).write() as session:
        row = rows.find(session, found.uuid)
        row.task_state = TaskState.DELETING
        row.progress = 0


def _found(lab: Lab, name: str) -> servers.Found:
    server = catalog.find_server(lab.api, lab.cell_databases, name)
    return servers.Found(
        uuid=server.id,
        name=server.name,
        cell=server.cell,
        host=str(server.host),
        vm_state=str(server.vm_state),
        task_state=server.task_state,
    )


def _check_image(lab: Lab, spec: cloud.Server, flavor: catalog.Flavor) -> None:
    if spec.image is None:
        return
    image = next((image for image in lab.cloud.images.images() if image.name == spec.image), None)
    if image is None:
        known = ", ".join(image.name for image in lab.cloud.images.images()) or "none"
        raise Refused(f"image {spec.image} is unknown: the lab's images are {known}")
    needed = max(image.min_disk_gb, -(-(image.size or 0) // _MIB_PER_GIB**3))
    if flavor.root_gb and flavor.root_gb < needed:
        raise Refused(
            f"the root disk of flavor {flavor.name} ({flavor.root_gb} GB) is too small for the image {image.name}, "
            f"which needs {needed} GB: choose a larger flavor"
        )
