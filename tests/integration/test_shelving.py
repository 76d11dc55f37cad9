"""Servers that are shelved and unshelved: rows as Nova leaves them, ends, and the defects that Nova has.

What stands in the cell and in the image service is read by the tests' own statements.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.operations import Stage, changes, photograph, stage
from support.two_faults.shelved import OFFLOADED

from droveway.lab import operations

CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0}
  eph: {vcpus: 1, memory_mb: 256, root_gb: 0, ephemeral_gb: 1, swap_mb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  booted: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
  wide: {flavor: eph, host: host1, image: base}
"""
HELD = {"VCPU": 1, "MEMORY_MB": 256}
KEYS = {"shelved_at", "shelved_host", "shelved_image_id"}


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def ask(lab: Stage, database: str, query: str, *values: Any) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(lab.root / database)) as connection, connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values)]


def cell(lab: Stage, query: str, *values: Any) -> list[dict[str, Any]]:
    return ask(lab, "cells/cell1.sqlite", query, *values)


def row(lab: Stage, name: str) -> dict[str, Any]:
    (found,) = cell(lab, "SELECT * FROM instances WHERE uuid = ? AND deleted = 0", lab.id_of(name))
    return found


def metadata(lab: Stage, name: str) -> dict[str, str]:
    query = "SELECT key, value FROM instance_system_metadata WHERE instance_uuid = ? AND deleted = 0"
    return {each["key"]: each["value"] for each in cell(lab, query, lab.id_of(name))}


def of_server(lab: Stage, name: str) -> list[dict[str, Any]]:
    """The images that were made of the server."""
    return [
        each for each in ask(lab, "services.sqlite", "SELECT * FROM images") if lab.id_of(name) in each["properties"]
    ]


def events(lab: Stage, name: str, action: str) -> list[tuple[str, str | None]]:
    """The events of the server's last action of this name, with their results."""
    query = (
        "SELECT events.event, events.result FROM instance_actions_events AS events JOIN instance_actions AS actions"
        " ON actions.id = events.action_id WHERE actions.instance_uuid = ? AND actions.action = ? ORDER BY events.id"
    )
    return [(each["event"], each["result"]) for each in cell(lab, query, lab.id_of(name), action)]


def differs(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {name: new[name] for name in new if new[name] != old[name] and name != "updated_at"}


def once(step: str, then: Callable[[], object], way: str = "execute") -> Callable[[str, str, str, str], None]:
    """A probe that does something the first time that the step, or its undo, begins."""
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, "before") and todo:
            todo.pop()()

    return probe


# What is left.


def test_a_shelve_leaves_what_nova_leaves_and_an_unshelve_an_ordinary_server(lab: Stage) -> None:
    """RC-11: the rows column by column; R1-08: the root disk's bytes there and back."""
    before, was, told = lab.standing("web"), row(lab, "web"), metadata(lab, "web")
    content = (lab.directory("host1", "web") / "disk").read_bytes()
    began = dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0)
    assert "shelve web  host1  done" in lab.cli("server", "shelve", "web")
    shelved = row(lab, "web")
    assert differs(was, shelved) == {name: value for name, value in OFFLOADED.items() if was[name] != value}
    now = metadata(lab, "web")
    assert {key: value for key, value in now.items() if key not in KEYS} == told
    assert now["shelved_host"] == "host1"
    assert began <= dt.datetime.fromisoformat(now["shelved_at"]) <= dt.datetime.now(dt.UTC).replace(tzinfo=None)
    standing = lab.standing("web")
    assert (standing.held, standing.runs, standing.defined, standing.directories) == ({}, [], [], [])
    assert (standing.bindings, standing.attachments) == ([{}], [(None, "reserved")])
    assert (standing.plugged, standing.connected) == ([], [])
    (image,) = of_server(lab, "web")
    assert (image["id"], image["name"], image["status"]) == (now["shelved_image_id"], "web-shelved", "active")
    assert (lab.root / "images" / image["id"]).read_bytes() == content
    assert events(lab, "web", "shelve") == [("compute_shelve_instance", "Success")]
    assert cell(lab, "SELECT * FROM migrations WHERE instance_uuid = ?", lab.id_of("web")) == []
    lab.assert_balanced()
    assert "unshelve web  - → host2  done" in lab.cli("server", "unshelve", "web", "--host", "host2")
    assert lab.standing("web") == before.confirmed("host2", "small", HELD)
    (nodes,) = cell(lab, "SELECT id FROM compute_nodes WHERE host = 'host2' AND deleted = 0")
    there = {"host": "host2", "node": "host2", "launched_on": "host2", "compute_id": nodes["id"]}
    changed = differs(was, row(lab, "web"))
    assert changed.pop("launched_at", was["launched_at"]) >= was["launched_at"]
    assert changed == there
    assert metadata(lab, "web") == told
    assert of_server(lab, "web") == []
    assert events(lab, "web", "unshelve") == [
        ("get_image_info", "Success"),
        ("schedule_instances", "Success"),
        ("compute_unshelve_instance", "Success"),
    ]
    assert lab.starts("web") == ["host1", "host2"]
    lab.assert_balanced()


