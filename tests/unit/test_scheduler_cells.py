"""The choice among hosts of several cells: which cells count, what weighs for a server's own, and what is said."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import orm
from support.rigs.checked_first import page, refusal
from support.rigs.scheduling import GROUP, group, names, offer, request, state

from droveway.flows.other_graph import across, offered
from droveway.persistence.journal import kinds
from droveway.persistence.nova import api, cell, copies
from droveway.scheduler.filters import rejection
from droveway.scheduler.hosts import HostState, host_states
from droveway.scheduler.requests import MoveRequest, Rules
from droveway.scheduler.select import Selection, select

ANY = {"cell1": "", "cell2": "", "cell3": ""}
TURNED = Rules(multipliers={"cross_cell_move_weight_multiplier": -1000000.0})
ALONE = Rules(multipliers={"cross_cell_move_weight_multiplier": 0.0})


def wanted(**fields: Any) -> MoveRequest:
    return request(**{"cells": ANY, **fields})


def chosen(wish: MoveRequest, *hosts: HostState, full: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    found = among(wish, *hosts, full=full)
    return [(each.cell, each.host) for each in found.chosen]


def among(wish: MoveRequest, *hosts: HostState, full: tuple[str, ...] = ()) -> Selection:
    """The choice among the hosts, of which Placement offers those that are not full; the later ones have more room."""
    offers = [offer(host.host, used=90 - number) for number, host in enumerate(hosts) if host.host not in full]
    return select(wish, offers, hosts)


OWN, OTHER, THIRD = state("host2"), state("host5", cell="cell2"), state("host7", cell="cell3")


# Which cell.


def test_a_server_stays_in_its_cell_while_a_host_there_can_take_it() -> None:
    """R1-05: though the hosts of the others have more room; those are its alternates."""
    assert chosen(wanted(), OWN, OTHER, THIRD) == [("cell1", "host2"), ("cell3", "host7"), ("cell2", "host5")]


def test_filters_that_leave_only_other_cells_win() -> None:
    """R1-04, R1-05: its own cell is full, or no host there passes; alternates may be in several cells."""
    assert chosen(wanted(), OWN, OTHER, THIRD, full=("host2",)) == [("cell3", "host7"), ("cell2", "host5")]
    down = state("host2", up=False)
    assert chosen(wanted(), down, OTHER) == [("cell2", "host5")]


def test_a_negative_multiplier_prefers_other_cells() -> None:
    """R1-05: and with none the host with the most room is taken, whichever cell it is in."""
    roomy = state("host9")
    assert chosen(wanted(rules=TURNED), OTHER, roomy)[0] == ("cell2", "host5")
    assert chosen(wanted(rules=TURNED), OTHER, roomy, full=("host5",)) == [("cell1", "host9")]
    assert chosen(wanted(rules=ALONE), OTHER, roomy)[0] == ("cell1", "host9")
    assert chosen(wanted(rules=ALONE), roomy, OTHER)[0] == ("cell2", "host5")


def test_an_aggregate_has_a_multiplier_of_its_own() -> None:
    """As in Nova the least of a host's aggregates goes before the option, for that host alone."""
    metadata = {"a1": {"cross_cell_move_weight_multiplier": "-5"}, "a2": {"cross_cell_move_weight_multiplier": "7"}}
    assert chosen(wanted(), state("host2", aggregates=metadata), OTHER)[0] == ("cell2", "host5")
    assert chosen(wanted(), state("host2", aggregates={"a2": metadata["a2"]}), OTHER)[0] == ("cell1", "host2")


def test_a_cell_that_was_named_is_the_only_one() -> None:
    """The server's own too."""
    assert chosen(wanted(cells={"cell2": ""}), OWN, OTHER, THIRD) == [("cell2", "host5")]
    assert chosen(wanted(cells={"cell1": ""}), OTHER, THIRD, OWN) == [("cell1", "host2")]
    found = among(wanted(cells={"cell1": ""}), OWN, OTHER, full=("host2",))
    assert (found.chosen, found.rejected["cell2/host5"].reason) == ([], "it is in cell cell2")


@pytest.mark.parametrize(
    ("cells", "fields", "reason"),
    [
        ({"cell1": ""}, {}, "it is in cell cell2"),
        ({"cell1": "", "cell2": "it has rows of the server"}, {}, "it has rows of the server"),
        (ANY, {"cell_disabled": True}, "its cell cell2 is disabled"),
        (ANY, {"cell_away": True, "provider": ""}, "the database of its cell cell2 does not answer"),
    ],
)
def test_a_cell_that_is_left_out_is_told_with_the_reason(
    cells: dict[str, str], fields: dict[str, Any], reason: str
) -> None:
    """R1-02, R1-04: of each of its hosts, by the name of cell and host; the server's own cell goes on."""
    found = among(wanted(cells=cells), OWN, state("host5", cell="cell2", **fields))
    assert names(found) == ["host2"]
    assert (found.rejected["cell2/host5"].filter, found.rejected["cell2/host5"].reason) == ("Cell", reason)


