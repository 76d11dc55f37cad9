"""All columns of all rows that a move leaves, compared with what a real Nova left of the same move.

The server is the example's: a disk made from an image, a port, a volume, resized.  Every column is NULL where Nova's
is, and has the same value otherwise; times and ids are taken for equal when they stand for the same thing throughout.
What differs is named in `EXCEPTIONS`, with the reason.  The example stands in VERIFY_RESIZE; what confirm, revert and
a failure change in it is written out in `CHANGES`, after Nova's own flows.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from support.labs import snapshot
from support.labs.operations import Stage, faults_cleared, stage
from support.rows import nova_examples
from support.rows.nova_examples import Comparison, Rows, decoded, select

CLOUD = """
cells: {cell1: {hosts: {c1h1: {}, c1h2: {}}}}
flavors:
  s1: {vcpus: 1, memory_mb: 256, root_gb: 1}
  s2: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {lab: {size_mb: 1}}
servers:
  rows: {flavor: s1, host: c1h1, image: lab, ports: [{}], volumes: [{size_gb: 1}]}
"""

# Where a row of ours may differ from Nova's, and why; `(NULL)`: one of both holds nothing.
EXCEPTIONS = {
    "*.nova_object.changes": "which fields were set since an object was read says nothing to who reads it next",
    "request_specs.0.spec.*.image.nova_object.data.checksum": "a lab's images have none",
    "request_specs.0.spec.*.image.nova_object.data.size": "another image",
    "instance_mappings.0.updated_at (NULL)": "a lab's server is mapped to its cell when it is made, not afterwards",
    "instances.0.root_device_name": "the example's image asks for a SCSI bus, a lab's disks are on virtio",
    "migrations.0.dest_host": "the address of another host",
    "block_device_mapping.0.updated_at (NULL)": "a lab's root disk is not named after its row was made",
    "block_device_mapping.*.device_name": "as instances.0.root_device_name",
    "block_device_mapping.1.connection_info.data.*": "another way to reach a volume than iSCSI",
    "block_device_mapping.1.connection_info.driver_volume_type": "another way to reach a volume than iSCSI",
    "block_device_mapping.1.connection_info.status": "read when the attachment is complete, as it has to be before "
    "the guest starts; Nova reads it before, and completes it after the start",
    "block_device_mapping.1.connection_info.attached_at": "a lab's Cinder keeps no such time",
    "instance_actions_events.[12].host": "the name of the conductor's host",
    "instance_system_metadata.0.image_owner_specified*": "properties of the example's image",
    "instance_system_metadata.0.image_min_disk": "another image",
    "instance_system_metadata.0.boot_roles": "the roles of whoever made the server",
    "instance_system_metadata.0.owner_*_name": "the names of whoever made the server",
}
# Kept out of the rows that are compared: a cache that is never read for a decision, and what no move writes.
LEFT_OUT = {"cell_mappings", "host_mappings", "instance_info_caches"}

EVENT = "instance_actions_events"
# What is said of the step that fails.
ARMED = "fault 1 (before execute of start_guest) was armed: droveway lab fault list"
# What the rows that Nova left in VERIFY_RESIZE become: (table, number of the row, column or JSON path) to value.
Changes = dict[tuple[str, int, str], Any]
CLEARED: Changes = {
    ("instances", 0, "vm_state"): "active",
    ("instance_extra", 0, "flavor.old"): None,
    ("instance_extra", 0, "flavor.new"): None,
    ("instance_extra", 0, "migration_context"): None,
    ("instance_system_metadata", 0, "old_vm_state"): ...,
}
ON_SOURCE: Changes = {
    ("instances", 0, "host"): "c1h1",
    ("instances", 0, "node"): "c1h1",
    ("instances", 0, "compute_id"): 1,
    ("instances", 0, "instance_type_id"): 1,
    ("instances", 0, "memory_mb"): 256,
    ("instances", 0, "vcpus"): 1,
    ("instance_extra", 0, "flavor.cur"): "s1",
    ("request_specs", 0, "spec.nova_object.data.flavor"): "s1",
}
CHANGES: dict[str, Changes] = {
    "verifying": {},
    "confirmed": CLEARED | {("migrations", 0, "status"): "confirmed"},
    "reverted": CLEARED | ON_SOURCE | {("migrations", 0, "status"): "reverted"},
    "failed": CLEARED
    | ON_SOURCE
    | {
        ("migrations", 0, "status"): "error",
        ("instance_actions", 1, "message"): "Error",
        (EVENT, 5, "result"): "Error",
        (EVENT, 5, "details"): ARMED,
    },
}
# The actions that follow the resize: name, then each event with the host that it is of.
FOLLOWING = {
    "confirmed": ("confirmResize", [("compute_confirm_resize", "c1h1")]),
    "reverted": ("revertResize", [("compute_revert_resize", "c1h2"), ("compute_finish_revert_resize", "c1h1")]),
}
# vcpus_used, memory_mb_used, local_gb_used, running_vms of source and destination.
USAGE = {
    "verifying": [(1, 256, 1, 0), (2, 512, 1, 1)],
    "confirmed": [(0, 0, 0, 0), (2, 512, 1, 1)],
    "reverted": [(1, 256, 1, 1), (0, 0, 0, 0)],
    "failed": [(1, 256, 1, 1), (0, 0, 0, 0)],
}


def novas(end: str) -> Rows:
    """Nova's rows of the resize, as they are at this end of it."""
    found: Rows = {
        table: rows
        for (database, table), rows in nova_examples.within_a_cell().items()
        if database.startswith("nova") and table not in LEFT_OUT
    }
    # The example's volume was attached by a call of its own.
    attached = next(row["id"] for row in found["instance_actions"] if row["action"] == "attach_volume")
    found["instance_actions"] = [row for row in found["instance_actions"] if row["id"] != attached]
    found[EVENT] = [row for row in found[EVENT] if row["action_id"] != attached]
    small = copy.deepcopy(found["instance_extra"][0]["flavor"]["old"])
    for (table, number, path), value in CHANGES[end].items():
        change(found[table][number], path.split("."), small if value == "s1" else value)
    if end in FOLLOWING:
        follow(found, *FOLLOWING[end])
    return found


