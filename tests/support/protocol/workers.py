"""What workers do: they pass their fence, wait for the permission to start, and act, maybe much later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.protocol.state import (
    STARTS,
    TWIN,
    A,
    B,
    Directory,
    Slot,
    State,
    World,
    put,
    store_of,
    with_guest,
    with_slot,
    wrote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def worker(world: World, state: State, host: int) -> Iterator[tuple[str, State]]:
    slot = state.slots[host]
    if slot is None or state.links[host] in ("dead", "down"):
        return
    name = f"worker {'AB'[host]}: {slot.step} {slot.direction}"
    starts = (slot.step, slot.direction) in STARTS
    if slot.stage == "posted" and state.links[host] == "up":
        if not slot.current:
            yield f"{name}: an old claim's", with_slot(state, host, None)
            return
        here = store_of(state, host)[0]
        passed = slot._replace(stage="passed", proved=bool(here and here.id == "b" and here.mark))
        after = with_slot(state, host, passed)
        if (slot.step, slot.direction, host) == ("start_guest", "do", B) and state.noted < 0:
            after = after._replace(noted=state.starts)
        yield f"{name}: behind the fence", after
    elif slot.stage == "granted" or (slot.stage == "passed" and not (starts and "permission" in world.mends)):
        if slot.stage == "granted" and not slot.current:
            yield f"{name}: the permission is void", with_slot(state, host, None)
            return
        for outcome, after in _effects(world, state, host, slot):
            answer = slot._replace(stage=outcome) if slot.current else None
            yield f"{name}: {outcome}", with_slot(after, host, answer)
    elif slot.stage == "passed" and not slot.current:
        yield f"{name}: no permission came", with_slot(state, host, None)
    elif slot.stage in ("done", "failed", "unknown") and not slot.current:
        yield f"{name}: nobody wants the answer", with_slot(state, host, None)


def _effects(world: World, state: State, host: int, slot: Slot) -> Iterator[tuple[str, State]]:
    """What a command does, and its outcome."""
    key = (slot.step, slot.direction)
    if key in STARTS:
        yield from _starting(world, state, host)
    elif key in (("stop_guest", "do"), ("start_guest", "undo")):
        yield "done", with_guest(state, host, runs=False)
    else:
        yield _on_disks(world, state, slot)


def _on_disks(world: World, state: State, slot: Slot) -> tuple[str, State]:
    match (slot.step, slot.direction):
        case ("set_aside", "do"):
            return _rename(state, A, 0, 1, "a")
        case ("set_aside", "undo") | ("restore_disks", "do"):
            return _rename(_make_room(state), A, 1, 0, "a")
        case ("restore_disks", "undo"):
            outcome, after = _rename(state, A, 0, 1, "a")
            return outcome, _take_back(after)
        case ("copy_disks", "do"):
            return _copy(state)
        case ("copy_disks", "undo"):
            return "done", _discard_copy(world, state, slot)
        case ("fit_disks", "do"):
            return _fit(world, state)
        case ("keep_copy", "do"):
            return "done", _keep(world, state)
        case ("discard_destination", "do"):
            return "done", _discard_destination(state)
        case _:
            return _on_confirm(state, slot)


def _on_confirm(state: State, slot: Slot) -> tuple[str, State]:
    here, aside = store_of(state, B)[0], store_of(state, A)[1]
    own = aside is not None and aside.id == "a"
    if slot.step == "check_destination_copy":
        return ("done" if here and here.id == "b" and here.whole else "failed"), state
    if slot.step == "check_source":
        return ("done" if own else "failed"), state
    return "done", put(state, A, 1, None) if own else state


def _keep(world: World, state: State) -> State:
    here = store_of(state, B)[0]
    if here is None or here.id != "b" or "e63" not in world.mends:
        return state
    return put(state, B, 0, here._replace(mark=False))


def _starting(world: World, state: State, host: int) -> Iterator[tuple[str, State]]:
    name = "ab"[host]
    here = store_of(state, host)[0]
    if state.guests[host]:
        yield "done", state
        return
    if not (here and here.id == name and here.whole):
        yield ("failed" if _never_started(world, state, host) else "unknown"), state
        return
    after = with_guest(state, host, runs=True)
    if host == B:
        after = after._replace(starts=min(state.starts + 1, 2))
    yield "done", wrote(after, name)
    if world.twin and host == B and "e40" not in world.mends:
        yield "done", with_guest(wrote(after, name), TWIN, runs=True)
    if state.left.failures:
        failed = state._replace(left=state.left._replace(failures=state.left.failures - 1))
        yield ("failed" if _never_started(world, state, host) else "unknown"), failed


def _never_started(world: World, state: State, host: int) -> bool:
    if host == A:
        return False
    return state.starts == (0 if "e23" in world.mends else max(state.noted, 0))


def _rename(state: State, host: int, old: int, new: int, name: str) -> tuple[str, State]:
    store = store_of(state, host)
    here, there = store[old], store[new]
    if state.guests[host]:
        return ("done" if there and there.id == name else "failed"), state
    if here and here.id == name and there is None:
        return "done", put(put(state, host, old, None), host, new, here)
    return ("done" if there and there.id == name else "failed"), state


def _make_room(state: State) -> State:
    """On shared storage the copy makes room for the server's own directory."""
    store = store_of(state, A)
    here, aside = store[0], store[1]
    if here and here.id == "b" and aside and aside.id == "a" and store[2] is None:
        return put(put(state, A, 0, None), A, 2, here)
    return state


def _take_back(state: State) -> State:
    store = store_of(state, A)
    if store[0] is None and store[2] and store[2].id == "b":
        return put(put(state, A, 2, None), A, 0, store[2])
    return state


def _copy(state: State) -> tuple[str, State]:
    aside, here = store_of(state, A)[1], store_of(state, B)[0]
    if here and here.id == "b":
        return "done", state
    if here or not (aside and aside.id == "a" and aside.whole) or state.links[A] != "up":
        return "failed", state
    return "done", put(state, B, 0, Directory("b", mark=True, whole=True, fresh=aside.fresh))


def _discard_copy(world: World, state: State, slot: Slot) -> State:
    here = store_of(state, B)[0]
    if here is None or state.guests[B]:
        return state
    ours = here.mark if "e41" in world.mends else slot.proved
    return put(state, B, 0, None) if ours else state


def _fit(world: World, state: State) -> tuple[str, State]:
    here = store_of(state, B)[0]
    if here is None or state.guests[B]:
        return "failed", state
    if here.id == "b":
        return "done", state
    # The directory is not the one that was opened: another file replaces a disk of it, or nothing happens.
    return "failed", state if "e31" in world.mends else put(state, B, 0, here._replace(whole=False))


def _discard_destination(state: State) -> State:
    for place in (0, 2):
        here = store_of(state, B)[place]
        if here and here.id == "b" and here.mark and not state.guests[B]:
            return put(state, B, place, None)
    return state
