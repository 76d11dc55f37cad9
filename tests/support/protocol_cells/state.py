"""A model of a move between two cells, its confirm and its revert, small enough to be explored whole.

A server has a copy of its rows in each cell, and a mapping that names one of them.  A conductor carries the copies over
step by step.  It may be killed behind a write, or sleep before one while the next conductor goes on.  Besides: a user
writes or deletes by a mapping that he read earlier, Nova evacuates by such a mapping, a host dies, a cell is away or
declared down, and the journal is put back from an older copy.

The model shares no code with the product.  Its steps bear the names of the product's.  Each rule of ``RULES`` can be
taken out: the search then has to find a state that breaks what must hold.

Disks, volumes and ports are not in it: the model of a move within a cell (``support.protocol``) has disks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RULES: Final = (
    "fences",
    "held claims",
    "carries before a removal",
    "removals ask for evacuations",
    "starts ask both copies",
    "starts wait for late requests",
    "deletes in either copy count",
    "digests are of the copy",
    "claims compare the copies",
)
"""What the product keeps to, as far as one move shows it."""

S, T = 0, 1
"""The cells of source and destination, and their hosts, as places in tuples."""
E: Final = 2
"""The host to which Nova evacuates."""

STEPS: Final = {
    "forward": (
        "copy_records",
        "stop_guest",
        "hand_over",
        "show",
        "switch_mapping",
        "carry_late_writes",
        "hide",
        "start_guest",
        "finish_source_records",
        "finish_records",
    ),
    "confirm": (
        "mark_confirming",
        "check_source_records",
        "discard_source",
        "remove_records",
        "settle_records",
    ),
    "revert": (
        "mark_reverting",
        "check_source_records",
        "stop_guest",
        "hand_over",
        "show",
        "switch_mapping",
        "carry_late_writes",
        "hide",
        "start_guest",
        "remove_records",
        "settle_records",
    ),
}
NO_RETURN: Final = {"forward": "start_guest", "confirm": "discard_source", "revert": "start_guest"}


class Copy(NamedTuple):
    """The rows of the server in one cell."""

    hidden: bool = False
    value: int = 0
    """What a user wrote last, as this copy has it."""
    deleted: bool = False
    """Whether a user's delete has met it."""
    evacuated: bool = False
    """Whether Nova has written another host into it, where the guest runs."""
    status: str = "migrating"
    """Of the move's migration."""
    fenced: bool = True
    """Whether the last claim has raised its fence here."""


class Journal(NamedTuple):
    """What the journal says of the move."""

    flow: str = "forward"
    """A key of ``STEPS``, ``verifying``, ``leaving``, ``ended``, or ``left`` (as a person says).

    One that is ``leaving`` has found that Nova has the server: the other copy is to go.
    """
    step: int = 0
    undoes: bool = False
    known: int | None = None
    """The value that both copies had at the last carry."""
    parked: bool = False
    adopted: bool = False
    """Whether it was put back, and the flow under way was taken up by what the rows show."""
    forgot: bool = False
    """Whether it was ever put back, so that digests are lost."""
    deleted: bool = False
    """Whether the flow has met a delete."""
    evacuated: bool = False
    """Whether it has met an evacuation in the copy that it leads back to."""
    owes: tuple[str, str] = ("", "")
    """By cell: ``hide``, ``show``, ``remove``, ``close`` (events), ``finish`` (the rows there), or nothing."""
    peak: int = 0
    """The furthest step of the forward flow that was ever begun."""


class Sleeper(NamedTuple):
    """A conductor that sleeps right before its write."""

    flow: str
    step: str
    undoes: bool
    known: int | None


class Budget(NamedTuple):
    """How often each fault may still happen."""

    kills: int = 0
    sleeps: int = 0
    failures: int = 0
    writes: int = 0
    deletes: int = 0
    evacuations: int = 0
    deaths: int = 0
    outages: int = 0
    gone: int = 0
    """Cells that a person declares down while they are away."""
    restores: int = 0


