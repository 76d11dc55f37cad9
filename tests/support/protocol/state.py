"""A model of the protocol between conductors, workers, journal and ZooKeeper, small enough to be explored whole.

One server moves from host A to host B.  Two conductors take turns at the move; each of them may sleep and wake up late.
A worker passes its fence first and acts later, so that it may sleep in between.  Besides: the journal is put back from
an older copy, a host dies or is cut off, a worker's journal is lost, Nova evacuates the server to host C, a second
machine runs under B's name, and a person cancels, confirms, reverts, adopts and retries.

The model shares no code with the product.  Its actions bear the names of the product's steps and commands.  Each mend
of ``MENDS`` can be taken out: :func:`explore` then has to find a state that breaks a rule.

Here are its state, what a rule forbids of it, and the small parts from which the next state is made.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MENDS: Final = ("e1A", "e1B", "e1C", "e23", "e24", "e24b", "e31", "e40", "e41", "e63", "permission", "overtaken")
"""The finding that each mend closes.

``permission`` is the conductor's word right before a start.  ``overtaken`` is what is asked before each step of a
journal that was put back: forward, the source's guest is off; backward, the rows are where the journal has them, and
the destination never started the guest.
"""

A, B = 0, 1
"""The source and the destination, as places in tuples.  C is where Nova evacuates to, and TWIN bears B's name."""
C, TWIN = 2, 3
HOST: Final = {
    "forward": (A, A, B, B, None, B),
    "confirm": (B, A, A, B),
    "revert": (A, B, A, None, A, B),
}
STEPS: Final = {
    "forward": ("stop_guest", "set_aside", "copy_disks", "fit_disks", "switch_records", "start_guest"),
    "confirm": ("check_destination_copy", "check_source", "discard_source", "keep_copy"),
    "revert": ("check_source", "stop_guest", "restore_disks", "switch_records", "start_guest", "discard_destination"),
}
NO_RETURN: Final = {"forward": 5, "confirm": 2, "revert": 4}
NO_UNDO: Final = {
    ("forward", "fit_disks"),
    ("confirm", "check_destination_copy"),
    ("confirm", "check_source"),
    ("revert", "check_source"),
}
STARTS: Final = {("start_guest", "do"), ("stop_guest", "undo")}


class Directory(NamedTuple):
    """A directory with the server's disks: ``a`` is the one that the server came with, ``b`` the copy of it."""

    id: str
    mark: bool
    whole: bool
    fresh: bool
    """Whether it holds what a guest wrote last."""


class Journal(NamedTuple):
    """What the journal says of the move."""

    flow: str
    """``forward``, ``verifying``, ``confirm``, ``revert``, or ``ended``."""
    step: int = 0
    direction: str = "do"
    asked: bool = False
    """Whether B was asked to start the guest: written before the command is posted."""
    parked: bool = False
    adopted: bool = False
    peak: int = 0
    """The furthest step of the forward flow that was ever begun."""


class Slot(NamedTuple):
    """The command that a worker has."""

    step: str
    direction: str
    stage: str
    """``posted``, ``passed`` (behind the fence), ``granted`` (may start), ``done``, ``failed``, ``unknown``."""
    current: bool
    """Whether the claim under which it was sent is still the last one."""
    proved: bool = False
    """What the worker saw of its directory when it passed its fence."""


class Budget(NamedTuple):
    """How often each fault may still happen."""

    restores: int = 1
    sleeps: int = 1
    deaths: int = 1
    nova: int = 1
    lost_notes: int = 0
    failures: int = 0
    retries: int = 1