def change(row: dict[str, Any], path: list[str], value: Any) -> None:
    """Set one value, or remove it with `...`; a name in a JSON object may contain a dot."""
    key = path[0] if path[0] in row or len(path) == 1 else ".".join(path[:2])
    rest = path[1 + key.count(".") :]
    if rest:
        change(row[key], rest, value)
    elif value is ...:
        del row[key]
    else:
        assert key in row
        row[key] = value


def follow(found: Rows, name: str, events: list[tuple[str, str]]) -> None:
    """One more action, made as Nova makes them all."""
    last = found["instance_actions"][-1]
    request = "req-00000000-0000-4000-8000-000000000000"
    found["instance_actions"].append(last | {"id": last["id"] + 1, "action": name, "request_id": request})
    made = found[EVENT][-1]
    for number, (event, host) in enumerate(events, 1):
        facts = {"id": made["id"] + number, "event": event, "host": host, "action_id": last["id"] + 1}
        found[EVENT].append(made | facts)


def ours(lab: Stage, tables: Iterable[str]) -> Rows:
    """The lab's rows of the same tables, every column as the database has it; JSON decoded."""
    server = lab.id_of("rows")
    found: Rows = {}
    for table in tables:
        path = lab.lab.layout.api if table in ("request_specs", "instance_mappings") else lab.lab.layout.cell("cell1")
        key = "uuid" if table == "instances" else "instance_uuid"
        where = f"WHERE {key} = ?"
        if table == EVENT:
            where = "WHERE action_id IN (SELECT id FROM instance_actions WHERE instance_uuid = ?)"
        rows = select(path, f"SELECT * FROM {table} {where} ORDER BY id", server)
        if table == "instance_system_metadata":
            rows = [{row["key"]: row["value"] for row in rows if not row["deleted"]}]
        found[table] = [{column: decoded(value) for column, value in row.items()} for row in rows]
    return found


def differences(lab: Stage, end: str) -> list[str]:
    """TABLE.ROW.COLUMN (and further into JSON) of all that is not the same."""
    nova = novas(end)
    found = Comparison()
    our = ours(lab, nova)
    for table, rows in nova.items():
        found.walk(table, rows, our[table])
    return found.differences


def unexplained(found: list[str]) -> list[str]:
    return [each for each in found if not any(fnmatch.fnmatch(each.partition(":")[0], name) for name in EXCEPTIONS)]


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, snapshot.Snapshot]]:
    folder = tmp_path_factory.mktemp("rows")
    with stage(folder / "lab", CLOUD) as made:
        made.lab.close()
        yield made, snapshot.take(folder / "lab", folder / "kept")


@pytest.fixture(name="lab")
def fixture_lab(built: tuple[Stage, snapshot.Snapshot]) -> Stage:
    built[1].restore()
    return built[0]


def move(lab: Stage, end: str) -> None:
    """Resize the example's server and bring the move to this end."""
    with faults_cleared(lab) as arm:
        if end == "failed":
            arm("start_guest", "fail", fault="destination")
        lab.cli("server", "resize", "rows", "--flavor", "s2", code=3 if end == "failed" else 0)
    if end in FOLLOWING:
        lab.cli("server", {"confirmed": "confirm", "reverted": "revert"}[end], "rows")


@pytest.mark.parametrize("end", CHANGES)
def test_all_columns_are_novas(lab: Stage, end: str) -> None:
    """R0-23, R3-05, R3-08, R3-09: what a move leaves could be Nova's own, but for what is named above."""
    move(lab, end)
    assert unexplained(differences(lab, end)) == []
    shown = select(lab.lab.layout.cell("cell1"), "SELECT * FROM instance_faults")
    assert [(row["code"], row["message"]) for row in shown] == ([(500, ARMED)] if end == "failed" else [])


@pytest.mark.parametrize("end", USAGE)
def test_the_hosts_rows_count_what_is_there(lab: Stage, end: str) -> None:
    """R3-04: compute_nodes as Nova's tracker would find it: each host with the flavor that it has to keep room for."""
    move(lab, end)
    rows = select(lab.lab.layout.cell("cell1"), "SELECT * FROM compute_nodes ORDER BY host")
    columns = ("vcpus_used", "memory_mb_used", "local_gb_used", "running_vms")
    assert [tuple(row[column] for column in columns) for row in rows] == USAGE[end]
    for row in rows:
        assert row["free_ram_mb"] == row["memory_mb"] - row["memory_mb_used"]
        assert row["free_disk_gb"] == row["local_gb"] - row["local_gb_used"]


def test_every_exception_is_needed(lab: Stage) -> None:
    """A name in the table that explains nothing any more is to be taken out of it."""
    move(lab, "verifying")
    paths = [each.partition(":")[0] for each in differences(lab, "verifying")]
    assert [name for name in EXCEPTIONS if not fnmatch.filter(paths, name)] == []
