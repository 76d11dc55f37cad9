"""Everything that Nova or a user may do to a server, at each point of its move and at every rest of it: run and judged.

Which points there are is told in `support.two_faults.other_points`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from support.labs.operations import stage
from support.labs.small_lab import until
from support.two_faults import audited, copies, other_points, shelved, ways_out, world
from support.two_faults.nova_acts import REFUGES, definition
from support.two_faults.other_points import (
    AFTER,
    BACK_ELSEWHERE,
    DELETES,
    DESTINATION,
    DURING,
    END,
    ENDED,
    EVACUATES,
    PARKED,
    PAUSED,
    REST,
    SHELVE,
    SOURCE,
    TAKER,
    UNSHELVE,
    WAITING,
    WORLDS,
    Point,
    plain,
    points,
)
from support.two_faults.recording import BETWEEN, CELLS, ELSEWHERE
from support.two_faults.shelved_acts import ShelvedActs
from support.two_faults.world import Verdict, Watch

from droveway.clients.embedded import placement
from droveway.engines.keeper import outcomes
from droveway.engines.operations import move_requests, shelving
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault, StepError
from droveway.lab import stopped
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.tables import Move

__all__ = ["KIND", "points", "run"]

KIND: Final = "others"

LATE_NAME: Final = "late"

CLOUD: Final = """
options: {OPTIONS}
cells: {HOSTS}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: ROOT}
  large: {vcpus: 2, memory_mb: 512, root_gb: ROOT}
