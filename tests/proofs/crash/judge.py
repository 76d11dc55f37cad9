"""What has to hold after a point of the crash matrix: the books, the rows, and the server itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import sqlalchemy as sa
from proofs import leftovers
from proofs.crash.points import Point, expected_end
from support.rows import journal_moves

from droveway.engines.operations import move_requests
from droveway.errors import DrovewayError, Refused
from droveway.flows import registry
from droveway.lab import books, operations, runner, servers, stopped
from droveway.lab.runner import Probes
from droveway.lab.session import Lab
from droveway.persistence.journal import kinds, moves, requests, transfers
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import api, catalog, objects
from droveway.persistence.nova import servers as rows
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import Service
from droveway.persistence.nova.vm_states import VmState


def carry(
    lab: Lab, probes: Probes | None, begin: Callable[[], object], *, special: runner.Runner | None = None
) -> None:
    """Begin, then run the lab until nothing in it goes on by itself; ``special`` is a runner of another kind."""
    begin()
    with runner.running(lab, probes, runner=special) as running:
        running.wait_idle()


def submit(lab: Lab, kind: str, server: str, policy: str = "deadline") -> None:
    """Ask for a flow of this kind: of the only open move, or of a new one of the server, with this confirm policy."""
    record = kinds.of(kind)
    if record.deletes:
        operations.request_delete(lab, server)
    elif record.ends_wait:
        with lab.journal.write() as session:
            waiting = moves.open_moves(session)
            if not waiting:
                last = journal_moves.listing(session)[-1]
                raise DrovewayError(f"no {kind} can be asked for: the last move is {last.state} ({last.error})")
            requests.end_wait(session, waiting[0], registry.reference(kind))
    else:
        request = dataclasses.replace(_request(lab, kind, server), policy=policy)
        with lab.journal.write() as session:
            moves.submit(session, request, registry.reference(kind))


def lose_source(lab: Lab) -> None:
    """The source of the youngest move has died, and a person says so."""
    _say_of_source(lab, down=True)


def bring_source_back(lab: Lab) -> None:
    """It is back, and pays what it owes as soon as the lab runs."""
    _say_of_source(lab, down=False)


def _say_of_source(lab: Lab, *, down: bool) -> None:
    move = latest(lab)
    (stopped.stop if down else stopped.start)(lab.layout, move.source_host)
    service = sa.update(Service).where(Service.host == move.source_host, Service.binary == "nova-compute")
    with lab.cells.database(move.source_cell).write() as session:
        session.execute(service.values(disabled=down, forced_down=down))


def latest(lab: Lab) -> Move:
    """The lab's youngest move."""
    with lab.journal.read() as session:
        return journal_moves.listing(session)[-1]


def judge(lab: Lab, point: Point, *, accepted: bool, alternates: bool, deleted: bool) -> State:
    """The state in which the move rests; raises DrovewayError when that or anything else is not as it has to be.

    The audit is clean, and of a deleted server nothing is left.
    """
    require_clean(lab, "")
    move = latest(lab)
    expected = expected_end(point, accepted=accepted, alternates=alternates)
    rests(lab, expected)
    if deleted and (left := leftovers.of(lab, move.server)):
        raise DrovewayError("left: " + ", ".join(left))
    if point.path == "retry" and move.state == State.VERIFYING and move.attempt == 1:
        raise DrovewayError(f"the move went to {move.dest_host} in the end, which had been refused before")
    if not deleted and State(move.state) in ENDED:
        leftovers.require_unmarked(lab, move.server)
    return State(move.state)


def rests(lab: Lab, expected: set[State]) -> State:
    """The state in which the youngest move rests; raises DrovewayError when it is none of these."""
    move = latest(lab)
    if State(move.state) not in expected:
        wanted = " or ".join(sorted(expected))
        raise DrovewayError(f"the move rests as {move.state} ({move.error}), not as {wanted}")
    return State(move.state)


def is_deleted(point: Point) -> bool:
    """Whether the point's server is deleted in the end."""
    return kinds.of(point.kind).deletes or point.first.effect == "delete"


