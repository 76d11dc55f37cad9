"""What narrows and weighs the choice of a destination: traits, aggregates, multipliers; why a host was not offered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rigs.scheduling import GROUP, group, names, offer, packed, request, state

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement
from droveway.conf import settings
from droveway.conf.scheduler import WEIGHED
from droveway.errors import StepError
from droveway.scheduler.candidates import schedule
from droveway.scheduler.filters import Rejection, rejection
from droveway.scheduler.requests import MoveRequest, Rules, query, rules
from droveway.scheduler.select import select
from droveway.scheduler.weighers import WEIGHERS

FAST = {"a1": {"speed": "fast, faster,", "zone": "x"}, "a2": {"speed": "slow"}, "a3": {}}
KEPT = {"a1": {"trait:CUSTOM_GPU": "required", "trait:CUSTOM_B": "forbidden"}}


def image(*traits: str) -> dict[str, Any]:
    return {"image": packed("ImageMeta", {"properties": packed("ImageMetaProps", {"traits_required": list(traits)})})}


# Aggregates.


@pytest.mark.parametrize(
    ("extra_specs", "lacking"),
    [
        ({"aggregate_instance_extra_specs:speed": "fast"}, None),
        ({"aggregate_instance_extra_specs:speed": "faster"}, None),
        ({"aggregate_instance_extra_specs:speed": "slow"}, None),
        ({"aggregate_instance_extra_specs:speed": "<or> warp <or> slow"}, None),
        ({"aggregate_instance_extra_specs:speed": "warp"}, "speed=warp"),
        ({"aggregate_instance_extra_specs:speed": "<or> warp"}, "speed=<or> warp"),
        ({"aggregate_instance_extra_specs:speed": "<or>"}, "speed=<or>"),
        ({"aggregate_instance_extra_specs:speed": "slow <or> warp"}, "speed=slow <or> warp"),
        ({"aggregate_instance_extra_specs:colour": "red"}, "colour=red"),
        ({"aggregate_instance_extra_specs:speed": "fast", "aggregate_instance_extra_specs:zone": "y"}, "zone=y"),
        ({"speed": "warp", "hw:speed": "warp"}, None),
    ],
)
def test_a_flavor_asks_for_an_aggregate_by_its_metadata(extra_specs: dict[str, str], lacking: str | None) -> None:
    """R0-22: the aggregate that a flavor requires."""
    host = state("host2", aggregates=FAST)
    expected = Rejection("AggregateInstanceExtraSpecsFilter", f"none of its aggregates has {lacking}")
    assert rejection(request(extra_specs=extra_specs), host, [host]) == (expected if lacking else None)


def isolated(**fields: Any) -> MoveRequest:
    return request(rules=Rules(isolated_aggregates=True), **fields)


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (request(), True),
        (isolated(), False),
        (isolated(extra_specs={"trait:CUSTOM_GPU": "required"}), True),
        (isolated(spec=image("CUSTOM_GPU")), True),
        (isolated(extra_specs={"trait:CUSTOM_GPU": "forbidden"}), False),
    ],
)
def test_an_isolated_aggregate_takes_only_servers_that_require_its_trait(wanted: MoveRequest, passes: bool) -> None:
    """R0-22: the aggregate that is forbidden to everybody else, when that is configured."""
    host = state("host2", aggregates=KEPT)
    expected = Rejection("IsolateAggregates", "its aggregate is kept for servers that require the trait CUSTOM_GPU")
    assert rejection(wanted, host, [host]) == (None if passes else expected)


def test_placement_is_asked_for_no_host_of_an_isolated_aggregate() -> None:
    pairs = query(isolated(), zone_aggregates=["z"], isolated_aggregates=["b", "a"])
    assert [value for name, value in pairs if name == "member_of"] == ["in:z", "!in:a,b"]


@pytest.mark.parametrize(
    ("metadata", "passes"),
    [
        ([], True),
        ([{"other": "p2"}], True),
        ([{"filter_tenant_id": "p1"}], True),
        ([{"filter_tenant_id": "p2, p1"}], True),
        ([{"filter_tenant_id": "p2"}, {"filter_tenant_id_3": "p1"}], True),
        ([{"filter_tenant_id": "p2"}], False),
        ([{"filter_tenant_id3": "p2,p3"}], False),
        ([{"filter_tenant_id": " "}], True),
    ],
)
def test_a_host_that_is_kept_for_projects_takes_no_others(metadata: list[dict[str, str]], *, passes: bool) -> None:
    """D7: as Nova's AggregateMultiTenancyIsolation does; a configuration may do without."""
    host = state("host2", aggregates={f"a{number}": each for number, each in enumerate(metadata)})
    mine = request(spec={"project_id": "p1"})
    found = rejection(mine, host, [host])
    assert (found is None) == passes
    if found is not None:
        assert (found.filter, found.reason) == (
            "AggregateMultiTenancyIsolation",
            "its aggregate is kept for servers of other projects",
        )
    without = request(spec={"project_id": "p1"}, rules=Rules(tenant_isolation=False))
    assert rejection(without, host, [host]) is None


