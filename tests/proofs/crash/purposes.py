"""What each kind of flow is for, as a check of what there is of the server before the first flow and after the last.

The audit judges the books; here the server itself is judged: its disks, its guest, what is attached to it, its rows.
Each check names what is wrong, in one phrase for each thing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from proofs.crash import seen as crash_seen
from proofs.crash.points import Point
from proofs.crash.seen import Disk, Host, Seen

from droveway.errors import DrovewayError
from droveway.persistence.journal.states import State

GIB: Final = 1 << 30
MIB: Final = 1 << 20

ROOT: Final = "disk"
EPHEMERAL: Final = "disk.eph0"
SWAP: Final = "disk.swap"
BLANK: Final = hashlib.sha256(b"").hexdigest()
"""The content of a disk in which nobody wrote."""

SET_ASIDE: Final = "_resize"
KEPT: Final = "_keep-"

RUNNING: Final = 1
SHUTDOWN: Final = 4

_HOW_IT_WENT: Final = ("migrations", "starts", "files", "actions")
"""What tells how the server came where it is; its disks and rows are told by the rest."""


@dataclass(frozen=True)
class Case:
    """A server before its first flow and after its last, and the move that the flows were of."""

    before: Seen
    after: Seen
    move: dict[str, Any]
    flavor: dict[str, int]
    """The numbers of the flavor that the move gives the server."""

    @property
    def source(self) -> str:
        """The host that the server was on."""
        return str(self.before.row["host"])

    @property
    def destination(self) -> str:
        """The host that the move brings it to."""
        return str(self.move["dest_host"])

    @property
    def ran(self) -> bool:
        """Whether the guest ran before."""
        return self.before.hosts[self.source].running


Check = Callable[[Case], Iterator[str]]


@dataclass(frozen=True)
class Purpose:
    """What a kind of flow is for: what there is once it is done, and what once it is undone."""

    state: State
    """The move's once the flow is done, by hand: the product's own record of it is judged too."""
    done: Check
    undone: Check


def waits(case: Case) -> Iterator[str]:
    """Resize and migrate: the server waits on its destination, and the source keeps all that it had of it."""
    yield from _lives_on_destination(case)
    yield from differ("its row", _row(case, vm_state="resized", running=case.ran), case.after.row)
    old, new = case.move["old_flavor"], case.move["new_flavor"]
    flavors = {"cur": new, "old": old, "new": new, "spec": new}
    yield from differ("its flavors", flavors, case.after.flavors)
    yield from differ("its migration context", True, case.after.context)
    yield from differ("its old_vm_state", case.before.row["vm_state"], case.after.old_vm_state)
    yield from differ("the move's storage", _storage(case), case.move["storage"])
    yield from differ("its migration", "finished", case.after.migrations.get(case.move["id"]))
    yield from differ("its other copies", _hidden(case), case.after.copies)
    source = case.after.hosts[case.source]
    kept = source.folders.get(SET_ASIDE, {})
    images = [disk for name, disk in _disks(kept).items() if name != SWAP] if case.move["keep_image"] else []
    yield from differ("its images", sorted(map(str, images)), sorted(map(str, case.after.images.values())))
    yield from differ(f"what {case.source} set aside", _disks(case.before.hosts[case.source].folders[""]), _disks(kept))
    if case.destination != case.source:
        yield from _gives_up(case.source, source)


def settled(case: Case) -> Iterator[str]:
    """Confirm: the server is an ordinary one on its destination, and the source has nothing of it."""
    yield from _lives_on_destination(case)
    state = "active" if case.ran else "stopped"
    yield from differ("its row", _row(case, vm_state=state, running=case.ran), case.after.row)
    new = case.move["new_flavor"]
    yield from differ("its flavors", {"cur": new, "old": None, "new": None, "spec": new}, case.after.flavors)
    yield from differ("its migration context", False, case.after.context)
    yield from differ("its old_vm_state", None, case.after.old_vm_state)
    yield from differ("its migration", "confirmed", case.after.migrations.get(case.move["id"]))
    yield from differ("its other copies", {}, case.after.copies)
    yield from differ("its images", {}, case.after.images)
    source = case.after.hosts[case.source]
    kept = {name: folder for name, folder in source.folders.items() if name.startswith(KEPT)}
    if case.move["keep_seconds"] and ROOT in case.before.hosts[case.source].folders[""]:
        was = _disks(case.before.hosts[case.source].folders[""])
        yield from differ(f"what {case.source} keeps", [was], [_disks(folder) for folder in kept.values()])
    else:
        yield from differ(f"what {case.source} keeps", {}, kept)
    yield from differ(f"what {case.source} set aside", None, source.folders.get(SET_ASIDE))
    if case.destination != case.source:
        yield from _gives_up(case.source, source, gone=True)


def as_before(case: Case) -> Iterator[str]:
    """Revert, and each move that is undone: everything is as it was before the move."""
    was, found = (msgspec.to_builtins(each) for each in (case.before, case.after))
    yield from differ("", *(_plain(each) for each in (was, found)))


def back_elsewhere(case: Case) -> Iterator[str]:
    """Revert without its source: all is as it was but on another host, and the source has nothing once it is back."""
    name, source = str(case.after.row["host"]), case.source
    yield from (f"it is on {name}" for _ in range(name in (source, case.destination)))
    was, found = (_plain(msgspec.to_builtins(each)) for each in (case.before, case.after))
    there, left = was["hosts"].pop(source), case.after.hosts[source]
    found["hosts"].pop(source)
    was["hosts"][name] = there | {"store": was["hosts"][name]["store"]}
    if SWAP in there["folders"][""]:
        there["folders"][""][SWAP]["content"] = BLANK
    was["row"] |= {"host": name, "node": name, "compute_id": case.before.nodes[name]}
    was["attachments"] = {volume: [(name, "attached")] for volume in was["attachments"]}
    was["bindings"] = {port: {name: "ACTIVE"} for port in was["bindings"]}
    was["givers"] = {
        port: [giver.replace(f"{source}:", f"{name}:") for giver in givers] for port, givers in was["givers"].items()
    }
    was["allocations"] = {
        consumer: {what.replace(source, name): amount for what, amount in held.items()}
        for consumer, held in was["allocations"].items()
    }
    yield from differ("", was, found)
    yield from _is_clear(source, left)


def gone(case: Case) -> Iterator[str]:
    """Delete: nothing of the server is anywhere; its volumes hold what they held."""
    for name, host in case.after.hosts.items():
        yield from _is_clear(name, host)
    left = {volume: found for volume, found in case.after.attachments.items() if found}
    yield from differ("its volumes", {}, left)
    yield from differ("its ports", {}, case.after.bindings)
    yield from differ("its images", {}, case.after.images)
    yield from differ("its rows", [], case.after.live_rows)
    yield from differ("its other copies", {}, case.after.copies)
    yield from differ("its open events", [], case.after.open_events)
    yield from differ("what Placement holds", {"server": {}, "moves": {}}, case.after.allocations)
    yield from differ("its last action", ["delete"], case.after.actions[-1:])


def offloaded(case: Case) -> Iterator[str]:
    """Shelve: nothing of the server is on any host, and its image holds what its root disk held."""
    for name, host in case.after.hosts.items():
        yield from _is_clear(name, host)
    none = dict.fromkeys(("host", "node", "compute_id", "launched_on", "availability_zone", "task_state"))
    off = {"vm_state": "shelved_offloaded", "power_state": SHUTDOWN}
    yield from differ("its row", case.before.row | none | off, case.after.row)
    yield from differ("its flavors", case.before.flavors, case.after.flavors)
    root = case.before.hosts[case.source].folders[""].get(ROOT)
    wanted = {} if root is None else {f"{case.before.row['display_name']}-shelved": root}
    yield from differ("its images", wanted, case.after.images)
    keys = [] if root is None else ["shelved_at", "shelved_host", "shelved_image_id"]
    yield from differ("what its rows say of the shelving", keys, case.after.shelved)
    kept = {each: [(None, "reserved")] for each in case.before.attachments}
    yield from differ("its volumes", kept, case.after.attachments)
    yield from differ("the attachments of its rows", case.before.recorded, case.after.recorded)
    yield from differ("the bytes of its volumes", case.before.contents, case.after.contents)
    yield from differ("its ports", {each: {} for each in case.before.bindings}, case.after.bindings)
    yield from differ("who gives its ports anything", {key: [] for key in case.before.givers}, case.after.givers)
    yield from differ("what Placement holds", {"server": {}, "moves": {}}, case.after.allocations)
    yield from differ("its open events", [], case.after.open_events)
    yield from differ("its migrations", {}, case.after.migrations)


def unshelved(case: Case) -> Iterator[str]:
    """Unshelve: the server is active on its destination as an ordinary one, with what its image held."""
    name = case.destination
    host, was = case.after.hosts[name], case.before.hosts[case.source]
    active = _row(case, vm_state="active", running=True) | {"launched_on": name}
    yield from differ("its row", active, case.after.row)
    yield from differ(f"its guest runs on {name}", True, host.running)
    disks = _made_anew(case)
    wanted = None if was.guest is None else msgspec.structs.replace(was.guest, **_sizes(case), disks=sorted(disks))
    yield from differ(f"its guest on {name}", wanted, host.guest)
    yield from differ(f"its disks on {name}", disks, host.folders.get(""))
    yield from differ(f"the volumes connected on {name}", was.volumes, host.volumes)
    yield from differ(f"the ports plugged on {name}", was.ports, host.ports)
    volumes, ports = case.before.attachments, case.before.bindings
    yield from differ("its volumes", {each: [(name, "attached")] for each in volumes}, case.after.attachments)
    yield from differ("its ports", {each: {name: "ACTIVE"} for each in ports}, case.after.bindings)
    yield from _given(case, name)
    yield from differ("the attachments of its rows", case.before.recorded, case.after.recorded)
    yield from differ("the bytes of its volumes", case.before.contents, case.after.contents)
    yield from differ("its images", {}, case.after.images)
    yield from differ("what its rows say of the shelving", [], case.after.shelved)
    yield from differ("its open events", [], case.after.open_events)
    for other, found in case.after.hosts.items():
        yield from differ(f"what a move left on {other}", [], found.strays)
        if other != name:
            yield from _is_clear(other, found, shares=found.store == host.store)


PURPOSES: Final = {
    "resize": Purpose(State.VERIFYING, done=waits, undone=as_before),
    "migrate": Purpose(State.VERIFYING, done=waits, undone=as_before),
    "confirm": Purpose(State.DONE, done=settled, undone=waits),
    "revert": Purpose(State.REVERTED, done=as_before, undone=waits),
    "delete": Purpose(State.DONE, done=gone, undone=gone),
    "cross_cell_resize": Purpose(State.VERIFYING, done=waits, undone=as_before),
    "cross_cell_migrate": Purpose(State.VERIFYING, done=waits, undone=as_before),
    "cross_cell_confirm": Purpose(State.DONE, done=settled, undone=waits),
    "cross_cell_revert": Purpose(State.REVERTED, done=as_before, undone=waits),
    "cross_cell_revert_elsewhere": Purpose(State.REVERTED, done=back_elsewhere, undone=waits),
    "shelve": Purpose(State.DONE, done=offloaded, undone=as_before),
    "unshelve": Purpose(State.DONE, done=unshelved, undone=offloaded),
    "cross_cell_unshelve": Purpose(State.DONE, done=unshelved, undone=offloaded),
}


def of(point: Point, end: State, *, deleted: bool) -> Check:
    """The check for a point whose move rests as ``end``."""
    if deleted:
        return gone
    purpose = PURPOSES[point.kind]
    return purpose.done if end is purpose.state else purpose.undone


def require(root: Path, before: Seen, check: Check) -> None:
    """Raise DrovewayError with each thing that the check finds wrong in the lab, whose server was as ``before``."""
    move = crash_seen.move(root)
    after = crash_seen.look(root, before.server)
    wrong = list(check(Case(before, after, move, crash_seen.flavor(root, move["new_flavor"]))))
    if wrong:
        raise DrovewayError("purpose: " + "; ".join(wrong))


def _lives_on_destination(case: Case) -> Iterator[str]:
    """The guest, the disks, and all that is attached to the server, on its destination and nowhere else."""
    name, was = case.destination, case.before.hosts[case.source]
    host = case.after.hosts[name]
    if case.move["kind"].endswith("migrate") and len({each.store for each in case.after.hosts.values()}) > 1:
        yield from (f"it was migrated to {name}, where it was" for _ in range(name == case.source))
    yield from differ(f"its guest runs on {name}", case.ran, host.running)
    wanted = None if was.guest is None else msgspec.structs.replace(was.guest, **_sizes(case), disks=_names(case))
    yield from differ(f"its guest on {name}", wanted, host.guest)
    yield from differ(f"its disks on {name}", _fitted(case), host.folders.get(""))
    yield from differ(f"the volumes connected on {name}", was.volumes, host.volumes)
    yield from differ(f"the ports plugged on {name}", was.ports, host.ports)
    volumes, ports = case.before.attachments, case.before.bindings
    yield from differ("its volumes", {each: [(name, "attached")] for each in volumes}, case.after.attachments)
    yield from differ("its ports", {each: {name: "ACTIVE"} for each in ports}, case.after.bindings)
    yield from _given(case, name)
    yield from differ("the attachments of its rows", case.before.recorded, case.after.recorded)
    yield from differ("the bytes of its volumes", case.before.contents, case.after.contents)
    yield from differ("its swap in the rows", _swap_in_rows(case), case.after.swap_mb)
    yield from differ("its open events", [], case.after.open_events)
    for other, found in case.after.hosts.items():
        yield from differ(f"what a move left on {other}", [], found.strays)
        if other not in (case.source, name):
            yield from _is_clear(other, found, shares=found.store in (host.store, case.after.hosts[case.source].store))


def _given(case: Case, name: str) -> Iterator[str]:
    """Each port names as many providers as before, on this host, of which the server holds something."""
    held = {what.rpartition(" ")[0] for what in case.after.allocations["server"]}
    for port, was in case.before.givers.items():
        found = case.after.givers.get(port, [])
        yield from differ(f"how many providers port {port} names", len(was), len(found))
        others = [giver for giver in found if giver not in held or not giver.startswith(f"{name}:")]
        yield from differ(f"the providers that port {port} names wrongly", [], others)


def _storage(case: Case) -> str:
    """How the disks have to come along, by the directories that both hosts keep their servers in."""
    if case.destination == case.source:
        return "same-host"
    if case.after.hosts[case.destination].store == case.after.hosts[case.source].store:
        return "shared"
    return "copy" if case.before.hosts[case.source].folders[""].keys() - {SWAP} else "volume"


def _sizes(case: Case) -> dict[str, int]:
    return {"vcpus": case.flavor["vcpus"], "memory_mb": case.flavor["memory_mb"]}


def _names(case: Case) -> list[str]:
    return sorted(_fitted(case))


def _fitted(case: Case) -> dict[str, Disk]:
    """The disks that the server has to have: the source's bytes in the new flavor's sizes, and swap made anew."""
    was, flavor = case.before.hosts[case.source].folders[""], case.flavor
    found = {}
    if ROOT in was:
        found[ROOT] = Disk(max(was[ROOT].size, flavor["root_gb"] * GIB), was[ROOT].content)
    if EPHEMERAL in was or flavor["ephemeral_gb"]:
        present = was.get(EPHEMERAL, Disk(0, BLANK))
        found[EPHEMERAL] = Disk(max(present.size, flavor["ephemeral_gb"] * GIB), present.content)
    if flavor["swap"]:
        found[SWAP] = Disk(flavor["swap"] * MIB, BLANK)
    return found


def _made_anew(case: Case) -> dict[str, Disk]:
    """The disks of a server that was shelved: an image holds the root disk alone."""
    return {name: disk if name == ROOT else Disk(disk.size, BLANK) for name, disk in _fitted(case).items()}


def _hidden(case: Case) -> dict[str, dict[str, Any]]:
    """Of a move between cells: the rows that stay in the source's cell until it is confirmed, with no host there."""
    if case.move.get("dest_cell") == case.move.get("source_cell"):
        return {}
    was = case.before.row | {"host": case.destination, "node": case.destination, "compute_id": None}
    off = {"task_state": "resize_migrated", "power_state": SHUTDOWN, "hidden": 1, "deleted": 0}
    old, new = case.move["old_flavor"], case.move["new_flavor"]
    told = {"status": "post-migrating", "dest_compute": case.destination, "dest_compute_id": None, "cross_cell_move": 1}
    of_move = {"flavors": {"cur": old, "old": old, "new": new}, "context": True, "migration": told, "open_events": []}
    return {case.move["source_cell"]: was | off | of_move}


