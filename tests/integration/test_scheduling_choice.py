"""Where a server may go, from end to end: zones, traits, aggregates, ratios and multipliers, and what is said of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.labs.operations import Stage, faults_cleared, stage

from droveway.engines.operations import submit
from droveway.persistence.journal.tables import Plan
from droveway.persistence.nova import servers
from droveway.persistence.nova.cell import Instance

CLOUD = """
cells:
  cell1:
    hosts:
      # Memory is host4's strength, processors are host3's.
      host1: {az: az1, traits: [CUSTOM_A]}
      host2: {az: az1, traits: [CUSTOM_A, CUSTOM_LOUD], aggregates: [ssd]}
      host3: {az: az2, traits: [CUSTOM_A], vcpus: 64, memory_mb: 2048}
      host4: {vcpus: 4, memory_mb: 65536, disk_gb: 50, aggregates: [kept], traits: [CUSTOM_A]}
      host5: {az: az2, vcpus: 2, memory_mb: 2048, allocation_ratio: {VCPU: 2.0}, aggregates: [ssd], enabled: false}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  two: {vcpus: 2, memory_mb: 256, root_gb: 1}
  quiet: {vcpus: 1, memory_mb: 320, root_gb: 1, extra_specs: {"trait:CUSTOM_LOUD": forbidden}}
  gpu: {vcpus: 1, memory_mb: 320, root_gb: 1, extra_specs: {"trait:CUSTOM_GPU": required}}
  flash: {vcpus: 1, memory_mb: 320, root_gb: 1, extra_specs: {"aggregate_instance_extra_specs:ssd": "yes"}}
images: {base: {size_mb: 1}, picky: {size_mb: 1, traits: [CUSTOM_A]}}
aggregates:
  ssd: {metadata: {ssd: "yes"}}
  kept: {metadata: {"trait:CUSTOM_KEPT": required}}
