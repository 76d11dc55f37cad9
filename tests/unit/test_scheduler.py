"""The choice of a destination: queries, filters, weighers, alternates, and what the databases say of hosts."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import orm
from support.rigs.scheduling import GROUP, group, names, offer, packed, request, state

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement
from droveway.errors import StepError
from droveway.persistence.nova import api, cell
from droveway.scheduler.candidates import schedule
from droveway.scheduler.filters import Rejection, rejection
from droveway.scheduler.hosts import HostState, host_states
from droveway.scheduler.requests import MoveRequest, ServerGroup, amounts, query
from droveway.scheduler.select import MOST_STORED, Selection, select

ZONE_AGGREGATE = "88888888-8888-4888-8888-888888888888"


# The query.


@pytest.mark.parametrize(
    ("flavor", "boot_from_volume", "expected"),
    [
        ({}, False, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10}),
        ({}, True, {"VCPU": 2, "MEMORY_MB": 512}),
        ({"ephemeral_gb": 3, "swap": 1}, False, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 14}),
        ({"ephemeral_gb": 3, "swap": 1025}, True, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}),
        ({"swap": 1024}, False, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 11}),
        (
            {"extra_specs": {"resources:VCPU": "0", "resources:CUSTOM_X": "3"}},
            True,
            {"MEMORY_MB": 512, "CUSTOM_X": 3},
        ),
        ({"extra_specs": {"hw:cpu_policy": "dedicated"}}, True, {"PCPU": 2, "MEMORY_MB": 512}),
    ],
)
def test_a_flavor_becomes_amounts(flavor: dict[str, Any], boot_from_volume: bool, expected: dict[str, int]) -> None:
    assert amounts(request(flavor=flavor).flavor, boot_from_volume=boot_from_volume) == expected


def test_a_plain_query_forbids_disabled_hosts_and_is_limited() -> None:
    assert query(request()) == [
        ("resources", "DISK_GB:10,MEMORY_MB:512,VCPU:2"),
        ("root_required", "!COMPUTE_STATUS_DISABLED"),
        ("limit", "1000"),
    ]


def test_traits_zone_and_target_are_in_the_query() -> None:
    """R0-22: what flavor and image require is asked of Placement."""
    image = packed("ImageMeta", {"properties": packed("ImageMetaProps", {"traits_required": ["HW_CPU_X86_AVX"]})})
    wanted = request(
        extra_specs={"trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden", "quota:cpu_shares": "1"},
        spec={"image": image},
    )
    assert query(wanted, target_provider="p1", zone_aggregates=["b", "a"]) == [
        ("resources", "DISK_GB:10,MEMORY_MB:512,VCPU:2"),
        ("required", "!CUSTOM_B,CUSTOM_A,HW_CPU_X86_AVX"),
        ("member_of", "in:a,b"),
        ("in_tree", "p1"),
        ("root_required", "!COMPUTE_STATUS_DISABLED"),
    ]


def test_named_groups_of_a_flavor_are_in_the_query() -> None:
    specs = {"resources_a:CUSTOM_X": "1", "resources_b:CUSTOM_X": "2", "trait_b:CUSTOM_T": "required"}
    pairs = dict(query(request(extra_specs=specs)))
    assert (pairs["resources_a"], pairs["resources_b"]) == ("CUSTOM_X:1", "CUSTOM_X:2")
    assert (pairs["required_b"], pairs["group_policy"]) == ("CUSTOM_T", "none")
    assert "required_a" not in pairs
    isolated = dict(query(request(extra_specs={**specs, "group_policy": "isolate"})))
    assert isolated["group_policy"] == "isolate"


def test_no_candidate_is_cut_off_for_a_member_of_a_group() -> None:
    member = request(spec={"instance_group": group("anti-affinity", max_server_per_host=2)})
    assert "limit" not in dict(query(member))
    assert member.group == ServerGroup(GROUP, "anti-affinity", 2)


def test_a_group_of_old_has_its_policy_in_a_list() -> None:
    old = packed("InstanceGroup", {"uuid": GROUP, "policies": ["affinity"]})
    assert request(spec={"instance_group": old}).group == ServerGroup(GROUP, "affinity", 1)


# The filters.


@pytest.mark.parametrize(
    ("wanted", "host", "expected"),
    [
        (request(), state("host2"), None),
        (request(), state("host1"), Rejection("IgnoreHosts", "the server is on it")),
        (request(allow_same_host=True), state("host1"), None),
        (request(), state("host2", up=False), Rejection("ComputeFilter", "it is down")),
        (request(), state("host2", disabled=True, up=False), Rejection("ComputeFilter", "it is disabled")),
        (request(), state("host2", cell="cell2"), Rejection("Cell", "it is in cell cell2")),
        (request(spec={"availability_zone": "az1"}), state("host2", zone="az1"), None),
        (
            request(spec={"availability_zone": "az1"}),
            state("host2"),
            Rejection("AvailabilityZoneFilter", "it is in zone nova, not az1"),
        ),
    ],
)
def test_a_host_passes_or_is_rejected_with_a_reason(
    wanted: MoveRequest, host: HostState, expected: Rejection | None
) -> None:
    selection = select(wanted, [offer(host.host)], [host])
    assert next(iter(selection.rejected.values()), None) == expected
    assert names(selection) == ([] if expected else [host.host])


def with_members(name: str, *servers: str) -> HostState:
    return state(name, members={GROUP: frozenset(servers)})


@pytest.mark.parametrize(
    ("policy", "rules", "members", "expected"),
    [
        ("anti-affinity", {}, {"host2": ["s2"]}, ["host3"]),
        ("anti-affinity", {"max_server_per_host": 2}, {"host2": ["s2"], "host3": ["s3", "s4"]}, ["host2"]),
        ("anti-affinity", {}, {"host2": ["s1"]}, ["host2", "host3"]),
        ("affinity", {}, {"host3": ["s2"]}, ["host3"]),
        ("affinity", {}, {"host1": ["s1"]}, ["host2", "host3"]),
        ("affinity", {}, {"host1": ["s1", "s2"]}, []),
        ("soft-anti-affinity", {}, {"host2": ["s2"]}, ["host3", "host2"]),
        ("soft-affinity", {}, {"host3": ["s2"]}, ["host3", "host2"]),
        ("soft-affinity", {}, {"host3": ["s1"]}, ["host2", "host3"]),
    ],
)
def test_a_server_group_binds_or_weighs(
    policy: str, rules: dict[str, int], members: dict[str, list[str]], expected: list[str]
) -> None:
    hosts = [with_members(name, *members.get(name, [])) for name in ("host1", "host2", "host3")]
    wanted = request(spec={"instance_group": group(policy, **rules)})
    assert names(select(wanted, [offer(host.host) for host in hosts], hosts)) == expected


@pytest.mark.parametrize(
    ("policy", "rules", "hosts", "expected"),
    [
        (
            "anti-affinity",
            {},
            [state("host2", moving={GROUP: frozenset(["s2"])})],
            "its anti-affinity group may have 1",
        ),
        ("anti-affinity", {"max_server_per_host": 2}, [state("host2", moving={GROUP: frozenset(["s2"])})], None),
        # One that lives here and is being moved is one.
        (
            "anti-affinity",
            {"max_server_per_host": 2},
            [state("host2", members={GROUP: frozenset(["s2"])}, moving={GROUP: frozenset(["s1", "s2"])})],
            None,
        ),
        ("affinity", {}, [state("host2", moving={GROUP: frozenset(["s2"])}), with_members("host3", "s2")], "on host3"),
        ("affinity", {}, [state("host2", moving={GROUP: frozenset(["s1"])}), with_members("host1", "s1")], None),
        ("soft-anti-affinity", {}, [with_members("host2", "s2")], None),
    ],
)
def test_a_group_is_asked_again_at_the_destination(
    policy: str, rules: dict[str, int], hosts: list[HostState], expected: str | None
) -> None:
    wanted = request(spec={"instance_group": group(policy, **rules)})
    why = rejection(wanted, hosts[0], hosts, late=True)
    assert (why is None) == (expected is None)
    assert expected is None or expected in str(why)


def test_only_the_group_is_asked_again_at_the_destination() -> None:
    host = state("host1", disabled=True, up=False)
    assert rejection(request(), host, [host]) == Rejection("IgnoreHosts", "the server is on it")
    assert rejection(request(), host, [host], late=True) is None


def test_a_host_that_placement_does_not_offer_has_no_room() -> None:
    selection = select(request(), [offer("host3")], [state("host2"), state("host3")])
    assert names(selection) == ["host3"]
    assert selection.rejected["host2"].filter == "Placement"


# The choice.


def test_the_host_with_most_room_is_first_and_names_settle_a_tie() -> None:
    hosts = [state(f"host{number}") for number in (5, 4, 3, 2)]
    offers = [offer("host5", used=50), offer("host4", used=10), offer("host3", used=50), offer("host2", used=50)]
    assert names(select(request(), offers, hosts)) == ["host4", "host2", "host3"]


def test_each_weigher_counts_as_much_as_the_others() -> None:
    hosts = [state("host2"), state("host3")]
    roomy, fast = offer("host2"), offer("host3")
    roomy.summaries["p-host2"]["resources"] |= {"VCPU": {"capacity": 4, "used": 0}}
    fast.summaries["p-host3"]["resources"] |= {
        "VCPU": {"capacity": 8, "used": 0},
        "MEMORY_MB": {"capacity": 1, "used": 0},
        "DISK_GB": {"capacity": 1, "used": 0},
    }
    assert names(select(request(), [fast, roomy], hosts)) == ["host2", "host3"]


def test_at_most_max_attempts_are_chosen_and_each_host_once() -> None:
    hosts = [state(f"host{number}") for number in range(2, 8)]
    offers = [offer(host.host, number=number) for number in (1, 2) for host in hosts]
    selection = select(request(max_attempts=2), offers, hosts)
    assert [(chosen.host, chosen.request["number"]) for chosen in selection.chosen] == [("host2", 1), ("host3", 1)]
    assert len(select(request(max_attempts=100), offers, hosts).chosen) == 6


def test_a_named_host_is_the_only_one_looked_at_and_its_filters_hold() -> None:
    hosts = [state("host2"), state("host3", up=False)]
    offers = [offer("host2"), offer("host3")]
    assert names(select(request(target_host="host2"), offers, hosts)) == ["host2"]
    selection = select(request(target_host="host3"), offers, hosts)
    assert selection == Selection([], {"host3": Rejection("ComputeFilter", "it is down")})


def test_a_selection_is_plain_json() -> None:
    selection = select(request(), [offer("host2")], [state("host1"), state("host2")])
    as_dict = json.loads(json.dumps(selection.as_dict()))
    assert as_dict["chosen"] == [
        {
            "cell": "cell1",
            "host": "host2",
            "node": "host2.node",
            "provider": "p-host2",
            "request": offer("host2").allocation_request,
        }
    ]
    assert as_dict["rejected"] == {"host1": {"filter": "IgnoreHosts", "reason": "the server is on it"}}


def test_what_a_move_stores_of_a_choice_does_not_grow_with_the_cloud() -> None:
    """The first hosts that were turned down are named, and the others counted by the filter."""
    few, many = (
        select(
            request(),
            [offer("host2")],
            [state("host2"), *(state(f"on{number:04}") for number in range(count))]
            + [state(f"off{number:04}", up=False) for number in range(count)],
        )
        for count in (MOST_STORED // 2, 2500)
    )
    assert (len(many.rejected), len(many.as_dict()["rejected"])) == (5000, MOST_STORED)
    assert many.as_dict()["more"] == {"ComputeFilter": 2500 - MOST_STORED, "Placement": 2500}
    assert few.as_dict()["rejected"] == {
        host: {"filter": why.filter, "reason": why.reason} for host, why in few.rejected.items()
    }
    assert "more" not in few.as_dict()
    sizes = [len(json.dumps(each.as_dict())) for each in (few, many)]
    assert sizes[1] < 2 * sizes[0]


@given(st.permutations(range(2, 7)), st.permutations(range(2, 7)), st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_the_order_of_the_input_does_not_matter(hosts: list[int], offers: list[int], used: list[int]) -> None:
    room = dict(zip(range(2, 7), used, strict=True))
    ordered = [offer(f"host{number}", used=room[number]) for number in range(2, 7)]
    mixed = [offer(f"host{number}", used=room[number]) for number in offers]
    assert select(request(), mixed, [state(f"host{number}") for number in hosts]) == select(
        request(), ordered, [state(f"host{number}") for number in range(2, 7)]
    )


# With Placement.


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scheduler") / "placement.sqlite"
    placement = Placement(embedded_placement(path))
    for number in (1, 2, 3):
        placement.ensure_provider(
            provider(number),
            f"host{number}",
            {"VCPU": {"total": number}, "MEMORY_MB": {"total": 4096}, "DISK_GB": {"total": 100}},
            aggregates=[ZONE_AGGREGATE] if number == 3 else [],
        )
    return path


def provider(number: int) -> str:
    return f"11111111-1111-4111-8111-11111111111{number}"


def real(number: int, **fields: Any) -> HostState:
    return state(f"host{number}", provider=provider(number), **fields)


def test_a_schedule_is_one_candidates_query(database: Path) -> None:
    asked: list[tuple[str, str]] = []
    placement = Placement(embedded_placement(database), on_request=lambda *call: asked.append(call))
    selection = schedule(placement, [real(1), real(2), real(3)], request())
    assert names(selection) == ["host3", "host2"]
    assert asked == [("GET", "/allocation_candidates")]
    assert selection.chosen[0].request["allocations"] == {
        provider(3): {"resources": {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10}}
    }


def test_a_named_host_and_a_zone_narrow_the_query(database: Path) -> None:
    placement = Placement(embedded_placement(database))
    zoned = real(3, zone="az1", zone_aggregates=frozenset([ZONE_AGGREGATE]))
    hosts = [real(1), real(2), zoned]
    assert names(schedule(placement, hosts, request(target_host="host2"))) == ["host2"]
    assert names(schedule(placement, hosts, request(spec={"availability_zone": "az1"}))) == ["host3"]


def test_no_valid_host_says_why_each_fell_out(database: Path) -> None:
    """R0-22: each host is absent for the reason of one named filter."""
    placement = Placement(embedded_placement(database))
    hosts = [real(1), real(2, disabled=True), real(3, up=False), state("host4", cell="cell2"), state("host5")]
    with pytest.raises(StepError) as caught:
        schedule(placement, hosts, request())
    assert caught.value.error_code == "no-valid-host"
    assert str(caught.value) == (
        "no host can take the server web (host1: the server is on it (IgnoreHosts); host2: it is disabled"
        " (ComputeFilter); host3: it is down (ComputeFilter); cell2/host4: it is in cell cell2 (Cell); host5: it has"
        " no room for 10 DISK_GB and has no room for 512 MEMORY_MB and has no room for 2 VCPU (Placement)):"
        " free or enable a host, or choose another flavor"
    )


def test_an_error_names_a_few_hosts_only(database: Path) -> None:
    placement = Placement(embedded_placement(database))
    with pytest.raises(StepError, match="and 12 more"):
        schedule(placement, [state(f"host{number}", up=False) for number in range(2, 22)], request())


def test_an_unknown_host_is_not_asked_for(database: Path) -> None:
    asked: list[tuple[str, str]] = []
    placement = Placement(embedded_placement(database), on_request=lambda *call: asked.append(call))
    with pytest.raises(StepError, match="host9") as caught:
        schedule(placement, [real(1), real(2)], request(target_host="host9"))
    assert caught.value.error_code == "no-valid-host"
    assert asked == []


# What the databases say.


@pytest.fixture
def api_session() -> Iterator[orm.Session]:
    engine = sa.create_engine("sqlite://")
    api.ApiBase.metadata.create_all(engine)
    with orm.Session(engine) as session:
        for number, disabled in ((1, False), (2, False), (3, True)):
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
        for host, cell_id in (("host1", 1), ("host2", 1), ("host3", 2), ("host4", 3)):
            session.add(api.HostMapping(cell_id=cell_id, host=host))
        session.flush()
        yield session


def cell_session(*hosts: str, **service: Any) -> orm.Session:
    engine = sa.create_engine("sqlite://")
    cell.CellBase.metadata.create_all(engine)
    session = orm.Session(engine)
    for host in hosts:
        known: dict[str, Any] = {"binary": "nova-compute", "topic": "compute", "uuid": str(uuid.uuid4())}
        session.add(cell.Service(host=host, **known | service))
        session.add(
            cell.ComputeNode(
                host=host, hypervisor_hostname=f"{host}.node", uuid=f"uuid-{host}", vcpus=1, memory_mb=1, local_gb=1,
                vcpus_used=0, memory_mb_used=0, local_gb_used=0, hypervisor_type="QEMU", hypervisor_version=1,
                cpu_info="{}",
            )
        )  # fmt: skip
    session.flush()
    return session


def test_hosts_of_all_cells_are_seen_with_what_their_rows_say(api_session: orm.Session) -> None:
    cells = {
        "cell1": cell_session("host1", "host2", "unmapped"),
        "cell2": cell_session("host3", disabled=True),
        "cell3": cell_session("host4"),
    }
    found = host_states(api_session, cells, {"host1", "host3"})
    assert [(host.host, host.cell, host.up, host.disabled) for host in found] == [
        ("host1", "cell1", True, False),
        ("host2", "cell1", False, False),
        ("host3", "cell2", True, True),
        ("host4", "cell3", False, False),
    ]
    assert [host.host for host in found if host.cell_disabled] == ["host4"]
    assert (found[0].node, found[0].provider, found[0].zone) == ("host1.node", "uuid-host1", "nova")


def test_a_host_that_was_forced_down_is_down(api_session: orm.Session) -> None:
    found = host_states(api_session, {"cell1": cell_session("host1", forced_down=True)}, {"host1"})
    assert [host.up for host in found] == [False]


def test_deleted_rows_are_no_hosts(api_session: orm.Session) -> None:
    session = cell_session("host1", "host2")
    node = session.scalars(sa.select(cell.ComputeNode).where(cell.ComputeNode.host == "host1")).one()
    node.deleted = node.id
    session.flush()
    assert [host.host for host in host_states(api_session, {"cell1": session}, set())] == ["host2"]


def test_a_zone_comes_from_the_aggregates(api_session: orm.Session) -> None:
    for number, (name, zone) in enumerate([("ssd", None), ("z1", "az1"), ("z1b", "az1")], 1):
        api_session.add(api.Aggregate(id=number, uuid=f"agg-{name}", name=name))
        api_session.flush()
        api_session.add(api.AggregateHost(host="host1", aggregate_id=number))
        key = "availability_zone" if zone else "speed"
        api_session.add(api.AggregateMetadata(aggregate_id=number, key=key, value=zone or "fast"))
    api_session.flush()
    first, second = host_states(api_session, {"cell1": cell_session("host1", "host2")}, set())
    assert (first.zone, first.zone_aggregates) == ("az1", {"agg-z1", "agg-z1b"})
    assert (second.zone, second.zone_aggregates) == ("nova", frozenset())


def test_group_members_are_counted_where_they_live_and_where_they_go(api_session: orm.Session) -> None:
    api_session.add(api.InstanceGroup(id=1, uuid=GROUP, name="g1"))
    api_session.flush()
    for server in ("at-home", "going", "returning", "verifying", "deleted"):
        api_session.add(api.InstanceGroupMember(instance_uuid=server, group_id=1))
    api_session.flush()
    session = cell_session("host1", "host2")
    rows = {"at-home": "host1", "going": "host1", "returning": "host2", "verifying": "host2", "stranger": "host1"}
    for server, host in rows.items():
        session.add(cell.Instance(uuid=server, host=host))
    session.add(cell.Instance(uuid="deleted", host="host1", deleted=77))
    moves = {"going": "migrating", "returning": "reverting", "verifying": "finished", "at-home": "error"}
    for number, (server, status) in zip(itertools.count(), moves.items(), strict=False):
        ends = ("host1", "host2")
        session.add(
            cell.Migration(
                uuid=f"m{number}", instance_uuid=server, source_compute=ends[0], dest_compute=ends[1], status=status
            )
        )
    session.flush()
    first, second = host_states(api_session, {"cell1": session}, set())
    assert first.members == {GROUP: {"at-home", "going"}}
    assert second.members == {GROUP: {"returning", "verifying"}}
    assert first.moving == second.moving == {GROUP: {"going", "returning", "verifying"}}


def test_a_member_on_no_host_counts_nowhere(api_session: orm.Session) -> None:
    """Also where a host has the name that a missing one would be written as."""
    api_session.add(api.InstanceGroup(id=1, uuid=GROUP, name="g1"))
    api_session.flush()
    cell_id = api_session.scalars(sa.select(api.CellMapping.id).where(api.CellMapping.name == "cell1")).one()
    api_session.add(api.HostMapping(cell_id=cell_id, host="None"))
    session = cell_session("host1", "None")
    for server in ("shelved", "choosing"):
        api_session.add(api.InstanceGroupMember(instance_uuid=server, group_id=1))
        session.add(cell.Instance(uuid=server, host=None if server == "shelved" else "host1"))
    session.add(
        cell.Migration(uuid="m1", instance_uuid="choosing", source_compute="host1", dest_compute=None, status="x")
    )
    api_session.flush()
    session.flush()
    nowhere, first = host_states(api_session, {"cell1": session}, set())
    assert (first.members, first.moving) == ({GROUP: {"choosing"}}, {GROUP: {"choosing"}})
    assert (nowhere.members, nowhere.moving) == ({}, {})


def test_a_server_on_no_host_may_go_to_any() -> None:
    found = select(
        request(source_host="", kind="unshelve"), [offer("host1"), offer("host2")], [state("host1"), state("host2")]
    )
    assert names(found) == ["host1", "host2"]
    assert found.rejected == {}


def test_only_the_groups_that_are_asked_for_are_read(api_session: orm.Session) -> None:
    for number, name in enumerate((GROUP, "another"), 1):
        api_session.add(api.InstanceGroup(id=number, uuid=name, name=name))
        api_session.flush()
        api_session.add(api.InstanceGroupMember(instance_uuid=f"of-{name}", group_id=number))
    api_session.flush()
    session = cell_session("host1")
    for name in (GROUP, "another"):
        session.add(cell.Instance(uuid=f"of-{name}", host="host1"))
    session.flush()

    def members(groups: list[str] | None) -> Mapping[str, frozenset[str]]:
        (found,) = host_states(api_session, {"cell1": session}, set(), groups=groups)
        return found.members

    assert members(None) == {GROUP: {f"of-{GROUP}"}, "another": {"of-another"}}
    assert members([GROUP]) == {GROUP: {f"of-{GROUP}"}}
    asked: list[str] = []
    sa.event.listen(session.connection(), "before_cursor_execute", lambda *said: asked.append(said[2]))
    assert members([]) == {}
    assert [said for said in asked if "migrations" in said] == []
