from __future__ import annotations

from pathlib import Path

import pytest

from droveway.errors import Refused
from droveway.lab import cloud

SMALL = """
cells:
  cell1: {hosts: {host1: {az: az1, traits: [CUSTOM_X]}, host2: {}}}
  cell2: {hosts: {host3: {vcpus: 2, allocation_ratio: {VCPU: 1.0}}}}
flavors: {f: {vcpus: 1, memory_mb: 512, root_gb: 1}, big: {vcpus: 2, memory_mb: 512, root_gb: 1}}
images: {base: {}, large: {size_mb: 2000}}
groups: {g: {policy: anti-affinity}, together: {policy: affinity}}
"""
TOGETHER = (
    "{a: {flavor: f, host: host1, image: base, group: together},"
    " b: {flavor: f, host: host2, image: base, group: together}}"
)


def parse(servers: str) -> cloud.Cloud:
    return cloud.parse_cloud(f"{SMALL}servers:\n  {servers}\n", "x.yaml")


def refusal(text: str) -> str:
    with pytest.raises(Refused) as refused:
        cloud.parse_cloud(text, "x.yaml")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def server_refusal(servers: str) -> str:
    return refusal(f"{SMALL}servers:\n  {servers}\n")


def test_defaults_are_those_of_the_contract() -> None:
    read = parse("s: {flavor: f, host: host2, image: base}")
    host = read.cells["cell1"].hosts["host2"]
    assert (host.vcpus, host.memory_mb, host.disk_gb, host.enabled) == (10, 8192, 100, True)
    assert [host.ratio(resource) for resource in cloud.AMOUNTS] == [4.0, 1.0, 1.0]
    assert read.hypervisor == "sandbox"
    assert (read.options.allow_resize_to_same_host, read.options.max_attempts) == (False, 3)
    assert read.images["base"].size_mb == 16
    assert read.servers["s"].state == "active"
    assert read.servers["s"].ports == ()


def test_a_shelved_server_has_a_cell_and_takes_no_room() -> None:
    """Also in a full host's cell, and beside the other servers of its group."""
    read = parse(
        "{a: {flavor: big, host: host3, image: base, group: g},"
        " b: {flavor: big, cell: cell2, image: base, state: shelved_offloaded, group: g},"
        " c: {flavor: f, host: host1, image: base, group: together},"
        " d: {flavor: f, cell: cell1, image: base, state: shelved_offloaded, group: together, az: az1}}"
    )
    assert [(read.servers[name].cell, read.servers[name].offloaded) for name in "abcd"] == [
        (None, False),
        ("cell2", True),
        (None, False),
        ("cell1", True),
    ]


def test_quotas_are_of_the_lab_or_of_everybody() -> None:
    read = cloud.parse_cloud(f"{SMALL}quotas: {{default: {{cores: 4}}, lab: {{ram_mb: 1024}}}}\n", "x.yaml")
    assert read.quotas.default == cloud.Quota(cores=4)
    assert read.quotas.lab == cloud.Quota(ram_mb=1024)
    assert parse("s: {flavor: f, host: host2, image: base}").quotas == cloud.Quotas()
    assert "known are default, lab" in refusal(f"{SMALL}quotas: {{p-1: {{cores: 4}}}}\n")
    assert "the quota of lab has the unknown key ram; did you mean ram_mb?" in refusal(
        f"{SMALL}quotas: {{lab: {{ram: 4}}}}\n"
    )
    assert "the quota of lab: cores" in refusal(f"{SMALL}quotas: {{lab: {{cores: -1}}}}\n")


def test_the_demos_cloud_holds_every_kind_of_server() -> None:
    demo = cloud.demo_cloud()
    servers = demo.servers.values()
    assert len(demo.cells) == 2
    assert len(list(demo.hosts())) >= 6
    assert 9 <= len(demo.servers) <= 12
    assert {server.state for server in servers} == {"active", "stopped"}
    assert {server.boots_from_volume for server in servers} == {True, False}
    assert any(server.group for server in servers)
    assert any(server.az for server in servers)
    assert any(demo.flavors[server.flavor].ephemeral_gb and demo.flavors[server.flavor].swap_mb for server in servers)