images: {base: {size_mb: 1}}
servers:
  web: {STATE flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  near: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  far: {flavor: small, host: host2, image: base, ports: [{}]}
"""

_ONE_CELL: Final = "cell1: {hosts: {host1: {SHARED}, host2: {SHARED}, host3: {SHARED}}}"
_TWO_CELLS: Final = "cell1: {hosts: {host1: {}, host3: {}MORE}}, cell2: {hosts: {host2: {}, host4: {}}}"
_TAKER: Final = f", {TAKER}: {{}}"


def cloud_of(world_of: str, *, shelves: bool) -> str:
    """Write the cloud of a world; where disks are uploaded the root disk has the image's size."""
    storage, _, state = world_of.partition("-")
    crosses = storage in (CELLS, ELSEWHERE)
    hosts = _TWO_CELLS if crosses else _ONE_CELL.replace("SHARED", "shared: nfs1" * (storage == "shared"))
    text = CLOUD.replace("HOSTS", hosts.replace("MORE", _TAKER if storage == ELSEWHERE else ""))
    text = text.replace("OPTIONS", "cross_cell: true" if crosses else "")
    uploads = shelves or storage == ELSEWHERE
    return text.replace("STATE", f"state: {state}," if state else "").replace("ROOT", "0" if uploads else "1")


def run(folder: Path, points: Iterable[str]) -> Iterator[Verdict]:
    """Build one lab for each world, another for those in which servers are shelved; put it back for each point."""
    wanted = sorted(map(Point.parse, points), key=lambda point: (WORLDS.index(point.world), _shelves(point)))
    for (world_of, shelves), found in itertools.groupby(wanted, key=lambda point: (point.world, _shelves(point))):
        with Bench(folder / f"{world_of}-{shelves}", world_of, shelves=shelves) as bench:
            for point in found:
                began = time.monotonic()
                trouble = bench.trouble(point)
                yield Verdict(KIND, str(point), trouble, time.monotonic() - began)


def _shelves(point: Point) -> bool:
    return any(plain(kind) in (SHELVE, UNSHELVE) for kind in (point.operation, point.begins))


class Bench:
    """One lab, as it is before a move and while one waits for verification."""

    def __init__(self, folder: Path, of_world: str = other_points.APART, *, shelves: bool = False) -> None:
        self._folder = folder
        self._cloud = cloud_of(of_world, shelves=shelves)
        self._elsewhere = of_world.startswith(ELSEWHERE)
        self._dead = [SOURCE] if self._elsewhere else []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.lab = lab = self._stack.enter_context(stage(self._folder / "lab", self._cloud))
        self._stack.callback(self._disconnect)
        self._stack.callback(setattr, outcomes, "EVERY", outcomes.EVERY)
        self._stack.callback(setattr, moves, "CONFIRM_AGAIN", moves.CONFIRM_AGAIN)
        # Constants, which only this lab shortens.
        setattr(outcomes, "EVERY", 0.1)  # noqa: B010
        setattr(moves, "CONFIRM_AGAIN", 0)  # noqa: B010
        with lab.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 0.2\nretry_for = 0\n")
        # A resize takes no destination: there is one host that it may choose.
        for host in sorted({*REFUGES.values()} & set(lab.lab.identity.hosts)):
            lab.cli("host", "disable", host, "--reason", "spare")
        copies.stamp(lab.root, [lab.id_of(name) for name in ("web", "near", "far")])
        self.server = lab.id_of("web")
        self.watch = shelved.Watch(lab.root)
        self._was = ShelvedActs(lab, "web").was
        self._worlds = {"": copies.keep(lab.root, self._folder / "start")}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self, kind: str) -> None:
        """Put the lab back to where such a move has come to its rest; none has where ``kind`` is empty."""
        if kind not in self._worlds:
            self._put_back("")
            move = self._submit(kind)
            with self.lab.running():
                move_requests.carry(self.lab.lab, move)
            for host in self._dead:
                self.lab.cli("lab", "worker", "stop", host)
                self.lab.cli("host", "down", host, "--i-made-sure", "power is off")
            self._worlds[kind] = copies.keep(self.lab.root, self._folder / kind)
        self._put_back(kind)

    def _submit(self, kind: str) -> str:
        cell = "cell2" if kind.startswith(BETWEEN) else None
        if plain(kind) == SHELVE:
            return shelving.shelve(self.lab.lab, "web").id
        if plain(kind) == UNSHELVE:
            return shelving.unshelve(self.lab.lab, "web", host=DESTINATION, to_cell=cell).id
        # No host of the source's cell but the source has the disks otherwise.
        spec = MoveSpec(server="web", to_cell=cell, keep_image=self._elsewhere)
        if plain(kind) == "resize":
            return submit(self.lab.lab, dataclasses.replace(spec, flavor="large")).id
        return submit(self.lab.lab, dataclasses.replace(spec, host=DESTINATION)).id

    def _disconnect(self) -> None:
        self.lab.lab.close()
        placement.disconnect(self.lab.lab.layout.placement)

    def _put_back(self, name: str) -> None:
        self._disconnect()
        self.lab.lab = self._worlds[name].put_back()

    def trouble(self, point: Point) -> str:
        """One sentence about what does not hold at the point, or ""."""
        planted = self.carry(point)
        if isinstance(planted, str):
            return planted
        wrong = planted.judge(self.watch, self._dead)
        return wrong or ("" if self._dead or point.act in EVACUATES else audited.trouble(self.lab))

    def carry(self, point: Point) -> Planted | str:
        """Plant the act at its boundary, let the move rest, end it by what it names; a sentence where it is stuck."""
        self._begin(point.begins)
        self.nova = nova = ShelvedActs(self.lab, "web")
        nova.was = self._was
        move = self._ask(point)
        planted = Planted(nova, point, move)
        workers = dict.fromkeys(sorted(self.lab.lab.identity.hosts), planted.on_worker)
        if point.kind == REST:
            # Before anybody runs the lab: a move that was only submitted would begin in the middle of the act.
            planted.do()
        with self.lab.running(planted, workers if point.kind == DURING else None) as running:
            if point.kind == WAITING:
                running.stop(SOURCE)
                self._let_wait(move)
                planted.do()
            else:
                move_requests.carry(self.lab.lab, move)
        if point.kind in (PAUSED, PARKED, ENDED):
            planted.do()
        if point.kind == WAITING:
            self.lab.cli("lab", "worker", "start", SOURCE)
        if planted.trouble or not planted.done:
            return planted.trouble or "the boundary was not reached"
        if point.act == "deleting" or nova.cell in nova.late:
            # The cast arrives at last, where its host has the server.
            nova.delete()
        if point.act == "delete-local":
            nova.reap()
        if stuck := ways_out.finish(self.lab, move, choice=point.choice):
            return stuck
        if nova.cell in nova.late:
            # So does that of the late request, whose host has the server again.
            nova.delete()
        if point.act in ("reset-error", "reset-active") and nova.row["host"] is None:
            # No command of Nova's says of a server on no host that it is shelved: whoever said else writes it.
            nova.reset_state("shelved_offloaded")
        if point.act == "reset-error" and nova.row["vm_state"] == "error":
            # Whoever has said that it is an error says once more that it is none.
            nova.reset_state("active")
        return planted

    def _ask(self, point: Point) -> str:
        lab = self.lab.lab
        if point.is_new:
            return self._submit(point.operation)
        move = self.lab.move("web").id
        if point.operation == BACK_ELSEWHERE and point.kind != REST:
            # What is asked for sees that the source is dead.
            move_requests.end(lab, move, "revert")
        elif point.kind not in (REST, WAITING):
            move_requests.file_request(lab, move, getattr(move_requests, plain(point.operation)))
        return move

    def _let_wait(self, move: str) -> None:
        """Let the policy want to confirm while the source's worker is away."""
        stopped.stop(self.lab.lab.layout, SOURCE)
        due = {"policy": "deadline", "deadline": dt.datetime(2026, 1, 1)}  # noqa: DTZ001 - the journal's have no zone
        with self.lab.lab.journal.write() as session:
            session.execute(sa.update(Move).where(Move.id == move).values(**due))
        until(lambda: move_requests.read_move(self.lab.lab, move).waits_for, "the wait for the source")


