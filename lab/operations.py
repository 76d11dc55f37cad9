"""Carries out the lab's own commands: each writes its request, then the lab runs until the request has come to rest."""

from __future__ import annotations

import getpass

import sqlalchemy as sa
from oslo_utils import units

from droveway.engines.conductor import eligibility
from droveway.engines.operations.move_requests import NEEDS_OPERATOR, can_go_on, carry, read_move
from droveway.errors import DrovewayError, Refused, StepError
from droveway.lab import cloud, runner, servers, stopped
from droveway.lab.session import Lab
from droveway.persistence.database import database_time
from droveway.persistence.journal import debts, kinds, moves, requests
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import catalog, objects
from droveway.persistence.nova import servers as rows
from droveway.persistence.nova.vm_states import TaskState
from droveway.printable import SHORT


class StillMoving(DrovewayError):
    """The request has to wait for a move of the server that does not end by itself."""

    code = "still-moving"
    exit_code = NEEDS_OPERATOR


def going(lab: Lab) -> list[str]:
    """Return the ids of the moves that can go on by themselves."""
    with lab.journal.read() as session:
        now = database_time(session)
        return [move.id for move in moves.open_moves(session) if can_go_on(move, now)]


def carry_all(lab: Lab) -> list[Move]:
    """Run the lab until nothing goes on by itself, and return the moves that went on."""
    with lab.journal.write() as session:
        requests.recheck_waits(session)
        debts.forget_errors(session)
    found = going(lab)
    runner.drive(lab, lambda: not runner.is_busy(lab))
    return [read_move(lab, move) for move in found]


def create_server(lab: Lab, name: str, spec: cloud.Server) -> str:
    """Build one more server and return its uuid; raises `droveway.errors.Refused` for what the lab cannot build."""
    if any(server.name == name for server in catalog.servers(lab.api, lab.cell_databases)):
        raise Refused(f"there is a server {name} already: choose another name")
    if spec.host is not None:
        catalog.find_host(lab.api, lab.cell_databases, spec.host)
    flavor = catalog.find_flavor(lab.api, spec.flavor)
    _check_image(lab, spec, flavor)
    try:
        return servers.create(lab, name, spec)
    except StepError as error:
        where = f"on host {spec.host}" if spec.host is not None else f"in cell {spec.cell}"
        raise Refused(f"server {name} cannot be built {where}: {error}") from None


def start_server(lab: Lab, name: str) -> bool:
    """Start a server that is off; False when it runs."""
    return servers.start(lab, catalog.find_server(lab.api, lab.cell_databases, name))


def stop_server(lab: Lab, name: str) -> bool:
    """Stop a server that runs; False when it is off."""
    return servers.stop(lab, catalog.find_server(lab.api, lab.cell_databases, name))


def delete_server(lab: Lab, name: str) -> None:
    """Delete the server, after its open move was confirmed, was undone or has ended; may be repeated.

    Raises `StillMoving` when the move waits for something. The request stays, and goes on by itself or when it is
    repeated.
    """
    move = carry(lab, request_delete(lab, name))
    if State(move.state) not in ENDED:
        short, server = move.id[:SHORT], move.server_name
        why = move.error or move.waits_for or "no reason was recorded"
        raise StillMoving(
            f"server {server} is not deleted yet: its move {short} is {move.state} ({why}); mend that, then  "
            f"droveway lab server delete {server}"
        )


def start_worker(lab: Lab, host: str) -> None:
    """Let a host's worker run again from the next command on, and run the deletes that wait for it."""
    lab.host(host)
    stopped.start(lab.layout, host)
    with lab.journal.write() as session:
        requests.host_is_back(session, host)


def request_delete(lab: Lab, name: str) -> str:
    """Mark the server as being deleted, as Nova does, and return the id of the move that deletes it."""
    found = catalog.find_server(lab.api, lab.cell_databases, name)
    _mark_deleting(lab, found)
    with lab.journal.write() as session:
        move = session.scalar(sa.select(Move).where(Move.active_server == found.id).with_for_update())
        if move is None:
            move = moves.submit(session, _deletion(lab, found), _deleting(lab))
        else:
            requests.delete(session, move)
        return move.id


def _deleting(lab: Lab) -> moves.FlowRef:
    return eligibility.chosen(kinds.DELETE.name, lab.conf.upgrade_levels.worker).reference()


def _deletion(lab: Lab, found: catalog.Server) -> moves.Request:
    with lab.cells.database(found.cell).read() as session:
        row = rows.find(session, found.id)
        current = rows.flavors(rows.extra_row(session, found.id))["cur"]
        project = row.project_id or ""
    flavor = objects.flavor_data(current)["name"]
    return moves.Request(
        kind=kinds.DELETE.name,
        server=found.id,
        server_name=found.name,
        cell=found.cell,
        host=found.host or "",
        old_flavor=flavor,
        new_flavor=flavor,
        asked_by=getpass.getuser(),
        project=project,
    )


def _mark_deleting(lab: Lab, found: catalog.Server) -> None:
    with lab.cells.database(found.cell).write() as session:
        row = rows.find(session, found.id)
        row.task_state = TaskState.DELETING
        row.progress = 0


def _check_image(lab: Lab, spec: cloud.Server, flavor: catalog.Flavor) -> None:
    if spec.image is None:
        return
    image = next((image for image in lab.cloud.images.images() if image.name == spec.image), None)
    if image is None:
        known = ", ".join(image.name for image in lab.cloud.images.images()) or "none"
        raise Refused(f"image {spec.image} is unknown: the lab's images are {known}")
    needed = max(image.min_disk_gb, -(-(image.size or 0) // units.Gi))
    if flavor.root_gb and flavor.root_gb < needed:
        raise Refused(
            f"the root disk of flavor {flavor.name} ({flavor.root_gb} GB) is too small for the image {image.name}, "
            f"which needs {needed} GB: choose a larger flavor"
        )
