"""Worlds in which a step has to refuse, or to find out what nobody has told: each with what is to come of it.

A world is made of the lab's own files and rows, before the flow is asked for or right before the step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from proofs.crash import points as crash_points
from proofs.crash import purposes as crash_purposes
from proofs.crash import seen as crash_seen
from proofs.crash.points import Point
from proofs.crash.purposes import ROOT, SET_ASIDE, SHUTDOWN, Case, Check
from proofs.crash.seen import Seen
from support.daemons.warm_daemons import readable

from droveway.errors import DrovewayError
from droveway.persistence.journal.states import State

OFF_SECONDS: Final = 10.0
RENAMED: Final = "renamed"


@dataclass(frozen=True)
class World:
    """How the world is bad, for which steps, and how it ends."""

    make: Callable[[Path, Seen], None]
    """Makes the lab so; what there is of the server is told."""
    ends: Mapping[str, State]
    """By kind and step that it is for: where the move has to rest."""
    check: Check
    """What has to hold then, of a `Case` whose server is the one of right before the flow, in the bad world."""
    fits: Callable[[Seen], bool] = lambda _seen: True
    """Whether a server can meet it."""
    late: bool = False
    """Whether it becomes so right before the step, and the move rests where that leaves it."""


def untouched(case: Case) -> Iterator[str]:
    """The flow was refused before it touched anything: all is as it was, and the guest was never off."""
    yield from crash_purposes.as_before(case)
    yield from crash_purposes.differ("its starts", case.before.starts, case.after.starts)


def _nothing_fetched(case: Case) -> Iterator[str]:
    """It was refused before a byte was fetched for it."""
    yield from untouched(case)
    ran = [step for step in case.move["ran"] if step in ("copy_disks", "attach_volumes", "define_guest")]
    yield from crash_purposes.differ("what ran on a host that cannot have it", [], ran)


def _off(case: Case) -> Iterator[str]:
    """The server is recorded as its guest is: off."""
    yield from crash_purposes.differ("its vm_state", "stopped", case.after.row["vm_state"])
    yield from crash_purposes.differ("its power_state", SHUTDOWN, case.after.row["power_state"])


def _let_go(case: Case) -> Iterator[str]:
    """The delete is held behind the step: its host has given up what was attached, and nothing is deleted yet."""
    home = case.before.row["host"]
    if home is None:
        return  # a shelved server has nothing anywhere that could be let go
    was, found = case.before.hosts[home], case.after.hosts[home]
    yield from crash_purposes.differ(f"the volumes connected on {home}", [], found.volumes)
    yield from crash_purposes.differ(f"the ports plugged on {home}", [], found.ports)
    yield from crash_purposes.differ(f"its disks on {home}", was.folders, found.folders)
    yield from crash_purposes.differ("its volumes", case.before.attachments, case.after.attachments)
    yield from crash_purposes.differ("its ports", case.before.bindings, case.after.bindings)


def _no_host(root: Path, _seen: Seen) -> None:
    for cell in (root / "cells").glob("*.sqlite"):
        _write(cell, "UPDATE services SET disabled = 1 WHERE binary = 'nova-compute'")


def _unknown_machine(root: Path, seen: Seen) -> None:
    definition = root / "hosts" / seen.row["host"] / "domains" / f"{seen.server}.json"
    told = json.loads(definition.read_bytes()) | {"machine": "of-another-release"}
    definition.write_text(json.dumps(told, separators=(",", ":")), encoding="utf-8")


def _unknown_machine_shelved(root: Path, seen: Seen) -> None:
    """The shelve kept a definition that no host knows."""
    _change_recorded(root, seen.server, "shelve")


def _change_recorded(root: Path, server: str, kind: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "journal.sqlite")) as journal, journal:
        query = "SELECT id, before FROM moves WHERE server = ? AND kind LIKE ?"
        for move, before in journal.execute(query, (server, kind)).fetchall():
            told = json.loads(before)
            definition = json.loads(told["guest"]["definition"]) | {"machine": "of-another-release"}
            told["guest"]["definition"] = json.dumps(definition, separators=(",", ":"))
            journal.execute("UPDATE moves SET before = ? WHERE id = ?", (json.dumps(told), move))


def _unknown_machine_recorded(root: Path, seen: Seen) -> None:
    """The move recorded a definition of before that no host knows by now."""
    _change_recorded(root, seen.server, "%")


def _unreadable(root: Path, seen: Seen) -> None:
    (root / "hosts" / seen.row["host"] / "instances" / seen.server / "disk.info").write_bytes(b"?")


def _unbound(root: Path, seen: Seen) -> None:
    _write(root / "services.sqlite", "DELETE FROM network_hosts WHERE name != ?", seen.row["host"])


def _unbound_since(root: Path, seen: Seen) -> None:
    """Somebody has unbound the server's ports."""
    ports = "SELECT id FROM ports WHERE server = ?"
    _write(root / "services.sqlite", f"DELETE FROM port_bindings WHERE port IN ({ports})", seen.server)


