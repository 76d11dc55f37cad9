"""What comes from outside: machines that die, people, a journal that is put back, and Nova."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.protocol.state import (
    STEPS,
    A,
    B,
    C,
    Journal,
    State,
    World,
    put,
    store_of,
    with_guest,
    with_link,
    with_slot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def machine(world: World, state: State, host: int) -> Iterator[tuple[str, State]]:
    name, link = "AB"[host], state.links[host]
    if link == "up" and state.left.deaths:
        left = state.left._replace(deaths=state.left.deaths - 1)
        yield f"host {name} is cut off", with_link(state._replace(left=left), host, "away")
        dead = with_guest(with_link(state._replace(left=left), host, "dead"), host, runs=False)
        yield f"host {name} dies", with_slot(dead, host, None)
    elif link == "dead":
        yield f"person: host {name} is down", with_link(state, host, "down")
    if link != "up":
        yield f"host {name} is back", with_link(state, host, "up")
    if host == B and state.left.lost_notes and state.noted >= 0:
        left = state.left._replace(lost_notes=state.left.lost_notes - 1)
        yield "worker B: its journal is lost", state._replace(noted=-1, left=left)
    own = store_of(state, A)[1]
    slot = state.slots[B]
    lasting = state.left.deaths and not (slot and slot.direction == "undo")
    # Nobody installs a host within the seconds between its showing a disk and what follows from that.
    if host == A and len(state.stores) == 2 and lasting and own and own.fresh and _copied(state):
        left = state.left._replace(deaths=state.left.deaths - 1)
        yield "host A is installed anew", put(_without(state, A)._replace(left=left), A, 1, None)


def _copied(state: State) -> bool:
    here = store_of(state, B)[0]
    return here is not None and here.whole and here.fresh


def _without(state: State, host: int) -> State:
    return with_slot(with_guest(state, host, runs=False), host, None)


def person(world: World, state: State) -> Iterator[tuple[str, State]]:
    journal = state.journal
    if state.old_epoch or (state.old_step and "e1A" in world.mends):
        if journal.flow == "ended":
            return
        at = journal._replace(parked=True, adopted=True)
        adopted = state._replace(journal=at, old_epoch=False, old_step=False, conductors=(None, None))
        slots = tuple(each and each._replace(current=False) for each in state.slots)
        yield "person: db adopt", adopted._replace(slots=slots)  # type: ignore[arg-type]
        return
    if journal.parked and state.left.retries and journal.flow in STEPS:
        left = state.left._replace(retries=state.left.retries - 1)
        yield "person: move retry", state._replace(journal=journal._replace(parked=False), left=left)
        if journal.flow == "forward" and journal.direction == "do" and not journal.asked:
            back = journal._replace(parked=False, direction="undo")
            yield "person: move cancel", state._replace(journal=back, left=left)
    elif journal.flow == "verifying" and not journal.parked:
        yield "person: confirm", state._replace(journal=Journal("confirm", adopted=journal.adopted))
        if state.rows[0] == "B":
            rows = ("B", "move")
            yield "person: revert", state._replace(journal=Journal("revert", adopted=journal.adopted), rows=rows)
    elif journal.flow == "forward" and journal.direction == "do" and not journal.asked:
        at = journal._replace(direction="undo")
        mine = tuple(each and ((True, at) if each[0] else each) for each in state.conductors)
        if not any(slot and slot.current for slot in state.slots):
            yield "person: move cancel", state._replace(journal=at, conductors=mine)  # type: ignore[arg-type]
    if journal.flow == "ended" and not any(state.slots):
        yield from _heal(state)


def _heal(state: State) -> Iterator[tuple[str, State]]:
    """``audit --heal`` deletes what an ended move left on a host that the server's rows do not name."""
    here = store_of(state, B)[0]
    if here and here.mark and here.id == "b" and state.rows[0] != "B" and not state.guests[B]:
        yield "person: audit --heal", put(state, B, 0, None)


def restore(state: State) -> Iterator[tuple[str, State]]:
    """The journal is put back from a copy of the same claim, or of an earlier one."""
    if not state.left.restores:
        return
    left = state.left._replace(restores=state.left.restores - 1)
    journal = state.journal
    last = journal.peak + (journal.asked or journal.direction == "undo") if journal.flow == "forward" else 6
    for step in range(last):
        at = Journal("forward", step, peak=step)
        yield (
            f"journal: put back to {STEPS['forward'][step]}",
            state._replace(journal=at, old_epoch=True, left=left),
        )
        if journal.flow == "forward":
            yield (
                f"journal: put back within the claim to {STEPS['forward'][step]}",
                state._replace(journal=at, old_step=True, conductors=(None, None), left=left),
            )


def nova(state: State) -> Iterator[tuple[str, State]]:
    """Nova evacuates a server whose host is gone; its guest runs on C from then on."""
    host = "AB".find(state.rows[0])
    if state.left.nova and host >= 0 and state.links[host] != "up" and not state.guests[host]:
        left = state.left._replace(nova=state.left.nova - 1)
        # An evacuation takes longer than a permission lasts.
        slots = tuple(each and each._replace(current=False) for each in state.slots)
        after = state._replace(rows=("C", "none"), slots=slots, left=left)  # type: ignore[arg-type]
        yield "nova: evacuate", with_guest(after, C, runs=True)