class Late(NamedTuple):
    """What others have under way: the cell that the mapping named when it was read, or None."""

    write: int | None = None
    delete: int | None = None
    evacuation: int | None = None


class State(NamedTuple):
    """The world."""

    journal: Journal = Journal()
    old: bool = False
    """Whether the journal was put back, and nobody has adopted it yet."""
    copies: tuple[Copy | None, Copy | None] = (Copy(), None)
    mapped: int = S
    guests: tuple[bool, bool, bool] = (True, False, False)
    hosts: tuple[str, str] = ("up", "up")
    """``up``, ``dead``, or ``down`` (dead, and declared so by a person)."""
    cells: tuple[str, str] = ("up", "up")
    """``up``, ``away``, or ``down`` (declared so by a person, with all its hosts)."""
    sleeper: Sleeper | None = None
    late: Late = Late()
    wrote: bool = False
    """Whether a user's write was taken by some copy."""
    deleted: bool = False
    """Whether a user's delete was."""
    died: bool = False
    """Whether a host of the move ever died: its guest is then its own host's to start."""
    left: Budget = Budget()


class World(NamedTuple):
    """What does not change while it is explored."""

    rules: frozenset[str] = frozenset(RULES)

    def keeps(self, rule: str) -> bool:
        """Tell whether the product keeps to the rule in this world."""
        if rule not in RULES:
            raise ValueError(f"{rule} is none of the rules")
        return rule in self.rules


def broken(state: State) -> str:
    """Name what must hold and does not, or ""."""
    journal, mapped = state.journal, state.copies[state.mapped]
    gone = state.deleted or journal.deleted
    if sum(state.guests) > 1:
        return "two guests of one server run"
    if mapped is None and state.cells[state.mapped] != "down":
        return "the mapping names a cell without the server"
    owed = "show" in journal.owes
    if mapped is not None and mapped.hidden and not gone and not owed and state.cells[state.mapped] != "down":
        return "the mapping names a hidden copy"
    for host in (S, T):
        if state.guests[host] and state.mapped != host:
            return "a guest runs in the cell that the mapping does not name"
    if state.guests[E] and not any(copy is not None and copy.evacuated for copy in state.copies):
        return "Nova's guest runs and no rows name its host"
    return _at_the_end(state) if journal.flow == "ended" and _is_quiet(state) else ""


def _is_quiet(state: State) -> bool:
    return state.late == Late() and state.cells == ("up", "up") and state.journal.owes == ("", "") and not state.old


def _at_the_end(state: State) -> str:
    mapped, other = state.copies[state.mapped], state.copies[1 - state.mapped]
    if mapped is None:
        return "the server is gone"
    if other is not None and not other.evacuated:
        return "a copy is left in the other cell"
    # Digests that went with the journal leave nothing that tells which of two values is the newer one.
    if state.wrote and mapped.value != 1 and not state.journal.forgot:
        return "what a user wrote is lost"
    if state.deleted and not mapped.deleted:
        return "a user's delete is lost"
    runs = state.guests[E] if mapped.evacuated else state.guests[state.mapped]
    if not runs and not state.died and not mapped.deleted:
        return "the server is off"
    return ""


def with_copy(state: State, cell: int, copy: Copy | None) -> State:
    """Return the state with that copy in the cell."""
    copies = list(state.copies)
    copies[cell] = copy
    return state._replace(copies=tuple(copies))  # type: ignore[arg-type]


def with_guest(state: State, host: int, *, runs: bool) -> State:
    """Return the state with the host's guest on or off."""
    guests = list(state.guests)
    guests[host] = runs
    return state._replace(guests=tuple(guests))  # type: ignore[arg-type]


def with_owed(journal: Journal, cell: int, what: str) -> Journal:
    """Return the journal with what the cell owes."""
    owes = list(journal.owes)
    owes[cell] = what
    return journal._replace(owes=tuple(owes))  # type: ignore[arg-type]


def cells_of(flow: str) -> tuple[int, int]:
    """Return the cell that the server leaves and the one that it goes to."""
    return (T, S) if flow == "revert" else (S, T)
