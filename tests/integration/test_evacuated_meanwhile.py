"""Nova's evacuation wins: what it wrote during a move stays, and the move ends as cancelled by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.labs.small_lab import until
from support.two_faults.nova_acts import Acts

from droveway.clients.network import Network
from droveway.clients.placement import Allocations, Placement
from droveway.clients.volume import Attachment, Volumes
from droveway.engines.keeper import outcomes
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import StepError
from droveway.flows import registry
from droveway.persistence.nova.cell import Instance, InstanceExtra, Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 0\n")
        yield made


def evacuate(lab: Stage, status: str = "done") -> None:
    """Nova rebuilds the server on host3: its rows, its port's binding, its volume's attachment."""
    server = lab.id_of("web")
    network, volumes = lab.lab.cloud.network, lab.lab.cloud.volumes
    for port in network.ports(server):
        network.ensure_binding(port.id, "host3", {})
        network.activate(port.id, "host3", device_owner="compute:nova")
        for host in port.bindings:
            if host != "host3":
                network.delete_binding(port.id, host)
    (volume,) = {each.volume for each in volumes.for_server(server)}
    known = volumes.attachments(volume)
    new = volumes.create_attachment(volume, server, known=tuple(each.id for each in known))
    for each in known:
        if each.host is not None:
            volumes.delete_attachment(each.id)
    volumes.connect(new, {"host": "host3"}, "/dev/vdb")
    volumes.complete(new)
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(
            Migration(
                uuid="4f6f1f2e-0000-4000-8000-000000000001",
                instance_uuid=server,
                migration_type="evacuation",
                status=status,
                source_compute="host1",
                dest_compute="host3",
                deleted=0,
            )
        )
        new_place = {"host": "host3", "node": "host3", "task_state": None, "vm_state": "active"}
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(**new_place))


def held(lab: Stage) -> Any:
    """Where its ports and volumes are; what is only reserved is the move's own."""
    standing = lab.standing("web")
    bound = [{host: how for host, how in each.items() if how == "ACTIVE"} for each in standing.bindings]
    return bound, [each for each in standing.attachments if each[0] is not None]


@pytest.mark.parametrize("step", ["move_volumes", "move_ports"])
@pytest.mark.parametrize("direction", ["execute", "revert"])
@pytest.mark.parametrize("flow", ["forward", "revert"])
def test_ports_and_volumes_are_left_to_the_evacuation(lab: Stage, flow: str, direction: str, step: str) -> None:
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    if flow == "revert":
        with lab.running():
            move_requests.carry(lab.lab, move)
        move_requests.file_request(lab.lab, move, move_requests.revert)
    fails = {"forward": "define_guest", "revert": "prepare_source_guest"}[flow] if direction == "revert" else ""
    seen: list[Any] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, direction, "before") and not seen:
            evacuate(lab)
            seen.append(held(lab))
        if (at, way, phase) == (fails, "execute", "before"):
            raise StepError("it fails", code="test")

    before = lab.starts("web")
    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert seen == [held(lab)]
    assert lab.starts("web") == before
    assert_left_to_nova(lab, move)


def assert_left_to_nova(lab: Stage, move: str) -> None:
    """The rows are as Nova left them, and what was the move's own is gone from books and rows."""
    standing = lab.standing("web")
    assert (standing.bindings, standing.attachments) == ([{"host3": "ACTIVE"}], [("host3", "attached")])
    assert lab.held(move) == {}
    with lab.lab.cell_databases["cell1"].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.uuid == lab.id_of("web"))).one()
        assert (row.host, row.task_state, row.vm_state) == ("host3", None, "active")
        assert session.scalar(sa.select(Migration.status).where(Migration.uuid == move)) == "error"
        extra = session.scalars(sa.select(InstanceExtra).where(InstanceExtra.instance_uuid == row.uuid)).one()
        flavors = json.loads(str(extra.flavor))
        assert (flavors["old"], flavors["new"], extra.migration_context) == (None, None, None)


AFTER = [step.step_name() for step in registry.graph("migrate", 1).walk()][3:]
"""The steps before which a migration is recorded, so that an evacuation is told from one before the move."""