def test_a_disabled_cell_keeps_its_own_servers() -> None:
    """They may move within it, and leave it."""
    assert chosen(wanted(), state("host2", cell_disabled=True), OTHER)[0] == ("cell1", "host2")
    assert chosen(wanted(rules=TURNED), state("host2", cell_disabled=True), OTHER)[0] == ("cell2", "host5")


def test_a_host_of_the_same_name_in_another_cell_is_another_host() -> None:
    """The server is on host1 of cell1: host1 of cell2 may take it, and is not told by the name of the first."""
    twin = state("host1", cell="cell2", provider="p-twin")
    home = state("host1", up=False)
    found = select(wanted(), [offer("twin")], [home, twin])
    assert [(each.cell, each.host) for each in found.chosen] == [("cell2", "host1")]
    assert set(found.rejected) == {"host1"}
    members = {GROUP: frozenset(["s2"])}
    near = wanted(spec={"instance_group": group("affinity")})
    assert rejection(near, twin, [state("host1", members=members), twin]) is not None


# Groups and zones.


def test_groups_hold_over_all_cells() -> None:
    """R1-36: another member is on a host of another cell, which may be disabled or silent."""
    members = {GROUP: frozenset(["s2"])}
    there = state("host5", cell="cell2", members=members)
    near, apart = (wanted(spec={"instance_group": group(policy)}) for policy in ("affinity", "anti-affinity"))
    assert chosen(near, OWN, there) == [("cell2", "host5")]
    assert chosen(apart, there, state("host6", cell="cell2"), OWN, full=("host2",)) == [("cell2", "host6")]
    for fields in ({"cell_disabled": True}, {"cell_away": True}):
        found = among(near, OWN, dataclasses.replace(there, **fields))
        assert found.chosen == []
        assert found.rejected["host2"].reason == "its affinity group is on cell2/host5"


def test_a_zone_that_was_asked_for_binds_over_all_cells() -> None:
    """R1-30."""
    zoned = wanted(spec={"availability_zone": "az2"})
    assert chosen(zoned, OWN, state("host5", cell="cell2", zone="az2")) == [("cell2", "host5")]
    assert chosen(zoned, state("host2", zone="az2"), OTHER) == [("cell1", "host2")]


CELLS = st.lists(
    st.tuples(st.sampled_from(sorted(ANY)), st.integers(0, 90), st.booleans(), st.booleans()), min_size=1, max_size=8
)


@given(CELLS, st.sampled_from([-3.0, 0.0, 3.0]), st.integers(1, 4))
def test_only_hosts_that_pass_are_chosen_those_of_the_preferred_cell_first(
    found: list[tuple[str, int, bool, bool]], multiplier: float, attempts: int
) -> None:
    hosts, offers = [], []
    for number, (where, used, up, disabled) in enumerate(found, 2):
        hosts.append(state(f"host{number}", cell=where, up=up, cell_disabled=disabled))
        offers.append(offer(f"host{number}", used=used))
    # Alone it is told apart: the others spread over 0 to 1 together.
    rules = Rules(multipliers={"cross_cell_move_weight_multiplier": multiplier * 10})
    selection = select(wanted(rules=rules, max_attempts=attempts), offers, hosts)
    passed = {each.host for each in hosts if each.up and (each.cell == "cell1" or not each.cell_disabled)}
    stays = [each.cell == "cell1" for each in hosts if each.host in passed]
    took = [each.cell == "cell1" for each in selection.chosen]
    assert {each.host for each in selection.chosen} <= passed
    assert len(took) == min(attempts, len(passed))
    if multiplier:
        assert took == sorted(stays, reverse=multiplier > 0)[: len(took)]


# Which graph.

RANKED = [{"cell": cell, "host": host} for cell, host in [("c1", "a"), ("c1", "b"), ("c2", "c"), ("c1", "d")]]


@pytest.mark.parametrize(
    ("first", "crosses", "chosen_now"),
    [
        (1, False, "ab"),
        (1, True, ""),
        (2, False, "ab"),
        (3, True, "abc"),
        (3, False, "ab"),
        (4, False, "abcd"),
        (5, True, "abcd"),
    ],
)
def test_alternates_of_the_other_kind_are_left_for_the_next_flow(first: int, *, crosses: bool, chosen_now: str) -> None:
    """In the scheduler's order, and by their numbers in the whole of it."""
    found = offered(RANKED, first, own="c1", crosses=crosses)
    assert "".join(each["host"] for each in found["chosen"]) == chosen_now
    assert found["chosen"] + found["later"] == RANKED
    assert found["first"] == first


def test_each_kind_that_leads_to_a_wait_has_one_across() -> None:
    """Of the others none goes on by another graph."""
    moving = [kind for kind in kinds.KINDS if kind.leads_to_wait]
    for kind in moving:
        other = kinds.of(str(across(kind.name)))
        assert other.crosses_cells != kind.crosses_cells
        assert (other.changes_flavor, across(other.name)) == (kind.changes_flavor, kind.name)
    assert {across(kind.name) for kind in kinds.KINDS if kind not in moving} == {None}


