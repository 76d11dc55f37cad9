"""Moves whose end Nova or a user has written already, or that a state of their servers bars: each has a way out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.labs.beside_nova import Nova, Once
from support.labs.operations import Stage, faults_cleared, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.lab import books
from droveway.persistence.journal.tables import Move

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2}
images: {base: {size_mb: 1}}
"""
WORDS = ("--flavor", "small", "--host", "host1", "--image", "base", "--volume", "1")


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("outcomes") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 2\n")
        yield made


@pytest.fixture(name="nova")
def fixture_nova(built: Stage) -> Iterator[Nova]:
    """Nova beside a server that was resized and waits."""
    built.cli("lab", "server", "create", "web", *WORDS)
    with faults_cleared(built):
        nova = Nova(built, "web")
        built.cli("server", "resize", "web", "--flavor", "large")
        yield nova
    built.assert_balanced()
    if any(row["name"] == "web" for row in built.json("server", "list")):
        built.cli("lab", "server", "delete", "web")


def moved(nova: Nova) -> Move:
    """The server's move as it is now."""
    return move_requests.read_move(nova.lab, nova.stage.json("move", "list")[0]["id"])


def ended(nova: Nova, state: str) -> Move:
    """Wait until the move of the server is in a state, and return it."""
    until(lambda: moved(nova).state == state, f"the move to be {state}")
    return moved(nova)


def left(nova: Nova) -> list[str]:
    """What lies on the hosts of the server."""
    return nova.stage.standing("web").directories


def settled(nova: Nova, kind: str) -> None:
    """Whatever way it went, the move has ended, says why, and nothing of it is left."""
    move = moved(nova)
    assert move.error_code == "by-nova"
    assert "Nova" in str(move.error)
    assert nova.stage.held(move.id) == {}
    host = "host2" if kind == "confirm" else "host1"
    standing = nova.stage.standing("web")
    assert (standing.host, standing.status, standing.runs) == (host, "ACTIVE", [host])
    assert left(nova) == [f"{host}/ID"]
    if kind == "confirm":
        guest = nova.lab.hypervisor(host).guest(nova.server)
        assert guest is not None
        assert guest.mark is None, "the guest is the server's own"
        assert not (nova.stage.directory(host, "web") / "droveway.json").exists(), "so are its disks"
    assert standing.bindings == [{host: "ACTIVE"}]
    assert standing.attachments == [(host, "attached")]
    nova.stage.assert_balanced()
    nova.stage.cli("server", "migrate", "web", "--confirm", "auto")


@pytest.mark.parametrize("kind", ["confirm", "revert"])
def test_the_keeper_ends_what_nova_has_ended(nova: Nova, kind: str) -> None:
    starts = len(nova.stage.starts("web"))
    getattr(nova, kind)(nova.stage.move("web").id)
    with nova.stage.running():
        ended(nova, {"confirm": "done", "revert": "reverted"}[kind])
    assert len(nova.stage.starts("web")) == starts + (kind == "revert")
    settled(nova, kind)


@pytest.mark.parametrize("asked", ["confirm", "revert"])
@pytest.mark.parametrize("kind", ["confirm", "revert"])
def test_a_person_who_asks_is_told_how_it_ended(nova: Nova, kind: str, asked: str) -> None:
    getattr(nova, kind)(nova.stage.move("web").id)
    told = nova.stage.cli("server", asked, "web", code=0 if asked == kind else 3)
    assert "Nova" in told
    settled(nova, kind)


def test_a_policy_takes_it_as_it_is(nova: Nova) -> None:
    """Its deadline may pass before the keeper has looked."""
    move = nova.stage.move("web").id
    nova.revert(move)
    move_requests.file_request(nova.lab, move, move_requests.confirm)
    with nova.stage.running():
        ended(nova, "reverted")
    settled(nova, "revert")


