"""Which acts of Nova and its users there are, and where: between any two steps, in the middle of one, and at rests.

What the server's state is at each boundary is told here, step by step, from the documents; what Nova's API refuses in
that state is no point.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterator
from typing import Any, Final

from support.two_faults.recording import BETWEEN, BETWEEN_CELLS, CELLS, ELSEWHERE, REVERT_ELSEWHERE, UNDONE

from droveway.flows import registry
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import HostStep

SOURCE: Final = "host1"
DESTINATION: Final = "host2"
TAKER: Final = "host5"
"""The host of the source's cell that gets the server back where the source is dead."""

FORWARD: Final = ("resize", "migrate")
ENDS: Final = ("confirm", "revert")
OPERATIONS: Final = (*FORWARD, *ENDS)
CROSSING: Final = tuple(each for each in BETWEEN_CELLS if not each.endswith(UNDONE))
"""The same into another cell."""
SHELVE, UNSHELVE = "shelve", "unshelve"
SHELVING: Final = (SHELVE, UNSHELVE, f"{BETWEEN}{UNSHELVE}")
"""Those that bring a server from its host to none, and to a host of its cell or of another one."""
BACK_ELSEWHERE: Final = REVERT_ELSEWHERE[0]
"""The one that brings a server to another host of the source's cell."""
EVERY: Final = (*OPERATIONS, *CROSSING, *SHELVING, BACK_ELSEWHERE)
END: Final = "end_of_flow"
"""The boundary behind the last step."""

APART: Final = "apart"
WITHIN: Final = (APART, "apart-stopped", "shared", "shared-stopped")
BETWEEN_WORLDS: Final = (CELLS, f"{CELLS}-stopped")
"""Each end of the move in a cell of its own; the disks go from host to host."""
ELSEWHERE_WORLDS: Final = (ELSEWHERE, f"{ELSEWHERE}-stopped")
"""The same; the source is dead before the server goes back, and the images of its disks were kept."""
WORLDS: Final = (*WITHIN, *BETWEEN_WORLDS, *ELSEWHERE_WORLDS)
"""Where the hosts keep disks, and whether the server is stopped when all begins."""


@dataclasses.dataclass(frozen=True)
class State:
    """What Nova's API and its services see of the server at a boundary."""

    vm_state: str = "active"
    task_state: str | None = None
    migration: str | None = None
    host: str | None = SOURCE
    """Of the row in the cell that the server is mapped to, as all of this."""
    bound: str = SOURCE
    """The host on which its port is bound ACTIVE; "" for none."""
    left: bool = False
    """Whether the flow has switched the mapping, and the other cell still has a copy of which a request may know."""


