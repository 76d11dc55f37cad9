"""Writes into the journal what is asked of moves; conductors and the keeper then act on it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.engines.conductor import eligibility
from droveway.engines.keeper import outcomes, policies
from droveway.engines.operations import ends
from droveway.engines.site.site import Parts, Site
from droveway.errors import DrovewayError, Refused
from droveway.flows import registry
from droveway.persistence.database import absence, database_time
from droveway.persistence.journal import kinds, moves, requests, step_runs
from droveway.persistence.journal.policy_names import HEALTHY, MANUAL
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import catalog
from droveway.printable import SHORT
from droveway.scheduler import preconditions

LOG = logging.getLogger(__name__)

DONE: Final = 0
UNDONE: Final = 3
NEEDS_OPERATOR: Final = 4


def can_go_on(move: Move | sa.Row[Any], now: Any, away: Collection[str] = ()) -> bool:
    """Tell whether the move goes on without a person; ``now`` is the database's clock.

    A move that waits for verification does not go on in three cases:

    - Nothing is due: its deadline has not passed, or the policy leaves the end to a person.  Only the policy that asks
      the host for the guest's health goes on before its deadline.
    - Its policy has noted that it waits for a host, and this host is one of the hosts ``away``: somebody has to start
      its worker.
    - Its policy has noted another reason, which somebody has to mend.
    """
    state = State(move.state)
    if state in ENDED or move.hold or state is State.NEEDS_OPERATOR:
        return False
    if state is not State.VERIFYING:
        return True
    due = move.deadline is not None and move.deadline <= now and (move.policy != MANUAL or move.delete_requested)
    asks = move.policy == HEALTHY and move.deadline is not None and not move.delete_requested
    told = any(host in (move.source_host, move.dest_host) and host in (move.waits_for or "") for host in away)
    return (due or asks) and not told and not _needs_mending(move)


def _needs_mending(move: Move | sa.Row[Any]) -> bool:
    """Tell whether its policy waits for something other than a host's return."""
    return move.waits_for is not None and not policies.is_for_host(move.waits_for)


def carry(site: Site, move_id: str) -> Move:
    """Have the move carried on until it rests, and return the move as it was then.

    In an installation daemons run the move, and this function waits.  Then it returns the move as it saw it at rest.
    It does not read the move again, since somebody else may let the move go on at once.  In a lab this function runs
    the move and then reads it.  While another command runs the lab, it waits as in an installation.
    """
    seen: Move

    def rests() -> bool:
        nonlocal seen
        with site.journal.read() as session:
            seen = moves.get(session, move_id)
            return not can_go_on(seen, database_time(session))

    return read_move(site, move_id) if site.wait_until(rests) else seen


def file_request(site: Site, name: str, request: requests.Filing) -> Move:
    """Write the request into the journal and run nothing yet; ``name`` is the move's id, or the beginning of its id."""
    with site.journal.write() as session:
        move = moves.get(session, moves.find(session, name).id, lock=True)
        request(session, move)
    return move


def confirm(session: orm.Session, move: Move) -> None:
    """File the confirm flow."""
    requests.end_wait(session, move, registry.reference(kinds.ending(move.kind, preconditions.CONFIRM).name))


def revert(session: orm.Session, move: Move, *, shown: bool = False) -> None:
    """File the revert flow.

    A server that is to be deleted is reverted only with ``shown``: its rows show that the revert is done or has begun.
    """
    flow = registry.reference(kinds.ending(move.kind, preconditions.REVERT).name)
    requests.end_wait(session, move, flow, shown=shown)


def cancel(session: orm.Session, move: Move) -> None:
    """Ask that the forward flow be undone."""
    if move.flow_uuid is None:
        requests.cancel(session, move, frozenset())
        return
    flow = moves.flow_of(session, move.flow_uuid)
    requests.cancel(session, move, registry.past_no_return(flow.kind, flow.version))


