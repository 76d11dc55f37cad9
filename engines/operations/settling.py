"""Settles a step: an operator says what became of the step at which a move rests, which only a person can know."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway import deadlines
from droveway.engines.conductor import fencing
from droveway.engines.conductor.taskflow.resting import Begun, begun, declare_done
from droveway.engines.operations.proofs import Resting
from droveway.engines.site.site import Site
from droveway.errors import Fenced, Refused, ServerDeleted
from droveway.flows import registry
from droveway.flows.before import before
from droveway.flows.steps.records import leaving
from droveway.persistence.database import database_time
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import OPERATOR, Claim, Move, MoveStep
from droveway.persistence.nova import mappings
from droveway.printable import SHORT

DONE: Final = "done"
NOT_DONE: Final = "not-done"
LEFT: Final = "left"

NO_REASON: Final = "settling a step needs a reason: say with --reason what was found, and how"

LAST: Final = "finish_records"
"""The step after which a move waits for its confirm or revert."""

SETTLED: Final = "settled"
"""The code of the error that ends a run which was left open."""


def settle(session: orm.Session, name: str, step: str, *, done: bool, who: str, reason: str) -> Move:
    """Let the move go on from a step that is done, or enter the step anew; record who says so, and why.

    All of it happens in the caller's transaction.  Raises `droveway.errors.Refused` while a conductor may have the
    move, and for any step but the one at which it rests.  Also for a step that is said to be done and whose result
    later steps need: nobody can say what that is.
    """
    if not reason.strip():
        raise Refused(NO_REASON)
    found = moves.find(session, name)
    # `fencing.claim` takes an epoch before it locks the claim.  In another order here, the two could wait for each
    # other, and the database server would break one of them off.
    epoch = fencing.next_epoch(session.connection())
    # The claim is locked before the move, as in every fenced transaction.  Either a conductor's claim is seen here, or
    # the conductor waits until this transaction has ended.
    claim = session.scalar(sa.select(Claim).where(Claim.move_id == found.id).with_for_update())
    move = moves.get(session, found.id, lock=True)
    requests.require(move, {State.NEEDS_OPERATOR}, "settled")
    short = move.id[:SHORT]
    if claim is not None and claim.released_at is None:
        raise Refused(
            f"conductor {claim.owner} has not given move {short} back and may still be at it: let another take it over "
            f"with droveway move retry {short}, and settle the step when it rests again"
        )
    at = _require_rests_at(session, move, step)
    if done:
        if at.direction == "execute":
            _require_no_reader(session, move, step)
        declare_done(session, move.flow_uuid or "", at)
    _fence(session, claim, epoch, who)
    now = database_time(session)
    said = {SETTLED: DONE if done else NOT_DONE, "by": who, "reason": reason}
    requests.go_on(session, move, SETTLED, f"{who} settled it as {said[SETTLED]}: {reason}")
    flow = moves.flow_of(session, move.flow_uuid or "")
    session.add(moves.intervention(move, flow, step, at=now, direction=at.direction, result=said))
    return move


def seen(move: Move, claim: Claim | None) -> fencing.Seen:
    """Return how the move was seen, for `droveway.engines.conductor.fencing.claim`."""
    return fencing.Seen(move.state, None if claim is None else claim.epoch)


@contextlib.contextmanager
def overtaken(move: Move) -> Iterator[None]:
    """Raise `droveway.errors.Refused` in the place of `droveway.errors.Fenced`."""
    try:
        yield
    except Fenced:
        raise Refused(
            f"somebody took move {move.id[:SHORT]} over meanwhile: nothing was written, ask again when it rests"
        ) from None


def resting(session: orm.Session, name: str, step: str) -> Resting:
    """Find where the move rests; raises Refused unless that is the step."""
    move = moves.find(session, name)
    requests.require(move, {State.NEEDS_OPERATOR}, "settled")
    direction = _require_rests_at(session, move, step).direction
    # A host refuses a command with a lower number than the last that it saw of the move.
    runs = sa.select(sa.func.max(MoveStep.seq)).where(MoveStep.move_id == move.id)
    flow, record = moves.flow_of(session, move.flow_uuid or ""), None if move.before is None else before(move)
    return Resting(move, flow, step, direction, session.scalar(runs) or 0, record)


def leave(site: Site, name: str, step: str, *, who: str, reason: str) -> Move:
    """End the move as cancelled where it rests: nothing of its server is started, brought back or deleted.

    The server's vm_state becomes ERROR if its rows still show the move: by a task_state that moves write, or by the
    wait for confirm or revert.  If a delete of the server was asked for, the delete follows.

    Raises `droveway.errors.Refused` for a move that does not rest, or that rests at another step.
    """
    if not reason.strip():
        raise Refused(NO_REASON)
    with site.journal.read() as session:
        move = moves.find(session, name)
        claim = session.get(Claim, move.id)
        if move.state != State.VERIFYING or step != LAST:
            requests.require(move, {State.NEEDS_OPERATOR}, "left")
            if begun(session, move.flow_uuid):
                _require_rests_at(session, move, step)
        flow = session.scalars(moves.NEWEST_FLOW, {"move": move.id}).one()
    if claim is not None and claim.released_at is None:
        raise Refused(f"conductor {claim.owner} has not given move {move.id[:SHORT]} back: ask again when it has")
    with overtaken(move):
        epoch = fencing.claim(
            site.journal, move.id, f"{OPERATOR}{who}", quarantine_after=sys.maxsize, seen=seen(move, claim)
        )
    try:
        with (
            deadlines.running("settle_left", site.conf.conductor.step_deadline),
            fencing.guarding_calls(site.journal, move.id, epoch),
        ):
            _close_records(site, move, flow.uuid, epoch)
        with site.journal.write() as session:
            fencing.check(session, move.id, epoch)
            now = database_time(session)
            unfinished = sa.update(MoveStep).where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
            ended = {"code": SETTLED, "message": f"{who} left it as it is: {reason}", "host": ""}
            session.execute(unfinished.values(ended_at=now, error=ended))
            session.add(
                moves.intervention(
                    move, flow, step, at=now, epoch=epoch, result={SETTLED: LEFT, "by": who, "reason": reason}
                )
            )
            moves.leave(session, move.id, "left-as-is", f"{who} left it as it is: {reason}")
            # The claim is not released: this tells conductors to clear up after the end, and to remove commands to
            # hosts.  They leave a young claim alone while its owner's name begins with `OPERATOR`, since a command is
            # at work.  That command has done its work now, so the name becomes another one.
            session.execute(sa.update(Claim).where(Claim.move_id == move.id).values(owner=f"left by {who}"))
    except Fenced:
        raise Refused(f"somebody took move {move.id[:SHORT]} over meanwhile: ask again when it rests") from None
    except Exception:
        # The end may be stored although the database's answer never came.
        with site.journal.read() as session:
            rests = moves.get(session, move.id).state == move.state
        if rests:
            fencing.release(site.journal, move.id, epoch)
        raise
    return move


def _close_records(site: Site, move: Move, flow_uuid: str, epoch: int) -> None:
    cell = mappings.home_cell(site.api, move.server, move.source_cell, move.dest_cell)
    site.cells.raise_fence(cell, move.server, epoch)
    try:
        left = leaving.close_rows(site.cells, cell, site.cloud.placement, move, flow_uuid, epoch)
    except ServerDeleted:
        left = leaving.Left("", evacuated=False, in_error=False)
    finally:
        site.cells.drop_fence(cell, move.server, epoch)
    leaving.close_allocations(site.cloud.placement, move, left)


def _require_rests_at(session: orm.Session, move: Move, step: str) -> Begun:
    """Find the step as the flow left it; raises Refused unless the move rests there."""
    found = begun(session, move.flow_uuid)
    short = move.id[:SHORT]
    if not found:
        raise Refused(f"move {short} rests between two steps, so none is to be settled: droveway move retry {short}")
    for each in found:
        if each.step == step:
            return each
    at = ", ".join(each.step for each in found)
    raise Refused(f"move {short} does not rest at step {step} but at {at}: settle that one")


def _require_no_reader(session: orm.Session, move: Move, step: str) -> None:
    flow = moves.flow_of(session, move.flow_uuid or "")
    steps = list(registry.graph(flow.kind, flow.version).walk())
    gives = next((each.gives for each in steps if each.step_name() == step), "")
    readers = [each.step_name() for each in steps if gives and gives in each.needs]
    if readers:
        raise Refused(
            f"step {readers[0]} needs the result of step {step}, and nobody can give that by hand: mend what step "
            f"{step} failed on, then droveway move retry {move.id[:SHORT]}"
        )


def _fence(session: orm.Session, claim: Claim | None, epoch: int, who: str) -> None:
    """Take the claim, so that the claim's earlier owner can write nothing any more."""
    if claim is not None:
        claim.epoch = epoch
        claim.owner = f"{OPERATOR}{who}"
        claim.released_at = database_time(session)
        claim.unclean = 0
