"""Which commands a sentence names, where each ends in it, and of what a person has to make sure before some."""

from __future__ import annotations

import pytest
from support.two_faults.ways_out import SURE, commands

from droveway.persistence.journal.states import ADVICE, State

REST = ADVICE[State.NEEDS_OPERATOR].format(move="ab12") + (
    "; if nobody can mend that: droveway move settle ab12 copy_disks --as left --reason TEXT"
)
BARRED = (
    "if the database of cell cell1 was put back from a copy, droveway move settle ab12 --cell cell1 --reason TEXT "
    "writes what the move left there; droveway audit says what else is wrong"
)
LET_WAIT = (
    "if nobody is at work on it, let it wait again with  "
    "droveway move settle ab12 finish_records --as done --reason TEXT"
)
DOWN = (
    "host host1 is down: start its worker and ask again; when the host is off for good: droveway host down host1 "
    '--i-made-sure "how you know"'
)
SENTENCES = [
    (REST, [("move retry ab12", ""), ("move settle ab12 copy_disks --as left --reason TEXT", "nobody can mend it")]),
    (BARRED, [("move settle ab12 --cell cell1 --reason TEXT", "it was put back from a copy")]),
    (LET_WAIT, [("move settle ab12 finish_records --as done --reason TEXT", "nobody is at work")]),
    (DOWN, [("host down host1 --i-made-sure how you know", "a host is off")]),
    ("then: droveway move confirm ab12  or  droveway move revert ab12; without either it is confirmed at noon",
     [("move confirm ab12", ""), ("move revert ab12", "")]),
    ("droveway move revert ab12 brings the server back from the disks on host1", [("move revert ab12", "")]),
    ("what it owes: droveway lab worker start host1, then look", [("lab worker start host1", "")]),
    ("droveway audit says what is wrong with it, droveway move show ab12 tells how it stands", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), SENTENCES)
def test_a_command_ends_where_the_sentence_goes_on(text: str, wanted: list[tuple[str, str]]) -> None:
    found = commands(text)
    assert [(str(each), each.wants) for each in found] == wanted
    assert all(each.is_told() for each in found)


@pytest.mark.parametrize("text", [REST, BARRED, LET_WAIT, DOWN])
def test_a_persons_word_that_nothing_leads_up_to_is_told_apart(text: str) -> None:
    """The same command alone: nobody learns from it what he says with it."""
    *_, way = commands(text)
    (bare,) = commands(f"go on with  droveway {way}")
    assert (bare.wants, bare.is_told()) == (way.wants, False)
    assert way.wants in SURE