def _written_to(root: Path, seen: Seen) -> None:
    for path in (root / "hosts").glob(f"*/instances/{seen.server}{SET_ASIDE}/{ROOT}"):
        with path.open("r+b") as disk:
            disk.seek(crash_seen.STAMP)
            disk.write(b"somebody else")


def _switched_off(root: Path, seen: Seen) -> None:
    record = root / "hosts" / seen.row["host"] / "run" / f"{seen.server}.pid"
    pid = json.loads(record.read_bytes())["pid"]
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not readable(process, seconds=OFF_SECONDS):
            raise DrovewayError(f"the guest of {seen.server} does not go off")
    finally:
        os.close(process)


def _stale_request(root: Path, seen: Seen) -> None:
    with contextlib.closing(sqlite3.connect(root / "api.sqlite")) as api, api:
        (text,) = api.execute("SELECT spec FROM request_specs WHERE instance_uuid = ?", (seen.server,)).fetchone()
        spec = json.loads(text)
        spec["nova_object.data"]["flavor"]["nova_object.data"]["name"] = "of-before"
        api.execute("UPDATE request_specs SET spec = ? WHERE instance_uuid = ?", (json.dumps(spec), seen.server))


def _renamed_late(root: Path, seen: Seen) -> None:
    """A request that read the mapping before the switch writes the copy that is not mapped any more.

    The move rests behind the step that comes.
    """
    (other,) = crash_seen.look(root, seen.server).copies
    _write(root / "cells" / f"{other}.sqlite", "UPDATE instances SET display_name = ?", RENAMED)
    _held(root, seen)


def _attached_otherwise(root: Path, seen: Seen) -> None:
    """The server's rows name attachments that nobody has."""
    for cell in (root / "cells").glob("*.sqlite"):
        if cell.stem not in crash_seen.look(root, seen.server).copies:
            _write(cell, "UPDATE block_device_mapping SET attachment_id = uuid WHERE volume_id IS NOT NULL")


def _hidden_elsewhere(root: Path, seen: Seen) -> None:
    """The hidden copy names a host that the move never had."""
    for other in seen.copies:
        _write(root / "cells" / f"{other}.sqlite", "UPDATE instances SET host = 'elsewhere'")


def _held(root: Path, seen: Seen) -> None:
    _write(root / "journal.sqlite", "UPDATE moves SET hold = 1 WHERE active_server = ?", seen.server)


def _write(database: Path, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, values)


def _named_again(case: Case) -> Iterator[str]:
    """The rows name the attachments again by which the server has its volumes."""
    yield from crash_purposes.differ(
        "the attachments of its rows", dict.fromkeys(case.after.recorded, True), case.after.recorded
    )


def _renamed(case: Case) -> Iterator[str]:
    """What was written to the other copy stands in the one that the server is mapped to."""
    yield from crash_purposes.differ("its name", RENAMED, case.after.row["display_name"])


def _has_volumes(seen: Seen) -> bool:
    return bool(seen.attachments)


def _is_apart(seen: Seen) -> bool:
    return len(seen.hosts) > 1


def _runs(seen: Seen) -> bool:
    return any(host.running for host in seen.hosts.values())


def _has_home(seen: Seen) -> bool:
    return bool(seen.row.get("host"))


def _has_root(seen: Seen) -> bool:
    return any(ROOT in folder for host in seen.hosts.values() for folder in host.folders.values())


