"""What of a move is written into a Placement that was put back, and what of somebody else's stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, FLAVOR, MOVE, PORT, SERVER, SOURCE, Moving, record

from droveway.clients.network import Port
from droveway.clients.placement import MIGRATION, Allocations, resources_of
from droveway.clients.placement import SERVER as SERVERS
from droveway.clients.port_resources import PortResources, ResourceGroup
from droveway.engines.operations import settling_books
from droveway.engines.operations.left import Books, Left
from droveway.errors import Refused, StepError
from droveway.flows.before import PortBefore
from droveway.flows.stands import START, WAITS, Stands
from droveway.persistence.journal.tables import Move, MoveAttempt
from droveway.persistence.nova import objects
from droveway.persistence.nova.cell import Instance, InstanceExtra
from droveway.persistence.nova.cell_hosts import ComputeNode

SMALL: Final = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}
BIG: Final = {"VCPU": 3, "MEMORY_MB": 256, "DISK_GB": 1}
AT_SOURCE: Final = {"node-1": SMALL}
AT_DESTINATION: Final = {"node-2": BIG}
LARGE: Final = {**FLAVOR, "nova_object.data": {**FLAVOR["nova_object.data"], "id": 2, "vcpus": 3}}
REQUEST: Final = {"allocations": {"node-2": {"resources": BIG}}, "mappings": {"": ["node-2"]}}
EGRESS: Final = "NET_BW_EGR_KILOBIT_PER_SEC"
PACKETS: Final = "NET_PACKET_RATE_KILOPACKET_PER_SEC"
CLAIMED: Final = {
    "allocations": {"node-2": {"resources": BIG}, "node-2.br-a": {"resources": {EGRESS: 1000}}},
    "mappings": {"": ["node-2"], "old": ["node-2.br-a"]},
}
"""What is claimed for a port that asks for bandwidth, too."""


class Placement:
    """Holds what a test says, and takes whole rewrites."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, dict[str, int]]] = {}
        self.written: list[Mapping[str, tuple[Allocations, Any, str]]] = []
        self.fails: StepError | None = None

    def allocations(self, consumer: str) -> Allocations:
        held = self.held.get(consumer, {})
        return Allocations(held, 7, "p", "u") if held else Allocations({})

    @staticmethod
    def has_provider(uuid: str) -> bool:
        return uuid != "gone"

    @staticmethod
    def root_of(uuid: str) -> str:
        """A provider's root is named before the dot."""
        return uuid.partition(".")[0]

    def rewrite(self, consumers: Mapping[str, tuple[Allocations, Any, str]], *, project_id: str, user_id: str) -> None:
        assert (project_id, user_id) == ("p", "u")
        if self.fails is not None:
            raise self.fails
        self.written.append(consumers)
        self.held |= {consumer: resources_of(wanted) for consumer, (_, wanted, _) in consumers.items()}


class Put:
    """A Placement that was put back, beside a cell that was not."""

    def __init__(self, folder: Path) -> None:
        self.moving = Moving(folder, kind="resize")
        self.placement = Placement()
        self.ports: list[Port] = []
        network = SimpleNamespace(listed_ports=lambda _server: self.ports)
        cloud = SimpleNamespace(placement=self.placement, network=network)
        self.site: Any = SimpleNamespace(cells=self.moving.cells, journal=self.moving.journal, cloud=cloud)
        with self.moving.cell.write() as session:
            for number, host in enumerate((SOURCE, DESTINATION), 1):
                session.add(
                    ComputeNode(
                        id=number, uuid=f"node-{number}", host=host, hypervisor_hostname=host, vcpus=8, memory_mb=8192,
                        local_gb=100, vcpus_used=0, memory_mb_used=0, local_gb_used=0, hypervisor_type="QEMU",
                        hypervisor_version=1, cpu_info="{}", deleted=0,
                    )
                )  # fmt: skip
        self.lives(DESTINATION, LARGE, task_state=None, vm_state="resized")

    def lives(self, host: str, flavor: dict[str, Any], **columns: Any) -> None:
        with self.moving.cell.write() as session:
            session.execute(sa.update(Instance).values(host=host, **columns))
            slots = {"cur": flavor, "old": None, "new": None}
            session.execute(sa.update(InstanceExtra).values(flavor=objects.encode(slots)))

    def write(self, books: Books, stands: Stands = WAITS, state: str = "verifying", **facts: Any) -> list[str]:
        with self.moving.journal.write() as session:
            move = session.get(Move, MOVE)
            assert move is not None
            move.state, move.kind = state, "resize"
        recorded, request = facts.pop("recorded", {}), facts.pop("request", REQUEST)
        attempt = MoveAttempt(
            move_id=MOVE,
            attempt=1,
            cell="cell1",
            host=DESTINATION,
            node=DESTINATION,
            provider="node-2",
            request=request,
        )
        known: dict[str, Any] = {"destination": attempt, "claimed": attempt, "new_spec": True, "action": ""} | facts
        found = Left(move=move, record=record(new_flavor=LARGE, **recorded), stands=stands, books=books, **known)
        return settling_books.write(self.site, found)

    def holds(self, server: Any, migration: Any = None) -> None:
        self.placement.held = {SERVER: server} | ({MOVE: migration} if migration else {})

    def refused(self, why: str, books: Books = Books.BOTH, **words: Any) -> None:
        before = dict(self.placement.held)
        with pytest.raises(Refused, match=why):
            self.write(books, **words)
        assert self.placement.held == before


