"""Every rule that a move, a confirm or a revert has to meet, what feeds the rules, and the page that lists them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.rigs.checked_first import page, refusal

from droveway.clients.network import Network
from droveway.lab import cloud, topology
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import api, catalog, cell, quotas, server_features
from droveway.persistence.nova.server_features import Features
from droveway.scheduler import preconditions
from droveway.scheduler.facts import Facts
from droveway.scheduler.features import unhandled

PROJECT, OTHER, USER = "p-1", "p-2", "u-1"


# Each rule.


def test_every_rule_has_an_example() -> None:
    assert set(page.EXAMPLES) == {rule.name for rule in preconditions.RULES}
    assert set(page.END_EXAMPLES) == {rule.name for rule in preconditions.END_RULES}


@pytest.mark.parametrize("rule", preconditions.RULES, ids=lambda rule: rule.name)
def test_what_breaks_one_rule_is_refused_by_it(rule: preconditions.Rule[Facts]) -> None:
    """R0-10, R0-12, R0-16: in one sentence, which names the thing and what to do."""
    said = refusal(page.EXAMPLES[rule.name])
    assert said is not None
    assert said == rule.check(page.EXAMPLES[rule.name])
    assert "\n" not in said
    assert any(name in said for name in ("web", "host2", "large"))
    assert ": " in said or ". " in said


@pytest.mark.parametrize(
    ("rule", "kind"), [(rule, kind) for rule in preconditions.END_RULES for kind in ("confirm", "revert")]
)
def test_what_breaks_a_rule_of_the_end_is_refused(rule: preconditions.Rule[Any], kind: str) -> None:
    """Of a confirm, of a revert, or of both."""
    said = refusal(page.END_EXAMPLES[rule.name], kind)
    assert (said is not None) == (kind in rule.kinds)
    assert said is None or "\n" not in said


def test_what_breaks_no_rule_is_accepted() -> None:
    assert refusal(page.MIGRATION) is None
    assert refusal(page.RESIZE_TO_LARGE) is None
    assert refusal(page.END, "confirm") is None
    assert refusal(page.END, "revert") is None


def test_all_checks_of_novas_are_answered_in_its_order() -> None:
    """Each of the 25 by a rule, or by the reason why there is none."""
    numbers = [number for rule in preconditions.RULES for number in rule.numbers]
    assert set(numbers) | set(preconditions.NOT_HERE) == set(range(1, 26))
    assert set(numbers) & set(preconditions.NOT_HERE) == set()
    firsts = [rule.numbers[0] for rule in preconditions.RULES if rule.numbers]
    assert firsts == sorted(firsts)
    ends = [rule.numbers[0] for rule in preconditions.END_RULES if rule.numbers]
    assert sorted([*ends, *preconditions.END_NOT_HERE]) == [1, 2, 3, 4, 5]


def test_the_first_rule_that_is_broken_is_the_answer() -> None:
    broken = dataclasses.replace(
        page.RESIZE_TO_LARGE, new=dataclasses.replace(page.LARGE, disabled=True, root_gb=1), features=Features(shares=2)
    )
    assert "2 shares attached" in str(refusal(broken))
    assert "is disabled" in str(refusal(dataclasses.replace(broken, features=Features())))


def test_what_does_not_hinder_a_move() -> None:
    """A lock, for whoever may write the lab is its administrator; and that the server's own host is disabled."""
    locked = dataclasses.replace(page.WEB, locked=True)
    disabled = dataclasses.replace(page.HOST1, enabled=False)
    assert refusal(dataclasses.replace(page.MIGRATION, server=locked, source=disabled)) is None


def test_a_source_that_was_forced_down_is_down() -> None:
    away = dataclasses.replace(page.HOST1, forced_down=True)
    assert "host1, which server web is on, is forced down" in str(
        refusal(dataclasses.replace(page.MIGRATION, source=away))
    )


def test_a_server_on_a_volume_may_have_any_root_disk() -> None:
    on_volume = dataclasses.replace(page.WEB, boots_from_volume=True)
    image = Features(min_disk_gb=40, image_bytes=80 * 1024**3)
    for root in (0, 1):
        new = dataclasses.replace(page.LARGE, root_gb=root)
        facts = dataclasses.replace(page.RESIZE_TO_LARGE, server=on_volume, new=new, features=image)
        assert refusal(facts) is None
    small = dataclasses.replace(facts, features=Features(min_ram_mb=4096))
    assert "needs 4096 MB of memory" in str(refusal(small))