class Planted:
    """A probe that lets the act happen at the point's boundary, once, and later tells whether it holds."""

    def __init__(self, nova: ShelvedActs, point: Point, move: str) -> None:
        self.nova, self.point, self.move = nova, point, move
        self.done = False
        self.trouble = ""
        self._kept: dict[str, Any] = {}
        self._asked = self._failed = False
        self._fails = other_points.undone(point.operation)[-1] if point.direction == "revert" else ""
        at = "after" if point.kind == AFTER else "before"
        self._met = (point.at, "execute" if point.at == END else point.direction, at)

    def __call__(self, move: str, step: str, direction: str, phase: str) -> None:
        """The conductor's probe."""
        met = (step, direction, phase) == self._met
        if met and self.point.kind in ("execute", "revert", AFTER) and not self.done:
            self.do()
        if met and self.point.kind == PARKED:
            raise StepError("it cannot go on", code="test")
        if met and self.point.kind == PAUSED:
            self._once(move, requests.pause)
        cancelled = "upload_disks" if self.point.operation == SHELVE else "copy_disks"
        if self.point.at == "cancelled" and (step, phase) == (cancelled, "before"):
            self._once(move, requests.cancel)
        if (step, direction) != (self._fails, "execute") or self._failed:
            return
        self._failed = phase == ("before" if step == "start_guest" else "after")
        if step == "start_guest" and phase == "before":
            raise DestinationFault("it cannot start", code="start-failed", host="")
        if step != "start_guest" and phase == "after":
            raise StepError("it fails", code="test")

    def on_worker(self, step: str, direction: str, _phase: str, _effect: str) -> None:
        """The probe of each host's worker, before each effect: the first one of the step."""
        if (step, direction) == self._met[:2] and not self.done:
            self.do()

    def _once(self, move: str, wish: Any) -> None:
        if not self._asked:
            self._asked = True
            move_requests.file_request(self.nova.lab, move, wish)

    def do(self) -> None:
        """Look whether the state is what the point takes it for, and act."""
        self.done = True
        row = self.nova.row
        status = next((each["status"] for each in self.nova.migrations() if each["uuid"] == self.move), None)
        found = (row["vm_state"], row["task_state"], status, row["host"])
        told = dataclasses.astuple(other_points.state_of(self.point))[:4]
        if found != told:
            self.trouble = f"the boundary is {found}, and told to be {told}"
            return
        self.trouble = self._act()
        self._kept = self._photograph()
        if self.point.act == "late-rename":
            self._kept["the name"] = LATE_NAME

    def _act(self) -> str:
        if self.point.act == "restart-compute":
            living = TAKER if self.point.operation == BACK_ELSEWHERE else SOURCE
            return self.nova.restart_compute(living) or self.nova.restart_compute(DESTINATION)
        begun = {"confirm": self.nova.begin_confirm, "revert": self.nova.begin_revert} if self.point.crosses else {}
        if self.point.act in begun:
            # A plain super conductor is refused: Droveway's takes up what nova-api has written.
            begun[self.point.act](self.move)
            return ""
        PLANTS[self.point.act](self.nova, self.move)
        return ""

    def judge(self, watch: Watch, dead: Collection[str] = ()) -> str:
        """One sentence about what does not hold once the move has ended, or ""; ``dead``: hosts of which none asks."""
        act, server = self.point.act, self.nova.server
        if act in EVACUATES:
            return watch.trouble(server, ended=False, dead=dead) or self._changed() or self._left_of_evacuated()
        deleted = act in (*DELETES, "late-delete")
        return watch.trouble(server, ended=True, deleted=deleted, dead=dead) or ("" if deleted else self._undone())

    def _undone(self) -> str:
        """Whether what was done is not so any more."""
        row = self.nova.row
        wanted = dict.fromkeys(("stop", "reset-stop"), ("vm_state", "stopped")) | {"reboot": ("vm_state", "active")}
        back = TAKER if self.point.operation == BACK_ELSEWHERE else SOURCE
        wanted |= {"confirm": ("host", DESTINATION), "revert": ("host", back)}
        column, value = wanted.get(self.point.act, ("deleted", 0))
        if row["host"] is None and column == "vm_state":
            # It was shelved after that, by the move that had been asked for.
            column, value = "deleted", 0
        if row[column] != value:
            return f"after {self.point.act} the server's {column} is {row[column]}"
        return self._changed() or (self._unconnected(row["host"]) if row["host"] else "")

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
            "the lock": [row[name] for name in ("locked", "locked_by")],
            "the name": row["display_description"],
            "metadata": [
                (each["key"], each["value"])
                for each in world.own_rows(root, "instance_metadata", nova.server)
                if not each["deleted"]
            ],
            "flavors": [each["name"] for each in world.rows(root / "api.sqlite", "flavors")],
        }
        if self.point.act in EVACUATES:
            bindings = world.rows(services, "port_bindings")
            seen |= {
                "the row": {name: value for name, value in row.items() if name != "updated_at"},
                "bindings": [each for each in bindings if each["port"] in ports and each["status"] == "ACTIVE"],
                "attachments": nova.volumes(),
                "the allocation": world.allocations(root, nova.server),
                "the new host": [
                    thing for thing in world.standing_on(root, nova.refuge, nova.server) if not _is_moves(thing)
                ],
                "its disks": {
                    path.name: world.content(path)
                    for path in sorted((world.instances(root, nova.refuge) / nova.server).glob("disk*"))
                    if world.is_disk(path)
                },
                "the definition": definition(root, nova.refuge, nova.server),
                "where it runs": world.running_on(root, nova.server),
                "starts": [each for each in world.starts(root) if each["server"] == nova.server],
            }
        return seen

    def _left_of_evacuated(self) -> str:
        nova, root = self.nova, self.nova.stage.root
        if (found := [*world.copies(root, nova.server)]) != [nova.cell]:
            return f"a server that Nova evacuated in {nova.cell} has rows in {', '.join(found)}"
        if held := world.allocations(root, self.move):
            return f"the migration of a server that Nova evacuated still holds {held}"
        services = root / "services.sqlite"
        ports = [each["id"] for each in world.rows(services, "ports") if each["server"] == nova.server]
        bound = [each["host"] for each in world.rows(services, "port_bindings") if each["port"] in ports]
        if set(bound) != {nova.refuge}:
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