_MIGRATED: Final = {"task_state": "resize_migrated"}
EFFECTS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "forward": {
        "accept": _MIGRATED,
        "record_migration": {"migration": "pre-migrating"},
        "mark_migrating": {"migration": "migrating"},
        "move_ports": {"bound": DESTINATION},
        "switch_records": {"task_state": "resize_finish", "migration": "post-migrating", "host": DESTINATION},
        "finish_records": {"vm_state": "resized", "task_state": None, "migration": "finished"},
    },
    "confirm": {
        "mark_confirming": {"migration": "confirming"},
        "settle_records": {"vm_state": "active", "migration": "confirmed"},
    },
    "revert": {
        "mark_reverting": {"task_state": "resize_reverting", "migration": "reverting"},
        "move_ports": {"bound": SOURCE},
        "switch_records": {"host": SOURCE},
        "settle_records": {"vm_state": "active", "task_state": None, "migration": "reverted"},
    },
    f"{BETWEEN}forward": {
        "accept": _MIGRATED,
        "record_migration": {"migration": "pre-migrating"},
        "mark_migrating": {"migration": "migrating"},
        "move_ports": {"bound": DESTINATION},
        "hand_over_source": {"migration": "post-migrating"},
        "switch_mapping": {"task_state": "resize_finish", "host": DESTINATION, "left": True},
        "finish_records": {"vm_state": "resized", "task_state": None, "migration": "finished", "left": False},
    },
    f"{BETWEEN}revert": {
        "mark_reverting": {"task_state": "resize_reverting", "migration": "reverting"},
        "move_ports": {"bound": SOURCE},
        "switch_mapping": {"host": SOURCE, "left": True},
        "remove_target_records": {"left": False},
        "settle_records": {"vm_state": "active", "task_state": None, "migration": "reverted"},
    },
}
EFFECTS[f"{BETWEEN}confirm"] = EFFECTS["confirm"]
EFFECTS[BACK_ELSEWHERE] = EFFECTS[f"{BETWEEN}revert"] | {
    "move_ports": {"bound": TAKER},
    "switch_mapping": {"host": TAKER, "left": True},
}
EFFECTS[SHELVE] = {
    "mark_shelving": {"task_state": "shelving"},
    "unbind_ports": {"bound": ""},
    "record_shelved": {"vm_state": "shelved", "task_state": "shelving_offloading"},
    "settle_records": {"vm_state": "shelved_offloaded", "task_state": None, "host": None},
}
EFFECTS[UNSHELVE] = {
    "mark_unshelving": {"task_state": "unshelving"},
    "bind_ports": {"bound": DESTINATION},
    "switch_records": {"host": DESTINATION},
    "finish_records": {"vm_state": "active", "task_state": None},
}
EFFECTS[f"{BETWEEN}{UNSHELVE}"] = {
    "mark_unshelving": {"task_state": "unshelving"},
    "bind_ports": {"bound": DESTINATION},
    "switch_mapping": {"host": DESTINATION, "left": True},
    "remove_source_records": {"left": False},
    "finish_records": {"vm_state": "active", "task_state": None},
}
"""What each step changes of that, by the kind of its flow; the others change none of it."""

VERIFYING: Final = State("resized", None, "finished", DESTINATION, DESTINATION)
OFFLOADED: Final = State("shelved_offloaded", None, None, None, "")


def refused(act: str, state: State) -> str:
    """The rule of Nova's API by which the act is refused in the state; "" when it is not."""
    rule = _RULES.get(act)
    if rule is None:
        return ""
    decorator, vm_states, any_task = rule
    if state.vm_state not in vm_states or (state.task_state is not None and not any_task):
        return decorator
    if act in ("confirm", "revert") and state.migration != "finished":
        return "Migration.get_by_instance_and_status(..., 'finished')"
    return ""


_SET: Final = ("active", "paused", "stopped", "resized", "soft-delete", "shelved", "shelved_offloaded")
_INTERFACE: Final = ("active", "paused", "stopped")
_RULES: Final[dict[str, tuple[str, tuple[str, ...], bool]]] = {
    "stop": ("stop: @check_instance_state(vm_state=[ACTIVE, ERROR])", ("active", "error"), False),
    "reboot": ("_hard_reboot: @check_instance_state(vm_state=ALLOW_HARD_REBOOT)", ("active", "stopped"), False),
    "attach": ("attach_volume: @check_instance_state(vm_state=[ACTIVE, ..., RESIZED, ...])", _SET, False),
    "detach": ("detach_volume: @check_instance_state(vm_state=[ACTIVE, ..., RESIZED, ...])", _SET, False),
    "swap": ("swap_volume: @check_instance_state(vm_state=[...])", ("active", "paused", "resized"), False),
    "attach-port": ("attach_interface: @check_instance_state(vm_state=[...], task_state=[None])", _INTERFACE, False),
    "detach-port": ("detach_interface: @check_instance_state(vm_state=[...], task_state=[None])", _INTERFACE, False),
    "confirm": ("confirm_resize: @check_instance_state(vm_state=[RESIZED])", ("resized",), False),
    "revert": ("revert_resize: @check_instance_state(vm_state=[RESIZED])", ("resized",), False),
    "nova-shelve": ("shelve: @check_instance_state(vm_state=[ACTIVE, STOPPED, ...])", ("active", "stopped"), False),
    "nova-unshelve": ("unshelve: @check_instance_state(vm_state=[SHELVED, ...])", ("shelved_offloaded",), False),
    "metadata": ("update_instance_metadata: @check_instance_state(vm_state=[...])", _INTERFACE, True),
    "evacuate": (
        "evacuate: @check_instance_state(vm_state=[ACTIVE, STOPPED, ERROR], task_state=None)",
        ("active", "stopped", "error"),
        True,
    ),
}