def test_an_image_larger_than_the_new_root_disk_is_refused() -> None:
    """Also where no minimum is set: a server of 0 GB has a disk as large as its image."""
    none = dataclasses.replace(page.SMALL, root_gb=0)
    new = dataclasses.replace(page.LARGE, root_gb=2)
    facts = dataclasses.replace(
        page.RESIZE_TO_LARGE, current=none, new=new, features=Features(image_bytes=2 * 1024**3 + 1)
    )
    assert "needs a root disk of 3 GB" in str(refusal(facts))
    zero = dataclasses.replace(new, root_gb=0)
    assert refusal(dataclasses.replace(facts, new=zero)) is None


def test_a_delete_that_waits_for_the_confirm_does_not_hinder_it() -> None:
    going = dataclasses.replace(page.RESIZED, task_state="deleting")
    assert refusal(dataclasses.replace(page.END, server=going, deleting=True), "confirm") is None
    assert "without a task" in str(refusal(dataclasses.replace(page.END, server=going), "confirm"))


# Devices that a move cannot carry.


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("hw:cpu_policy", "dedicated", "pinned CPUs"),
        ("hw:cpu_policy", "mixed", "pinned CPUs"),
        ("hw:cpu_realtime", "yes", "pinned CPUs"),
        ("hw:numa_nodes", "2", "NUMA cells"),
        ("hw:mem_page_size", "large", "memory pages"),
        ("pci_passthrough:alias", "gpu:1", "PCI devices"),
        ("hw:tpm_version", "2.0", "a vTPM"),
        ("hw:pmem", "6GB", "persistent memory"),
        ("resources:VGPU", "1", "vGPUs"),
        ("resources2:PCPU", "2", "pinned CPUs"),
        ("resources_GPU:PGPU", "1", "vGPUs"),
        ("hw_numa_nodes", "2", "NUMA cells"),
        ("hw_cpu_policy", "dedicated", "pinned CPUs"),
        ("hw_tpm_model", "tpm-crb", "a vTPM"),
    ],
)
def test_what_gives_a_server_devices_is_seen(key: str, value: str, what: str) -> None:
    """In a flavor's extra specs and in an image's properties."""
    found = unhandled("it", {"a": "b", key: value})
    assert found is not None
    assert found.startswith(what)
    assert f"{key}={value}" in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hw:cpu_policy", "shared"),
        ("trait:CUSTOM_X", "required"),
        ("resources:VCPU", "2"),
        ("resources:CUSTOM_X", "1"),
        ("hw_disk_bus", "virtio"),
        ("hw_cpu_policy", "shared"),
        ("min_ram", "512"),
    ],
)
def test_what_gives_it_none_is_not(key: str, value: str) -> None:
    assert unhandled("it", {key: value}) is None


@pytest.mark.parametrize("slot", ["flavor", "image", "new"])
def test_devices_are_refused_wherever_they_are_asked_for(slot: str) -> None:
    specs = {"hw:numa_nodes": "2"}
    facts = {
        "flavor": dataclasses.replace(page.MIGRATION, current=dataclasses.replace(page.SMALL, extra_specs=specs)),
        "image": dataclasses.replace(page.MIGRATION, features=Features(image_properties={"hw_numa_nodes": "2"})),
        "new": dataclasses.replace(page.RESIZE_TO_LARGE, new=dataclasses.replace(page.LARGE, extra_specs=specs)),
    }
    assert "NUMA cells" in str(refusal(facts[slot]))


@pytest.mark.parametrize(
    ("flavor", "image", "refused"),
    [
        ("hw:virtio_packed_ring=false", "hw_virtio_packed_ring=true", True),
        ("hw:virtio_packed_ring=no", "hw_virtio_packed_ring=0", False),
        ("hw:virtio_packed_ring=false", "hw_disk_bus=virtio", False),
        ("hw:vif_multiqueue_enabled=true", "hw_vif_multiqueue_enabled=false", True),
        ("hw:locked_memory=true", "hw_locked_memory=no", True),
        ("hw:mem_encryption=false", "hw_mem_encryption=1", True),
        ("hw:ephemeral_encryption_format=luks", "hw_ephemeral_encryption_format=plain", True),
        ("hw:ephemeral_encryption_format=luks", "hw_ephemeral_encryption_format=luks", False),
    ],
)
def test_a_flavor_that_contradicts_the_image_is_refused(flavor: str, image: str, *, refused: bool) -> None:
    """D5: Nova's FlavorImageConflict."""
    specs, properties = (dict([each.split("=")]) for each in (flavor, image))
    facts = dataclasses.replace(
        page.RESIZE_TO_LARGE,
        new=dataclasses.replace(page.LARGE, extra_specs=specs),
        features=Features(image_properties=properties),
    )
    assert ("contradict each other" in str(refusal(facts))) == refused