@pytest.fixture(name="put")
def fixture_put(tmp_path: Path) -> Iterator[Put]:
    made = Put(tmp_path)
    made.holds(AT_SOURCE)
    yield made
    made.moving.close()


def test_both_are_written_in_one_call_and_told(put: Put) -> None:
    told = put.write(Books.BOTH)
    assert told == [
        (
            "allocations of the server: DISK_GB 1, MEMORY_MB 256, VCPU 1 on host1 -> "
            "DISK_GB 1, MEMORY_MB 256, VCPU 3 on host2"
        ),
        "allocations of the migration: nothing -> DISK_GB 1, MEMORY_MB 256, VCPU 1 on host1",
    ]
    (body,) = put.placement.written
    assert {consumer: (found.generation, kind) for consumer, (found, _, kind) in body.items()} == {
        SERVER: (7, SERVERS),
        MOVE: (None, MIGRATION),
    }
    assert body[SERVER][1]["mappings"] == {"": ["node-2"]}
    assert put.write(Books.BOTH) == []
    assert len(put.placement.written) == 1


def test_a_consumer_that_never_held_anything_is_not_told_of(put: Put) -> None:
    put.write(Books.DESTINATION, state="done")
    assert list(put.placement.written[0]) == [SERVER]


@pytest.mark.parametrize(
    ("books", "server", "migration"),
    [
        (Books.SOURCE, AT_SOURCE, {}),
        (Books.BOTH, AT_DESTINATION, AT_SOURCE),
        (Books.DESTINATION, AT_DESTINATION, {}),
        (Books.NOTHING, {}, {}),
    ],
)
@pytest.mark.parametrize("present", [(AT_SOURCE, None), (AT_DESTINATION, AT_SOURCE), (AT_DESTINATION, None)])
def test_each_consumer_holds_what_the_last_step_left_it(
    put: Put, books: Books, server: Any, migration: Any, present: Any
) -> None:
    put.holds(*present)
    stands, state = (START, "reverted") if books is Books.SOURCE else (WAITS, "needs-operator")
    if books is Books.SOURCE:
        put.lives(SOURCE, FLAVOR, vm_state="active")
    put.write(books, stands, state)
    held = put.placement.held
    assert (held.get(SERVER, {}), held.get(MOVE, {})) == (server, migration)


def test_what_is_held_of_a_shared_disk_stays_there(put: Put) -> None:
    """Its sum is the old flavor's."""
    shared = {"node-1": {"VCPU": 1, "MEMORY_MB": 256}, "store": {"DISK_GB": 1}}
    put.holds(shared)
    put.write(Books.BOTH)
    assert put.placement.held[MOVE] == shared


def test_a_destination_that_the_journal_has_no_request_of_is_counted(put: Put) -> None:
    put.write(Books.BOTH, claimed=None)
    assert put.placement.held[SERVER] == AT_DESTINATION


def test_what_a_flavor_asks_for_in_groups_counts_too(put: Put) -> None:
    specs = {"resources1:CUSTOM_X": "2"}
    old = {**FLAVOR, "nova_object.data": {**FLAVOR["nova_object.data"], "extra_specs": specs}}
    assert settling_books._amounts(
        Left(
            move=put.moving.row, record=record(), stands=START, destination=None, claimed=None, books=Books.SOURCE,
            new_spec=False, action="",
        ),
        old,
    ) == {**SMALL, "CUSTOM_X": 2}  # fmt: skip


def test_a_server_that_nova_has_changed_since_is_left_alone(put: Put) -> None:
    put.lives(DESTINATION, FLAVOR)
    put.refused("is on host2 with the flavor .* in cell cell1, and the journal left it on host2 with .* --cell cell1")
    put.lives(SOURCE, LARGE)
    put.refused("is on host1 with the flavor")
    put.lives("host7", LARGE)
    put.refused("is on host7", state="needs-operator")
    put.lives(DESTINATION, LARGE)
    put.refused("is on host2", Books.SOURCE, state="needs-operator", stands=START)