def end(site: Site, name: str, kind: str) -> Move:
    """Ask for the confirm or revert (``kind``) of a move, or for the end that its server has in Nova's rows already.

    Raises `droveway.errors.Refused` as `ends.require_end` does.
    """
    move = find_move(site, name)
    found, going_on = None, False
    if move.state == State.VERIFYING and not move.delete_requested:
        ends.require_cells(site, move, kind)
        # When the target's cell is gone, the rows of the other cell say nothing of an end.
        found = None if ends.lost_its_target(site, move, kind) else outcomes.of_move(site.cell_databases, move)
        going_on = found is None and ends.require_end(site, move, kind)
    elif move.state == State.VERIFYING and kinds.ending(move.kind, kind).asked_for_by_deletes:
        return file_request(site, move.id, _to_delete(site, move))
    return file_request(site, move.id, _filing(site, move, found or kind, going_on=going_on))


def filing(site: Parts, move_id: str, kind: str, *, for_delete: bool) -> requests.Filing | str:
    """Return how a policy's confirm or revert (``kind``) of the move is filed, or why it cannot be filed now.

    It cannot when a person's request would be refused, or when nobody can find that out.  With ``for_delete`` it is
    filed whatever state the server is in.  If the rows show that a confirm or a revert is already done, the flow that
    they show is filed instead.
    """
    record = kinds.of(kind)
    try:
        move = read_move(site, move_id)
        record = kinds.ending(move.kind, kind)
        if for_delete:
            return _to_delete(site, move)
        if (done := outcomes.of_move(site.cell_databases, move, final=True)) is not None:
            return _filing(site, move, done, going_on=False)
        return _filing(site, move, kind, going_on=ends.require_end(site, move, kind))
    except DrovewayError as error:
        return str(error)
    except Exception as error:
        if (why := absence(error)) is not None:
            return f"whether it may be {record.past} cannot be told: {why}"
        LOG.exception("Whether move %s may be %s cannot be told", move_id, record.past)
        return (
            f"whether it may be {record.past} cannot be told ({type(error).__name__}; the log of the conductor that "
            f"leads has the traceback): droveway {record.command} {move_id[:SHORT]} tries it by hand"
        )


def _to_delete(site: Parts, move: Move) -> requests.Filing:
    """Return how to end the wait of a move whose server is to be deleted: confirm it, unless its rows show a revert."""
    done = outcomes.of_move(site.cell_databases, move)
    begun = outcomes.begun_before(site.journal, site.cell_databases, move) if done is None else None
    way = done or begun or preconditions.CONFIRM
    return _filing(site, move, way, going_on=begun is not None, shown=True)


def _filing(site: Parts, waiting: Move, way: str, *, going_on: bool, shown: bool = False) -> requests.Filing:
    """Return what files the confirm or revert (``way``) of the move.

    With ``going_on`` it also notes that the flow may have gone further than the journal knows, see
    `overtaken.is_behind`.  With ``shown`` even a server that is to be deleted may be reverted: its rows show that the
    revert is done, or had begun.
    """
    elsewhere = way == preconditions.REVERT and ends.goes_elsewhere(site, waiting)
    kind = kinds.ending(waiting.kind, way, elsewhere=elsewhere).name
    flow = eligibility.chosen(kind, site.conf.upgrade_levels.worker).reference()

    def filed(session: orm.Session, move: Move) -> None:
        requests.end_wait(session, move, flow, shown=shown)
        if going_on:
            step_runs.note_adopted(session, move, result={"begun": move.state})

    return filed


def read_move(site: Parts, move_id: str) -> Move:
    """Read the move as it is now."""
    with site.journal.read() as session:
        return moves.get(session, move_id)


def find_move(site: Parts, name: str) -> Move:
    """Find the move by its id or the first letters of it."""
    with site.journal.read() as session:
        return moves.find(session, name)


def move_of_server(site: Parts, name: str) -> Move:
    """Find the server's move that has not ended; raises `droveway.errors.Refused` when it has none."""
    server = catalog.find_server(site.api, site.known_cells, name)
    with site.journal.read() as session:
        move = session.scalar(sa.select(Move).where(Move.active_server == server.id))
    if move is None:
        raise Refused(f"server {server.name} has no move under way: droveway server show {server.name}")
    return move


def outcome(move: Move, wanted: frozenset[State]) -> int:
    """Return the exit code of a command that wanted the move to reach one of these states.

    A move that waits again since its confirm or revert was undone has not reached what was wanted.
    """
    state = State(move.state)
    again = state is State.VERIFYING and move.error_code is not None
    if move.hold or (state in wanted and not again):
        return DONE
    return NEEDS_OPERATOR if state is State.NEEDS_OPERATOR else UNDONE