DELETES: Final = ("delete", "delete-local", "deleting", "reset-delete")
"""A user deletes the server; one that waits, or goes back, behind a reset state too."""
EVACUATES: Final = ("evacuate", "reset-evacuate")
"""Nova evacuates the server; one that waits, or goes back, once its state was reset."""
ACTS: Final = (
    *DELETES,
    "evacuate",
    "reset-evacuate",
    "reset-active",
    "reset-error",
    "reset-stop",
    "stop",
    "reboot",
    "attach",
    "detach",
    "swap",
    "attach-port",
    "detach-port",
    "delete-port",
    "touch-ports",
    "rebind-ports",
    "confirm",
    "revert",
    "lock",
    "rename",
    "metadata",
    "delete-flavor",
    "restart-compute",
    "late-delete",
    "late-rename",
    "nova-shelve",
    "nova-unshelve",
)
LATE: Final = ("late-delete", "late-rename")
"""Requests of which a nova-api had read the mapping before the move switched it."""


DURING, AFTER, PAUSED, PARKED, WAITING, ENDED, REST = "during", "after", "paused", "parked", "waiting", "ended", "rest"
"""Ways beside a direction: a host is at the step; the step is done and not stored; and rests.

`PAUSED` is a move that is held behind the step, `PARKED` one that needs an operator, `WAITING` one whose policy waits
for the source to be back, `ENDED` one that is over.
"""

_AT_ONCE: Final = (
    ("start_guest", "execute"),
    ("stop_guest", "revert"),
    ("set_aside", "execute"),
    ("copy_disks", "revert"),
)
"""Where a host is about to start the guest, or to take away the directory's name.

That effect is under way, and only the next one can be stopped: `docs/limits.rst`.
"""


@dataclasses.dataclass(frozen=True)
class Point:
    """An act at a boundary of a world: at a step in a direction, or at a rest before what is asked next."""

    operation: str
    way: str
    at: str
    act: str
    world: str = APART

    def __str__(self) -> str:
        named = f"{self.operation}:{self.way}.{self.at}:{self.act}"
        return named if self.world == APART else f"{named}:{self.world}"

    @property
    def kind(self) -> str:
        """The way without the direction."""
        return self.way.partition("-")[0]

    @property
    def direction(self) -> str:
        """In which the step is met."""
        return "revert" if self.way.endswith("revert") else "execute"

    @property
    def is_new(self) -> bool:
        """Whether the move is yet to be asked for; else it waits for verification."""
        return plain(self.operation) in (*FORWARD, SHELVE, UNSHELVE) and self.at not in ENDS

    @property
    def crosses(self) -> bool:
        """Whether the move leads into another cell."""
        return self.operation.startswith(BETWEEN)

    @property
    def begins(self) -> str:
        """What was done to the server when all begins: nothing, or the kind of move after which it rests."""
        if self.is_new:
            return SHELVE if plain(self.operation) == UNSHELVE else ""
        if plain(self.operation) in FORWARD:
            return self.operation
        return f"{BETWEEN if self.crosses else ''}{FORWARD[_turn(str(self), 2)]}"

    @property
    def choice(self) -> str:
        """How a move that waits in the end is ended; what Nova has begun is what is ended."""
        if self.crosses and self.act in ENDS:
            return self.act
        return self.at if self.at in ENDS else ENDS[_turn(str(self), 2)]

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that `str` of it named."""
        operation, boundary, act, *world = text.split(":")
        way, _, at = boundary.partition(".")
        return cls(operation, way, at, act, *world)


def points() -> list[str]:
    """Every act that is not refused, at every boundary.

    Before a step and at the first rests that is so in the simplest world and in one more; else in one of all worlds,
    which take turns.
    """
    return [str(point) for boundary in boundaries() for act in ACTS for point in _at(boundary, act)]


def state_of(point: Point) -> State:
    """What the server's state is at the point."""
    found = next(state for *names, state in boundaries() if names == [point.operation, point.way, point.at])
    return in_world(found, point)


