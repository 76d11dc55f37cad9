"""What each step and its undo change: one transaction in one database, or one command to a host."""

from __future__ import annotations

from typing import Final, NamedTuple

from support.protocol_cells.state import (
    Copy,
    S,
    Sleeper,
    State,
    T,
    World,
    cells_of,
    with_copy,
    with_guest,
)

HELD: Final = frozenset({"copy_records", "show", "switch_mapping", "carry_late_writes", "hide", "remove_records"})
"""The steps whose transaction holds the journal's claim until its commit is answered."""


class Effect(NamedTuple):
    """How a step came out."""

    outcome: str
    """``done``, ``failed``, ``deleted``, ``evacuated``, ``parks``, or ``refused`` by a fence or a lost claim."""
    state: State
    known: int | None
    """The value that both copies are known to have had."""


class Acting(NamedTuple):
    """Who makes the write: the claim's holder, or one that slept and has lost its claim."""

    world: World
    flow: str
    step: str
    undoes: bool
    known: int | None
    is_current: bool = True

    @classmethod
    def late(cls, world: World, sleeper: Sleeper) -> Acting:
        """Return the sleeper, who wakes up."""
        return cls(world, *sleeper, is_current=False)

    def may_write(self, state: State, cell: int) -> bool:
        """Tell whether the cell's fence, and where it is asked for the journal's claim, let the write through."""
        if self.is_current:
            return True
        if self.step in HELD and self.world.keeps("held claims"):
            return False
        copy = state.copies[cell]
        return copy is None or not copy.fenced or not self.world.keeps("fences")


def act(who: Acting, state: State) -> Effect:
    """Make the step's one write, or its undo's."""
    left, reached = cells_of(who.flow)
    if who.step == "switch_mapping":
        return _switch(who, state, reached if not who.undoes else left)
    if who.step in ("stop_guest", "start_guest"):
        return _guest(who, state, left, reached)
    if who.undoes:
        return _UNDOES[who.step](who, state) if who.step in _UNDOES else Effect("done", state, who.known)
    return _DOES[who.step](who, state)


def needs(flow: str, step: str, *, undoes: bool) -> tuple[int, ...]:
    """Return the cells whose databases the step needs; the API database answers always."""
    left, reached = cells_of(flow)
    if step in ("copy_records", "show", "carry_late_writes", "start_guest", "check_source_records"):
        return (left, reached) if not undoes or step != "check_source_records" else ()
    if step in ("remove_records", "finish_source_records"):
        return (S, T)
    if step == "stop_guest":
        return (left,) if undoes else ()
    if step in ("hand_over", "hide"):
        return (left,)
    if step in ("finish_records", "mark_confirming", "mark_reverting"):
        return (T,)
    return (reached if flow == "revert" else T,) if step == "settle_records" else ()


def carried(world: World, state: State, source: int, target: int, known: int | None) -> tuple[State, int | None]:
    """Bring what a user wrote in one copy alone over to the other one."""
    theirs, ours = state.copies[source], state.copies[target]
    if theirs is None or ours is None or "down" in (state.cells[source], state.cells[target]):
        return state, known
    if theirs.value == ours.value:
        return state, theirs.value
    clash = known not in (theirs.value, ours.value)
    if theirs.value == known or (clash and state.mapped == target):
        return state, known
    return with_copy(state, target, ours._replace(value=theirs.value)), theirs.value


def _stops(who: Acting, copy: Copy) -> str:
    """Say why a forward flow does not go on with that copy; a confirm and a revert go on for one that is deleted."""
    if copy.evacuated:
        return "evacuated"
    return "deleted" if copy.deleted and who.flow == "forward" else ""


def _change(who: Acting, state: State, cell: int, **columns: object) -> Effect:
    copy = state.copies[cell]
    if copy is None:
        return Effect("failed", state, who.known)
    if not who.may_write(state, cell):
        return Effect("refused", state, who.known)
    if not who.undoes and (why := _stops(who, copy)):
        return Effect(why, state, who.known)
    fenced = {"fenced": True} if who.is_current else {}
    return Effect("done", with_copy(state, cell, copy._replace(**columns, **fenced)), who.known)  # type: ignore[arg-type]


