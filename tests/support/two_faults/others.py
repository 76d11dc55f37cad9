"""Everything that Nova or a user may do to a server, between any two steps of its move and at every rest of it.

A point is a boundary and an act.  What the server's state is at each boundary is told here, step by step, from the
documents; what Nova's API refuses in that state is no point.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from support.operations import stage
from support.two_faults import copies, ways_out, world
from support.two_faults.nova_acts import REFUGE, Acts, definition
from support.two_faults.world import Verdict, Watch

from droveway.clients.embedded import placement
from droveway.engines import asking, outcomes
from droveway.engines.submit import Wish, submit
from droveway.errors import DestinationFault, StepError
from droveway.flows import registry
from droveway.persistence import moves

KIND: Final = "others"

SOURCE, DESTINATION = "host1", "host2"

FORWARD: Final = ("resize", "migrate")
ENDS: Final = ("confirm", "revert")
OPERATIONS: Final = (*FORWARD, *ENDS)
END: Final = "end_of_flow"
"""The boundary behind the last step."""

CLOUD: Final = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  near: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  far: {flavor: small, host: host2, image: base, ports: [{}]}
"""


@dataclasses.dataclass(frozen=True)
class State:
    """What Nova's API and its services see of the server at a boundary."""

    vm_state: str = "active"
    task_state: str | None = None
    migration: str | None = None
    host: str = SOURCE
    bound: str = SOURCE
    """The host on which its port is bound ACTIVE."""


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
}
"""What each step changes of that, by the kind of its flow; the others change none of it."""

VERIFYING: Final = State("resized", None, "finished", DESTINATION, DESTINATION)


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
    "metadata": ("update_instance_metadata: @check_instance_state(vm_state=[...])", _INTERFACE, True),
    "evacuate": (
        "evacuate: @check_instance_state(vm_state=[ACTIVE, STOPPED, ERROR], task_state=None)",
        ("active", "stopped", "error"),
        True,
    ),
}

DELETES: Final = ("delete", "delete-local", "deleting")
ACTS: Final = (
    *DELETES,
    "evacuate",
    "reset-active",
    "reset-error",
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
)


@dataclasses.dataclass(frozen=True)
class Point:
    """An act at a boundary: before a step in a direction, or at a rest before what is asked next."""

    operation: str
    way: str
    at: str
    act: str

    def __str__(self) -> str:
        return f"{self.operation}:{self.way}.{self.at}:{self.act}"

    @property
    def is_new(self) -> bool:
        """Whether the move is yet to be asked for; else it waits for verification."""
        return self.operation in FORWARD and self.at not in ENDS

    @property
    def waiting(self) -> str:
        """Which kind of move waits."""
        return self.operation if self.operation in FORWARD else FORWARD[zlib.crc32(str(self).encode()) % 2]

    @property
    def choice(self) -> str:
        """How a move that waits in the end is ended."""
        return self.at if self.at in ENDS else ENDS[zlib.crc32(str(self).encode()) % 2]

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that `str` of it named."""
        operation, boundary, act = text.split(":")
        way, _, at = boundary.partition(".")
        return cls(operation, way, at, act)


def points() -> list[str]:
    """Every act that is not refused, at every boundary."""
    return [
        str(Point(operation, way, at, act))
        for operation, way, at, state in boundaries()
        for act in ACTS
        if not refused(act, state) and not _is_nothing(act, state)
    ]


def _is_nothing(act: str, state: State) -> bool:
    """Whether nobody would do it there: Nova binds nothing anew while the port is bound elsewhere."""
    return act == "rebind-ports" and state.bound != state.host


def boundaries() -> Iterator[tuple[str, str, str, State]]:
    """Operation, way and step, and the state before that step; the way is a direction, or a rest."""
    for operation in OPERATIONS:
        effects = EFFECTS.get(operation, EFFECTS["forward"])
        state = State() if operation in FORWARD else VERIFYING
        before: dict[str, State] = {}
        for step in _steps(operation):
            before[step] = state
            yield operation, "execute", step, state
            state = dataclasses.replace(state, **effects.get(step, {}))
        yield operation, "execute", END, state
        back = [*reversed(_undone(operation)), END]
        state = before[back[0]]
        for step in back:
            yield operation, "revert", step, state
            state = dataclasses.replace(before.get(step, state), migration=_migration_undone(operation, step, state))
    yield "resize", "rest", "submitted", State()
    yield "resize", "rest", "confirm", VERIFYING
    yield "migrate", "rest", "revert", VERIFYING


def _migration_undone(operation: str, step: str, state: State) -> str | None:
    """The status of the migration behind the undo of the step: what was tried stays as evidence."""
    if operation in FORWARD and step in ("record_migration", "accept", "record_before"):
        return "error"
    effects = EFFECTS.get(operation, EFFECTS["forward"])
    if "migration" not in effects.get(step, {}):
        return state.migration
    return {"mark_migrating": "pre-migrating", "switch_records": "migrating"}.get(step, "finished")


def _steps(operation: str) -> list[str]:
    return [step.step_name() for step in registry.latest(operation).walk()]


def _undone(operation: str) -> list[str]:
    """The steps up to the one whose failure undoes the flow: the last one at which that is possible."""
    steps, graph = _steps(operation), registry.latest(operation)
    at = steps.index(graph.no_return.step_name())
    return steps[: at + 1] if steps[at] == "start_guest" else steps[:at]


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Build the lab once, and put it back for each point."""
    with Bench(folder) as bench:
        for text in points:
            began = time.monotonic()
            trouble = bench.trouble(Point.parse(text))
            yield Verdict(KIND, text, trouble, time.monotonic() - began)