def in_world(state: State, point: Point) -> State:
    """The state of a server that was stopped when all began; an unshelve leaves it active all the same."""
    if plain(point.operation) != UNSHELVE and point.world.endswith("stopped") and state.vm_state == "active":
        return dataclasses.replace(state, vm_state="stopped")
    return state


def _at(boundary: tuple[str, str, str, State], act: str) -> Iterator[Point]:
    operation, way, at, state = boundary
    point = Point(operation, way, at, act)
    if act in (*EVACUATES, "reset-stop") and point.kind == DURING and (at, point.direction) in _AT_ONCE:
        return
    if point.kind in (AFTER, PAUSED) and _turn(str(point), 4):
        # Most of what follows is what follows the next boundary.
        return
    first = way in ("execute", "revert", REST)
    worlds = worlds_of(point)
    others = worlds[1:] if first else worlds
    for world in dict.fromkeys([*([worlds[0]] if first else []), others[_turn(str(point), len(others))]]):
        found = dataclasses.replace(point, world=world)
        there = in_world(state, found)
        if not refused(act, there) and not _is_nothing(act, there) and (there.left or act not in LATE):
            yield found


def worlds_of(point: Point) -> tuple[str, ...]:
    """The worlds in which the operation is met."""
    if point.operation == BACK_ELSEWHERE:
        return ELSEWHERE_WORLDS
    return BETWEEN_WORLDS if point.crosses else WITHIN


def plain(operation: str) -> str:
    """The operation without the word that it leads into another cell."""
    return operation.removeprefix(BETWEEN)


def _turn(text: str, count: int) -> int:
    """Which of so many has its turn: a step that is added changes no other point."""
    return zlib.crc32(text.encode()) % count


def _is_nothing(act: str, state: State) -> bool:
    """Whether nobody would do it there.

    Nova binds nothing anew while the port is bound elsewhere, a server without a task is stopped without a reset, and
    one on no host is not stopped.
    """
    if act in ("reset-evacuate", "reset-delete"):
        # Of any other state Nova's API takes the request at once.
        return state.vm_state != "resized"
    if act == "reset-stop":
        return state.task_state is None or state.host is None
    return act == "rebind-ports" and state.bound != state.host


def boundaries() -> Iterator[tuple[str, str, str, State]]:
    """Operation, way and step, and the state there; the way is a direction, a way of being in the step, or a rest."""
    for operation in EVERY:
        yield from _onward(operation)
        yield from _backward(operation)
    for operation in SHELVING:
        yield operation, REST, "submitted", _first(operation)
        yield operation, ENDED, "cancelled", _first(operation)
    yield SHELVE, ENDED, "done", OFFLOADED
    yield UNSHELVE, ENDED, "done", State(host=DESTINATION, bound=DESTINATION)
    for between in ("", BETWEEN):
        yield f"{between}resize", REST, "submitted", State()
        yield f"{between}resize", REST, "confirm", VERIFYING
        yield f"{between}migrate", REST, "revert", VERIFYING
        for kind, end in itertools.product(FORWARD, ENDS):
            yield f"{between}{kind}", WAITING, end, VERIFYING
        for kind in FORWARD:
            yield f"{between}{kind}", ENDED, "cancelled", State(migration="error")
        yield f"{between}confirm", ENDED, "done", State(migration="confirmed", host=DESTINATION, bound=DESTINATION)
        yield f"{between}revert", ENDED, "reverted", State(migration="reverted")
    yield BACK_ELSEWHERE, REST, "revert", VERIFYING
    yield BACK_ELSEWHERE, ENDED, "reverted", State(migration="reverted", host=TAKER, bound=TAKER)