def _copy_records(who: Acting, state: State) -> Effect:
    own, there = state.copies[S], state.copies[T]
    if state.mapped != S:
        return Effect("done", state, own.value if own else who.known)
    if own is None:
        return Effect("deleted", state, who.known)
    if state.journal.owes[T]:
        return Effect("failed", state, who.known)
    if not who.may_write(state, T):
        return Effect("refused", state, who.known)
    if there is None:
        return Effect("done", with_copy(state, T, Copy(hidden=True, value=own.value)), own.value)
    if not there.hidden:
        return Effect("failed", state, who.known)
    known = there.value if who.world.keeps("digests are of the copy") else own.value
    return Effect("done", with_copy(state, T, there._replace(fenced=True)), known)


def _hand_over(who: Acting, state: State) -> Effect:
    cell, _reached = cells_of(who.flow)
    copy = state.copies[cell]
    if copy is not None and copy.hidden:
        return Effect("failed", state, who.known)
    return _change(who, state, cell, **({"status": "post"} if who.flow == "forward" else {}))


def _take_back(who: Acting, state: State) -> Effect:
    return _change(who, state, S, status="migrating") if who.flow == "forward" else Effect("done", state, who.known)


def _show(who: Acting, state: State) -> Effect:
    left, reached = cells_of(who.flow)
    if not who.may_write(state, reached):
        return Effect("refused", state, who.known)
    status = "post" if who.flow == "forward" else "reverting"
    after, known = carried(who.world, state, left, reached, who.known)
    found = _change(who, after, reached, hidden=False, status=status)
    return found._replace(known=known) if found.outcome == "done" else found._replace(state=state)


def _hide_again(who: Acting, state: State) -> Effect:
    """Undo `show`: what was written there goes back first, a delete too."""
    left, reached = cells_of(who.flow)
    if state.copies[reached] is None:
        return Effect("done", state, who.known)
    if not who.may_write(state, reached):
        return Effect("refused", state, who.known)
    after, known = carried(who.world, state, reached, left, who.known)
    after = _pass_deletion(who, after, reached, left)
    status = "migrating" if who.flow == "forward" else "post"
    return _change(who, after, reached, hidden=True, status=status)._replace(known=known)


def _pass_deletion(who: Acting, state: State, source: int, target: int) -> State:
    theirs, ours = state.copies[source], state.copies[target]
    if theirs and theirs.deleted and ours and who.world.keeps("deletes in either copy count"):
        return with_copy(state, target, ours._replace(deleted=True))
    return state


def _switch(who: Acting, state: State, cell: int) -> Effect:
    if not who.is_current and who.world.keeps("held claims"):
        return Effect("refused", state, who.known)
    return Effect("done", state._replace(mapped=cell), who.known)


def _carry_late_writes(who: Acting, state: State) -> Effect:
    left, reached = cells_of(who.flow)
    source, target = (reached, left) if who.undoes else (left, reached)
    if not who.may_write(state, target):
        return Effect("refused", state, who.known)
    ours = state.copies[target]
    if ours is not None and not who.undoes and (why := _stops(who, ours)):
        return Effect(why, state, who.known)
    return Effect("done", *carried(who.world, state, source, target, who.known))


def _hide(who: Acting, state: State) -> Effect:
    left, reached = cells_of(who.flow)
    if state.copies[left] is None and state.mapped == reached and state.journal.adopted:
        return Effect("done", state, who.known)
    return _change(who, state, cells_of(who.flow)[0], hidden=True)


def _show_again(who: Acting, state: State) -> Effect:
    return _change(who, state, cells_of(who.flow)[0], hidden=False)


def _check_source_records(who: Acting, state: State) -> Effect:
    copy = state.copies[S]
    if copy is None:
        return Effect("done" if state.mapped == T and who.flow == "confirm" else "failed", state, who.known)
    if not copy.hidden and copy.status != "reverting":
        return Effect("failed", state, who.known)
    if not who.may_write(state, T):
        return Effect("refused", state, who.known)
    if copy.evacuated:
        return Effect("evacuated", state, who.known)
    return Effect("done", *carried(who.world, state, S, T, who.known))


def _remove_records(who: Acting, state: State) -> Effect:
    cell = T if who.flow != "confirm" else S
    return removed(who, state, cell)


def removed(who: Acting, state: State, cell: int) -> Effect:
    """Remove the copy in the cell, once what was written there late was brought over."""
    other = 1 - cell
    copy, kept = state.copies[cell], state.copies[other]
    if copy is None or (who.undoes and not copy.hidden):
        return Effect("done", state, who.known)
    if state.mapped == cell or kept is None or kept.hidden:
        return Effect("parks", state, who.known)
    if copy.evacuated and who.world.keeps("removals ask for evacuations"):
        return Effect("parks", state, who.known)
    if not who.may_write(state, cell):
        return Effect("refused", state, who.known)
    after, known = state, who.known
    if who.world.keeps("carries before a removal"):
        after, known = carried(who.world, after, cell, other, known)
    after = _pass_deletion(who, after, cell, other)
    return Effect("done", with_copy(after, cell, None), known)