@pytest.mark.parametrize(
    ("text", "wrong", "near"),
    [
        ("cels: {}", "cels", "cells"),
        ("cells: {c: {host: {}}}", "host", "hosts"),
        ("cells: {c: {hosts: {h: {vcpu: 1}}}}", "vcpu", "vcpus"),
        ("cells: {c: {hosts: {h: {}}}}\nflavors: {f: {vcpus: 1, memory: 1, root_gb: 1}}", "memory", "memory_mb"),
        (f"{SMALL}options: {{max_attempt: 1}}", "max_attempt", "max_attempts"),
        (f"{SMALL}servers: {{s: {{flavor: f, host: host1, imag: base}}}}", "imag", "image"),
        (f"{SMALL}servers: {{s: {{flavor: f, host: host1, volumes: [{{size: 1}}]}}}}", "size", "size_gb"),
    ],
)
def test_an_unknown_key_is_named_with_what_is_near(text: str, wrong: str, near: str) -> None:
    message = refusal(text if "flavors" in text else f"{text}\nflavors: {{f: {{vcpus: 1, memory_mb: 1, root_gb: 1}}}}")
    assert f"unknown key {wrong};" in message
    assert f"did you mean {near}?" in message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "no valid YAML"),
        ("- 1", "no mapping"),
        ("flavors: {f: {vcpus: 1, memory_mb: 1, root_gb: 1}}", "cells is missing"),
        ("cells: {c: {hosts: {h: {}}}}", "flavors is missing"),
        ("cells: {c: {hosts: {}}}\nflavors: {f: {vcpus: 1, memory_mb: 1, root_gb: 1}}", "cell c has no hosts"),
        ("cells: {c: {hosts: {h: {}, h: {}}}}", "h stands twice"),
        (SMALL.replace("host3", "host1"), "host host1 stands in cell cell1 and in cell cell2"),
        (SMALL.replace("vcpus: 2", "vcpus: two"), "vcpus: expected `int`"),
        (SMALL.replace("VCPU: 1.0", "VCPUS: 1.0"), "allocation_ratio"),
        (SMALL.replace("CUSTOM_X", "lower"), "trait lower"),
        (SMALL + "aggregates: {nvme: {metadata: {a: 1}}}", "aggregate nvme has no host"),
        (
            SMALL.replace("host2: {}", "host2: {aggregates: [nvme]}")
            + "aggregates: {nvme: {metadata: {availability_zone: az9}}}",
            "aggregate nvme has the metadata availability_zone; give its hosts an az instead",
        ),
        (SMALL.replace("root_gb: 1}", "root_gb: 1000, ephemeral_gb: 200}", 1), "flavor f fits no host"),
        (f"{SMALL}hypervisor: xen", "hypervisor is xen"),
        (SMALL.replace("cell2: {hosts", "../up: {hosts"), "cell ../up has no valid name"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(text: str, named: str) -> None:
    assert named in refusal(text)


@pytest.mark.parametrize(
    ("servers", "named"),
    [
        ("s: {flavor: f, host: hots1, image: base}", "on the host hots1, which the file does not define; did you mean"),
        ("s: {flavor: none, host: host1, image: base}", "the flavor none"),
        ("s: {flavor: f, host: host1, image: bas}", "did you mean base?"),
        ("s: {flavor: f, host: host1, image: base, group: h}", "the group h"),
        ("s: {flavor: f, host: host1}", "neither an image nor a boot volume"),
        ("s: {flavor: f, host: host1, volumes: [{size_gb: 1}]}", "neither an image nor a boot volume"),
        ("s: {flavor: f, host: host1, image: base, volumes: [{size_gb: 1, boot: true}]}", "leave one of the two"),
        (
            "s: {flavor: f, host: host1, volumes: [{size_gb: 1, boot: true}, {size_gb: 1, boot: true}]}",
            "2 boot volumes",
        ),
        ("s: {flavor: f, host: host2, image: base, az: az1}", "asks for the zone az1 and is on host host2"),
        ("s: {flavor: f, host: host1, image: large}", "too small for the image large"),
        ("s: {flavor: f, host: host1, image: base, state: paused}", "state"),
        ("s: {flavor: f, image: base}", "server s has no host; name the one that it is on"),
        ("s: {flavor: f, cell: cell1, image: base}", "server s has no host"),
        ("s: {flavor: f, host: host1, cell: cell1, image: base}", "has the host host1 and the cell cell1; only one"),
        (
            "s: {flavor: f, host: host1, cell: cell1, image: base, state: shelved_offloaded}",
            "is shelved_offloaded and has the host host1; it is on none, so name its cell instead",
        ),
        ("s: {flavor: f, image: base, state: shelved_offloaded}", "is shelved_offloaded and has no cell"),
        (
            "s: {flavor: f, cell: cell3, image: base, state: shelved_offloaded}",
            "in the cell cell3, which the file does",
        ),
        (
            "s: {flavor: f, cell: cell2, image: base, state: shelved_offloaded, az: az1}",
            "the zone az1, in which no host of cell cell2 is",
        ),
        ("s: {flavor: f, cell: cell1, state: shelved_offloaded}", "neither an image nor a boot volume"),
        ("off: {flavor: f, host: host1, image: base}", "server False is no text as YAML reads it; put it in quotes"),
        (
            "{a: {flavor: big, host: host3, image: base}, b: {flavor: f, host: host3, image: base}}",
            "server b does not fit on host host3",
        ),
        (
            "{a: {flavor: f, host: host1, image: base, group: g}, b: {flavor: f, host: host1, image: base, group: g}}",
            "group g allows 1",
        ),
        (
            TOGETHER,
            "group together has affinity",
        ),
    ],
)
def test_a_contradiction_is_refused_in_one_sentence(servers: str, named: str) -> None:
    assert named in server_refusal(servers)


def test_a_trait_that_the_host_lacks_contradicts() -> None:
    text = SMALL.replace("base: {}", "base: {traits: [CUSTOM_X]}")
    assert cloud.parse_cloud(f"{text}servers: {{s: {{flavor: f, host: host1, image: base}}}}", "x").servers["s"]
    assert "needs the trait CUSTOM_X" in refusal(f"{text}servers: {{s: {{flavor: f, host: host2, image: base}}}}")


def test_what_placement_is_asked_for_is_novas_sum() -> None:
    flavor = cloud.Flavor(vcpus=2, memory_mb=1024, root_gb=10, ephemeral_gb=3, swap_mb=1025)
    assert cloud.needs(flavor, boots_from_volume=False) == {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 15}
    assert cloud.needs(flavor, boots_from_volume=True) == {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 5}
    bare = cloud.Flavor(vcpus=1, memory_mb=1, root_gb=1)
    assert cloud.needs(bare, boots_from_volume=True) == {"VCPU": 1, "MEMORY_MB": 1}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read: No such file"):
        cloud.read_cloud(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="not UTF-8"):
        cloud.read_cloud(binary)


def test_the_way_of_disks_and_an_isolated_cell_are_read() -> None:
    text = SMALL.replace("cell2: {", "cell2: {isolated: true, ") + "options: {transfer: image}\n"
    read = cloud.parse_cloud(text, "x.yaml")
    assert (read.options.transfer, parse("{}").options.transfer) == ("image", "auto")
    assert {name: cell.isolated for name, cell in read.cells.items()} == {"cell1": False, "cell2": True}
    assert len(read.cells["cell2"].hosts) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("options: {transfer: maybe}\n" + SMALL, "options: transfer: invalid enum value 'maybe'"),
        (SMALL.replace("cell2: {", "cell2: {isolated: 7, "), "cell cell2: isolated: expected `bool`, got `int`"),
    ],
    ids=["transfer", "isolated"],
)
def test_a_wrong_way_is_named(text: str, why: str) -> None:
    assert why in refusal(text)
