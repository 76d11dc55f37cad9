"""How what a server holds is divided among its ports, and what is left alone, judged in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.rows.audit_books import ENDED, SERVER, SMALL, books

from droveway.audit import Snapshot, judge
from droveway.audit.heal import shares
from droveway.audit.heal.healing import Evidence, Mend, plan
from droveway.audit.heal.shares import Home, Offer, Settlement, Unsettled
from droveway.audit.records import DebtRow, PortView
from droveway.clients.port_resources import PortResources, ResourceGroup
from droveway.persistence.journal.states import State

EGRESS, PACKETS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_PACKET_RATE_KILOPACKET_PER_SEC"
ROOT = {"VCPU": 1, "MEMORY_MB": 512}


def offer(name: str, parent: str | None, room: dict[str, int], *traits: str) -> Offer:
    return Offer(uuid=name, name=f"source:{name}", parent=parent, traits=frozenset(traits), room=room)


def home(*more: Offer, left: int = 5000) -> Home:
    """A host with an agent, and below it a bridge to each of two networks."""
    offers = (
        offer("node", None, {"VCPU": 8, "MEMORY_MB": 4096}),
        offer("agent", "node", {PACKETS: 100}, "NORMAL"),
        offer("br-a", "agent", {EGRESS: left}, "NET_A", "NORMAL"),
        offer("br-b", "agent", {EGRESS: left}, "NET_B", "NORMAL"),
        *more,
    )
    return Home(host="source", offers=offers, names={each.uuid: each.name for each in offers})


SECOND = offer("br-c", "agent", {EGRESS: 5000}, "NET_A", "NORMAL")
"""Another bridge to the first network."""


def port(name: str, allocation: Any = None, *, network: str = "NET_A", kpps: int = 0, **facts: Any) -> PortView:
    """A port that asks for 1000 kbit/s of a network, and for a packet rate where there is one."""
    groups = [ResourceGroup(id=f"{name}-bw", resources={EGRESS: 1000}, required=(network, "NORMAL"))]
    if kpps:
        groups.append(ResourceGroup(id=f"{name}-pps", resources={PACKETS: kpps}, required=("NORMAL",)))
    told = {"trusted": True} if allocation is None else {"trusted": True, "allocation": allocation}
    subtree = tuple(group.id for group in groups)
    asks = PortResources(groups=tuple(groups), same_subtree=subtree, legacy=facts.pop("legacy", False))
    known = {"id": name, "server": SERVER, "bindings": {"source": "ACTIVE"}, "profile": told, "resources": asks}
    return PortView(**(known | facts))


def settle(*ports: PortView, at: Home | None = None, **held: int) -> Settlement:
    """Settle a server that holds so much bandwidth of each bridge."""
    amounts = {name.replace("_", "-"): {EGRESS: amount} for name, amount in held.items()}
    return shares.settle(ports, {"node": ROOT, **amounts}, at or home())


def test_what_agrees_needs_nothing() -> None:
    assert settle(port("p", {"p-bw": "br-a"}), br_a=1000).done


def test_what_the_server_holds_decides_where_it_suffices() -> None:
    """Nothing is written to Placement then, whatever the binding says."""
    found = settle(port("p", {"p-bw": "br-c"}), at=home(SECOND), br_a=1000)
    assert (found.changes, found.named) == ({}, {"p": {"p-bw": "br-a"}})


def test_what_the_binding_says_decides_where_the_server_holds_too_little() -> None:
    found = settle(port("p", {"p-bw": "br-c"}), at=home(SECOND))
    assert found.changes == {"br-c": ({}, {EGRESS: 1000})}
    assert found.allocations == {"node": ROOT, "br-c": {EGRESS: 1000}}
    assert found.named == {}


def test_a_port_that_has_its_own_gives_nothing_to_one_that_lacks_it() -> None:
    found = settle(port("p", {"p-bw": "br-a"}), port("q", {"q-bw": "br-c"}), at=home(SECOND), br_a=1000)
    assert (found.changes, found.named) == ({"br-c": ({}, {EGRESS: 1000})}, {})


def test_groups_that_neutron_renamed_are_known_by_whom_the_profile_names() -> None:
    """A rule that was replaced gives the group another id."""
    found = settle(port("p", {"before": "br-c"}), at=home(SECOND))
    assert found.named == {"p": {"p-bw": "br-c"}}


@pytest.mark.parametrize("held", [{}, {"br_a": 1000, "br_c": 1000}, {"br_a": 400, "br_c": 400}])
def test_two_ways_are_told_and_none_is_taken(held: dict[str, int]) -> None:
    with pytest.raises(Unsettled, match=r"source:br-a and source:br-c could each give .* to the port p"):
        settle(port("p"), at=home(SECOND), **held)


def test_two_ports_that_could_be_each_others_are_told() -> None:
    with pytest.raises(Unsettled, match="neither what the server holds nor the port's binding says which"):
        settle(port("p"), port("q"), at=home(SECOND), br_a=1000, br_c=1000)
    assert settle(port("p", {"p-bw": "br-a"}), port("q"), at=home(SECOND), br_a=1000, br_c=1000).named == {
        "q": {"q-bw": "br-c"}
    }


def test_a_legacy_port_names_one_provider_and_one_with_groups_an_object() -> None:
    assert settle(port("p", legacy=True), br_a=1000).named == {"p": "br-a"}
    found = shares.settle([port("p", "br-a", kpps=5)], {"br-a": {EGRESS: 1000}, "agent": {PACKETS: 5}}, home())
    assert (found.changes, found.named) == ({}, {"p": {"p-bw": "br-a", "p-pps": "agent"}})


def test_more_than_is_asked_for_is_released_and_nothing_else() -> None:
    """Also what it holds of another host, and of a second provider of its own."""
    held = {"node": ROOT, "br-a": {EGRESS: 2000}, "br-b": {EGRESS: 7}, "elsewhere": {EGRESS: 9}}
    found = shares.settle([port("p", {"p-bw": "br-a"})], held, home())
    assert found.allocations == {"node": ROOT, "br-a": {EGRESS: 1000}}
    assert found.changes == {
        "br-a": ({EGRESS: 2000}, {EGRESS: 1000}),
        "br-b": ({EGRESS: 7}, {}),
        "elsewhere": ({EGRESS: 9}, {}),
    }
    assert shares.text(found, "web", home()) == (
        f"let web hold {EGRESS} 1000 of source:br-a instead of {EGRESS} 2000, release {EGRESS} 7 of source:br-b, "
        f"release {EGRESS} 9 of elsewhere"
    )


def test_only_what_is_left_is_claimed() -> None:
    """What the server holds already counts for it."""
    told = {"p-bw": "br-a"}
    assert settle(port("p", told), at=home(left=600), br_a=400).changes == {"br-a": ({EGRESS: 400}, {EGRESS: 1000})}
    with pytest.raises(Unsettled, match=f"source:br-a has {EGRESS} 599 left, and the server's ports lack 600 of it"):
        settle(port("p", told), at=home(left=599), br_a=400)


def test_the_groups_of_a_port_stay_below_one_provider() -> None:
    """A second agent of the host gives packet rates too, and is none of the bridge's."""
    stranger = offer("nic-agent", "node", {PACKETS: 100}, "NORMAL")
    assert settle(port("p", kpps=5), at=home(stranger)).named == {"p": {"p-bw": "br-a", "p-pps": "agent"}}
    apart = Home(host="source", offers=(SECOND, stranger))
    with pytest.raises(Unsettled, match="no providers of source in one subtree"):
        settle(port("p", kpps=5), at=apart)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"vnic_type": "direct"}, "the port p is of vnic type direct"),
        ({"bindings": {"source": "INACTIVE"}}, "the port p is not bound to source"),
        ({"network": "NET_X"}, f"no provider of source with NET_X and NORMAL gives {EGRESS} 1000, which the port p"),
    ],
)
def test_what_no_heal_can_decide(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsettled, match=why):
        settle(port("p", **facts), br_a=1000)