def test_a_stopped_server_comes_back_active_as_in_nova(lab: Stage) -> None:
    lab.cli("server", "shelve", "idle")
    assert (row(lab, "idle")["vm_state"], lab.standing("idle").held) == ("shelved_offloaded", {})
    lab.cli("server", "unshelve", "idle")
    assert (row(lab, "idle")["vm_state"], row(lab, "idle")["power_state"]) == ("active", 1)
    lab.assert_balanced()


def test_a_server_on_a_volume_is_shelved_without_an_image(lab: Stage) -> None:
    told, before = metadata(lab, "booted"), lab.standing("booted")
    lab.cli("server", "shelve", "booted")
    assert of_server(lab, "booted") == []
    assert metadata(lab, "booted") == told
    assert events(lab, "booted", "shelve") == [("compute_shelve_offload_instance", "Success")]
    lab.cli("server", "unshelve", "booted", "--host", "host2")
    assert lab.standing("booted") == before.confirmed("host2", "small", HELD)
    lab.assert_balanced()


def test_a_server_that_nova_shelved_is_unshelved_with_a_guest_that_no_host_has_told(lab: Stage) -> None:
    """RC-11: the image is Nova's, under its id, and the journal knows nothing of it."""
    lab.cli("server", "shelve", "web")
    (image,) = of_server(lab, "web")
    novas = str(uuid.uuid4())
    shutil.copy(lab.root / "images" / image["id"], lab.root / "images" / novas)
    properties = image["properties"].replace(lab.move("web").id, str(uuid.uuid4()))
    query = "UPDATE images SET id = ?, properties = ? WHERE id = ?"
    ask(lab, "services.sqlite", query, novas, properties, image["id"])
    (lab.root / "images" / image["id"]).unlink()
    cell(lab, "UPDATE instance_system_metadata SET value = ? WHERE key = 'shelved_image_id'", novas)
    lab.cli("server", "unshelve", "web")
    standing = lab.standing("web")
    assert (standing.runs, standing.attachments) == ([standing.host], [(standing.host, "attached")])
    guest = lab.lab.hypervisor(standing.host).guest(lab.id_of("web"))
    assert guest is not None
    assert (guest.vcpus, guest.memory_mb) == (1, 256)
    assert of_server(lab, "web") == []
    lab.assert_balanced()


def test_what_came_back_is_a_server_like_any_other(lab: Stage) -> None:
    lab.cli("server", "shelve", "web")
    lab.cli("server", "unshelve", "web", "--host", "host2")
    lab.cli("server", "migrate", "web", "--host", "host1")
    lab.cli("server", "confirm", "web")
    lab.cli("server", "shelve", "web")
    lab.cli("server", "unshelve", "web")
    lab.assert_balanced()


def test_a_shelved_server_is_deleted_with_its_image(lab: Stage) -> None:
    lab.cli("server", "shelve", "web")
    server = lab.id_of("web")
    lab.cli("lab", "server", "delete", "web")
    assert cell(lab, "SELECT * FROM instances WHERE uuid = ? AND deleted = 0", server) == []
    images = ask(lab, "services.sqlite", "SELECT * FROM images")
    assert [each["name"] for each in images] == ["base"]
    assert [path.name for path in (lab.root / "images").iterdir()] == [images[0]["id"]]
    lab.assert_balanced()


def test_a_server_with_ephemeral_disks_is_shelved_only_when_they_may_be_lost(lab: Stage) -> None:
    """R1-18 (12): nothing is lost without a word."""
    assert "--discard-ephemeral" in lab.refused("server", "shelve", "wide")
    lab.cli("server", "shelve", "wide", "--discard-ephemeral")
    lab.cli("server", "unshelve", "wide")
    folder = lab.directory(lab.standing("wide").host, "wide")
    assert {path.name for path in folder.glob("disk*")} == {"disk", "disk.eph0", "disk.swap", "disk.info"}
    lab.assert_balanced()


