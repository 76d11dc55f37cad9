"""Taking databases as they are that are not those which the lab used last: nothing is resumed by itself."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Refused
from droveway.lab import books, build, marks
from droveway.lab.session import Lab
from droveway.persistence import moves
from droveway.persistence.database import database_time
from droveway.persistence.journal import EPOCH, INCARNATION, Counter, Move, MoveStep
from droveway.persistence.states import State


def adopt(lab: Lab) -> list[Move]:
    """Park every unfinished move with what the audit finds of it, and begin a new incarnation; the moves.

    Epochs and step numbers go on above all that any worker has seen, so that none answers from what it did before.
    Raises `droveway.errors.Refused` while another command runs the lab, and for what cannot be used at all: a truncated
    database, or another lab's Placement.
    """
    with build.holding(lab.layout):
        hosts = sorted(lab.identity.hosts)
        known, present = marks.recorded(lab.layout), marks.look(lab.layout, hosts)
        why = marks.truncated(lab.layout)
        why = why or ("" if known is None else marks.foreign_providers(lab.layout, known, present))
        if why:
            raise Refused(why)
        found = books.balance(lab).findings
        said = {move: [each.detail for each in found if each.move == move] for move in {each.move for each in found}}
        seen = [mark for each in (known, present) if each is not None for mark in each.workers.values()]
        epoch = max([known.epoch or 0 if known else 0, present.epoch or 0, *(mark.epoch for mark in seen)]) + 1
        step = max([known.step or 0 if known else 0, present.step or 0, *(mark.step for mark in seen)]) + 1
        with lab.journal.write() as session:
            parked = moves.open_moves(session)
            for number, move in enumerate(parked, step):
                _park(session, move, number, said.get(move.id, []))
            session.merge(Counter(name=EPOCH, value=epoch))
            session.merge(Counter(name=INCARNATION, value=new_incarnation()))
        lab.layout.marks.unlink(missing_ok=True)
        marks.record(lab.layout, hosts)
        return parked


def new_incarnation() -> int:
    """A number that no other journal has."""
    return secrets.randbits(62) + 1


def _park(session: orm.Session, move: Move, number: int, findings: list[str]) -> None:
    """The history's row keeps the numbers of steps above those that were given out after the copy was made."""
    short, now = move.id[: moves.SHORT], database_time(session)
    tell = f"droveway audit finds: {findings[0]}" if findings else "droveway audit finds nothing wrong with it"
    why = f"the lab's databases were adopted as they are, so nobody knows how far move {short} really came; {tell}"
    session.execute(
        sa.update(MoveStep)
        .where(MoveStep.move_id == move.id, MoveStep.ended_at.is_(None))
        .values(ended_at=now, error={"code": "restored", "message": why, "host": ""})
    )
    session.add(
        MoveStep(
            seq=number,
            move_id=move.id,
            flow_uuid=move.flow_uuid or "",
            flow="",
            step="adopt",
            direction="execute",
            attempt=move.attempt,
            started_at=now,
            ended_at=now,
            error={"code": "restored", "message": why, "host": ""},
        )
    )
    if move.state == State.NEEDS_OPERATOR:
        move.error, move.error_code = why, "restored"
    else:
        moves.park(session, move.id, "restored", why)