# Quotas.


@pytest.mark.parametrize(
    ("resource", "used", "limit", "allowed"),
    [
        (quotas.CORES, 17, 20, True),
        (quotas.CORES, 18, 20, False),
        (quotas.CORES, 1000, quotas.UNLIMITED, True),
        (quotas.CORES, 0, 0, False),
        (quotas.RAM, 49664, 51200, True),
        (quotas.RAM, 49665, 51200, False),
    ],
)
def test_a_resize_grows_within_the_quota(resource: str, used: int, limit: int, allowed: bool) -> None:
    """Three cores and 1536 MB more; what is used already may be more than the limit, as long as nothing grows."""
    held = (page.quota_usage(resource, used, limit),)
    said = refusal(dataclasses.replace(page.RESIZE_TO_LARGE, quota_usages=held))
    assert (said is None) == allowed
    less = dataclasses.replace(page.LARGE, vcpus=1, memory_mb=512)
    assert refusal(dataclasses.replace(page.RESIZE_TO_LARGE, new=less, quota_usages=held)) is None
    assert refusal(dataclasses.replace(page.MIGRATION, quota_usages=held)) is None


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[tuple[Database, list[Database]]]:
    made = Database(sqlite_url(tmp_path / "api.sqlite"))
    api.ApiBase.metadata.create_all(made.engine)
    cells = [Database(sqlite_url(tmp_path / f"cell{number}.sqlite")) for number in (1, 2)]
    for database in cells:
        cell.CellBase.metadata.create_all(database.engine)
    yield made, cells
    for database in (made, *cells):
        database.close()


def instance(vcpus: int, **columns: Any) -> cell.Instance:
    known: dict[str, Any] = {
        "uuid": str(uuid.uuid4()),
        "project_id": PROJECT,
        "user_id": USER,
        "vcpus": vcpus,
        "memory_mb": vcpus * 100,
        "vm_state": "active",
        "deleted": 0,
    }
    return cell.Instance(**known | columns)


def held(databases: tuple[Database, list[Database]]) -> dict[tuple[str, str], tuple[int, int]]:
    made, cells = databases
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(database.read()) for database in cells]
        found = quotas.quota_usages(
            stack.enter_context(made.read()), sessions, project=PROJECT, user=USER, defaults={"cores": 20, "ram": 51200}
        )
    return {(each.owner, each.resource): (each.used, each.limit) for each in found}


def test_what_counts_against_a_quota_is_what_nova_counts(databases: tuple[Database, list[Database]]) -> None:
    """Every cell; not what is deleted, soft-deleted or a hidden copy, nor what is of another project."""
    with databases[1][0].write() as session:
        session.add_all(
            [
                instance(1),
                instance(2, vm_state="resized", hidden=None),
                instance(4, vm_state=None, user_id="u-2"),
                instance(100, deleted=7),
                instance(100, vm_state="soft-delete"),
                instance(100, hidden=True),
                instance(100, project_id=OTHER),
            ]
        )
    with databases[1][1].write() as session:
        session.add(instance(8, vm_state="error"))
    assert held(databases) == {
        ("project p-1", "cores"): (15, 20),
        ("project p-1", "ram"): (1500, 51200),
        ("user u-1", "cores"): (11, 20),
        ("user u-1", "ram"): (1100, 51200),
    }


