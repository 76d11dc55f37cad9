"""What each kind of flow is for: every check names what is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from proofs.crash import points as crash_points
from proofs.crash import purposes as crash_purposes
from proofs.crash import worlds as crash_worlds
from proofs.crash.purposes import BLANK, GIB, MIB, Case
from proofs.crash.seen import Disk, Guest, Host, Seen

from droveway.errors import DrovewayError
from droveway.flows import registry
from droveway.persistence.journal.states import State

SERVER = "11111111-1111-4111-8111-111111111111"
BYTES = "of the server"
NEW = {"id": 2, "vcpus": 2, "memory_mb": 1024, "root_gb": 2, "ephemeral_gb": 1, "swap": 2}
MOVE = {
    "id": "m",
    "kind": "resize",
    "dest_host": "host2",
    "storage": "copy",
    "old_flavor": "small",
    "new_flavor": "large",
    "keep_seconds": 0,
    "keep_image": False,
}
ROW = {
    "display_name": "web",
    "host": "host1",
    "node": "host1",
    "compute_id": 1,
    "launched_on": "host1",
    "availability_zone": "nova",
    "vm_state": "active",
    "task_state": None,
    "power_state": 1,
    "vcpus": 1,
    "memory_mb": 512,
    "root_gb": 1,
    "ephemeral_gb": 1,
    "instance_type_id": 1,
}


def _disks(*, root_gb: int, swap_mb: int, swap: str) -> dict[str, Disk]:
    return {
        "disk": Disk(root_gb * GIB, BYTES),
        "disk.eph0": Disk(GIB, BYTES),
        "disk.swap": Disk(swap_mb * MIB, swap),
    }


def _host(name: str, **facts: Any) -> Host:
    nothing = {"guest": None, "running": False, "folders": {}, "files": {}, "volumes": [], "ports": [], "strays": []}
    return Host(store=f"/{name}/instances", **nothing | facts)


def _home(name: str, disks: dict[str, Disk], *, vcpus: int, memory_mb: int) -> Host:
    guest = Guest(vcpus=vcpus, memory_mb=memory_mb, disks=sorted(disks), volumes=["v"], ports=["p"])
    return _host(name, guest=guest, running=True, folders={"": disks}, volumes=["v"], ports=["p"])


OLD_DISKS = _disks(root_gb=1, swap_mb=1, swap=BYTES)
OLD_HOME = _home("host1", OLD_DISKS, vcpus=1, memory_mb=512)

BEFORE = Seen(
    server=SERVER,
    hosts={"host1": OLD_HOME, "host2": _host("host2"), "host3": _host("host3")},
    nodes={"host1": 1, "host2": 2, "host3": 3},
    row=ROW,
    flavors={"cur": "small", "old": None, "new": None, "spec": "small"},
    context=False,
    old_vm_state=None,
    swap_mb=1,
    attachments={"v": [("host1", "attached")]},
    recorded={"v": True},
    bindings={"p": {"host1": "ACTIVE"}},
    givers={"p": ["host1:agent"]},
    contents={"v": Disk(GIB, BYTES)},
    images={},
    shelved=[],
    allocations={"server": {"host1 0": 1, "host1:agent 9": 5}, "moves": {}},
    actions=["create"],
    open_events=[],
    live_rows=["instances"],
    migrations={},
    starts={"host1": 1},
    copies={},
)

NEW_DISKS = _disks(root_gb=2, swap_mb=2, swap=BLANK)
NEW_HOME = _home("host2", NEW_DISKS, vcpus=2, memory_mb=1024)
NEW_ROW = ROW | {
    "host": "host2",
    "node": "host2",
    "compute_id": 2,
    "vm_state": "resized",
    "vcpus": 2,
    "memory_mb": 1024,
    "root_gb": 2,
    "instance_type_id": 2,
}


def _changed(seen: Seen, **facts: Any) -> Seen:
    return msgspec.structs.replace(seen, **facts)


def _on(seen: Seen, **hosts: Host) -> Seen:
    return _changed(seen, hosts=seen.hosts | hosts)


WAITING = _changed(
    BEFORE,
    hosts={
        "host1": msgspec.structs.replace(OLD_HOME, running=False, folders={"_resize": OLD_DISKS}, volumes=[], ports=[]),
        "host2": NEW_HOME,
        "host3": _host("host3"),
    },
    row=NEW_ROW,
    flavors={"cur": "large", "old": "small", "new": "large", "spec": "large"},
    context=True,
    old_vm_state="active",
    swap_mb=2,
    attachments={"v": [("host2", "attached")]},
    bindings={"p": {"host2": "ACTIVE"}},
    givers={"p": ["host2:agent"]},
    allocations={"server": {"host2 0": 1, "host2:agent 9": 5}, "moves": {}},
    actions=["create", "resize"],
    migrations={"m": "finished"},
)
CONFIRMED = _changed(
    _on(WAITING, host1=_host("host1")),
    row=NEW_ROW | {"vm_state": "active"},
    flavors={"cur": "large", "old": None, "new": None, "spec": "large"},
    context=False,
    old_vm_state=None,
    migrations={"m": "confirmed"},
)
DELETED = _changed(
    BEFORE,
    hosts={name: _host(name) for name in BEFORE.hosts},
    row={},
    attachments={},
    bindings={},
    allocations={"server": {}, "moves": {}},
    actions=["create", "delete"],
    live_rows=[],
)


NO_HOST = dict.fromkeys(("host", "node", "compute_id", "launched_on", "availability_zone"))
SHELVED = _changed(
    BEFORE,
    hosts=DELETED.hosts,
    row=ROW | NO_HOST | {"vm_state": "shelved_offloaded", "power_state": 4},
    attachments={"v": [(None, "reserved")]},
    bindings={"p": {}},
    givers={"p": []},
    allocations={"server": {}, "moves": {}},
    images={"web-shelved": OLD_DISKS["disk"]},
    shelved=["shelved_at", "shelved_host", "shelved_image_id"],
)
ANEW = {name: disk if name == "disk" else Disk(disk.size, BLANK) for name, disk in NEW_DISKS.items()}
UNSHELVED = _changed(
    BEFORE,
    hosts=DELETED.hosts | {"host2": msgspec.structs.replace(NEW_HOME, folders={"": ANEW})},
    row=NEW_ROW | {"vm_state": "active", "launched_on": "host2"},
    attachments={"v": [("host2", "attached")]},
    bindings={"p": {"host2": "ACTIVE"}},
    givers={"p": ["host2:agent"]},
    allocations={"server": {"host2 0": 1, "host2:agent 9": 5}, "moves": {}},
)


def _wrong(check: crash_purposes.Check, after: Seen) -> list[str]:
    return list(check(Case(BEFORE, after, MOVE, NEW)))


def _with_disk(name: str, disk: Disk) -> Seen:
    return _on(WAITING, host2=msgspec.structs.replace(NEW_HOME, folders={"": NEW_DISKS | {name: disk}}))


@pytest.mark.parametrize(
    ("check", "after"),
    [
        (crash_purposes.waits, WAITING),
        (crash_purposes.settled, CONFIRMED),
        (crash_purposes.as_before, _changed(BEFORE, starts={"host1": 3}, migrations={"m": "error"})),
        (crash_purposes.gone, DELETED),
        (crash_purposes.offloaded, SHELVED),
        (crash_purposes.unshelved, UNSHELVED),
    ],
)
def test_what_a_flow_is_for_holds(check: crash_purposes.Check, after: Seen) -> None:
    assert _wrong(check, after) == []


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (_with_disk("disk.swap", Disk(2 * MIB, BYTES)), "its disks on host2 disk.swap content"),
        (_with_disk("disk.swap", Disk(MIB, BLANK)), "its disks on host2 disk.swap size"),
        (_with_disk("disk", Disk(GIB, BYTES)), "its disks on host2 disk size"),
        (_with_disk("disk", Disk(2 * GIB, BLANK)), "its disks on host2 disk content"),
        (_with_disk("disk.eph0", Disk(GIB, BLANK)), "its disks on host2 disk.eph0 content"),
        (_on(WAITING, host2=msgspec.structs.replace(NEW_HOME, running=False)), "its guest runs on host2"),
        (_on(WAITING, host2=msgspec.structs.replace(NEW_HOME, volumes=[])), "the volumes connected on host2"),
        (_on(WAITING, host1=OLD_HOME), "its guest runs on host1"),
        (_on(WAITING, host1=_host("host1")), "what host1 set aside disk is missing"),
        (_on(WAITING, host3=NEW_HOME), "its guest runs on host3"),
        (_on(WAITING, host2=msgspec.structs.replace(NEW_HOME, strays=["probe"])), "what a move left on host2"),
        (_changed(WAITING, row=NEW_ROW | {"power_state": 4}), "its row power_state"),
        (_changed(WAITING, swap_mb=1), "its swap in the rows"),
        (_changed(WAITING, images={"web-disk-moved-m": Disk(GIB, BYTES)}), "its images"),
        (_changed(WAITING, recorded={"v": False}), "the attachments of its rows v"),
        (_changed(WAITING, contents={"v": Disk(GIB, BLANK)}), "the bytes of its volumes v content"),
        (_changed(WAITING, open_events=["compute_finish_resize"]), "its open events"),
    ],
)
def test_a_resize_that_is_not_what_it_is_for_is_told(after: Seen, named: str) -> None:
    assert [each for each in _wrong(crash_purposes.waits, after) if each.startswith(named)]


@pytest.mark.parametrize(
    ("check", "after", "named"),
    [
        (crash_purposes.settled, WAITING, "its row vm_state is resized, not active"),
        (crash_purposes.settled, _on(CONFIRMED, host1=WAITING.hosts["host1"]), "what host1 set aside"),
        (crash_purposes.settled, _changed(CONFIRMED, images={"kept": Disk(GIB, BYTES)}), "its images kept is there"),
        (crash_purposes.settled, _changed(CONFIRMED, givers={"p": []}), "how many providers port p names is 0, not 1"),
        (
            crash_purposes.settled,
            _changed(CONFIRMED, givers=BEFORE.givers, allocations=BEFORE.allocations),
            "the providers that port p names wrongly",
        ),
        (
            crash_purposes.unshelved,
            _changed(UNSHELVED, allocations={"server": {"host2 0": 1}, "moves": {}}),
            "the providers that port p names wrongly",
        ),
        (crash_purposes.offloaded, _changed(SHELVED, givers=BEFORE.givers), "who gives its ports anything p"),
        (crash_purposes.as_before, _changed(BEFORE, givers={"p": []}), "givers p"),
        (crash_purposes.as_before, WAITING, "hosts host1 running"),
        (crash_purposes.gone, _changed(DELETED, bindings={"p": {}}), "its ports p is there"),
        (crash_purposes.gone, _changed(DELETED, actions=["create"]), "its last action"),
        (crash_purposes.offloaded, _on(SHELVED, host1=OLD_HOME), "its guest runs on host1"),
        (
            crash_purposes.offloaded,
            _changed(SHELVED, images={"web-shelved": Disk(GIB, BLANK)}),
            "its images web-shelved",
        ),
        (crash_purposes.offloaded, _changed(SHELVED, images={}), "its images web-shelved is missing"),
        (crash_purposes.offloaded, _changed(SHELVED, shelved=["shelved_at"]), "what its rows say of the shelving"),
        (crash_purposes.offloaded, _changed(SHELVED, bindings=BEFORE.bindings), "its ports p host1 is there"),
        (crash_purposes.offloaded, _changed(SHELVED, attachments=BEFORE.attachments), "its volumes v"),
        (crash_purposes.offloaded, _changed(SHELVED, allocations=BEFORE.allocations), "what Placement holds"),
        (crash_purposes.offloaded, _changed(SHELVED, row=SHELVED.row | {"node": "host1"}), "its row node"),
        (crash_purposes.unshelved, _on(UNSHELVED, host2=NEW_HOME), "its disks on host2 disk.eph0 content"),
        (crash_purposes.unshelved, _changed(UNSHELVED, images=SHELVED.images), "its images web-shelved is there"),
        (crash_purposes.unshelved, _changed(UNSHELVED, shelved=["shelved_at"]), "what its rows say of the shelving"),
        (crash_purposes.unshelved, _on(UNSHELVED, host3=NEW_HOME), "its guest runs on host3"),
        (crash_worlds.untouched, _changed(BEFORE, starts={"host1": 2}), "its starts host1 is 2, not 1"),
    ],
)
def test_an_end_that_is_not_what_it_is_for_is_told(check: crash_purposes.Check, after: Seen, named: str) -> None:
    assert [each for each in _wrong(check, after) if each.startswith(named)]


def test_each_kind_of_flow_declares_what_it_is_for() -> None:
    missing = set(registry.kinds()) - crash_purposes.PURPOSES.keys()
    assert not missing, f"say in proofs/crash/purposes.py what these kinds are for: {missing}"


def test_each_bad_world_is_for_steps_that_there_are() -> None:
    known = {f"{kind}:{step.step_name()}" for kind in registry.kinds() for step in registry.latest(kind).walk()}
    for name, world in crash_worlds.WORLDS.items():
        assert world.ends.keys() <= known, name
        for kind in {place.split(":")[0] for place in world.ends}:
            assert [str(point) for point in crash_worlds.points(kind, BEFORE)]


def test_a_point_that_no_world_is_bad_for_is_refused() -> None:
    for text in ("resize:execute:claim:bad:unbound", "resize:execute:claim:bad:nowhere"):
        with pytest.raises(DrovewayError, match="no world is bad for resize:claim"):
            crash_worlds.of(crash_points.parse(text))
    found = crash_worlds.of(crash_points.parse("revert:execute:check_source:bad:written-to"))
    assert found is not None
    assert found.ends["revert:check_source"] is State.VERIFYING