@pytest.mark.parametrize("step", AFTER)
def test_a_move_that_met_an_evacuation_ends_as_cancelled(lab: Stage, step: str) -> None:
    """Before any step of the forward flow, those beyond the point of no return too."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    seen: list[Any] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, "execute", "before") and not seen:
            evacuate(lab)
            seen.append((held(lab), lab.starts("web")))

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
        until(lambda: not lab.json("debt", "list"), "the debts to be paid")
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert seen == [(held(lab), lab.starts("web"))]
    assert_left_to_nova(lab, move)
    standing = lab.standing("web")
    assert [host for host in standing.runs if host == "host2"] == []
    if step not in ("save_request_spec", "finish_records"):
        # No guest was ever started there: nothing of it is left.
        assert not any(path.startswith("host2/") for path in standing.directories)
        assert "host2" not in (*standing.defined, *standing.plugged, *standing.connected)
        assert (lab.directory("host1", "web") / "disk").exists() or (
            lab.directory("host1", "web", "_resize") / "disk"
        ).exists()
    else:
        assert (lab.directory("host2", "web") / "disk").exists()


def test_an_evacuation_counts_once_the_host_that_it_left_has_cleaned_up(lab: Stage) -> None:
    """Its nova-compute writes `completed` as soon as it is back, maybe before anybody goes on with the move."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    met: list[str] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == ("define_guest", "execute", "before") and not met:
            met.append(at)
            evacuate(lab, "completed")

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert_left_to_nova(lab, move)


@pytest.mark.parametrize(("status", "asked"), [("done", "nothing"), ("completed", "confirm"), ("done", "revert")])
def test_a_move_ends_whose_server_was_evacuated_while_it_waited(lab: Stage, status: str, asked: str) -> None:
    """Somebody reset its state, without which Nova evacuates no server that waits."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    nova = Acts(lab, "web")
    nova.reset_state("active")
    nova.evacuate()
    nova.write("UPDATE migrations SET status = ? WHERE migration_type = 'evacuation'", status)
    before = (held(lab), lab.held(nova.server), lab.starts("web"), lab.standing("web").directories)
    if asked == "nothing":
        with lab.running():
            until(lambda: move_requests.read_move(lab.lab, move).state == "cancelled", "the end of the move")
    else:
        lab.cli("move", asked, move, code=3)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert (held(lab), lab.held(nova.server), lab.starts("web"), lab.standing("web").directories) == before
    assert_left_to_nova(lab, move)


def test_an_evacuation_that_failed_ends_no_wait(lab: Stage) -> None:
    """The server is still where the move brought it, and may be confirmed once it is let wait again."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    with lab.running():
        move_requests.carry(lab.lab, move)
    nova = Acts(lab, "web")
    nova.reset_state("active")
    nova.begin_evacuate()
    nova.write("UPDATE migrations SET status = 'failed' WHERE migration_type = 'evacuation'")
    nova.reset_state("active")
    assert outcomes.of_move(lab.lab.cell_databases, move_requests.read_move(lab.lab, move)) is None
    lab.cli("move", "settle", move, "finish_records", "--as", "done", "--reason", "Nova's evacuation failed")
    lab.cli("move", "confirm", move)
    assert lab.standing("web").host == "host2"