def test_the_nearest_limit_holds(databases: tuple[Database, list[Database]]) -> None:
    """The options, then the default class, then the project's own, then the user's in the project."""
    limits = [
        ((20, 20), []),
        ((30, 30), [api.QuotaClass(class_name="default", resource="cores", hard_limit=30)]),
        ((40, 40), [api.Quota(project_id=PROJECT, resource="cores", hard_limit=40)]),
        ((40, 5), [api.ProjectUserQuota(project_id=PROJECT, user_id=USER, resource="cores", hard_limit=5)]),
        (
            (40, 5),
            [
                api.QuotaClass(class_name="other", resource="cores", hard_limit=1),
                api.Quota(project_id=OTHER, resource="cores", hard_limit=1),
                api.Quota(project_id=PROJECT, resource="instances", hard_limit=1),
                api.ProjectUserQuota(project_id=PROJECT, user_id="u-2", resource="cores", hard_limit=1),
            ],
        ),
    ]
    for (of_project, of_user), rows in limits:
        with databases[0].write() as session:
            session.add_all(rows)
        found = held(databases)
        assert (found["project p-1", "cores"][1], found["user u-1", "cores"][1]) == (of_project, of_user)
        assert found["project p-1", "ram"][1] == 51200


# What the rows say.


def spec(size: int) -> str:
    image = {"nova_object.data": {"size": size}}
    return json.dumps({"nova_object.data": {"image": image}})


def features(databases: tuple[Database, list[Database]], server: str, **columns: Any) -> Features:
    made, cells = databases
    with made.write() as session:
        session.execute(sa.delete(api.RequestSpec))
        session.add(api.RequestSpec(instance_uuid=server, spec=spec(5)))
    with cells[0].write() as session:
        session.add(instance(1, uuid=server))
        session.flush()
        session.add(cell.InstanceExtra(instance_uuid=server, deleted=0, **columns))
    with made.read() as one, cells[0].read() as other:
        return server_features.features(one, other, server)


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        ({}, ()),
        ({"pci_requests": "[]", "numa_topology": "null", "vpmems": None, "resources": ""}, ()),
        ({"resources": json.dumps({"nova_object.data": {"objects": []}})}, ()),
        ({"pci_requests": '[{"count": 1}]'}, ("pci",)),
        ({"numa_topology": json.dumps({"nova_object.data": {"cells": []}})}, ("numa",)),
        ({"resources": json.dumps({"nova_object.data": {"objects": [{}]}})}, ("resources",)),
        ({"vpmems": '["ns1"]'}, ("resources",)),
    ],
)
def test_devices_are_read_from_the_servers_rows(
    databases: tuple[Database, list[Database]], columns: dict[str, Any], seen: tuple[str, ...]
) -> None:
    found = features(databases, str(uuid.uuid4()), **columns)
    assert tuple(name for name in ("numa", "pci", "resources") if getattr(found, name)) == seen
    assert (found.shares, found.image_bytes) == (0, 5)


def test_shares_and_the_image_are_read_from_rows_of_their_own(
    databases: tuple[Database, list[Database]],
) -> None:
    server = str(uuid.uuid4())
    features(databases, server)
    with databases[1][0].write() as session:
        session.add_all(
            [
                cell.ShareMapping(uuid=str(uuid.uuid4()), instance_uuid=server, share_id="s1", tag="t1"),
                cell.InstanceSystemMetadata(instance_uuid=server, key="image_min_ram", value="64", deleted=0),
                cell.InstanceSystemMetadata(instance_uuid=server, key="image_min_disk", value="3", deleted=0),
                cell.InstanceSystemMetadata(instance_uuid=server, key="image_hw_tpm_model", value="tis", deleted=0),
                cell.InstanceSystemMetadata(instance_uuid=server, key="image_gone", value="x", deleted=9),
                cell.InstanceSystemMetadata(instance_uuid=server, key="owner_user_name", value="x", deleted=0),
            ]
        )
    with databases[0].read() as one, databases[1][0].read() as other:
        found = server_features.features(one, other, server)
    assert (found.shares, found.min_ram_mb, found.min_disk_gb) == (1, 64, 3)
    assert found.image_properties == {"min_ram": "64", "min_disk": "3", "hw_tpm_model": "tis"}