def _swap_in_rows(case: Case) -> int | None:
    return case.flavor["swap"] or None


def _row(case: Case, *, vm_state: str, running: bool) -> dict[str, Any]:
    """The columns of the server's row on its destination."""
    return case.before.row | {
        **{name: case.flavor[name] for name in ("vcpus", "memory_mb", "root_gb", "ephemeral_gb")},
        "host": case.destination,
        "node": case.destination,
        "compute_id": case.before.nodes[case.destination],
        "instance_type_id": case.flavor["id"],
        "vm_state": vm_state,
        "task_state": None,
        "power_state": RUNNING if running else SHUTDOWN,
    }


def _disks(folder: dict[str, Disk]) -> dict[str, Disk]:
    return {name: disk for name, disk in folder.items() if name in (ROOT, EPHEMERAL, SWAP)}


def _gives_up(name: str, host: Host, *, gone: bool = False) -> Iterator[str]:
    """The host of a server that lives elsewhere has its guest off, or no guest, and nothing attached."""
    yield from differ(f"its guest runs on {name}", False, host.running)
    yield from differ(f"the volumes connected on {name}", [], host.volumes)
    yield from differ(f"the ports plugged on {name}", [], host.ports)
    if gone:
        yield from differ(f"its guest on {name}", None, host.guest)