class State(NamedTuple):
    """The world."""

    journal: Journal
    old_epoch: bool
    """Whether the journal's epoch is behind the one in ZooKeeper."""
    old_step: bool
    """Whether the journal's last step is behind the one in ZooKeeper."""
    conductors: tuple[tuple[bool, Journal] | None, tuple[bool, Journal] | None]
    """For each the claim's being the last one, and what it remembers of the journal."""
    slots: tuple[Slot | None, Slot | None]
    guests: tuple[bool, bool, bool, bool]
    links: tuple[str, str]
    """``up``, ``away`` (cut off, what runs there goes on), ``dead`` or ``down`` (dead, and declared so by a person)."""
    starts: int
    """How often the guest was started on B."""
    noted: int
    """The starts that B's worker noted before it started the guest; -1 without a note."""
    rows: tuple[str, str]
    """The host and the task of the server's rows."""
    stores: tuple[tuple[Directory | None, ...], ...]
    """For each storage ``uuid``, ``uuid_resize`` and ``uuid_del``; one storage when both hosts share it."""
    left: Budget


class World(NamedTuple):
    """What does not change while it is explored."""

    mends: frozenset[str] = frozenset(MENDS)
    shared: bool = False
    twin: bool = False


def first(budget: Budget | None = None, *, shared: bool = False) -> State:
    """The server runs on A, and the move was accepted."""
    own = Directory("a", mark=False, whole=True, fresh=True)
    nothing = (None, None, None)
    return State(
        journal=Journal("forward"),
        old_epoch=False,
        old_step=False,
        conductors=(None, None),
        slots=(None, None),
        guests=(True, False, False, False),
        links=("up", "up"),
        starts=0,
        noted=-1,
        rows=("A", "move"),
        stores=((own, None, None),) if shared else ((own, None, None), nothing),
        left=budget or Budget(),
    )


def broken(state: State) -> str | None:
    """The rule that a state breaks, or None."""
    if sum(state.guests) > 1:
        return "two guests of one server run"
    directories = [each for store in state.stores for each in store if each]
    if not any(each.fresh and each.whole for each in directories):
        return "no whole directory holds what the guest wrote last"
    for host, name in ((A, "a"), (B, "b")):
        here = store_of(state, host)[0]
        if state.guests[host] and not (here and here.id == name and here.whole):
            return "a guest runs without its disks"
    return None


def step_of(journal: Journal) -> str:
    return STEPS[journal.flow][journal.step] if journal.flow in STEPS else ""


def host_of(journal: Journal) -> int | None:
    return HOST[journal.flow][journal.step] if journal.flow in HOST else None


def store_of(state: State, host: int) -> tuple[Directory | None, ...]:
    return state.stores[0 if len(state.stores) == 1 else host]


def put(state: State, host: int, place: int, directory: Directory | None) -> State:
    at = 0 if len(state.stores) == 1 else host
    store = list(state.stores[at])
    store[place] = directory
    stores = list(state.stores)
    stores[at] = tuple(store)
    return state._replace(stores=tuple(stores))


def wrote(state: State, name: str) -> State:
    """A guest that runs on a directory makes it the only fresh one."""
    stores = tuple(tuple(each and each._replace(fresh=each.id == name) for each in store) for store in state.stores)
    return state._replace(stores=stores)


def with_guest(state: State, host: int, *, runs: bool) -> State:
    guests = list(state.guests)
    guests[host] = runs
    return state._replace(guests=tuple(guests))  # type: ignore[arg-type]


def with_slot(state: State, host: int, slot: Slot | None) -> State:
    slots = (slot, state.slots[1]) if host == A else (state.slots[0], slot)
    return state._replace(slots=slots)


def with_link(state: State, host: int, link: str) -> State:
    links = (link, state.links[1]) if host == A else (state.links[0], link)
    return state._replace(links=links)


def with_conductor(state: State, number: int, mine: tuple[bool, Journal] | None) -> State:
    other = state.conductors[1 - number]
    # The two are alike: the one that holds the last claim stands first, so that equal worlds are seen once.
    pair = sorted((mine, other), key=lambda each: (each is None, each is not None and not each[0], each or ()))
    return state._replace(conductors=(pair[0], pair[1]))


def answers(state: State, host: int) -> bool:
    slot = state.slots[host]
    return state.links[host] == "up" and not (slot and slot.stage in ("passed", "granted"))