def _is_moves(thing: str) -> bool:
    """Whether it is the move's own, in a directory that all hosts share."""
    return any(word in thing for word in ("droveway-probe", ".part-", "_resize", "_del"))


PLANTS: Final[dict[str, Callable[[ShelvedActs, str], Any]]] = {
    "delete": lambda nova, _: nova.delete(),
    "reset-delete": lambda nova, _: nova.reset_and_delete(),
    "delete-local": lambda nova, _: nova.delete_without_host(),
    "deleting": lambda nova, _: nova.begin_delete(),
    "evacuate": lambda nova, _: nova.evacuate(),
    "reset-evacuate": lambda nova, _: nova.reset_and_evacuate(),
    "reset-active": lambda nova, _: nova.reset_state("active"),
    "reset-error": lambda nova, _: nova.reset_state("error"),
    "reset-stop": lambda nova, _: nova.reset_and_stop(),
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
    "nova-shelve": lambda nova, _: nova.shelve(),
    "nova-unshelve": lambda nova, _: nova.unshelve(),
    "late-delete": lambda nova, _: nova.begin_delete_late(),
    "late-rename": lambda nova, _: nova.write_late(
        f"UPDATE instances SET display_description = '{LATE_NAME}' WHERE uuid = ?"
    ),
}
"""What plants each act; the second argument is the move's id."""