_WORLDS: Final = {
    "no-host": World(
        _no_host,
        {
            "resize:choose_destinations": State.FAILED,
            "migrate:choose_destinations": State.FAILED,
            "unshelve:choose_destinations": State.FAILED,
            "cross_cell_revert_elsewhere:choose_source_host": State.VERIFYING,
        },
        untouched,
    ),
    "unknown-machine-shelved": World(
        _unknown_machine_shelved, {"unshelve:check_destination": State.FAILED}, _nothing_fetched
    ),
    "unknown-machine-recorded": World(
        _unknown_machine_recorded, {"cross_cell_revert_elsewhere:check_source": State.VERIFYING}, untouched
    ),
    "unknown-machine": World(
        _unknown_machine,
        {"resize:check_destination": State.FAILED, "migrate:check_destination": State.FAILED},
        untouched,
    ),
    "unreadable": World(
        _unreadable,
        {"resize:find_storage": State.FAILED, "migrate:find_storage": State.FAILED},
        untouched,
        _is_apart,
        late=True,
    ),
    "unbound": World(
        _unbound,
        {
            "resize:reserve_ports": State.FAILED,
            "migrate:reserve_ports": State.FAILED,
            "revert:reserve_ports": State.VERIFYING,
            "cross_cell_revert_elsewhere:reserve_ports": State.VERIFYING,
        },
        untouched,
        _is_apart,
    ),
    "written-to": World(
        _written_to,
        {"confirm:check_source": State.VERIFYING, "revert:check_source": State.VERIFYING},
        untouched,
        _has_root,
    ),
    "switched-off": World(_switched_off, {"confirm:check_destination_copy": State.DONE}, _off, _runs),
    "stale-request": World(
        _stale_request,
        {"resize:save_request_spec": State.VERIFYING, "migrate:save_request_spec": State.VERIFYING},
        crash_purposes.waits,
    ),
    "renamed-late": World(
        _renamed_late,
        {
            "cross_cell_resize:carry_late_writes": State.RUNNING,
            "cross_cell_migrate:carry_late_writes": State.RUNNING,
            "cross_cell_revert:carry_late_writes": State.REVERTING,
            "cross_cell_revert_elsewhere:carry_late_writes": State.REVERTING,
            "cross_cell_unshelve:carry_late_writes": State.RUNNING,
        },
        _renamed,
        late=True,
    ),
    "attached-otherwise": World(
        _attached_otherwise,
        {
            "cross_cell_resize:hand_over_source": State.FAILED,
            "cross_cell_migrate:hand_over_source": State.FAILED,
            "cross_cell_revert:hand_over_target": State.VERIFYING,
            "cross_cell_revert_elsewhere:hand_over_target": State.VERIFYING,
        },
        _named_again,
        _has_volumes,
        late=True,
    ),
    "hidden-elsewhere": World(
        _hidden_elsewhere,
        {
            "cross_cell_confirm:check_source_records": State.VERIFYING,
            "cross_cell_revert:check_source_records": State.VERIFYING,
            "cross_cell_revert_elsewhere:check_source_records": State.VERIFYING,
        },
        untouched,
    ),
    "unbound-since": World(
        _unbound_since, {"cross_cell_unshelve:hand_over_source": State.FAILED}, untouched, late=True
    ),
    "held": World(
        _held,
        {"delete:disconnect_guest": State.DELETING, "shelve:release_source": State.RUNNING},
        _let_go,
        _has_home,
        late=True,
    ),
}


def _between_too(world: World) -> World:
    """The same world for the flows between cells, which share the steps."""
    ends = {
        f"cross_cell_{place}": end
        for place, end in world.ends.items()
        if not place.startswith(("cross", "delete", "shelve"))
    }
    return replace(world, ends={**ends, **world.ends})


WORLDS: Final = {name: _between_too(world) for name, world in _WORLDS.items()}
"""By the name that a point has for its phase."""


def points(kind: str, seen: Seen) -> Iterator[Point]:
    """The points of the kind whose worlds the server can meet."""
    for name, world in WORLDS.items():
        for place in world.ends:
            of, step = place.split(":")
            if of == kind and world.fits(seen):
                yield crash_points.point(kind, "execute", step, "bad", name)


def of(point: Point) -> World | None:
    """The world of a point that has one; raises DrovewayError when it names none."""
    if point.first.effect != "bad":
        return None
    found = WORLDS.get(point.first.phase)
    if found is None or place(point) not in found.ends:
        raise DrovewayError(f"no world is bad for {place(point)} as {point.first.phase} says")
    return found


def place(point: Point) -> str:
    """The kind and the step of a point."""
    return f"{point.kind}:{point.first.step}"
