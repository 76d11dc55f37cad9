"""What comes from outside: users, Nova, machines, databases that are away, people, and a journal that is put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.protocol_cells.conductors import claim, may_turn_back, paying, recovered, turned_back
from support.protocol_cells.effects import Acting, act
from support.protocol_cells.state import (
    STEPS,
    E,
    Journal,
    S,
    State,
    T,
    World,
    with_copy,
    with_guest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def sleeper(world: World, state: State) -> Iterator[tuple[str, State]]:
    """The one that slept wakes up and makes its write, where that is let through."""
    if state.sleeper is None:
        return
    found = act(Acting.late(world, state.sleeper), state)
    awake = found.state if found.outcome == "done" else state
    yield f"slept before {state.sleeper.step}: {found.outcome}", awake._replace(sleeper=None)


def user(state: State) -> Iterator[tuple[str, State]]:
    """A request reads the mapping, and writes the copy in that cell later."""
    mapped, left, late = state.copies[state.mapped], state.left, state.late
    answers = state.cells[state.mapped] == "up" and mapped is not None and not mapped.deleted
    if answers and left.writes:
        yield (
            "user: a write reads the mapping",
            state._replace(late=late._replace(write=state.mapped), left=left._replace(writes=left.writes - 1)),
        )
    if answers and left.deletes:
        yield (
            "user: a delete reads the mapping",
            state._replace(late=late._replace(delete=state.mapped), left=left._replace(deletes=left.deletes - 1)),
        )
    if late.write is not None and state.cells[late.write] == "up":
        copy, over = state.copies[late.write], state._replace(late=late._replace(write=None))
        if copy is None or copy.deleted:
            yield "user: the write is refused", over
        else:
            yield "user: writes", with_copy(over, late.write, copy._replace(value=1))._replace(wrote=True)
    if late.delete is not None and state.cells[late.delete] == "up":
        copy, over = state.copies[late.delete], state._replace(late=late._replace(delete=None))
        if copy is None:
            yield "user: the delete is refused", over
        else:
            yield "user: deletes", with_copy(over, late.delete, copy._replace(deleted=True))._replace(deleted=True)


def nova(state: State) -> Iterator[tuple[str, State]]:
    """Nova evacuates a server whose host is gone, by the mapping that it read, and compares nothing."""
    mapped, left, late = state.copies[state.mapped], state.left, state.late
    if (
        left.evacuations
        and mapped is not None
        and not (mapped.evacuated or mapped.deleted)
        and state.hosts[state.mapped] != "up"
        and state.cells[state.mapped] == "up"
    ):
        yield (
            "nova: an evacuation reads the mapping",
            state._replace(
                late=late._replace(evacuation=state.mapped), left=left._replace(evacuations=left.evacuations - 1)
            ),
        )
    if late.evacuation is not None and state.cells[late.evacuation] == "up":
        copy, over = state.copies[late.evacuation], state._replace(late=late._replace(evacuation=None))
        if copy is None or copy.deleted:
            yield "nova: the evacuation is refused", over
        else:
            taken = with_copy(over, late.evacuation, copy._replace(evacuated=True))
            yield "nova: evacuates", with_guest(taken, E, runs=True)


def machines(state: State) -> Iterator[tuple[str, State]]:
    """Hosts die and come back, and databases go away and come back."""
    for host in (S, T):
        name, link = "ST"[host], state.hosts[host]
        if link == "up" and state.left.deaths:
            left = state.left._replace(deaths=state.left.deaths - 1)
            dead = with_guest(_with_host(state, host, "dead"), host, runs=False)
            yield f"host {name} dies", dead._replace(left=left, died=True)
        elif link == "dead":
            yield f"person: host {name} is down", _with_host(state, host, "down")
        copy = state.copies[host]
        # What a host does while Nova evacuates from it is no part of a move between cells.
        if link != "up" and state.late.evacuation != host and not (copy is not None and copy.evacuated):
            yield f"host {name} is back", _with_host(state, host, "up")
    for cell in (S, T):
        name, link = "ST"[cell], state.cells[cell]
        if link == "up" and state.left.outages:
            left = state.left._replace(outages=state.left.outages - 1)
            yield f"cell {name} is away", _with_cell(state, cell, "away")._replace(left=left)
        elif link == "away":
            yield f"cell {name} is back", _with_cell(state, cell, "up")
            if state.left.gone:
                left = state.left._replace(gone=state.left.gone - 1)
                off = with_guest(_with_host(_with_cell(state, cell, "down"), cell, "down"), cell, runs=False)
                copy = state.copies[cell]
                if copy is not None and copy.evacuated:
                    # Nova evacuates within a cell, and whoever declares that one down made sure of all its hosts.
                    off = with_guest(off, E, runs=False)
                yield f"person: cell {name} is down", off._replace(left=left, died=True)
        elif link == "down":
            yield f"person: cell {name} is up", _with_cell(state, cell, "up")


def _with_host(state: State, host: int, link: str) -> State:
    hosts = list(state.hosts)
    hosts[host] = link
    return state._replace(hosts=tuple(hosts))  # type: ignore[arg-type]


def _with_cell(state: State, cell: int, link: str) -> State:
    cells = list(state.cells)
    cells[cell] = link
    return state._replace(cells=tuple(cells))  # type: ignore[arg-type]


def person(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Adopt a journal, retry or cancel what rests, and confirm or revert what waits."""
    journal = state.journal
    if state.old:
        adopted = journal._replace(parked=True, adopted=True, forgot=True)
        yield "person: db adopt", state._replace(old=False, journal=adopted)
        return
    if journal.parked:
        again = claim(state._replace(journal=journal._replace(parked=False)))
        yield "person: move retry", recovered(world, again) if journal.adopted else again
        yield "person: move settle --as left", state._replace(journal=Journal("left"))
    known = recovered(world, state) if journal.adopted else state
    if known.journal.flow == "forward" and not known.journal.undoes and may_turn_back(known):
        yield "person: move cancel", claim(known._replace(journal=turned_back(known.journal)))
    if journal.flow == "verifying" and state.cells == ("up", "up") and journal.owes == ("", ""):
        for flow in ("confirm", "revert"):
            yield f"person: {flow}", claim(state._replace(journal=journal._replace(flow=flow, step=0)))


def collector(world: World, state: State) -> Iterator[tuple[str, State]]:
    """A cell that answers again pays what it owes, where no flow is under way that does."""
    if not state.old and (state.journal.flow not in STEPS or state.journal.parked):
        yield from paying(world, state)


def restore(state: State) -> Iterator[tuple[str, State]]:
    """The journal is put back from a copy that was made before a step of the forward flow."""
    journal = state.journal
    # Of what cells owe an older journal knows nothing: that is left to the audit.
    if not state.left.restores or state.sleeper is not None or journal.owes != ("", ""):
        return
    left = state.left._replace(restores=state.left.restores - 1)
    ahead = journal.peak if journal.flow != "forward" else journal.peak + journal.undoes
    for step in range(min(ahead, len(STEPS["forward"]))):
        older = Journal("forward", step, peak=step)
        yield f"journal: put back to {STEPS['forward'][step]}", state._replace(journal=older, old=True, left=left)