# Undone.


@pytest.mark.parametrize("step", ["create_images", "upload_disks", "free_volumes", "unbind_ports", "record_shelved"])
def test_a_shelve_that_is_cancelled_leaves_the_server_as_it_was(lab: Stage, step: str) -> None:
    """R1-18 (1): the guest runs again, and no image waits for its data."""
    before, was, told = lab.standing("web"), row(lab, "web"), metadata(lab, "web")
    with lab.running(probe=once(step, lambda: lab.cli("move", "cancel", lab.move("web").id))):
        lab.cli("server", "shelve", "web", code=3)
    assert lab.move("web").state == "cancelled"
    assert (lab.standing("web"), metadata(lab, "web"), of_server(lab, "web")) == (before, told, [])
    assert differs(was, row(lab, "web")) == {}
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["claim", "bind_ports", "copy_disks", "attach_volumes", "switch_records"])
def test_an_unshelve_that_is_cancelled_leaves_the_server_shelved(lab: Stage, step: str) -> None:
    """R1-18 (2), (4), (5), (6), (7): ports unbound, key, disk configuration, image and request spec as they were."""
    lab.cli("server", "shelve", "web")
    spec = ask(lab, "api.sqlite", "SELECT spec FROM request_specs WHERE instance_uuid = ?", lab.id_of("web"))
    before, was, told = lab.standing("web"), row(lab, "web"), metadata(lab, "web")
    with lab.running(probe=once(step, lambda: lab.cli("move", "cancel", lab.move("web").id))):
        lab.cli("server", "unshelve", "web", code=3)
    assert lab.move("web").state == "cancelled"
    assert (lab.standing("web"), metadata(lab, "web")) == (before, told)
    assert differs(was, row(lab, "web")) == {}
    assert ask(lab, "api.sqlite", "SELECT spec FROM request_specs WHERE instance_uuid = ?", lab.id_of("web")) == spec
    assert len(of_server(lab, "web")) == 1
    lab.assert_balanced()
    lab.cli("server", "unshelve", "web")
    lab.assert_balanced()


def test_the_disks_are_not_deleted_when_the_image_is_not_what_was_uploaded(lab: Stage) -> None:
    """R1-18 (3): the image is asked for again right before the disks go."""
    before = lab.standing("web")

    def spoil() -> None:
        ask(lab, "services.sqlite", "UPDATE images SET size = size - 1 WHERE name = 'web-shelved'")

    with lab.running(probe=once("discard_source", spoil)):
        lab.cli("server", "shelve", "web", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("failed", "not-begun")
    assert "is not what was put into it" in str(move.error)
    assert lab.standing("web") == before
    assert of_server(lab, "web") == []
    assert metadata(lab, "web").keys().isdisjoint(KEYS)
    lab.assert_balanced()


def test_an_unshelve_without_its_image_is_refused_and_changes_nothing(lab: Stage) -> None:
    """R1-18 (8): Nova sets such a server to ERROR."""
    lab.cli("server", "shelve", "web")
    ask(lab, "services.sqlite", "DELETE FROM images WHERE name = 'web-shelved'")
    seen = photograph(lab.root)
    assert "does not exist: bring it back from a backup" in lab.refused("server", "unshelve", "web")
    assert changes(seen, photograph(lab.root)) == []
    assert "does not exist" in lab.cli("audit", code=3)


def test_a_server_whose_image_nobody_names_any_more_gets_no_empty_disk(lab: Stage) -> None:
    lab.cli("server", "shelve", "idle")

    def forget() -> None:
        cell(lab, "DELETE FROM instance_system_metadata WHERE key = 'shelved_image_id'")

    with lab.running(probe=once("record_before", forget)):
        lab.cli("server", "unshelve", "idle", code=3)
    assert (lab.move("idle").error_code, lab.standing("idle").defined) == ("image-gone", [])


def test_an_image_that_goes_in_the_middle_leaves_the_server_shelved(lab: Stage) -> None:
    lab.cli("server", "shelve", "web")
    before = lab.standing("web")

    def remove() -> None:
        ask(lab, "services.sqlite", "UPDATE images SET status = 'queued' WHERE name = 'web-shelved'")

    with lab.running(probe=once("mark_unshelving", remove)):
        lab.cli("server", "unshelve", "web", code=3)
    assert lab.standing("web") == before
    ask(lab, "services.sqlite", "UPDATE images SET status = 'active' WHERE name = 'web-shelved'")
    lab.cli("server", "unshelve", "web")
    lab.assert_balanced()


def test_another_host_is_tried_when_the_first_one_fails(lab: Stage) -> None:
    """R1-18 (9): Nova tries one host alone."""
    lab.cli("server", "shelve", "web")
    lab.arm("define_guest", "fail", fault="destination")
    lab.cli("server", "unshelve", "web")
    move = lab.move("web")
    assert (move.state, move.attempt) == ("done", 2)
    assert lab.standing("web").runs == [move.dest_host]
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["unbind_ports", "free_volumes"])
def test_an_error_of_a_service_is_not_passed_over(lab: Stage, step: str) -> None:
    """R1-18 (10): Nova only logs it, and goes on."""
    before = lab.standing("web")
    lab.arm(step, "fail")
    lab.cli("server", "shelve", "web", code=3)
    assert lab.move("web").state == "failed"
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_the_rights_to_a_console_of_the_host_go(lab: Stage) -> None:
    """R1-18 (11): Nova leaves them."""
    insert = (
        "INSERT INTO console_auth_tokens (token_hash, console_type, host, port, instance_uuid, expires)"
        " VALUES ('h', 'novnc', 'host1', 5900, ?, 4000000000)"
    )
    cell(lab, insert, lab.id_of("web"))
    lab.cli("server", "shelve", "web")
    assert cell(lab, "SELECT * FROM console_auth_tokens") == []