# Weighers.


def test_a_multiplier_turns_the_choice() -> None:
    """More memory is there on host2, more processors on host3."""
    hosts = [state("host2"), state("host3")]
    roomy, fast = offer("host2"), offer("host3")
    roomy.summaries["p-host2"]["resources"]["VCPU"] = {"capacity": 4, "used": 0}
    fast.summaries["p-host3"]["resources"]["MEMORY_MB"] = {"capacity": 4, "used": 0}

    def first(**multipliers: float) -> str:
        known = {f"{name}_weight_multiplier": value for name, value in multipliers.items()}
        return names(select(request(rules=Rules(multipliers=known)), [roomy, fast], hosts))[0]

    assert first(ram=2.0) == "host2"
    assert first(cpu=2.0) == "host3"
    assert first(ram=0.0) == "host3"
    # Below 0 the fuller host is better.
    assert first(ram=-1.0, cpu=0.0) == "host3"


@pytest.mark.parametrize(("policy", "chosen"), [("soft-affinity", "host3"), ("soft-anti-affinity", "host2")])
def test_a_soft_group_weighs_as_much_as_its_multiplier(policy: str, chosen: str) -> None:
    """Without a weight the group is not heeded, and the host with more room is better."""
    hosts = [state("host2"), state("host3", members={GROUP: frozenset(["s2"])})]
    better, other = ("host2", "host3") if chosen == "host3" else ("host3", "host2")
    offers = [offer(better), offer(other, used=10)]
    option = f"{policy.replace('-', '_')}_weight_multiplier"
    spec = {"instance_group": group(policy)}
    for weight, expected in ((100.0, chosen), (0.0, better)):
        wanted = request(spec=spec, rules=Rules(multipliers={option: weight}))
        assert names(select(wanted, offers, hosts))[0] == expected


def test_an_aggregate_s_own_multiplier_goes_before_for_its_hosts() -> None:
    """Nova takes the least of several, and the configured one where the metadata is no number."""
    offers = [offer("host2", used=10), offer("host3")]
    option = "ram_weight_multiplier"
    only_memory = {f"{name}_weight_multiplier": float(name == "ram") for name in WEIGHERS}

    def first(*metadata: str) -> str:
        aggregates = {f"a{number}": {option: value} for number, value in enumerate(metadata)}
        hosts = [state("host2"), state("host3", aggregates=aggregates)]
        return names(select(request(rules=Rules(multipliers=only_memory)), offers, hosts))[0]

    assert first() == "host3"
    assert first("-1") == first("5", "-1") == "host2"
    assert first("much") == "host3"


def test_the_rules_are_those_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text("[scheduler]\ncpu_weight_multiplier = -2.5\nenable_isolated_aggregate_filtering = true\n")
    found = rules(settings.load(path).scheduler)
    assert found.isolated_aggregates
    assert found.multipliers == {
        f"{name}_weight_multiplier": -2.5 if name == "cpu" else WEIGHED[name][1] for name in WEIGHERS
    }
    assert found.multipliers["cross_cell_move_weight_multiplier"] == 1000000.0