def test_of_too_many_ways_none_is_tried() -> None:
    bridges = [offer(f"br-{number}", "agent", {EGRESS: 9000}, "NET_A", "NORMAL") for number in range(8)]
    with pytest.raises(Unsettled, match="more than 4096 ways"):
        settle(*(port(f"p{number}") for number in range(6)), at=home(*bridges))


def test_what_others_keep_in_a_profile_stays() -> None:
    assert shares.profile({"trusted": True, "allocation": "old"}, {"g": "new"}) == {
        "trusted": True,
        "allocation": {"g": "new"},
    }


def at_rest(**changes: Any) -> Snapshot:
    """The server at rest on the source, with a port that names nobody, after moves that ended."""
    given = {
        "allocations": {SERVER: {"node-source": SMALL}},
        "flows": (),
        "begun": frozenset(),
        "migrations": (),
        "ports": (port("p"),),
    }
    snapshot = books(**(given | changes))
    moves = tuple(replace(move, state=State.FAILED, flow_uuid=None) for move in snapshot.moves)
    servers = tuple(replace(row, task_state=None, fence=None) for row in snapshot.servers)
    return replace(snapshot, moves=moves, servers=servers)


def planned(snapshot: Snapshot, **homes: Home) -> Mend:
    """What is planned about the port."""
    evidence = Evidence(homes={SERVER: home()} if not homes else {})
    return next(each for each in plan(snapshot, judge(snapshot), evidence) if each.finding.guaranteed)


def test_a_server_at_rest_is_healed_with_a_note_in_its_last_ended_move() -> None:
    mend = planned(at_rest())
    assert mend.move == ENDED
    assert mend.does == (
        f"let web hold {EGRESS} 1000 of source:br-a instead of nothing; let the binding of the port p name source:br-a"
    )
    assert planned(replace(at_rest(), moves=())).move == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"debts": (DebtRow(id=1, host="third", move=ENDED, action="connect"),)}, "third still owes something for web"),
        (
            {"debts": (DebtRow(id=1, host="", cell="cell2", move=ENDED, action="hide"),)},
            "cell cell2 still owes something for web",
        ),
        ({"allocations": {SERVER: {"node-source": ROOT}}}, "mend another finding about the server first"),
        ({"allocations": {}}, "mend another finding about the server first"),
    ],
)
def test_a_server_is_left_alone_beside_what_comes_first(changes: dict[str, Any], why: str) -> None:
    mend = planned(at_rest(**changes))
    assert (mend.does, why in mend.why) == ("", True), mend.why


@pytest.mark.parametrize("status", ["migrating", "finished", "confirming"])
def test_a_server_is_left_alone_beside_a_migration_of_novas(status: str) -> None:
    row = replace(books().migrations[0], uuid="44444444-4444-4444-8444-444444444444", status=status)
    mend = planned(at_rest(migrations=(row,)))
    assert (mend.does, "something else is under way with web" in mend.why) == ("", True)