# What others do.


def test_a_delete_in_the_middle_of_a_shelve_leaves_nothing(lab: Stage) -> None:
    server = lab.id_of("web")
    with lab.running(probe=once("upload_disks", lambda: operations.request_delete(lab.lab, "web"))):
        lab.cli("server", "shelve", "web", code=3)
    assert cell(lab, "SELECT * FROM instances WHERE uuid = ? AND deleted = 0", server) == []
    assert [each["name"] for each in ask(lab, "services.sqlite", "SELECT * FROM images")] == ["base"]
    lab.assert_balanced()


def test_a_server_that_nova_evacuates_is_left_to_it(lab: Stage) -> None:
    """Nova evacuates whatever the task is: nothing of the server is deleted, and the image goes."""
    server = lab.id_of("web")

    def evacuate() -> None:
        insert = (
            "INSERT INTO migrations (uuid, instance_uuid, source_compute, dest_compute, status, migration_type,"
            " deleted) VALUES (?, ?, 'host1', 'host2', 'done', 'evacuation', 0)"
        )
        cell(lab, insert, str(uuid.uuid4()), server)
        cell(lab, "UPDATE instances SET task_state = 'rebuilding' WHERE uuid = ?", server)

    with lab.running(probe=once("record_shelved", evacuate)):
        lab.cli("server", "shelve", "web", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("cancelled", "evacuated")
    assert (row(lab, "web")["task_state"], of_server(lab, "web")) == ("rebuilding", [])
    assert (lab.directory("host1", "web") / "disk").exists()


def test_a_state_that_a_person_reset_stays(lab: Stage) -> None:
    def reset() -> None:
        cell(lab, "UPDATE instances SET vm_state = 'error', task_state = NULL WHERE uuid = ?", lab.id_of("web"))

    with lab.running(probe=once("record_shelved", reset)):
        lab.cli("server", "shelve", "web", code=3)
    assert lab.move("web").state == "failed"
    assert (row(lab, "web")["vm_state"], row(lab, "web")["task_state"]) == ("error", None)
    assert lab.standing("web").attachments == [("host1", "attached")]


# What is refused.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("unshelve", "web"), "only one that is SHELVED_OFFLOADED can be unshelved"),
        (("unshelve", "gone"), "server gone is unknown"),
        (("shelve", "gone"), "server gone is unknown"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(lab: Stage, words: tuple[str, ...], told: str) -> None:
    seen = photograph(lab.root)
    assert told in lab.refused("server", *words)
    assert changes(seen, photograph(lab.root)) == []


def test_a_shelved_server_is_neither_moved_nor_shelved_again(lab: Stage) -> None:
    lab.cli("server", "shelve", "web")
    for words in (("migrate", "web"), ("resize", "web", "--flavor", "eph"), ("shelve", "web")):
        assert "server web is SHELVED_OFFLOADED" in lab.refused("server", *words)
    assert "host host9 is unknown" in lab.refused("server", "unshelve", "web", "--host", "host9")
    lab.cli("host", "disable", "host2")
    assert "host host2 is disabled" in lab.refused("server", "unshelve", "web", "--host", "host2")