def use(lab: Lab, server: str) -> None:
    """Bring a waiting move to its end; stop and start the server as it can be; move it again, and audit once more."""
    _confirm_open(lab)
    if catalog.find_server(lab.api, lab.cell_databases, server).vm_state == VmState.SHELVED_OFFLOADED:
        carry(lab, None, lambda: submit(lab, "unshelve", server))
    found = catalog.find_server(lab.api, lab.cell_databases, server)
    turns = [servers.stop, servers.start] if found.vm_state == VmState.ACTIVE else [servers.start, servers.stop]
    for turn, state in zip(turns, (str(found.vm_state), _other(str(found.vm_state))), strict=True):
        if not turn(lab, dataclasses.replace(found, vm_state=state)):
            raise DrovewayError(f"the server {server} is {found.vm_state} and cannot be stopped and started")
    carry(lab, None, lambda: submit(lab, "migrate", server))
    again = latest(lab)
    if again.state != State.VERIFYING:
        raise DrovewayError(f"the server cannot be moved again: the move rests as {again.state} ({again.error})")
    _confirm_open(lab)
    require_clean(lab, "after use: ")
    with lab.journal.read() as session:
        left = [move.state for move in journal_moves.listing(session) if State(move.state) not in ENDED]
    if left:
        raise DrovewayError(f"a move rests as {left}")


def require_clean(lab: Lab, when: str) -> None:
    """Raise DrovewayError with everything that the audit finds."""
    report = books.balance(lab)
    if not report.clean:
        raise DrovewayError(when + "; ".join(f"{each.kind}: {each.detail}" for each in report.findings))


def ask(lab: Lab, request: str, server: str) -> None:
    """Delete the server, or cancel or pause its move; raises Refused where that cannot be."""
    if request == "delete":
        operations.request_delete(lab, server)
        return
    move = latest(lab)
    move_requests.file_request(lab, move.id, move_requests.cancel if request == "cancel" else requests.pause)


def lift_hold(lab: Lab) -> bool:
    """Let a move go on that was paused; whether there was one."""
    move = latest(lab)
    if not move.hold or State(move.state) in ENDED:
        return False
    move_requests.file_request(lab, move.id, requests.resume)
    return True


def _confirm_open(lab: Lab) -> None:
    def confirm() -> None:
        with lab.journal.write() as session:
            for move in moves.open_moves(session):
                requests.end_wait(session, move, registry.reference(kinds.ending(move.kind, "confirm").name))

    with lab.journal.read() as session:
        waiting = bool(moves.open_moves(session))
    if waiting:
        carry(lab, None, confirm)


def _request(lab: Lab, kind: str, server: str) -> moves.Request:
    """The move of the only server: a resize to the lab's largest flavor, or a cold migrate."""
    cell, instance = _find(lab, server)
    others = [name for name in lab.cells.names() if name != cell]
    with lab.cells.database(cell).read() as session:
        flavor = objects.flavor_data(rows.flavors(rows.extra_row(session, instance.uuid))["cur"])["name"]
    with lab.api.read() as session:
        largest = max(session.query(api.Flavor).all(), key=lambda row: row.memory_mb)
    return moves.Request(
        kind=kind,
        server=instance.uuid,
        server_name=server,
        cell=cell,
        host=instance.host or "",
        old_flavor=flavor,
        # Among several the scheduler chooses.
        to_cell=others[0] if kinds.of(kind).crosses_cells and len(others) == 1 else None,
        new_flavor=largest.name if kinds.of(kind).changes_flavor else flavor,
        keep_seconds=lab.conf.confirm.keep_source,
        transfer=lab.conf.cross_cell.transfer,
        # Clouds ask for the direct way only to have images kept beside it.
        keep_image=lab.conf.cross_cell.transfer == transfers.DIRECT,
    )


def _find(lab: Lab, server: str) -> tuple[str, Instance]:
    for cell in lab.cells.names():
        with lab.cells.database(cell).read() as session:
            row = session.query(Instance).filter_by(display_name=server, deleted=0, hidden=False).one_or_none()
        if row is not None:
            return cell, row
    raise Refused(f"the lab has no server {server}")


def _other(vm_state: str) -> str:
    return VmState.STOPPED if vm_state == VmState.ACTIVE else VmState.ACTIVE
