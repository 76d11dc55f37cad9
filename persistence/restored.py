"""Recognises a database that was restored from an older backup, or that belongs to another installation.

The owner of a database stays the same, unless ``droveway db adopt`` changes it.  Some counts in the database only grow.
Both are written to a *mark*, which is kept outside the database.  An installation keeps it in a node of ZooKeeper.  A
lab, which is a whole cloud in one directory for trials and tests, keeps it in a file.  A database whose owner differs
from the mark's, or whose counts are below the mark's, is not the one that was used last.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from droveway.errors import Refused

EPOCH: Final = "epoch"
INCARNATION: Final = "incarnation"
"""Names of the journal's counters: the last claim's epoch, and the journal's number.

They are not defined in `droveway.persistence.journal.tables`, because that module loads SQLAlchemy, which is slow.
Commands such as ``droveway move list`` import this module without waiting for SQLAlchemy.
"""

ADOPT: Final = "droveway db adopt"


class Restored(Refused):
    """The journal is not the one that was used last."""

    code = "restored"


class Standing(NamedTuple):
    """Holds the owner of a database and the counts in it that only grow."""

    owner: int | str | None
    """None when the owner is unknown: owners are not compared then."""
    counts: Mapping[str, int]
    """Phrase → count.

    The phrase is put into the error if an observer saw a higher count than the database has.  It has two ``{}``.  The
    first one stands for the database's count.  The second one stands for the observer and the count that it saw.  So
    the phrase ``its last epoch is {}, {}`` becomes ``its last epoch is 5, the worker of host h1 knows of 7``.
    """


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what was last seen of a journal: its owner and its counts."""

    incarnation: int | None
    """The journal's number, which ``droveway db adopt`` draws anew; None before the journal has one."""
    epoch: int
    """The last epoch that a claim was given."""
    step: int = 0
    """The highest number of a step in the history.

    Only a lab's file has it.  In an installation it stays 0: there each move has a node of its own in ZooKeeper that
    names its last step.
    """

    def standing(self, owner: int | None) -> Standing:
        """Return the mark in the form that `contradiction` compares.

        ``owner`` is the mark's ``incarnation``, or None when the owners are not to be compared.
        """
        return Standing(owner, {"its last epoch is {}, {}": self.epoch, "its last step is {}, {}": self.step})


def contradiction(
    what: str, mine: Standing, seen: Iterable[tuple[str, Standing]], *, another: str, newest: str = "one"
) -> str:
    """Return an error sentence when a database is not the one that others have ``seen``; empty when it is.

    ``mine`` is what the database holds now.  ``seen`` has a pair for each observer: words that name the observer, and
    what it saw.  In the sentence the words stand right before a count, so they are such as ``"the worker of host h1
    knows of "``.

    If an observer saw another owner, the result is the sentence ``another``.  If an observer saw a higher count, this
    function makes the sentence.  ``what`` names the database in it, and ``newest`` the backup that is to be put back.
    """
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
    """Draw a random number of up to 62 bits for a journal; no other journal has the same one."""
    return secrets.randbits(62) + 1