def test_a_task_that_is_not_the_moves_own_is_waited_for(put: Put) -> None:
    put.lives(DESTINATION, LARGE, task_state="rebuilding")
    put.refused("has task rebuilding: wait until that ends")


def test_what_a_provider_gives_to_which_no_move_went_stays(put: Put) -> None:
    for server, migration in (({"node-9": SMALL}, None), (AT_SOURCE, {"node-9": SMALL})):
        put.holds(server, migration)
        put.refused("holds something of provider node-9, to which no move of web went: somebody else wrote that")


def test_what_a_port_held_below_a_host_of_the_moves_goes(put: Put) -> None:
    """An older copy may have it on any of those hosts."""
    put.holds({**AT_SOURCE, "node-1.bridge": {"NET_BW_EGR_KILOBIT_PER_SEC": 1}}, None)
    put.write(Books.BOTH)
    assert (put.placement.held[SERVER], put.placement.held[MOVE]) == (AT_DESTINATION, AT_SOURCE)


def test_what_placement_does_not_take_is_refused(put: Put) -> None:
    put.placement.fails = StepError("another writer changed it", code="allocation-conflict")
    put.refused("nothing was written for move .*: another writer changed it")
    put.placement.fails = StepError("no answer", code="placement-unavailable")
    with pytest.raises(StepError, match="no answer"):
        put.write(Books.BOTH)


def test_a_cell_without_the_server_is_put_right_first(put: Put) -> None:
    put.moving.change(deleted=1)
    put.refused("cell cell1 has no row of server web: put that database right first")


def asks(**groups: dict[str, int]) -> PortResources:
    return PortResources(
        groups=tuple(ResourceGroup(id=name, resources=amounts, required=()) for name, amounts in groups.items())
    )


def changed(put: Put, allocation: Any, state: str = "verifying", **facts: Any) -> dict[str, dict[str, int]]:
    """Settle with a port whose policy was changed since the claim; what the server holds below the node then."""
    its: dict[str, Any] = {"mac": "fa:16:3e:00:00:01", "device_owner": "compute:nova"}
    now: dict[str, Any] = {
        "host": DESTINATION,
        "profile": {} if allocation is None else {"allocation": allocation},
        "resources": asks(new={EGRESS: 1100}, packets={PACKETS: 12}),
    }
    put.ports[:] = [Port(id=PORT, server=SERVER, **its, **now | facts)]
    old = PortBefore(port=PORT, profile={}, resources=asks(old={EGRESS: 1000}), **its)
    books = Books.DESTINATION if state == "done" else Books.BOTH
    put.write(books, state=state, request=CLAIMED, recorded={"ports": [old]})
    held = dict(put.placement.held[SERVER])
    assert held.pop("node-2") == BIG
    return held


@pytest.mark.parametrize("state", ["verifying", "done"])
def test_what_a_port_asks_for_by_now_is_held_of_whom_its_binding_names(put: Put, state: str) -> None:
    """Also where the move had claimed it of another provider of that host, and where it had claimed none."""
    named = {"new": "node-2.br-b", "packets": "node-2.agent"}
    assert changed(put, named, state) == {"node-2.br-b": {EGRESS: 1100}, "node-2.agent": {PACKETS: 12}}


@pytest.mark.parametrize(
    ("allocation", "facts"),
    [
        (None, {}),
        ({"old": "node-2.br-a"}, {}),
        ({"new": "node-1.br-a", "packets": "node-1.agent"}, {}),
        ({"new": "gone", "packets": "gone"}, {}),
        ({"new": "node-2.br-b", "packets": "node-2.agent"}, {"host": SOURCE}),
    ],
    ids=["nobody", "renamed", "another host", "gone", "bound elsewhere"],
)
def test_where_a_binding_names_nobody_of_the_host_it_is_held_of_whom_the_move_claimed(
    put: Put, allocation: Any, facts: Any
) -> None:
    """The move had claimed no packet rate, so nobody gives it: the audit tells of the binding."""
    assert changed(put, allocation, **facts) == {"node-2.br-a": {EGRESS: 1100}}


@pytest.mark.parametrize("facts", [{"resources": None, "tells_request": False}, {"state": "needs-operator"}])
def test_the_claim_is_put_back_where_neutron_tells_nothing_and_where_the_move_is_parked(put: Put, facts: Any) -> None:
    assert changed(put, {"new": "node-2.br-b"}, **facts) == {"node-2.br-a": {EGRESS: 1000}}


def test_a_port_that_asks_for_nothing_any_more_holds_nothing(put: Put) -> None:
    assert changed(put, None, resources=None) == {}