# What the databases say.


@pytest.fixture(name="api_session")
def fixture_api_session() -> Iterator[orm.Session]:
    engine = sa.create_engine("sqlite://")
    api.ApiBase.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(api.InstanceGroup(id=1, uuid=GROUP, name="g1"))
        for number, disabled in ((1, True), (2, None)):
            session.add(
                api.CellMapping(
                    id=number,
                    uuid=str(uuid.uuid4()),
                    name=f"cell{number}",
                    transport_url="none:///",
                    database_connection="sqlite://",
                    disabled=disabled,
                )
            )
        session.flush()
        for host, cell_id in (("host1", 1), ("host5", 2), ("host6", 2)):
            session.add(api.HostMapping(cell_id=cell_id, host=host))
        for server, cell_id in (("s1", 1), ("s2", 2)):
            session.add(api.InstanceGroupMember(instance_uuid=server, group_id=1))
            session.add(api.InstanceMapping(instance_uuid=server, cell_id=cell_id, project_id="p1"))
        session.flush()
        yield session


def present() -> orm.Session:
    engine = sa.create_engine("sqlite://")
    cell.CellBase.metadata.create_all(engine)
    session = orm.Session(engine)
    session.add(cell.Service(host="host1", binary="nova-compute", topic="compute", uuid=str(uuid.uuid4())))
    session.add(
        cell.ComputeNode(
            host="host1", hypervisor_hostname="host1.node", uuid="uuid-host1", vcpus=1, memory_mb=1, local_gb=1,
            vcpus_used=0, memory_mb_used=0, local_gb_used=0, hypervisor_type="QEMU", hypervisor_version=1,
            cpu_info="{}",
        )
    )  # fmt: skip
    session.flush()
    return session


def absent() -> orm.Session:
    return orm.Session(sa.create_engine("sqlite:////nowhere/at/all"))


def test_the_hosts_of_a_cell_that_is_away_are_known_by_their_mappings(api_session: orm.Session) -> None:
    """Each may be the home of a member of the group that is mapped there."""
    found = host_states(api_session, {"cell1": present(), "cell2": absent()}, {"host1", "host5"}, home="cell1")
    assert [(each.host, each.up, each.cell_disabled, each.cell_away) for each in found] == [
        ("host1", True, True, False),
        ("host5", False, False, True),
        ("host6", False, False, True),
    ]
    assert [each.members for each in found] == [{}, {GROUP: {"s2"}}, {GROUP: {"s2"}}]


def test_the_servers_own_cell_is_waited_for(api_session: orm.Session) -> None:
    with pytest.raises(sa.exc.OperationalError):
        host_states(api_session, {"cell1": absent()}, set(), home="cell1")


def test_what_a_cell_has_of_a_server_that_lives_elsewhere() -> None:
    session = present()
    assert copies.standing(session, "s1") == ""
    session.add(cell.Instance(uuid="s1", hidden=True))
    session.flush()
    said = copies.standing(session, "s1")
    assert said.startswith("it has rows of server s1 since 20")
    assert said.endswith(" already, hidden: droveway audit says what they are and how they go")
    session.execute(sa.update(cell.Instance).values(deleted=3))
    assert " already, soft-deleted: " in copies.standing(session, "s1")


# What is asked for.


def test_the_cells_that_a_request_may_lead_to() -> None:
    """R1-03: its own alone, unless servers may leave theirs or one was named."""
    facts = dataclasses.replace(page.MIGRATION, target=None, other_cells={"cell2": "", "cell3": "it has rows"})
    assert facts.cells == {"cell1": ""}
    free = dataclasses.replace(facts, may_leave_cell=True)
    assert free.cells == {"cell1": "", "cell2": "", "cell3": "it has rows"}
    assert dataclasses.replace(free, to_cell="cell2").cells == {"cell2": ""}
    assert dataclasses.replace(free, to_cell="cell1").cells == {"cell1": ""}
    assert dataclasses.replace(free, target=page.HOST2).cells == {"cell1": ""}
    assert dataclasses.replace(free, asked="unshelve").cells == {"cell1": ""}


def test_a_server_that_cannot_leave_its_cell_keeps_that() -> None:
    """Without an error: the others are left out with the reason."""
    facts = dataclasses.replace(page.MIGRATION, target=None, other_cells={"cell2": ""}, may_leave_cell=True)
    bound = dataclasses.replace(facts, bound_to_cell="server web has a share")
    assert refusal(bound) is None
    assert bound.cells == {"cell1": "", "cell2": "server web has a share"}


def test_the_kind_follows_the_chosen_cell() -> None:
    facts = dataclasses.replace(page.RESIZE_TO_LARGE, may_leave_cell=True)
    assert facts.kind == "resize"
    assert dataclasses.replace(facts, chosen_cell="cell2").kind == "cross_cell_resize"
    assert dataclasses.replace(page.MIGRATION, target=None, chosen_cell="cell2").kind == "cross_cell_migrate"
