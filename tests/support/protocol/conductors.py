"""What conductors do: they claim the move, send commands, note results, and give up when another one has claimed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.protocol.state import (
    NO_RETURN,
    NO_UNDO,
    STARTS,
    STEPS,
    A,
    B,
    Journal,
    Slot,
    State,
    World,
    answers,
    host_of,
    step_of,
    store_of,
    with_conductor,
    with_slot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def conductor(world: World, state: State, number: int) -> Iterator[tuple[str, State]]:
    mine = state.conductors[number]
    name = f"conductor{number + 1}"
    if mine is None:
        # Two that are free are alike.
        if _claimable(world, state) and (number == 0 or state.conductors[0]):
            yield f"{name}: claim", _claim(state, number)
        return
    current, journal = mine
    if not current:
        # It slept.  Its write is refused by the claim's epoch, its command by the worker's fence.
        yield f"{name}: wakes up and gives up", with_conductor(state, number, None)
        host = host_of(journal)
        if host is not None and state.slots[host] is None and state.links[host] == "up":
            late = _post(state, host, journal, current=False)
            yield f"{name}: wakes up and posts {step_of(journal)}", with_conductor(late, number, None)
        return
    if journal != state.journal or state.old_epoch:
        yield f"{name}: its write does not fit the journal", with_conductor(state, number, None)
        return
    yield from _run(world, state, number)


def _claimable(world: World, state: State) -> bool:
    journal = state.journal
    if journal.parked or journal.flow in ("verifying", "ended") or state.old_epoch:
        return False
    if state.old_step and "e1A" in world.mends:
        return False
    busy = any(each and each[0] for each in state.conductors)
    return not busy or state.left.sleeps > 0


def _claim(state: State, number: int) -> State:
    others = [each and (False, each[1]) for each in state.conductors]
    slept = any(each and each[0] for each in state.conductors)
    others[number] = None
    slots = tuple(each and each._replace(current=False) for each in state.slots)
    left = state.left._replace(sleeps=state.left.sleeps - slept)
    after = state._replace(conductors=tuple(others), slots=slots, left=left, old_step=False)  # type: ignore[arg-type]
    return with_conductor(after, number, (True, state.journal))


def _run(world: World, state: State, number: int) -> Iterator[tuple[str, State]]:
    journal = state.journal
    name = f"conductor{number + 1}: {step_of(journal)} {journal.direction}"
    host = host_of(journal)
    if _overtaken(world, state):
        yield f"{name}: overtaken", _park(state, number)
        return
    if (journal.flow, step_of(journal)) in NO_UNDO and journal.direction == "undo":
        yield f"{name}: nothing", _next(state, number)
        return
    if host is None:
        yield from _records(state, number, name)
        return
    slot = state.slots[host]
    if state.links[host] == "up" and slot is None:
        yield from _send(world, state, number, host, name)
    elif state.links[host] == "up" and slot and slot.current:
        yield from _hear(world, state, number, host, slot, name)
    if state.links[host] != "up":
        yield f"{name}: the host is away", _unreachable(world, state, number)
    elif slot and slot.stage in ("passed", "granted") and (not slot.current or state.left.sleeps > 0):
        # The worker sleeps behind its fence; what it does comes late.
        left = state.left._replace(sleeps=state.left.sleeps - slot.current)
        late = with_slot(state._replace(left=left), host, slot._replace(current=False))
        yield f"{name}: the worker is overdue", _unreachable(world, late, number)


def _overtaken(world: World, state: State) -> bool:
    """Whether the world may have gone further than an adopted journal that is being undone."""
    journal = state.journal
    if "overtaken" not in world.mends or not journal.adopted or journal.flow != "forward":
        return False
    if journal.direction == "do":
        stopped = journal.step > 0
        return stopped and (not answers(state, A) or state.guests[A])
    hosts = "AB" if step_of(journal) == "switch_records" else "A"
    if state.rows[1] != "move" or state.rows[0] not in hosts:
        return True
    if not answers(state, B):
        return "e1B" in world.mends and state.links[B] != "down"
    return state.starts > 0


def _records(state: State, number: int, name: str) -> Iterator[tuple[str, State]]:
    """The rows go to the other host, if they are still this move's."""
    forth = (state.journal.flow == "forward") == (state.journal.direction == "do")
    before, after = ("A", "B") if forth else ("B", "A")
    if state.rows in ((before, "move"), (after, "move")):
        yield name, _next(state._replace(rows=(after, "move")), number)
    else:
        yield f"{name}: conflict", _park(state, number)