class Bench:
    """One lab, as it is before a move and while one waits for verification."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.lab = lab = self._stack.enter_context(stage(self._folder / "lab", CLOUD))
        self._stack.callback(self._disconnect)
        self._stack.callback(setattr, outcomes, "EVERY", outcomes.EVERY)
        self._stack.callback(setattr, moves, "CONFIRM_AGAIN", moves.CONFIRM_AGAIN)
        # Constants, which only this lab shortens.
        setattr(outcomes, "EVERY", 0.1)  # noqa: B010
        setattr(moves, "CONFIRM_AGAIN", 0)  # noqa: B010
        with lab.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        # A resize takes no destination: there is one host that it may choose.
        lab.cli("host", "disable", REFUGE, "--reason", "spare")
        copies.brand(lab.root, [lab.id_of(name) for name in ("web", "near", "far")])
        self.server = lab.id_of("web")
        self.watch = Watch(lab.root)
        self._was = Acts(lab, "web").was
        self._worlds = {"start": copies.keep(lab.root, self._folder / "start")}
        for kind in FORWARD:
            self._move(kind)
            self._worlds[kind] = copies.keep(lab.root, self._folder / kind)
            self._put_back("start")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _move(self, kind: str) -> None:
        move = self._submit(kind)
        with self.lab.running():
            asking.carry(self.lab.lab, move)

    def _submit(self, kind: str) -> str:
        wish = {"flavor": "large", "host": None} if kind == "resize" else {"flavor": None, "host": DESTINATION}
        return submit(self.lab.lab, Wish(server="web", **wish)).id

    def _disconnect(self) -> None:
        self.lab.lab.close()
        placement.disconnect(self.lab.lab.layout.placement)

    def _put_back(self, name: str) -> None:
        self._disconnect()
        self.lab.lab = self._worlds[name].put_back()

    def trouble(self, point: Point) -> str:
        """One sentence about what does not hold at the point, or ""."""
        planted = self.carry(point)
        return planted if isinstance(planted, str) else planted.judge(self.watch)

    def carry(self, point: Point) -> Planted | str:
        """Plant the act at its boundary, let the move rest, end it by what it names; a sentence where it is stuck."""
        self._put_back("start" if point.is_new else point.waiting)
        self.nova = nova = Acts(self.lab, "web")
        nova.was = self._was
        move = self._ask(point)
        planted = Planted(nova, point, move)
        with self.lab.running(planted):
            if point.way == "rest":
                planted.do()
            asking.carry(self.lab.lab, move)
        if planted.trouble or not planted.done:
            return planted.trouble or "the boundary was not reached"
        if point.act == "deleting":
            # The cast arrives at last.
            nova.delete()
        if point.act == "delete-local":
            nova.reap()
        if stuck := ways_out.finish(self.lab, move, choice=point.choice):
            return stuck
        if point.act == "reset-error" and nova.row["vm_state"] == "error":
            # Whoever has said that it is an error says once more that it is none.
            nova.reset_state("active")
        return planted

    def _ask(self, point: Point) -> str:
        lab = self.lab.lab
        if point.is_new:
            return self._submit(point.operation)
        move = self.lab.move("web").id
        if point.way != "rest":
            asking.ask(lab, move, getattr(asking, point.operation))
        return move


class Planted:
    """A probe that lets the act happen at the point's boundary, once, and later tells whether it holds."""

    def __init__(self, nova: Acts, point: Point, move: str) -> None:
        self.nova, self.point, self.move = nova, point, move
        self.done = False
        self.trouble = ""
        self._kept: dict[str, Any] = {}
        undone = _undone(point.operation)
        self._failed = False
        self._fails = undone[-1] if point.way == "revert" else ""

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        way = "execute" if self.point.at == END else self.point.way
        if not self.done and (step, direction, phase) == (self.point.at, way, "before"):
            self.do()
        if (step, direction) != (self._fails, "execute") or self._failed:
            return
        self._failed = phase == ("before" if step == "start_guest" else "after")
        if step == "start_guest" and phase == "before":
            raise DestinationFault("it cannot start", code="start-failed", host="")
        if step != "start_guest" and phase == "after":
            raise StepError("it fails", code="test")

    def do(self) -> None:
        """Look whether the state is what the point takes it for, and act."""
        self.done = True
        row = self.nova.row
        status = next((each["status"] for each in self.nova.migrations() if each["uuid"] == self.move), None)
        found = (row["vm_state"], row["task_state"], status, row["host"])
        told = dataclasses.astuple(_state(self.point))[:4]
        if found != told:
            self.trouble = f"the boundary is {found}, and told to be {told}"
            return
        self.trouble = self._act() or ""
        self._kept = self._photograph()

    def _act(self) -> str:
        if self.point.act == "restart-compute":
            return self.nova.restart_compute(SOURCE) or self.nova.restart_compute(DESTINATION)
        PLANTS[self.point.act](self.nova, self.move)
        return ""

    def judge(self, watch: Watch) -> str:
        """One sentence about what does not hold once the move has ended, or ""."""
        act, server = self.point.act, self.nova.server
        if act == "evacuate":
            return watch.trouble(server, ended=False) or self._changed() or self._left_of_evacuated()
        deleted = act in DELETES
        return watch.trouble(server, ended=True, deleted=deleted) or ("" if deleted else self._undone())

    def _undone(self) -> str:
        """Whether what was done is not so any more."""
        row = self.nova.row
        wanted = {"stop": ("vm_state", "stopped"), "reboot": ("vm_state", "active")}
        wanted |= {"confirm": ("host", DESTINATION), "revert": ("host", SOURCE)}
        column, value = wanted.get(self.point.act, ("deleted", 0))
        if row[column] != value:
            return f"after {self.point.act} the server's {column} is {row[column]}"
        return self._changed() or self._unconnected(row["host"])

    def _changed(self) -> str:
        now = self._photograph()
        differing = [f"{key}: {self._kept[key]} -> {now[key]}" for key in now if now[key] != self._kept[key]]
        return f"since {self.point.act} changed " + "; ".join(differing) if differing else ""

    def _photograph(self) -> dict[str, Any]:
        """What is Nova's or the user's from the act on, whatever becomes of the move."""
        nova, root = self.nova, self.nova.stage.root
        row = nova.row
        services = root / "services.sqlite"
        ports = [each["id"] for each in world.rows(services, "ports") if each["server"] == nova.server]
        seen: dict[str, Any] = {
            "ports": sorted(ports),
            "volumes": sorted(nova.volumes()),
            "the lock and the name": [row[name] for name in ("locked", "locked_by", "display_description")],
            "metadata": [
                (each["key"], each["value"])
                for each in world.cell_rows(root, "instance_metadata")
                if each["instance_uuid"] == nova.server and not each["deleted"]
            ],
            "flavors": [each["name"] for each in world.rows(root / "api.sqlite", "flavors")],
        }
        if self.point.act == "evacuate":
            bindings = world.rows(services, "port_bindings")
            seen |= {
                "the row": {name: value for name, value in row.items() if name != "updated_at"},
                "bindings": [each for each in bindings if each["port"] in ports and each["status"] == "ACTIVE"],
                "attachments": nova.volumes(),
                "the allocation": world.allocations(root, nova.server),
                "the new host": world.standing_on(root, REFUGE, nova.server),
                "the definition": definition(root, REFUGE, nova.server),
                "where it runs": world.running_on(root, nova.server),
                "starts": [each for each in world.starts(root) if each["server"] == nova.server],
            }
        return seen

    def _left_of_evacuated(self) -> str:
        nova, root = self.nova, self.nova.stage.root
        if held := world.allocations(root, self.move):
            return f"the migration of a server that Nova evacuated still holds {held}"
        services = root / "services.sqlite"
        ports = [each["id"] for each in world.rows(services, "ports") if each["server"] == nova.server]
        bound = [each["host"] for each in world.rows(services, "port_bindings") if each["port"] in ports]
        if set(bound) != {REFUGE}:
            return f"the ports of a server that Nova evacuated are bound on {bound}"
        found = [each["id"] for each in world.rows(services, "attachments") if each["server"] == nova.server]
        if sorted(found) != sorted(attachment for attachment, _ in nova.volumes().values()):
            return f"a server that Nova evacuated has attachments of which its rows know nothing: {found}"
        return ""

    def _unconnected(self, host: str) -> str:
        """Whether the host where the server lives has not exactly what is attached."""
        nova, base = self.nova, self.nova.stage.root / "hosts" / self.nova.row["host"]
        known = definition(nova.stage.root, host, nova.server)
        for place, key, wanted in (("connections", "volume", nova.volumes()), ("vifs", "port", nova.ports())):
            there = sorted(path.stem for path in (base / place / nova.server).glob("*.json"))
            group = {"volume": "volumes", "port": "ports"}[key]
            if there != sorted(wanted) or sorted(each[key] for each in known[group]) != sorted(wanted):
                return (
                    f"{host} has the {group} {there} of the server, its guest {known[group]}, and {[*wanted]} are its"
                )
        return ""