def _is_clear(name: str, host: Host, *, shares: bool = False) -> Iterator[str]:
    """Nothing of the server is on the host; ``shares``: its directory is also one's that has the server."""
    yield from _gives_up(name, host, gone=True)
    yield from differ(f"what a move left on {name}", [], host.strays)
    if not shares:
        yield from differ(f"its disks on {name}", {}, host.folders)


def _plain(told: Any) -> Any:
    """The server without what tells how it came about."""
    if isinstance(told, dict):
        return {key: _plain(value) for key, value in told.items() if key not in _HOW_IT_WENT}
    return told


def differ(what: str, wanted: Any, found: Any) -> Iterator[str]:
    """Name each place in which the two differ."""
    wanted, found = (msgspec.to_builtins(each) for each in (wanted, found))
    if not (isinstance(wanted, dict) and isinstance(found, dict)):
        if wanted != found:
            yield f"{what} is {_short(found)}, not {_short(wanted)}"
        return
    for key in sorted({*wanted, *found}):
        inside = f"{what} {key}".strip()
        if key not in found:
            yield f"{inside} is missing"
        elif key not in wanted:
            yield f"{inside} is there: {_short(found[key])}"
        else:
            yield from differ(inside, wanted[key], found[key])


def _short(told: Any) -> str:
    return str(told)[:80]