def test_a_policy_leaves_nova_alone_that_is_still_at_it(nova: Nova) -> None:
    """Nova writes first how the migration ended, and then lets the server be an ordinary one."""
    move = nova.stage.move("web").id
    nova.update(nova.MIGRATION, nova.MIGRATION.uuid == move, status="reverted")
    nova.set(task_state="resize_reverting")
    refused = move_requests.filing(nova.lab, move, "confirm", for_delete=False)
    assert isinstance(refused, str)
    assert "task" in refused
    nova.update(nova.MIGRATION, nova.MIGRATION.uuid == move, status="finished")
    nova.set(task_state=None)
    assert not isinstance(move_requests.filing(nova.lab, move, "confirm", for_delete=False), str)


@pytest.mark.parametrize("kind", ["confirm", "revert"])
def test_what_the_user_did_with_the_server_since_stays(nova: Nova, kind: str) -> None:
    """It was stopped, locked and renamed by the time that the move ends."""
    getattr(nova, kind)(nova.stage.move("web").id)
    host = nova.host
    nova.lab.hypervisor(host).stop(nova.server, grace=0.0, fence=lambda: None)
    nova.set(vm_state="stopped", power_state=4, locked=True, locked_by="owner", display_description="mine")
    with nova.stage.running():
        ended(nova, {"confirm": "done", "revert": "reverted"}[kind])
    columns = [nova.column(name) for name in ("vm_state", "power_state", "locked", "display_description", "host")]
    assert columns == ["stopped", 4, True, "mine", host]
    assert nova.stage.standing("web").runs == []


def test_a_source_that_is_away_keeps_no_move_that_nova_confirmed(nova: Nova) -> None:
    nova.confirm(nova.stage.move("web").id)
    with nova.stage.running() as workers:
        workers.stop("host1")
        ended(nova, "done")
        workers.start("host1")
        until(lambda: not nova.stage.json("debt", "list"), "the debts to be settled")
    settled(nova, "confirm")


def test_what_is_still_set_aside_is_left_where_the_destination_cannot_show_its_copy(nova: Nova) -> None:
    """Nova says that it confirmed, and its host failed to delete: the only whole copy may be the source's."""
    move = nova.stage.move("web").id
    aside = nova.stage.directory("host1", "web", "_resize")
    kept = aside.rename(aside.with_name("kept"))
    aside.mkdir()
    nova.confirm(move)
    kept.rename(aside)
    disk = nova.stage.directory("host2", "web") / "disk"
    held = disk.rename(disk.with_name("held"))
    with nova.stage.running():
        ended(nova, "done")
    assert aside.is_dir()
    assert "left" in str(moved(nova).error)
    held.rename(disk)
    for path in aside.iterdir():
        path.unlink()
    aside.rmdir()


def test_a_server_that_nova_deleted_while_it_waited_is_released(nova: Nova) -> None:
    nova.delete()
    move = moved(nova).id
    with nova.stage.running():
        until(lambda: move_requests.read_move(nova.lab, move).state == "cancelled", "the move to be cancelled")
    assert move_requests.read_move(nova.lab, move).error_code == "deleted"
    assert nova.stage.held(move) == nova.stage.held(nova.server) == {}
    assert nova.ports() == {}
    for host in ("host1", "host2"):
        assert list((nova.lab.layout.host(host) / "instances").glob(f"{nova.server}*")) == []


def test_a_row_that_is_missing_with_its_database_is_no_delete(nova: Nova) -> None:
    """Whoever deletes a server says so in its mapping too."""
    kept = nova.column("id")
    nova.set(deleted=kept)
    seen: list[Any] = []
    with nova.stage.running():
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 3, "the keeper to have looked")
        seen.append(moved(nova).state)
    assert seen == ["verifying"]
    nova.set(deleted=0)