def _finish_source_records(who: Acting, state: State) -> Effect:
    if not who.may_write(state, T):
        return Effect("refused", state, who.known)
    ours = state.copies[T]
    if ours is not None and ours.evacuated:
        return Effect("evacuated", state, who.known)
    return Effect("done", *carried(who.world, state, S, T, who.known))


def _finish_records(who: Acting, state: State) -> Effect:
    return _mark(who, state, T, "finished")


def _mark(who: Acting, state: State, cell: int, status: str) -> Effect:
    """Change the status, past any delete: what comes behind the start goes on for that."""
    copy = state.copies[cell]
    if copy is None:
        return Effect("failed", state, who.known)
    if not who.may_write(state, cell):
        return Effect("refused", state, who.known)
    if copy.evacuated and not who.undoes:
        return Effect("evacuated", state, who.known)
    return Effect("done", with_copy(state, cell, copy._replace(status=status)), who.known)


def _guest(who: Acting, state: State, left: int, reached: int) -> Effect:
    """Stop the guest of the host that the server leaves, or start it on the one that it goes to or back to."""
    if not who.is_current:
        # The worker's fence lets no command of an older claim through: that is the other model's.
        return Effect("refused", state, who.known)
    if who.step == "stop_guest" and not who.undoes:
        if state.hosts[left] == "up":
            return Effect("done", with_guest(state, left, runs=False), who.known)
        return Effect("done" if state.hosts[left] == "down" and who.flow == "revert" else "failed", state, who.known)
    host = left if who.undoes else reached
    if who.undoes and (state.journal.deleted or state.journal.evacuated or state.guests[host]):
        return Effect("done", state, who.known)
    if state.hosts[host] != "up":
        return Effect("parks" if who.undoes else "failed", state, who.known)
    barred = _bars(who, state, host)
    return Effect(barred or "done", state if barred else with_guest(state, host, runs=True), who.known)


def _bars(who: Acting, state: State, host: int) -> str:
    """Say why no guest starts there; the conductor reads all of it right before it says that one may."""
    own, other = state.copies[host], state.copies[1 - host]
    if state.mapped != host or own is None or own.hidden:
        return "parks"
    if why := "evacuated" if own.evacuated else "deleted" if own.deleted and who.flow == "forward" else "":
        return why
    if state.guests[1 - host]:
        return "parks"
    there = state.hosts[1 - host]
    if there == "dead":
        return "parks"
    if other is not None and state.cells[1 - host] != "down" and who.world.keeps("starts ask both copies"):
        if not other.hidden and not who.undoes:
            return "parks"
        if other.evacuated:
            return "evacuated"
        if other.deleted and who.flow == "forward" and not who.undoes:
            return "deleted"
    waits = who.world.keeps("starts wait for late requests") and there != "up"
    return "parks" if waits and state.late.evacuation is not None else ""


def _discard_source(who: Acting, state: State) -> Effect:
    return Effect("done" if state.hosts[S] != "dead" else "failed", state, who.known)


def _settle_records(who: Acting, state: State) -> Effect:
    return _mark(who, state, S, "reverted") if who.flow == "revert" else _mark(who, state, T, "confirmed")


def _mark_confirming(who: Acting, state: State) -> Effect:
    return _mark(who, state, T, "confirming")


def _mark_reverting(who: Acting, state: State) -> Effect:
    return _mark(who, state, T, "reverting")


_DOES: Final = {
    "copy_records": _copy_records,
    "hand_over": _hand_over,
    "show": _show,
    "carry_late_writes": _carry_late_writes,
    "hide": _hide,
    "finish_source_records": _finish_source_records,
    "finish_records": _finish_records,
    "mark_confirming": _mark_confirming,
    "mark_reverting": _mark_reverting,
    "check_source_records": _check_source_records,
    "discard_source": _discard_source,
    "remove_records": _remove_records,
    "settle_records": _settle_records,
}
_UNDOES: Final = {
    "copy_records": _remove_records,
    "hand_over": _take_back,
    "show": _hide_again,
    "carry_late_writes": _carry_late_writes,
    "hide": _show_again,
    "mark_confirming": _finish_records,
    "mark_reverting": _finish_records,
}
