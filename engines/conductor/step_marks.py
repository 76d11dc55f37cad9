"""Marks each move's last step in ZooKeeper before the step acts, to recognise a journal that lost even one step.

The epoch cannot show that: all steps under one claim have the same epoch.  So the conductor that runs a move writes the
number of each step that begins into a node beside the epoch's.  A conductor that claims the move compares: the journal
must have the step that the mark names.
"""

from __future__ import annotations

from typing import Final

import msgspec
import sqlalchemy as sa

from droveway.clients.zookeeper import Coordination, step_path
from droveway.errors import Refused
from droveway.persistence.database import Database
from droveway.persistence.journal.tables import MoveStep
from droveway.printable import SHORT

_BEGUN: Final = sa.select(MoveStep.seq).where(
    MoveStep.seq == sa.bindparam("seq"),
    MoveStep.move_id == sa.bindparam("move"),
    MoveStep.step == sa.bindparam("step"),
    MoveStep.direction == sa.bindparam("direction"),
)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The step that was marked last."""

    seq: int
    """Its number in the history, which is part of the keys of its commands."""
    step: str
    direction: str


class StepMark:
    """The mark of one claimed move, written by the holder of the claim."""

    def __init__(self, coordination: Coordination, journal: Database, move_id: str) -> None:
        self._coordination = coordination
        self._journal = journal
        self._move = move_id
        self._last: tuple[Seen, int] | None = None
        """The mark that stands, and its node's version."""

    def note(self, step: str, direction: str, seq: int) -> str:
        """Mark a step that begins or is entered again; return why the step must not act, empty when it may.

        Raises `droveway.errors.CoordinationLost`.
        """
        new = Seen(seq=seq, step=step, direction=direction)
        path, data = step_path(self._move), msgspec.json.encode(new)
        while True:
            if self._last is None:
                self._last = _read(self._coordination, self._move)
            if self._last is None:
                if self._coordination.create(path, data):
                    self._last = new, 0
                continue
            seen, version = self._last
            if seen == new:
                return ""
            if seen.seq >= seq:
                # The mark has this number or a higher one, which has one of two causes.  In the first, a later step was
                # marked, and then its conductor died and a new claim enters this earlier step again.  The journal has
                # the step that the mark names, so `_why` lets this step act.  In the second, the journal was put back
                # and gives the same numbers out again.  It lacks the marked step, so `_why` refuses.
                return _why(self._journal, self._move, seen)
            self._last = (new, version + 1) if self._coordination.put(path, data, version=version) else None


def lost(coordination: Coordination, journal: Database, move_id: str) -> str:
    """Say why nothing may be done for the move on this journal; empty when it has the step that was marked last."""
    found = _read(coordination, move_id)
    return "" if found is None else _why(journal, move_id, found[0])


def highest(coordination: Coordination, folder: str) -> int:
    """Return the highest number of a step that is marked for any move; ``folder`` is the folder of all moves.

    A mark that cannot be read is left out: `droveway db adopt`, which calls this, is the mend for such a mark.
    """
    most = 0
    for move in coordination.children(folder):
        try:
            found = _read(coordination, move)
        except Refused:
            continue
        if found is not None:
            most = max(most, found[0].seq)
    return most


def _read(coordination: Coordination, move_id: str) -> tuple[Seen, int] | None:
    node = coordination.get(step_path(move_id), sync=True)
    if node is None:
        return None
    try:
        seen = msgspec.json.decode(node[0], type=Seen)
    except msgspec.DecodeError as error:
        raise Refused(
            f"the node {step_path(move_id)} holds no mark of a step ({error}): see who writes to ZooKeeper, and take "
            "the journal as it is with  droveway db adopt"
        ) from None
    return seen, node[1]


def _why(journal: Database, move_id: str, seen: Seen) -> str:
    with journal.reading() as connection:
        if connection.execute(_BEGUN, {"move": move_id, **msgspec.structs.asdict(seen)}).first() is not None:
            return ""
    does = "its undo of" if seen.direction == "revert" else "its step"
    return (
        f"the journal was restored from an older copy: ZooKeeper has seen that move {move_id[:SHORT]} began {does} "
        f"{seen.step} as number {seen.seq}, which the journal does not have, so nothing is done for it: put the newest "
        "copy back, or take it as it is with  droveway db adopt"
    )