def test_no_host_is_asked_once_nova_has_the_server(lab: Stage) -> None:
    """Where all hosts share a directory the next step would take it away from the guest that Nova has built there."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    met: list[str] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == ("set_aside", "execute", "before") and not met:
            met.append(at)
            evacuate(lab)

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    assert move_requests.read_move(lab.lab, move).state == "cancelled"
    assert (lab.directory("host1", "web") / "disk").exists()
    assert not lab.directory("host1", "web", "_resize").exists()


def test_a_copy_stays_while_an_evacuated_host_shows_nothing(lab: Stage, tmp_path: Path) -> None:
    """Of disks that were proved whole the only ones may lie on the destination."""
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    hidden, todo = tmp_path / "hidden", ["once"]

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == ("define_guest", "execute", "before") and todo:
            todo.pop()
            evacuate(lab)
            lab.directory("host1", "web", "_resize").rename(hidden)

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    assert move_requests.read_move(lab.lab, move).state == "cancelled"
    assert not lab.directory("host2", "web").exists(), "Nova would take it for the server's own disks"
    assert (lab.directory("host2", "web", f"_keep-{move}") / "disk").exists()
    assert [(debt["host"], debt["step"]) for debt in lab.json("debt", "list")] == [("host2", "copy_disks")]


@pytest.mark.parametrize("when", ["before", "behind", "later"])
@pytest.mark.parametrize("step", ["claim", "undo of claim", "return_allocation"])
def test_what_nova_claimed_for_its_evacuation_stays(
    lab: Stage, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova evacuates right before the step reads what the server holds, right behind that, or before it writes."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    if step == "return_allocation":
        with lab.running():
            move_requests.carry(lab.lab, move)
        move_requests.file_request(lab.lab, move, move_requests.revert)
    nova = Acts(lab, "web")
    held: list[Any] = []
    at = (step.removeprefix("undo of "), "revert" if step.startswith("undo") else "execute", "before")
    entered: list[str] = []
    read = Placement.allocations

    def reading(placement: Placement, consumer: str) -> Allocations:
        if not entered or held or consumer != (move if when == "later" else nova.server):
            return read(placement, consumer)
        found = read(placement, consumer) if when == "behind" else None
        held.append(None)
        nova.evacuate()
        held[0] = lab.held(nova.server)
        return found or read(placement, consumer)

    def meet(_move: str, name: str, way: str, phase: str) -> None:
        if (name, way, phase) == at:
            entered.append(name)
        if step.startswith("undo") and (name, way, phase) == ("record_destination", "execute", "before"):
            raise StepError("it fails", code="test")

    monkeypatch.setattr(Placement, "allocations", reading)
    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert set(held[0]) == {"host3", "host1" if step == "claim" else "host2"}
    assert lab.held(nova.server) == held[0]
    assert lab.held(move) == {}


def test_a_move_that_is_left_gives_nothing_back_over_an_evacuation(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nova evacuates between the look at the rows and the write to Placement: whoever asks again is told."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id

    def meet(_move: str, name: str, way: str, phase: str) -> None:
        if (name, way, phase) == ("record_destination", "execute", "before"):
            raise StepError("it fails", code="test")
        if (name, way, phase) == ("claim", "revert", "before"):
            raise StepError("it cannot be undone", code="test")

    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    nova = Acts(lab, "web")
    read, held = Placement.allocations, list[Any]()

    def reading(placement: Placement, consumer: str) -> Allocations:
        # The second look at what the migration holds: the first one decides whether there is anything to give back.
        held.append(consumer)
        if held.count(move) == 2 and held[-1] == move:
            nova.evacuate()
            held.append(lab.held(nova.server))
        return read(placement, consumer)

    words = ("move", "settle", move, "claim", "--as", "left", "--reason", "nobody mends it")
    with monkeypatch.context() as patched:
        patched.setattr(Placement, "allocations", reading)
        lab.cli(*words, code=3)
    assert "changed the allocations" in lab.error
    there = next(each for each in held if isinstance(each, dict))
    assert set(there) == {"host2", "host3"}
    lab.cli(*words)
    assert lab.held(nova.server) == there
    assert lab.held(move) == {}
    assert move_requests.read_move(lab.lab, move).state == "cancelled"


@pytest.mark.parametrize(
    ("step", "direction", "write"),
    [
        ("move_ports", "execute", "network"),
        ("move_ports", "revert", "network"),
        ("move_volumes", "execute", "rows"),
        ("move_volumes", "revert", "rows"),
    ],
)
def test_a_write_that_comes_behind_an_evacuation_is_taken_back(
    lab: Stage, step: str, direction: str, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova evacuates behind the step's look at the rows and before it writes, to Neutron or to the volume's row."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    nova, inside, seen = Acts(lab, "web"), list[str](), list[Any]()

    def act() -> None:
        if inside and not seen:
            seen.append(None)
            nova.evacuate()
            seen[0] = held(lab)

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, direction, "before"):
            inside.append(at)
        if direction == "revert" and (at, way, phase) == ("define_guest", "execute", "before"):
            raise StepError("it fails", code="test")

    if write == "network":
        bring = Network.bring

        def bringing(network: Network, *words: Any, **named: str) -> None:
            act()
            bring(network, *words, **named)

        monkeypatch.setattr(Network, "bring", bringing)
    else:
        complete = Volumes.complete

        def completing(volumes: Volumes, attachment: str) -> None:
            complete(volumes, attachment)
            act()

        monkeypatch.setattr(Volumes, "complete", completing)
    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert seen == [held(lab)]
    assert_left_to_nova(lab, move)


def test_an_attachment_that_nova_made_is_not_taken_for_an_earlier_try(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova evacuates behind the undo's look at the rows, so that its attachment is the one that the undo finds."""
    lab.cli("host", "disable", "host3", "--reason", "spare")
    move = submit(lab.lab, MoveSpec(server="web", flavor=None, host="host2")).id
    nova, inside, made, taken = Acts(lab, "web"), list[str](), set[str](), set[str]()
    attachments, connect = Volumes.attachments, Volumes.connect

    def listing(volumes: Volumes, volume: str) -> list[Attachment]:
        if inside:
            inside.clear()
            known = {each.id for each in attachments(volumes, volume)}
            nova.evacuate()
            made.update({each.id for each in attachments(volumes, volume)} - known)
        return attachments(volumes, volume)

    def connecting(volumes: Volumes, attachment: str, *words: Any) -> Any:
        taken.update({attachment} & made)
        return connect(volumes, attachment, *words)

    def meet(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("move_volumes", "revert", "before"):
            # The acts of Nova connect what they make by another way.
            monkeypatch.setattr(Volumes, "connect", connecting)
            inside.extend([] if made else [step])
        if (step, direction, phase) == ("define_guest", "execute", "before"):
            raise StepError("it fails", code="test")

    monkeypatch.setattr(Volumes, "attachments", listing)
    with lab.running(meet):
        move_requests.carry(lab.lab, move)
    ended = move_requests.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "evacuated")
    assert len(made) == 1
    assert taken == set()
    assert_left_to_nova(lab, move)