def _state(point: Point) -> State:
    return next(state for *names, state in boundaries() if names == [point.operation, point.way, point.at])


PLANTS: Final[dict[str, Callable[[Acts, str], Any]]] = {
    "delete": lambda nova, _: nova.delete(),
    "delete-local": lambda nova, _: nova.delete_without_host(),
    "deleting": lambda nova, _: nova.begin_delete(),
    "evacuate": lambda nova, _: nova.evacuate(),
    "reset-active": lambda nova, _: nova.reset_state("active"),
    "reset-error": lambda nova, _: nova.reset_state("error"),
    "stop": lambda nova, _: nova.stop(),
    "reboot": lambda nova, _: nova.reboot(),
    "attach": lambda nova, _: nova.attach_volume(),
    "detach": lambda nova, _: nova.detach_volume(*nova.volumes()),
    "swap": lambda nova, _: nova.swap_volume(*nova.volumes()),
    "attach-port": lambda nova, _: nova.attach_port(),
    "detach-port": lambda nova, _: nova.detach_port(*nova.ports()),
    "delete-port": lambda nova, _: nova.delete_port(*nova.ports()),
    "touch-ports": lambda nova, _: nova.touch_ports(),
    "rebind-ports": lambda nova, _: nova.rebind_ports(),
    "confirm": lambda nova, move: nova.confirm(move),
    "revert": lambda nova, move: nova.revert(move),
    "lock": lambda nova, _: nova.lock(),
    "rename": lambda nova, _: nova.rename(),
    "metadata": lambda nova, _: nova.set_metadata(),
    "delete-flavor": lambda nova, _: nova.delete_flavor("large"),
}
"""What plants each act; the second argument is the move's id."""