@pytest.mark.parametrize(
    ("column", "metadata", "seen"),
    [
        ("", {}, (False, None)),
        (None, {"shelved_image_id": ""}, (False, None)),
        ("True", {"shelved_image_id": "9a1c"}, (True, "9a1c")),
        ("", {"image_img_config_drive": "mandatory"}, (True, None)),
        ("", {"image_img_config_drive": "optional"}, (False, None)),
    ],
)
def test_a_config_drive_and_the_shelved_image_are_seen(
    databases: tuple[Database, list[Database]],
    column: str | None,
    metadata: dict[str, str],
    seen: tuple[bool, str | None],
) -> None:
    server = str(uuid.uuid4())
    features(databases, server)
    with databases[1][0].write() as session:
        session.execute(sa.update(cell.Instance).where(cell.Instance.uuid == server).values(config_drive=column))
        session.add_all(
            cell.InstanceSystemMetadata(instance_uuid=server, key=key, value=value, deleted=0)
            for key, value in metadata.items()
        )
    with databases[0].read() as one, databases[1][0].read() as other:
        found = server_features.features(one, other, server)
    assert (found.config_drive, found.shelved_image) == seen


@pytest.mark.parametrize(("deleted", "seen"), [(0, True), (1, False)])
def test_a_pci_device_of_the_server_is_seen_in_its_own_row(
    databases: tuple[Database, list[Database]], deleted: int, seen: bool
) -> None:
    server = str(uuid.uuid4())
    features(databases, server)
    with databases[1][0].write() as session:
        topology.add_hosts(session, {"host1": cloud.Host()}, "libvirt")
        session.flush()
        node = session.scalars(sa.select(cell.ComputeNode.id)).one()
        session.add(
            cell.PciDevice(
                compute_node_id=node,
                address="0000:81:00.1",
                product_id="1520",
                vendor_id="8086",
                dev_type="type-VF",
                label="label_8086_1520",
                status="allocated",
                instance_uuid=server,
                deleted=deleted,
            )
        )
    with databases[0].read() as one, databases[1][0].read() as other:
        assert server_features.features(one, other, server).pci is seen


def test_a_private_flavor_is_for_the_projects_that_were_given_it(
    databases: tuple[Database, list[Database]],
) -> None:
    with databases[0].write() as session:
        for number, (name, public) in enumerate((("open", True), ("private", False)), 1):
            session.add(
                api.Flavor(id=number, name=name, flavorid=name, memory_mb=1, vcpus=1, root_gb=1, is_public=public)
            )
        session.flush()
        session.add(api.FlavorProject(flavor_id=2, project_id=PROJECT))
    flavors = {flavor.name: flavor for flavor in catalog.flavors(databases[0])}
    found = {
        (name, project): catalog.may_use(databases[0], flavors[name], project)
        for name, project in itertools.product(flavors, (PROJECT, OTHER))
    }
    assert [pair for pair, may in found.items() if not may] == [("private", OTHER)]


class Neutron:
    """Answers with one port."""

    def __init__(self, **fields: Any) -> None:
        told = {"id": "p", "mac_address": "m", "device_owner": "", "device_id": "s", "binding:profile": {}}
        self._port = told | {"resource_request": None} | fields
        self.asked: list[str] = []

    def request(self, url: str, method: str, **_options: Any) -> Any:
        self.asked.append(url)
        body = {"bindings": []} if url.endswith("bindings") else {"ports": [self._port]}

        class Answer:
            status_code = 200
            text = ""

            @staticmethod
            def json() -> Any:
                return body

        assert method == "GET"
        return Answer()


@pytest.mark.parametrize(
    ("fields", "vnic_type", "needs"),
    [
        ({}, "normal", False),
        ({"binding:vnic_type": "direct", "resource_request": None}, "direct", False),
        ({"resource_request": {"request_groups": []}}, "normal", False),
        ({"resource_request": {"request_groups": [{"id": "g", "resources": {"A": 1}}]}}, "normal", True),
        ({"resource_request": {"resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1}}}, "normal", True),
    ],
)
def test_a_port_tells_its_vnic_type_and_what_it_asks_for(fields: dict[str, Any], vnic_type: str, needs: bool) -> None:
    (port,) = Network(Neutron(**fields)).ports("s")
    assert (port.vnic_type, port.resources is not None) == (vnic_type, needs)


def test_listed_ports_are_asked_for_at_once_and_their_bindings_one_by_one() -> None:
    neutron = Neutron()
    (listed,) = Network(neutron).listed_ports("s")
    assert neutron.asked == ["/ports"]
    (port,) = Network(neutron).ports("s")
    assert neutron.asked == ["/ports", "/ports", "/ports/p/bindings"]
    assert vars(port) == {**vars(listed), "bindings": {}}
