"""Recognises a database that was restored from an older copy, or is another's, by what was seen of it before.

Whose a database is does not change, and some counts in it only ever grow.  Both are written down in a mark, which lies
beside the database and never in it: in a node of ZooKeeper for an installation, in a file for a lab.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from droveway.errors import Refused

EPOCH: Final = "epoch"
INCARNATION: Final = "incarnation"
"""Names of the journal's counters.  They stand here since the journal's models load too slowly for a list of moves."""

ADOPT: Final = "droveway db adopt"


class Restored(Refused):
    """The journal is not the one that was used last."""

    code = "restored"


class Standing(NamedTuple):
    """Says whose a database is and how far it has come."""

    owner: int | str | None
    """None where nobody knows: it is not compared then."""
    counts: Mapping[str, int]
    """By the words that say that one is too low, with gaps for this one and for what was seen."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says whose a journal was and how far it had come."""

    incarnation: int | None
    """The journal's number, a new one after each adoption; None before it has any."""
    epoch: int
    """The last epoch that a claim was given."""
    step: int = 0
    """The highest number of a step in the history; ZooKeeper has it in the mark of each move instead."""

    def standing(self, owner: int | None) -> Standing:
        """Return what is compared."""
        return Standing(owner, {"its last epoch is {}, {}": self.epoch, "its last step is {}, {}": self.step})


def contradiction(
    what: str, mine: Standing, seen: Iterable[tuple[str, Standing]], *, another: str, newest: str = "one"
) -> str:
    """Say that a database is ``another``, or behind what somebody has ``seen`` of it; empty when it is neither."""
    for who, theirs in seen:
        if None not in (mine.owner, theirs.owner) and mine.owner != theirs.owner:
            return another
        for words, count in theirs.counts.items():
            if mine.counts[words] < count:
                how = words.format(mine.counts[words], f"{who}{count}")
                return (
                    f"{what} was restored from an older copy ({how}), so nothing runs: put the newest {newest} back, "
                    f"or take it as it is with  {ADOPT}, which parks every unfinished move"
                )
    return ""


def new_incarnation() -> int:
    """Draw a number that no other journal has."""
    return secrets.randbits(62) + 1