groups: {near: {policy: soft-affinity}, far: {policy: soft-anti-affinity}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  pinned: {flavor: small, host: host1, image: base, state: stopped, az: az1}
  picky: {flavor: small, host: host1, image: picky, state: stopped}
  near1: {flavor: small, host: host1, image: base, state: stopped, group: near}
  near2: {flavor: small, host: host2, image: base, state: stopped, group: near}
  far1: {flavor: small, host: host1, image: base, state: stopped, group: far}
  far2: {flavor: small, host: host2, image: base, state: stopped, group: far}
  half: {flavor: two, host: host5, image: base, state: stopped}
  other: {flavor: two, host: host1, image: base, state: stopped}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("choice") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers where they were."""
    yield built
    built.bring_back()
    built.assert_balanced()


@contextlib.contextmanager
def configured(lab: Stage, **options: Any) -> Iterator[None]:
    """The lab with other options in [scheduler]."""
    files = lab.lab.layout.configuration
    text = files.read_text()
    files.write_text(text + "[scheduler]\n" + "".join(f"{name} = {value}\n" for name, value in options.items()))
    try:
        yield
    finally:
        files.write_text(text)


def plan(lab: Stage, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.json("move", "plan", *words)
    return found


def goes_to(found: dict[str, Any]) -> list[str]:
    return [found["destination"], *found["alternates"]]


def left_out(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Host → filter and reason."""
    return {
        check["host"]: (check["check"], check["detail"].partition(": ")[2])
        for check in found["checks"]
        if not check["ok"]
    }


def rows(lab: Stage, name: str) -> dict[str, Any]:
    """The columns of the server that its moves change, and its request spec."""
    server = lab.id_of(name)
    with lab.lab.api.read() as session:
        spec = servers.request_spec(session, server).spec
    with lab.lab.cell_databases["cell1"].read() as session:
        row = servers.live(session, server)
        columns = [column.name for column in Instance.__table__.columns]
        found = {column: getattr(row, column) for column in columns if column not in ("updated_at", "launched_at")}
    return found | {"spec": spec}


# Zones.


def test_a_zone_that_was_asked_for_binds(lab: Stage) -> None:
    """R1-30: the server stays in it, and each host outside falls out by the filter of that name."""
    found = plan(lab, "pinned")
    assert goes_to(found) == ["host2"]
    assert left_out(found) == {
        "host1": ("IgnoreHosts", "the server is on it"),
        "host3": ("AvailabilityZoneFilter", "it is in zone az2, not az1"),
        "host4": ("AvailabilityZoneFilter", "it is in zone nova, not az1"),
        "host5": ("ComputeFilter", "it is disabled"),
    }
    assert "zone az2, not az1 (AvailabilityZoneFilter)" in lab.refused("server", "migrate", "pinned", "--host", "host3")


@pytest.mark.parametrize(("destination", "zone"), [("host3", "az2"), ("host4", "nova")])
def test_the_zone_follows_the_host_and_returns_on_revert(lab: Stage, destination: str, zone: str) -> None:
    """R1-30: that of a host in none is Nova's default; the rows after the revert are those from before."""
    before = rows(lab, "web")
    assert before["availability_zone"] == "az1"
    lab.cli("server", "migrate", "web", "--host", destination)
    assert rows(lab, "web")["availability_zone"] == zone
    server = lab.id_of("web")
    owners = [port.device_owner for port in lab.lab.cloud.network.ports(server)]
    assert owners == [f"compute:{zone}"]
    lab.cli("server", "revert", "web")
    assert rows(lab, "web") == before


def test_the_zone_returns_when_the_move_is_undone(lab: Stage) -> None:
    """R1-30: its rows had named the destination already, and its zone."""
    before = rows(lab, "web")
    with faults_cleared(lab) as arm:
        arm("switch_records", "fail", phase="after")
        lab.cli("server", "migrate", "web", "--host", "host3", code=3)
    undone = [step.step for step in lab.history(lab.move("web").id) if step.direction == "revert"]
    assert "switch_records" in undone
    assert rows(lab, "web") == before


# Traits and aggregates.


def test_a_forbidden_trait_and_one_that_the_image_requires_leave_hosts_out(lab: Stage) -> None:
    """R0-22: what Placement did not offer is said by its name and the reason."""
    found = plan(lab, "picky", "--flavor", "quiet")
    assert left_out(found)["host2"] == ("Placement", "it has the trait CUSTOM_LOUD")
    provider = lab.json("host", "show", "host4")["node"]
    lab.lab.cloud.placement.ensure_trait(provider, "CUSTOM_A", present=False)
    try:
        assert left_out(plan(lab, "picky"))["host4"] == ("Placement", "it lacks the trait CUSTOM_A")
        assert "host4" not in left_out(plan(lab, "web"))
    finally:
        lab.lab.cloud.placement.ensure_trait(provider, "CUSTOM_A", present=True)


def test_a_required_trait_that_no_host_has_fits_nowhere(lab: Stage) -> None:
    """R0-22: the refusal names the server, each host, and the trait."""
    said = lab.refused("server", "resize", "web", "--flavor", "gpu")
    assert said.startswith("droveway: no host can take the server web (host1: the server is on it (IgnoreHosts); ")
    assert "host3: it lacks the trait CUSTOM_GPU (Placement)" in said
    assert lab.id_of("web") not in said


def test_a_required_aggregate_leaves_the_other_hosts_out(lab: Stage) -> None:
    """R0-22: by the metadata that the flavor asks for."""
    found = plan(lab, "web", "--flavor", "flash")
    assert goes_to(found) == ["host2"]
    reason = ("AggregateInstanceExtraSpecsFilter", "none of its aggregates has ssd=yes")
    assert [left_out(found)[host] for host in ("host3", "host4")] == [reason, reason]


def test_an_isolated_aggregate_is_left_out_when_that_is_configured(lab: Stage) -> None:
    """R0-22: the forbidden aggregate."""
    assert "host4" in goes_to(plan(lab, "web"))
    with configured(lab, enable_isolated_aggregate_filtering="true"):
        assert left_out(plan(lab, "web"))["host4"] == (
            "IsolateAggregates",
            "its aggregate is kept for servers that require the trait CUSTOM_KEPT",
        )


# Room.


def test_a_ratio_lets_a_host_take_more_and_a_reservation_less(lab: Stage) -> None:
    """host5 has 2 VCPU with ratio 2.0: the second server of 2 fits, and not once one VCPU is reserved."""
    provider = lab.json("host", "show", "host5")["node"]
    placement = lab.lab.cloud.placement
    inventories = placement.provider_inventories(provider)
    assert "host5" in left_out(plan(lab, "other"))
    lab.cli("host", "enable", "host5")
    try:
        found = plan(lab, "other", "--to-host", "host5")
        assert goes_to(found) == ["host5"]
        room = next(check["detail"] for check in found["checks"] if check["check"] == "room")
        assert room == "host5 has room for 2 vCPU, 256 MB (2 vCPU, 1792 MB free, allocation ratios counted)"
        reserved = {"VCPU": {**inventories["VCPU"], "reserved": 1}}
        placement.ensure_provider(provider, "host5", inventories | reserved, ["CUSTOM_Y"])
        said = lab.refused("server", "migrate", "other", "--host", "host5")
        assert "host5: it has no room for 2 VCPU (Placement)" in said
    finally:
        placement.ensure_provider(provider, "host5", inventories)
        lab.cli("host", "disable", "host5")


# Weighers.


def test_a_multiplier_changes_the_chosen_host(lab: Stage) -> None:
    """R0-22: most memory is on host4, most processors are on host3."""
    others = {"disk_weight_multiplier": 0}
    with configured(lab, cpu_weight_multiplier=0, **others):
        assert goes_to(plan(lab, "web"))[0] == "host4"
        # The move itself heeds it too.
        lab.cli("server", "migrate", "web")
        assert lab.move("web").dest_host == "host4"
        lab.cli("server", "revert", "web")
    with configured(lab, ram_weight_multiplier=0, **others):
        assert goes_to(plan(lab, "web"))[0] == "host3"
    with configured(lab, ram_weight_multiplier=-1, cpu_weight_multiplier=0, **others):
        assert goes_to(plan(lab, "web"))[0] == "host3"


@pytest.mark.parametrize(
    ("server", "option", "with_group"),
    [("near1", "soft_affinity_weight_multiplier", True), ("far1", "soft_anti_affinity_weight_multiplier", False)],
)
def test_a_soft_group_weighs_and_does_not_bind(lab: Stage, server: str, option: str, with_group: bool) -> None:
    """The other member is on host2, which is chosen first, or last, by the group's multiplier alone."""
    with configured(lab, max_attempts=5, **{option: 100}):
        found = goes_to(plan(lab, server))
        assert (found[0] if with_group else found[-1]) == "host2"
    with configured(lab, max_attempts=5, **{option: -100}):
        found = goes_to(plan(lab, server))
        assert (found[-1] if with_group else found[0]) == "host2"


def test_a_plan_tells_of_each_host_and_stores_what_a_move_needs_of_it(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large cloud a stored plan would otherwise be as long as the list of its hosts."""
    whole = plan(lab, "picky")["checks"]
    assert len(left_out(plan(lab, "picky"))) > 1
    monkeypatch.setattr(submit, "MOST_STORED", len(whole) - 1)
    made = plan(lab, "picky")
    assert made["checks"] == whole
    with lab.lab.journal.read() as session:
        (stored,) = (each for each in session.query(Plan) if each.id.startswith(made["id"]))
    assert stored.body["checks"] == whole[:-1]
    lab.cli("move", "create", "picky", "--from-plan", made["id"])
