"""Taking databases as they are that are not those which the lab used last: nothing is resumed by itself."""

from __future__ import annotations

from droveway.engines.conductor.incarnation import new_incarnation
from droveway.engines.conductor.recorded import mirrored
from droveway.engines.operations.adoption import park_all
from droveway.errors import Refused
from droveway.lab import books, lock, marks
from droveway.lab.records import InFolder
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import EPOCH, INCARNATION, Counter, Move


def adopt(lab: Lab) -> list[Move]:
    """Park every unfinished move with what the audit finds of it, and begin a new incarnation; the moves.

    Epochs and step numbers go on above all that any worker has seen, so that none answers from what it did before.
    Raises `droveway.errors.Refused` while another command runs the lab, and for what cannot be used at all: a truncated
    database, or another lab's Placement.
    """
    with lock.taken(lab.layout):
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
            told = {move.id: said.get(move.id, []) for move in moves.open_moves(session)}
            kept = mirrored(InFolder(lab.layout.recorded))
            parked = park_all(
                session, step=step, what="the lab's databases were adopted as they are", said=told, mirrored=kept
            )
            session.merge(Counter(name=EPOCH, value=epoch))
            session.merge(Counter(name=INCARNATION, value=new_incarnation()))
        lab.layout.marks.unlink(missing_ok=True)
        marks.record(lab.layout, hosts)
        return parked
