"""`audit --heal` puts right what ports are guaranteed, in place, and leaves alone what nobody can tell for certain."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS, Held, holding, named, provider
from support.labs.operations import Stage, changes, photograph, stage

from droveway.audit.findings import Kind
from droveway.audit.heal import mending
from droveway.clients.network import RESOURCE_REQUEST, Network, Port, PortRecord
from droveway.clients.port_resources import ResourceGroup
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.errors import DestinationFault
from droveway.lab import books
from droveway.persistence.journal import orphans
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import cell, servers

BRIDGES = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000},"
    " br-b: {physical_network: net-b, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
)
CLOUD = f"""
cells: {{cell1: {{hosts: {{host1: {{{BRIDGES}}}, host2: {{{BRIDGES}}}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}, b: {{physical_network: net-b}}}}
qos:
  gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}
  old: {{egress_kbps: 500, ingress_kbps: 600}}
servers:
  fast:
    flavor: small
    host: host1
    image: base
    ports: [{{network: a, qos: gold}}, {{network: b, qos: old, format: legacy}}]
"""
BRIDGE_A, BRIDGE_B = f"host1:{AGENT}:br-a", f"host1:{AGENT}:br-b"
ASKED: Held = {
    BRIDGE_A: {EGRESS: 1000, INGRESS: 1500},
    BRIDGE_B: {EGRESS: 500, INGRESS: 600},
    f"host1:{AGENT}": {PACKETS: 10},
}
BESIDES = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab with a server that no move ever had, on host1."""
    with stage(tmp_path_factory.mktemp("healed") / "lab", CLOUD) as made:
        yield made


@dataclasses.dataclass
class Server:
    """The server, whose port ``gold`` asks by groups and whose port ``old`` asks in the legacy format."""

    lab: Stage
    gold: Port
    old: Port

    @property
    def id(self) -> str:
        return self.gold.server

    @property
    def network(self) -> Network:
        return self.lab.lab.cloud.network

    def hold(self, wanted: Held) -> None:
        """Let the server hold this for its ports, and of its host what it held."""
        placement = self.lab.lab.cloud.placement
        found = placement.allocations(self.id)
        besides = {uuid: each for uuid, each in found.allocations.items() if "VCPU" in each}
        wanted_ids = {provider(self.lab, name): dict(each) for name, each in wanted.items()}
        owner = {"project_id": found.project_id, "user_id": found.user_id}
        placement.ensure_allocation(self.id, {**besides, **wanted_ids}, **owner)

    def name(self, port: Port, allocation: Any) -> None:
        """Let the port's binding name this, which Neutron keeps though it may not bind it so."""
        wanted = {key: value for key, value in port.profile.items() if key != "allocation"}
        with contextlib.suppress(DestinationFault):
            self.network.set_profile(port.id, wanted if allocation is None else {**wanted, "allocation": allocation})

    def asks(self) -> tuple[ResourceGroup, ...]:
        """What the port ``gold`` asks for now."""
        (port,) = [port for port in self.network.listed_ports(self.id) if port.id == self.gold.id]
        assert port.resources is not None
        return port.resources.groups

    def each(self, name: str) -> dict[str, str]:
        """Every group of ``gold`` with the provider of this name."""
        return dict.fromkeys(self.gold.profile["allocation"], provider(self.lab, name))

    def follow(self, port: Port, policy: str | None) -> None:
        """Give the port another QoS policy."""
        found = None if policy is None else self.network.named("/qos/policies", policy)
        body = {"port": {"qos_policy_id": found}}
        answer = self.lab.lab.cloud.network_root.request(f"/ports/{port.id}", "PUT", json=body)
        assert answer.status_code == HTTPStatus.OK

    def lose_all(self) -> None:
        """Let it hold nothing for its ports, and let these name nobody."""
        self.hold({})
        for port in (self.gold, self.old):
            self.name(port, None)

    def assert_right(self, host: str = "host1", *, balanced: bool = True) -> None:
        """The server holds what its ports ask for there and nowhere else, and each binding names who gives it."""
        wanted = {name.replace("host1", host): amounts for name, amounts in ASKED.items()}
        assert holding(self.lab, self.id)[:2] == (wanted, {host: BESIDES})
        told = named(self.lab, self.id)
        givers = {EGRESS: f"{host}:{AGENT}:br-a", PACKETS: f"{host}:{AGENT}"}
        gives = {group.id: givers[min(group.resources)] for group in self.asks()}
        assert told == {self.gold.id: {host: gives}, self.old.id: {host: f"{host}:{AGENT}:br-b"}}
        if balanced:
            self.lab.assert_balanced()


@pytest.fixture(name="server")
def fixture_server(lab: Stage) -> Server:
    """The server as it should be: each test leaves it so."""
    return server_of(lab)


def server_of(lab: Stage) -> Server:
    """The lab's server, which has what its ports ask for."""
    ports = lab.lab.cloud.network.listed_ports(lab.id_of("fast"))
    gold, old = sorted(ports, key=lambda port: isinstance(port.profile["allocation"], str))
    server = Server(lab, gold, old)
    server.assert_right()
    return server


def plan(lab: Stage) -> list[dict[str, str]]:
    """What `audit --heal` would do, having changed nothing."""
    before = photograph(lab.root)
    found: list[dict[str, str]] = json.loads(lab.cli("audit", "--heal", "-f", "json", code=3))
    assert changes(before, photograph(lab.root)) == []
    return found


def left_alone(lab: Stage, why: str) -> None:
    """Everything that is found of ports stays as it is, byte by byte, for this reason."""
    before = photograph(lab.root)
    found = json.loads(lab.cli("audit", "--heal", "--yes", "-f", "json", code=3))
    assert {row["heal"] for row in found} == {"leave"}
    assert all(why in row["plan"] for row in found if "asks for" in row["detail"] or "ask for" in row["detail"]), found
    assert changes(before, photograph(lab.root)) == []


def less(held: Held, name: str, *, by: int) -> Held:
    return {each: {c: n - by if each == name else n for c, n in amounts.items()} for each, amounts in held.items()}


DEFECTS: dict[str, tuple[Callable[[Server], None], str, str]] = {
    "names nobody": (
        lambda server: server.name(server.gold, None),
        "its binding names nobody who gives it",
        f"name host1:{AGENT} and {BRIDGE_A}",
    ),
    "legacy names nobody": (
        lambda server: server.name(server.old, None),
        "its binding names nobody who gives it",
        f"name {BRIDGE_B}",
    ),
    "names another host's": (
        lambda server: server.name(server.gold, server.each(f"host2:{AGENT}:br-a")),
        "of which the server fast holds nothing",
        f"name host1:{AGENT} and {BRIDGE_A}",
    ),
    "names one that is gone": (
        lambda server: server.name(server.old, str(uuid.UUID(int=5))),
        "of which the server fast holds nothing",
        f"name {BRIDGE_B}",
    ),
    "names one of before groups": (
        lambda server: server.name(server.gold, provider(server.lab, BRIDGE_A)),
        "as before Neutron had groups",
        f"name host1:{AGENT} and {BRIDGE_A}",
    ),
    "names each for the other": (
        lambda server: server.name(server.gold, server.each(f"host1:{AGENT}")),
        f"holds {EGRESS} 1000, {INGRESS} 1500 of the provider",
        f"name host1:{AGENT} and {BRIDGE_A}",
    ),
    "holds nothing of one": (
        lambda server: server.hold({name: each for name, each in ASKED.items() if name != BRIDGE_A}),
        "of which the server fast holds nothing",
        f"let fast hold {EGRESS} 1000, {INGRESS} 1500 of {BRIDGE_A} instead of nothing",
    ),
    "holds nothing and names nobody": (
        lambda server: server.lose_all(),
        "its binding names nobody who gives it",
        f"hold {PACKETS} 10 of host1:{AGENT} instead of nothing",
    ),
    "holds too little": (
        lambda server: server.hold(less(ASKED, BRIDGE_A, by=400)),
        f"holds {EGRESS} 600, {INGRESS} 1100 of the provider",
        f"let fast hold {EGRESS} 1000, {INGRESS} 1500 of {BRIDGE_A} instead of {EGRESS} 600, {INGRESS} 1100",
    ),
    "holds it twice": (
        lambda server: server.hold(less(ASKED, BRIDGE_A, by=-1000)),
        f"holds {EGRESS} 2000, {INGRESS} 2500 of the provider",
        f"let fast hold {EGRESS} 1000, {INGRESS} 1500 of {BRIDGE_A} instead of {EGRESS} 2000, {INGRESS} 2500",
    ),
    "holds of another host": (
        lambda server: server.hold({**ASKED, f"host2:{AGENT}:br-b": {EGRESS: 7}}),
        "and its ports ask for nothing of it",
        f"let fast release {EGRESS} 7 of host2:{AGENT}:br-b",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_wrong_is_found_planned_and_put_right_in_place(lab: Stage, server: Server, defect: str) -> None:
    """R4-19, R4-20: no move is needed; a repeat finds nothing to do."""
    plant, found, planned = DEFECTS[defect]
    plant(server)
    generation = holding(lab, server.id)[2]
    rows = plan(lab)
    assert {row["heal"] for row in rows} == {"mend"}
    assert {row["mend"] for row in rows} == {"droveway audit --heal"}
    assert any(found in row["detail"] for row in rows), rows
    assert all(planned in row["plan"] for row in rows), rows
    claims = "hold " in planned or "release " in planned
    lab.cli("audit", "--heal", "--yes")
    assert f"{len(rows)} finding{'s' * (len(rows) > 1)} before, 0 after" in lab.error
    # One write, and none where what the server holds was right.
    assert holding(lab, server.id)[2] == generation + claims
    server.assert_right()
    lab.cli("audit", "--heal", "--yes")
    assert "the books balance" in lab.error
    assert holding(lab, server.id)[2] == generation + claims


def test_it_goes_on_where_it_was_killed_between_the_claim_and_the_profile(lab: Stage, server: Server) -> None:
    """What was claimed is what the profile names then, and nothing is left in the journal."""
    server.lose_all()
    set_profile = Network.set_profile
    with lab.lab.journal.read() as session:
        moves = session.scalars(sa.select(Move.id)).all()

    def die(_network: Network, _port: str, _profile: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    lab.lab.close()
    for doomed in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Network, "set_profile", die if doomed else set_profile)
            child = multiprocessing.get_context("fork").Process(target=heal_all, args=(lab,))
            child.start()
            child.join()
        assert child.exitcode == (-signal.SIGKILL if doomed else 0)
        assert holding(lab, server.id)[0] == ASKED
        with lab.lab.journal.read() as session:
            assert session.scalars(sa.select(Move.id)).all() == moves
        if doomed:
            assert set(map(str, named(lab, server.id).values())) == {"{'host1': ''}"}
            generation = holding(lab, server.id)[2]
    assert holding(lab, server.id)[2] == generation
    server.assert_right()


def test_two_at_once_wait_for_each_other(lab: Stage, server: Server) -> None:
    server.lose_all()
    lab.lab.close()
    both = [multiprocessing.get_context("fork").Process(target=heal_all, args=(lab,)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert [each.exitcode for each in both] == [0, 0]
    server.assert_right()


def heal_all(lab: Stage) -> None:
    """Heal in a process of its own, whose end is its outcome."""
    planned = mending.plan(books.sources(lab.lab), frozenset())
    list(mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset()))
    lab.lab.close()


@pytest.mark.parametrize("begins", ["task", "migration"])
def test_a_server_with_a_task_or_a_migration_of_novas_is_left_alone(lab: Stage, server: Server, begins: str) -> None:
    """Also one that begins after the plan was made."""

    def beginning() -> None:
        if begins == "task":
            set_task(lab, "migrating")
        else:
            migrate(lab)

    server.hold(less(ASKED, BRIDGE_A, by=400))
    beginning()
    left_alone(lab, "something else is under way with fast")
    end(lab)
    planned = mending.plan(books.sources(lab.lab), frozenset())
    before = holding(lab, server.id)
    assert "has changed meanwhile" in healed_behind(lab, planned, beginning)
    assert holding(lab, server.id) == before
    end(lab)
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_it_is_left_alone_where_the_host_has_no_room(lab: Stage, server: Server) -> None:
    """The sentence says what it lacks; another consumer has it."""
    server.hold({name: each for name, each in ASKED.items() if name != BRIDGE_A})
    placement, other = lab.lab.cloud.placement, str(uuid.uuid4())
    found = placement.allocations(server.id)
    owner = {"project_id": found.project_id, "user_id": found.user_id}
    placement.ensure_allocation(other, {provider(lab, BRIDGE_A): {EGRESS: 3500}}, **owner)
    left_alone(lab, f"{BRIDGE_A} has {EGRESS} 500 left, and the server's ports lack 1000 of it")
    placement.release(other)
    # It is taken after the plan was made: Placement refuses, and the sentence is Placement's.
    planned = mending.plan(books.sources(lab.lab), frozenset())
    taking = {provider(lab, BRIDGE_A): {EGRESS: 3500}}
    outcome = healed_behind(lab, planned, lambda: placement.ensure_allocation(other, taking, **owner))
    assert outcome.startswith("left alone: Placement refused the allocation")
    assert BRIDGE_A not in holding(lab, server.id)[0]
    placement.release(other)
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_it_is_left_alone_where_nothing_says_which_provider(lab: Stage, server: Server) -> None:
    """Both bridges reach the network, the server holds of both, and the port names neither."""
    placement = lab.lab.cloud.placement
    placement.ensure_trait(provider(lab, BRIDGE_B), "CUSTOM_PHYSNET_NET_A", present=True)
    server.hold({**ASKED, BRIDGE_B: {EGRESS: 1500, INGRESS: 2100}})
    server.name(server.gold, None)
    left_alone(lab, f"{BRIDGE_A} and {BRIDGE_B} could each give {EGRESS} 1000, {INGRESS} 1500")
    placement.ensure_trait(provider(lab, BRIDGE_B), "CUSTOM_PHYSNET_NET_A", present=False)
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_it_is_left_alone_where_no_provider_of_the_host_could(lab: Stage, server: Server) -> None:
    server.name(server.gold, None)
    placement = lab.lab.cloud.placement
    placement.ensure_trait(provider(lab, BRIDGE_A), "CUSTOM_PHYSNET_NET_A", present=False)
    left_alone(lab, "no provider of host1 with CUSTOM_PHYSNET_NET_A and CUSTOM_VNIC_TYPE_NORMAL gives")
    placement.ensure_trait(provider(lab, BRIDGE_A), "CUSTOM_PHYSNET_NET_A", present=True)
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_a_binding_that_neutron_refuses_keeps_its_profile(lab: Stage, server: Server) -> None:
    """The bridge's agent no longer reports what it has; the sentence is Neutron's."""
    server.name(server.gold, None)
    devices = {
        "": {"physical_network": "", "reported": True},
        "br-a": {"physical_network": "net-a", "reported": False},
        "br-b": {"physical_network": "net-b", "reported": True},
    }
    lab.lab.cloud.add_network_host("host1", devices)
    lab.cli("audit", "--heal", "--yes", code=3)
    assert f"left alone: Neutron could not bind the port {server.gold.id} on host1" in lab.error
    assert named(lab, server.id)[server.gold.id] == {"host1": ""}
    lab.lab.cloud.add_network_host("host1", {**devices, "br-a": {**devices["br-a"], "reported": True}})
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_on_a_terminal_one_is_asked_and_told_what_is_put_right(
    lab: Stage, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a server that no move ever had the log says what was done, and who did it."""
    server.name(server.old, None)
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    said = lab.cli("audit", "--heal", code=3)
    assert f"  mend: let the binding of the port {server.old.id} name {BRIDGE_B}\n" in said
    assert f"Droveway can mend 1 of 1 finding. It will put right: {server.old.id}." in lab.error
    planned = mending.plan(books.sources(lab.lab), frozenset())
    with caplog.at_level("INFO", logger=mending.LOG.name):
        ((_, outcome),) = mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset())
    assert outcome == mending.DONE
    assert f"ana healed {server.id} ({server.old.id}): let the binding" in caplog.text
    server.assert_right()


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_what_another_writer_changed_meanwhile_is_left_alone(lab: Stage, server: Server) -> None:
    """The generation of what was looked at refuses the write."""
    server.hold(less(ASKED, BRIDGE_A, by=400))
    planned = mending.plan(books.sources(lab.lab), frozenset())
    ports = Network.ports

    def late(network: Network, asked: str) -> list[PortRecord]:
        server.hold(less(ASKED, BRIDGE_A, by=300))
        return ports(network, asked)

    with pytest.MonkeyPatch.context() as patch:
        # The last thing that is looked at before the write.
        patch.setattr(Network, "ports", late)
        ((_, outcome),) = mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset())
    assert "another writer changed the allocations" in outcome
    assert holding(lab, server.id)[0] == less(ASKED, BRIDGE_A, by=300)
    lab.cli("audit", "--heal", "--yes")
    server.assert_right()


def test_a_server_that_no_move_had_is_kept_from_moving_meanwhile(tmp_path: Path) -> None:
    """A move that is asked for meanwhile waits, and goes on; one that is under way keeps its server."""
    with stage(tmp_path / "lab", CLOUD) as lab:
        server = server_of(lab)
        began: list[str] = []
        asked = threading.Thread(
            target=lambda: began.append(submit(lab.lab, MoveSpec(server="fast", flavor=None, host=None)).id)
        )
        with orphans.hold_unmoved(lab.lab.journal, server.id, "fast"):
            asked.start()
            # Long enough for one that does not wait.
            asked.join(1.0)
            assert (asked.is_alive(), lab.json("move", "list")) == (True, [])
        asked.join()
        assert [row["id"] for row in lab.json("move", "list")] == began
        server.hold(less(ASKED, BRIDGE_A, by=400))
        with contextlib.ExitStack() as stack, pytest.raises(orphans.Held, match="a move of fast is under way"):
            stack.enter_context(orphans.hold_unmoved(lab.lab.journal, server.id, "fast"))
        lab.cli("move", "cancel", began[0])
        lab.cli("audit", "--heal", "--yes")
        server.assert_right()


def set_task(lab: Stage, task: str | None) -> None:
    with lab.lab.cells.database("cell1").write() as session:
        servers.find(session, lab.id_of("fast")).task_state = task


def migrate(lab: Stage) -> None:
    """Let Nova migrate the server, as its row alone says."""
    row = {"uuid": str(uuid.uuid4()), "instance_uuid": lab.id_of("fast"), "status": "finished"}
    with lab.lab.cells.database("cell1").write() as session:
        session.add(cell.Migration(**row, migration_type="migration"))


def end(lab: Stage) -> None:
    """End what is under way with the server."""
    set_task(lab, None)
    with lab.lab.cells.database("cell1").write() as session:
        session.execute(sa.delete(cell.Migration))


def healed_behind(lab: Stage, planned: mending.Healing, meanwhile: Callable[[], object]) -> str:
    """Carry out what is planned, of which something happens after the last look at the whole; what became of it."""
    carry_out = mending._carry_out

    def late(*known: Any) -> str:
        meanwhile()
        return carry_out(*known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mending, "_carry_out", late)
        ((_, outcome),) = mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset())
    return outcome


@pytest.fixture(scope="module", name="moved")
def fixture_moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab of its own, whose server gets a history."""
    with stage(tmp_path_factory.mktemp("moved") / "lab", CLOUD) as made, made.running():
        yield made


@pytest.fixture(name="mover")
def fixture_mover(moved: Stage) -> Server:
    """The server of that lab as it should be."""
    return server_of(moved)


@pytest.mark.parametrize("healed", [True, False])
def test_a_healed_server_moves_and_so_does_one_that_is_healed_by_its_move(
    moved: Stage, mover: Server, *, healed: bool
) -> None:
    """R4-18: what nobody held on the source is held and named on the destination, healed before or not."""
    mover.lose_all()
    if healed:
        moved.cli("audit", "--heal", "--yes")
        mover.assert_right()
    moved.cli("server", "migrate", "fast", "--host", "host2", "--wait")
    mover.assert_right("host2", balanced=healed)
    if healed:
        assert holding(moved, moved.move("fast").id)[0] == ASKED
        moved.cli("server", "revert", "fast")
        mover.assert_right()
        return
    moved.cli("server", "confirm", "fast")
    mover.assert_right("host2")
    moved.cli("server", "migrate", "fast", "--host", "host1", "--wait")
    moved.cli("server", "confirm", "fast")
    mover.assert_right()


def test_it_is_noted_in_the_history_of_the_last_move(moved: Stage, mover: Server) -> None:
    end_move(moved)
    mover.hold(less(ASKED, BRIDGE_A, by=400))
    moved.cli("audit", "--heal", "--yes")
    (noted,) = [step.result or {} for step in moved.history(moved.move("fast").id) if step.step == orphans.STEP]
    assert noted["outcome"] == "done"
    assert noted["does"].startswith(f"let fast hold {EGRESS} 1000, {INGRESS} 1500 of {BRIDGE_A} instead of")
    mover.assert_right()


def test_a_move_that_waits_is_left_alone_until_it_is_over(moved: Stage, mover: Server) -> None:
    """Also what a policy that changed meanwhile leaves: the difference is mended after the revert."""
    moved.cli("server", "migrate", "fast", "--host", "host2", "--wait")
    there = {name.replace("host1", "host2"): amounts for name, amounts in ASKED.items()}
    mover.hold(less(there, f"host2:{AGENT}:br-a", by=400))
    left_alone(moved, "holds fast until it is confirmed or reverted")
    mover.hold(there)
    mover.follow(mover.gold, "old")
    moved.cli("server", "revert", "fast")
    moved.cli("audit", "--heal", "--yes")
    less_now = {BRIDGE_A: ASKED[BRIDGE_B], BRIDGE_B: ASKED[BRIDGE_B]}
    assert holding(moved, mover.id)[:2] == (less_now, {"host1": BESIDES})
    moved.assert_balanced()
    mover.follow(mover.gold, "gold")
    moved.cli("audit", "--heal", "--yes")
    mover.assert_right()


def test_what_a_port_no_longer_asks_for_is_released(tmp_path: Path) -> None:
    """Its policy was taken away, or the port itself was."""
    with stage(tmp_path / "lab", CLOUD) as lab:
        server = server_of(lab)
        server.follow(server.old, None)
        lab.cli("audit", "--heal", "--yes")
        rest = {name: each for name, each in ASKED.items() if name != BRIDGE_B}
        assert holding(lab, server.id)[:2] == (rest, {"host1": BESIDES})
        lab.assert_balanced()
        server.network.delete_port(server.gold.id)
        # No port of the cloud asks for anything now: Neutron has to say that it would tell.
        lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=True)
        left_alone(lab, "Neutron does not tell what ports ask for: let it load the extension port-resource-request")
        lab.lab.cloud.set_extension(RESOURCE_REQUEST, missing=False)
        lab.cli("audit", "--heal", "--yes", code=3)
        assert holding(lab, server.id)[:2] == ({}, {"host1": BESIDES})
        # The guest still has the interface of the port that went.
        assert [finding.kind for finding in books.balance(lab.lab).findings] == [Kind.INTERFACE]


def end_move(lab: Stage) -> None:
    """Let a move of the server end undone."""
    move = submit(lab.lab, MoveSpec(server="fast", flavor=None, host=None)).id
    lab.cli("move", "cancel", move)