def _onward(operation: str) -> Iterator[tuple[str, str, str, State]]:
    effects = _effects(operation)
    state = _first(operation)
    graph = registry.latest(operation)
    steps, beyond = [*graph.walk()], False
    for step in steps:
        name = step.step_name()
        yield operation, "execute", name, state
        if beyond:
            yield operation, f"{PARKED}-execute", name, state
        beyond = beyond or step is graph.no_return
        if is_worked(operation, step, "execute"):
            yield operation, f"{DURING}-execute", name, state
        state = dataclasses.replace(state, **effects.get(name, {}))
        yield operation, f"{AFTER}-execute", name, state
        if step is not steps[-1]:
            yield operation, PAUSED, name, state
    yield operation, "execute", END, state


def _first(operation: str) -> State:
    """The state before the operation."""
    if plain(operation) == UNSHELVE:
        return OFFLOADED
    return VERIFYING if operation == BACK_ELSEWHERE or plain(operation) in ENDS else State()


def _effects(operation: str) -> dict[str, dict[str, Any]]:
    between = BETWEEN if operation.startswith(BETWEEN) else ""
    return EFFECTS.get(operation, EFFECTS[f"{between}forward"])


def _backward(operation: str) -> Iterator[tuple[str, str, str, State]]:
    before: dict[str, State] = {name: state for _, way, name, state in _onward(operation) if way == "execute"}
    known = {step.step_name(): step for step in registry.latest(operation).walk()}
    back = [*reversed(undone(operation)), END]
    state = before[back[0]]
    for step in back:
        yield operation, "revert", step, state
        if step == END:
            return
        yield operation, f"{PARKED}-revert", step, state
        if is_worked(operation, known[step], "revert"):
            yield operation, f"{DURING}-revert", step, state
        state = dataclasses.replace(before.get(step, state), migration=_migration_undone(operation, step, state))
        yield operation, f"{AFTER}-revert", step, state


def is_worked(operation: str, step: type[Step], direction: str) -> bool:
    """Whether a host carries the step out, with effects of its own in the middle of which it can be met."""
    if not issubclass(step, HostStep) or (direction == "revert" and step.no_undo):
        return False
    return (step.step_name(), direction) not in _QUIET or (operation, step.step_name(), direction) in _LOUD


_QUIET: Final = (
    *(("check_source", "execute"), ("check_destination_copy", "execute")),
    *(("upload_disks", "execute"), ("upload_disks", "revert")),
)
"""Steps and directions in which the host only looks, or has nothing to do as no disk becomes an image."""
_LOUD: Final = ((SHELVE, "upload_disks", "execute"), (SHELVE, "upload_disks", "revert"))
"""Operations, and their steps and directions of these, in which the host has something to do after all."""


def _migration_undone(operation: str, step: str, state: State) -> str | None:
    """The status of the migration behind the undo of the step: what was tried stays as evidence."""
    if plain(operation) in FORWARD and step in ("record_migration", "accept", "record_before"):
        return "error"
    if "migration" not in _effects(operation).get(step, {}):
        return state.migration
    known = {"mark_migrating": "pre-migrating", "switch_records": "migrating", "hand_over_source": "migrating"}
    return known.get(step, "finished")


def undone(operation: str) -> list[str]:
    """The steps up to the one whose failure undoes the flow: the last one at which that is possible."""
    graph = registry.latest(operation)
    steps = [step.step_name() for step in graph.walk()]
    at = steps.index(graph.no_return.step_name())
    return steps[: at + 1] if steps[at] == "start_guest" else steps[:at]