# What Placement did not offer.


@pytest.fixture(scope="module", name="placement")
def fixture_placement(tmp_path_factory: pytest.TempPathFactory) -> Placement:
    placement = Placement(embedded_placement(tmp_path_factory.mktemp("rules") / "placement.sqlite"))
    room = {"VCPU": {"total": 4}, "MEMORY_MB": {"total": 4096}, "DISK_GB": {"total": 100}}
    hosts = {2: ["CUSTOM_A"], 3: ["CUSTOM_A", "CUSTOM_B"], 4: [], 5: ["CUSTOM_A", "COMPUTE_STATUS_DISABLED"]}
    for number, traits in hosts.items():
        small = {"VCPU": {"total": 1}} if number == 4 else {}
        placement.ensure_provider(provider(number), f"host{number}", room | small, traits)
    return placement


def provider(number: int) -> str:
    return f"22222222-2222-4222-8222-22222222222{number}"


HOSTS = [state(f"host{number}", provider=provider(number)) for number in (2, 3, 4, 5)]


def test_what_placement_did_not_offer_has_a_reason(placement: Placement) -> None:
    """R0-22: traits required by image and flavor, a forbidden one, and room, each told by itself."""
    wanted = request(extra_specs={"trait:CUSTOM_B": "forbidden"}, spec=image("CUSTOM_A"))
    selection = schedule(placement, HOSTS, wanted)
    assert names(selection) == ["host2"]
    assert {why.filter for why in selection.rejected.values()} == {"Placement"}
    assert {host: why.reason for host, why in selection.rejected.items()} == {
        "host3": "it has the trait CUSTOM_B",
        "host4": "it lacks the trait CUSTOM_A and has no room for 2 VCPU",
        "host5": "it has the trait COMPUTE_STATUS_DISABLED",
    }


@pytest.mark.parametrize(
    ("extra_specs", "reason"),
    [
        ({"trait:CUSTOM_NEW": "required"}, "host2: it lacks the trait CUSTOM_NEW (Placement)"),
        ({"resources:CUSTOM_NEW": "1"}, "host2: it has no room for 1 CUSTOM_NEW (Placement)"),
    ],
)
def test_what_placement_never_heard_of_nobody_has(
    placement: Placement, extra_specs: dict[str, str], reason: str
) -> None:
    with pytest.raises(StepError) as caught:
        schedule(placement, HOSTS, request(extra_specs=extra_specs))
    assert caught.value.error_code == "no-valid-host"
    assert reason in str(caught.value)


def test_a_forbidden_trait_that_nobody_has_forbids_nothing(placement: Placement) -> None:
    assert names(schedule(placement, HOSTS, request(extra_specs={"trait:CUSTOM_NEW": "forbidden"})))[0] == "host2"


def test_an_image_that_requires_what_the_flavor_forbids_fits_nowhere(placement: Placement) -> None:
    wanted = request(extra_specs={"trait:CUSTOM_A": "forbidden"}, spec=image("CUSTOM_A"))
    with pytest.raises(StepError, match="its image requires the trait CUSTOM_A, which its flavor forbids") as caught:
        schedule(placement, HOSTS, wanted)
    assert caught.value.error_code == "no-valid-host"


def test_one_query_a_demand_is_asked_whatever_the_number_of_hosts(placement: Placement, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    empty = Placement(embedded_placement(tmp_path / "empty.sqlite"), on_request=lambda *call: asked.append(call))
    many = [state(f"host{number}", provider=f"p{number}") for number in range(2, 60)]
    with pytest.raises(StepError, match="no room for 2 VCPU"):
        schedule(empty, many, request())
    assert sorted(asked) == [("GET", "/allocation_candidates"), *[("GET", "/resource_providers")] * 4]