def _send(world: World, state: State, number: int, host: int, name: str) -> Iterator[tuple[str, State]]:
    journal = state.journal
    step = step_of(journal)
    if (step, journal.direction) == ("copy_disks", "undo") and "e1C" in world.mends and not _shown(state):
        yield f"{name}: last-copy", _park(state, number)
        return
    if (step, journal.direction) in STARTS and "permission" not in world.mends:
        barred = _bars(world, state)
        if barred:
            yield f"{name}: {barred}", _park(state, number)
            return
    if step == "start_guest" and journal.flow == "forward" and not journal.asked:
        asked = journal._replace(asked=True)
        yield f"{name}: noted", with_conductor(state._replace(journal=asked), number, (True, asked))
        return
    yield f"{name}: posted", _post(state, host, journal, current=True)


def _post(state: State, host: int, journal: Journal, *, current: bool) -> State:
    return with_slot(state, host, Slot(step_of(journal), journal.direction, "posted", current))


def _bars(world: World, state: State) -> str | None:
    """Why the conductor lets no guest start, or None."""
    journal = state.journal
    host = host_of(journal)
    mend = "e24" if host == A else "e24b"
    if mend in world.mends and state.rows != ("AB"[host or 0], "move"):
        return "not this move's any more"
    return _runs(world, state, B if host == A else A)


def _runs(world: World, state: State, other: int) -> str | None:
    """Why the other host's guest is not known to be off, or None."""
    journal = state.journal
    if state.links[other] == "down":
        return None
    if answers(state, other):
        return "runs elsewhere" if state.guests[other] else None
    if other == A:
        # The source's guest was stopped by this flow, and only this move starts it again.
        return None
    never = journal.flow == "forward" and not journal.asked
    believed = not (journal.adopted and "e1B" in world.mends)
    return None if never and believed else "the other host does not answer"


def _shown(state: State) -> bool:
    """Whether A answers and shows what it set aside, whole."""
    aside = store_of(state, A)[1]
    return answers(state, A) and aside is not None and aside.id == "a" and aside.whole


def _hear(world: World, state: State, number: int, host: int, slot: Slot, name: str) -> Iterator[tuple[str, State]]:
    free = with_slot(state, host, None)
    if slot.stage == "done":
        yield f"{name}: heard", _next(free, number)
    elif slot.stage == "failed":
        yield f"{name}: failed", _fail(free, number)
    elif slot.stage == "unknown":
        yield f"{name}: unknown", _park(free, number)
    elif slot.stage == "passed" and (slot.step, slot.direction) in STARTS and "permission" in world.mends:
        barred = _bars(world, state)
        if barred:
            yield f"{name}: {barred}", _park(free, number)
        else:
            yield f"{name}: granted", with_slot(state, host, slot._replace(stage="granted"))


def _next(state: State, number: int) -> State:
    """The step's end is journalled, and the conductor goes on."""
    journal = state.journal
    steps = STEPS[journal.flow]
    if journal.direction == "do":
        ahead = journal.step + 1
        at = journal._replace(step=ahead, peak=max(ahead, journal.peak))
        if ahead == len(steps):
            return _end(state, number)
    else:
        at = journal._replace(step=journal.step - 1)
        if at.step < 0:
            return _undone(state, number)
    return with_conductor(state._replace(journal=at), number, (True, at))


def _end(state: State, number: int) -> State:
    flow = state.journal.flow
    after = Journal("verifying") if flow == "forward" else Journal("ended")
    rows = state.rows
    if rows[1] == "move" and flow != "confirm":
        rows = (rows[0], "none")
    return with_conductor(state._replace(journal=after, rows=rows), number, None)


def _undone(state: State, number: int) -> State:
    flow = state.journal.flow
    rows = (state.rows[0], "none") if state.rows[1] == "move" else state.rows
    after = Journal("ended") if flow == "forward" else Journal("verifying")
    return with_conductor(state._replace(journal=after, rows=rows), number, None)


def _fail(state: State, number: int) -> State:
    """A step failed: what was done is undone, from this step on, unless there is no way back."""
    journal = state.journal
    if journal.direction == "undo" or journal.step > NO_RETURN[journal.flow]:
        return _park(state, number)
    if journal.flow == "confirm":
        return _undone(state, number)
    at = journal._replace(
        direction="undo", step=journal.step if step_of(journal) != "start_guest" else journal.step - 1
    )
    return with_conductor(state._replace(journal=at), number, (True, at))


def _unreachable(world: World, state: State, number: int) -> State:
    journal = state.journal
    step = step_of(journal)
    if step == "start_guest" and (journal.asked or journal.flow == "revert"):
        return _park(state, number)
    if journal.direction == "undo":
        if step == "copy_disks":
            # It is owed; the source's copy has to be there all the same.
            barred = "e1C" in world.mends and not _shown(state)
            return _park(state, number) if barred else _next(state, number)
        return _park(state, number)
    return _fail(state, number)


def _park(state: State, number: int) -> State:
    at = state.journal._replace(parked=True)
    return with_conductor(state._replace(journal=at), number, None)