@pytest.mark.parametrize("verb", ["confirm", "revert"])
@pytest.mark.parametrize("vm_state", ["active", "error"])
def test_a_state_that_bars_both_ways_has_one_that_leads_out(nova: Nova, vm_state: str, verb: str) -> None:
    """`openstack server set --state`: what is named is what is possible."""
    nova.set(vm_state=vm_state)
    move = moved(nova).id
    shown = nova.stage.json("move", "show", move)
    command = f"droveway move settle {move[:8]} finish_records --as done --reason"
    assert command in shown["next"]
    assert "move confirm" not in shown["next"].split(command)[0]
    for each in ("confirm", "revert"):
        assert command in nova.stage.refused("server", each, "web")
    nova.stage.cli("move", "settle", move[:8], "finish_records", "--as", "done", "--reason", "it runs")
    assert (nova.column("vm_state"), nova.column("task_state")) == ("resized", None)
    assert "move confirm" in nova.stage.json("move", "show", move)["next"]
    nova.stage.cli("server", verb, "web")
    assert moved(nova).state == {"confirm": "done", "revert": "reverted"}[verb]


@pytest.mark.parametrize("status", ["confirming", "reverting", "error"])
def test_an_end_that_nova_began_and_never_ended_is_taken_back(nova: Nova, status: str) -> None:
    """Nova's own confirm or revert died: its rows stay so for ever."""
    move = moved(nova).id
    task = "resize_reverting" if status == "reverting" else None
    nova.update(type(nova).MIGRATION, type(nova).MIGRATION.uuid == move, status=status)
    nova.set(task_state=task)
    assert f"settle {move[:8]} finish_records" in nova.stage.refused("server", "confirm", "web")
    nova.stage.cli("move", "settle", move[:8], "finish_records", "--as", "done", "--reason", "nova-compute is dead")
    assert nova.migration(move) == "finished"
    nova.stage.cli("server", "revert", "web")


def test_a_wait_is_not_settled_where_the_server_lives_elsewhere(nova: Nova) -> None:
    move = moved(nova).id
    nova.set(host="host1", vm_state="error")
    words = ("finish_records", "--as", "done", "--reason", "I think so")
    assert "host1" in nova.stage.refused("move", "settle", move[:8], *words)
    nova.set(host="host2", vm_state="resized")
    assert "waits for confirm or revert" in nova.stage.refused("move", "settle", move[:8], *words)
    nova.set(task_state="rebooting")
    assert "rebooting" in nova.stage.refused("move", "settle", move[:8], *words)
    nova.set(task_state=None)


@pytest.mark.parametrize("kind", ["confirm", "revert"])
def test_a_source_that_was_installed_anew(nova: Nova, kind: str) -> None:
    """Nothing is set aside there: there is nothing to delete, and nothing to go back to."""
    nova.lab.hypervisor("host1").undefine(nova.server)
    aside = nova.stage.directory("host1", "web", "_resize")
    for path in aside.iterdir():
        path.unlink()
    aside.rmdir()
    found = [each.detail for each in books.balance(nova.lab).findings if each.server == nova.server]
    assert [each for each in found if "set aside" in each or "_resize" in each], found
    if kind == "revert":
        told = nova.stage.cli("server", "revert", "web", code=3)
        assert "there is no" in told
        assert "droveway move confirm" in told
        assert "or  droveway move revert" not in told
        assert moved(nova).state == "verifying"
    nova.stage.cli("server", "confirm", "web")
    assert moved(nova).state == "done"


@pytest.mark.parametrize("step", ["stop_guest", "copy_disks", "switch_records", "finish_records"])
def test_what_a_user_may_write_at_any_time_is_kept(nova: Nova, step: str) -> None:
    """Name, lock and metadata: Nova lets users write them whatever the task."""
    nova.stage.cli("server", "confirm", "web")

    def write() -> None:
        nova.set(display_description=step, locked=True, locked_by="owner", hostname=step.replace("_", "-"))

    with nova.stage.running(Once(step, "execute", "before", write)):
        nova.stage.cli("server", "migrate", "web")
        nova.stage.cli("server", "revert", "web")
    assert [nova.column(name) for name in ("display_description", "locked", "hostname")] == [
        step,
        True,
        step.replace("_", "-"),
    ]
