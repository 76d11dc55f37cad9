"""Nova's serialised objects: read and written back unchanged, and built from scratch as a real Nova builds them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from droveway.errors import BadObject
from droveway.persistence.nova import api, devices, objects

Rows = list[tuple[str, dict[str, Any]]]

PROJECT, USER = "d7dc87600a4048b9973ea312a74abca0", "c010cf2981ef4b6896edab201819e5c9"
SERVER, MIGRATED = "98e12d0c-3d25-4f0e-a959-8561e89589e2", "ab5c9c51-8853-4bd7-b75a-eab1ffa9d0c1"

# Keys of the examples that what we build does not have, wherever they stand, and why.
EXCEPTIONS = {
    "nova_object.changes": "optional: names what was unsaved when Nova wrote the row, in the order of a set",
}


def texts(rows: Rows) -> Iterator[tuple[str, Any]]:
    """Yield every JSON text of the examples as (table.column, value)."""
    for table, row in rows:
        for column, value in row.items():
            if isinstance(value, dict):
                yield f"{table}.{column}", value["(JSON text)"]


def envelopes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every versioned object within a JSON value."""
    if isinstance(value, dict) and "nova_object.name" in value:
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from envelopes(part)


def without_exceptions(value: Any) -> Any:
    """Return a JSON value without the keys that EXCEPTIONS names."""
    if isinstance(value, dict):
        return {key: without_exceptions(part) for key, part in value.items() if key not in EXCEPTIONS}
    return [without_exceptions(part) for part in value] if isinstance(value, list) else value


def example(rows: Rows, table: str, column: str, **where: Any) -> Any:
    """Return a copy of the one JSON text of a column in the row that has the given values."""
    (row,) = [row for name, row in rows if name == table and where.items() <= row.items()]
    return copy.deepcopy(row[column]["(JSON text)"])


def flavor(number: int) -> api.Flavor:
    """Return the row of the examples' flavor s1 or s2."""
    flavorid = {1: "0dd69f6d-a65e-469c-958c-b43252406f1f", 2: "a8aac02d-d38a-4f59-9951-4a477cd459df"}[number]
    size = {"memory_mb": 256 * number, "vcpus": number, "root_gb": 1, "ephemeral_gb": 0, "swap": 0, "vcpu_weight": 0}
    flags = {"rxtx_factor": 1.0, "disabled": False, "is_public": True, "description": "for tests"}
    made = datetime(2026, 11, 21, 14, 57, 14)  # noqa: DTZ001 - Nova's columns are naive
    return api.Flavor(id=number, name=f"s{number}", flavorid=flavorid, created_at=made, **size, **flags)


def flavor_object(number: int) -> dict[str, Any]:
    """Return the flavor as a server's JSON columns hold it."""
    return objects.rewrite(objects.flavor_object(flavor(number), {}), "Flavor", {"description": None})


IMAGE = objects.image_meta(
    {
        "id": "101b9a62-79ae-48e9-8ed3-033bcb92f7db",
        "name": "lab",
        "status": "active",
        "checksum": "0f343b0931126a20f133d67c2b018a3b",
        "owner": PROJECT,
        "size": 1024,
        "container_format": "bare",
        "disk_format": "raw",
        "created_at": "2026-11-21T14:57:14Z",
        "updated_at": "2026-11-21T14:57:14Z",
        "min_ram": 0,
        "min_disk": 0,
    },
)


def test_every_json_text_is_read_and_written_unchanged(nova_rows: Rows) -> None:
    seen = list(texts(nova_rows))
    assert len(seen) > 15
    for name, value in seen:
        assert objects.decode(objects.encode(value)) == value, name


def test_every_versioned_object_is_taken_apart_and_packed_unchanged(nova_rows: Rows) -> None:
    found = [packed for _name, value in texts(nova_rows) for packed in envelopes(value)]
    assert {packed["nova_object.name"] for packed in found} >= {"Flavor", "RequestSpec", "MigrationContext"}
    for packed in found:
        assert objects.unpack(packed, packed["nova_object.name"]).pack() == packed
        assert objects.rewrite(packed, packed["nova_object.name"], {}) == packed


def test_every_exception_is_one(nova_rows: Rows) -> None:
    keys = {key for _name, value in texts(nova_rows) for packed in envelopes(value) for key in packed}
    assert EXCEPTIONS.keys() <= keys


def test_flavors_of_a_server_equal_novas(nova_rows: Rows) -> None:
    built = objects.server_flavors(
        objects.flavor_object(flavor(2), {}),
        old=objects.flavor_object(flavor(1), {}),
        new=objects.flavor_object(flavor(2), {}),
    )
    assert built == example(nova_rows, "nova_cell1.instance_extra", "flavor", instance_uuid=SERVER)


def test_request_spec_of_a_new_server_equals_novas(nova_rows: Rows) -> None:
    request = objects.ServerRequest(
        spec_id=420,
        instance_uuid=MIGRATED,
        project_id=PROJECT,
        user_id=USER,
        flavor=flavor_object(1),
        image=IMAGE,
    )
    found = example(nova_rows, "nova_api.request_specs", "spec", instance_uuid=MIGRATED)
    assert without_exceptions(objects.request_spec(request)) == without_exceptions(found)


def test_request_spec_after_a_resize_equals_novas(nova_rows: Rows) -> None:
    before = objects.request_spec(
        objects.ServerRequest(
            spec_id=419,
            instance_uuid=SERVER,
            project_id=PROJECT,
            user_id=USER,
            flavor=flavor_object(1),
            image=IMAGE,
        ),
    )
    changed = {"flavor": flavor_object(2), "pci_requests": objects.pci_requests(instance_uuid=SERVER)}
    found = example(nova_rows, "nova_api.request_specs", "spec", instance_uuid=SERVER)
    assert without_exceptions(objects.change_request_spec(before, changed)) == without_exceptions(found)


def test_changed_request_spec_keeps_the_rest_verbatim(nova_rows: Rows) -> None:
    found = example(nova_rows, "nova_api.request_specs", "spec", instance_uuid=SERVER)
    found["nova_object.version"] = "1.16"
    found["nova_object.data"]["of_a_later_nova"] = {"kept": True}
    before = objects.encode(found)
    changed = objects.change_request_spec(found, {"flavor": flavor_object(1), "availability_zone": "az2"})
    assert changed["nova_object.data"].pop("flavor") == flavor_object(1)
    assert changed["nova_object.data"].pop("availability_zone") == "az2"
    assert objects.encode(found) == before, "the spec that was found must not change"
    for key in ("flavor", "availability_zone"):
        del found["nova_object.data"][key]
    assert changed == found


def test_migration_contexts_equal_novas(nova_rows: Rows) -> None:
    table, column = "nova_cell1.instance_extra", "migration_context"
    built = objects.migration_context(SERVER, 274)
    assert built == without_exceptions(example(nova_rows, table, column, instance_uuid=SERVER))
    built = objects.rewrite(objects.migration_context(MIGRATED, 275), "MigrationContext", {"old_pci_devices": None})
    assert built == without_exceptions(example(nova_rows, table, column, instance_uuid=MIGRATED))


def test_key_pairs_equal_novas(nova_rows: Rows) -> None:
    found = example(nova_rows, "nova_cell1.instance_extra", "keypairs", instance_uuid=SERVER)
    assert objects.key_pairs() == found


def test_network_info_equals_novas(nova_rows: Rows) -> None:
    (row,) = [row for name, row in nova_rows if name == "neutron.ml2_port_bindings" and row["host"] == "c1h2"]
    port = devices.Port(
        id=row["port_id"],
        mac="fa:16:3e:45:a7:b9",
        network=devices.Network(
            id="a24bf6dd-fcf7-4759-a08c-a0a41c3e5073",
            label="rows",
            tenant_id=PROJECT,
            physical_network="physnet1",
            subnets=(devices.Subnet(cidr="10.8.0.0/24", gateway="10.8.0.1", addresses=("10.8.0.136",)),),
        ),
        details=objects.decode(row["vif_details"]) | {"bound_drivers": {"0": "openvswitch"}},
        preserve_on_delete=True,
    )
    found = example(nova_rows, "nova_cell1.instance_info_caches", "network_info", instance_uuid=SERVER)
    assert devices.network_info([port]) == found


@pytest.mark.parametrize(
    ("database", "attachment_id", "status", "attached_at"),
    [
        ("nova_cell1", "5c1aa819-c60a-4bba-aa20-18154054c44a", "attaching", "2026-11-21T15:43:15.000000"),
        ("nova_cell2", "eb927282-bc40-4caf-900f-7419eee29d3f", "reserved", ""),
    ],
)
def test_connection_info_equals_novas(
    nova_rows: Rows, database: str, attachment_id: str, status: str, attached_at: str
) -> None:
    (row,) = [row for name, row in nova_rows if name == "cinder.volume_attachment" and row["id"] == attachment_id]
    shown = {
        "id": attachment_id,
        "volume_id": row["volume_id"],
        "instance": row["instance_uuid"],
        "status": status,
        "attach_mode": "rw",
        "attached_at": attached_at,
        "detached_at": "",
        "connection_info": row["connection_info"]["(JSON text)"],
    }
    table = f"{database}.block_device_mapping"
    found = example(nova_rows, table, "connection_info", attachment_id=attachment_id)
    assert devices.connection_info(shown) == found


def test_a_refreshed_connection_keeps_the_hosts_multipath_id() -> None:
    shown = {"id": "a", "volume_id": "v", "connection_info": {"driver_volume_type": "iscsi", "attachment_id": "a"}}
    previous = {"driver_volume_type": "iscsi", "data": {"multipath_id": "mpatha"}}
    info = devices.connection_info(shown, previous=previous, multiattach=True)
    assert info["data"] == {"multipath_id": "mpatha"}
    assert info["multiattach"] is True
    assert shown["connection_info"] == {"driver_volume_type": "iscsi", "attachment_id": "a"}


def test_server_flavors_have_all_three_keys_and_no_description() -> None:
    described = objects.flavor_object(flavor(1), {"hw:cpu_policy": "shared"})
    assert objects.flavor_data(described)["description"] == "for tests"
    flavors = objects.server_flavors(described)
    assert flavors.keys() == {"cur", "old", "new"}
    assert objects.flavor_data(flavors["cur"])["description"] is None
    assert objects.flavor_data(flavors["cur"])["extra_specs"] == {"hw:cpu_policy": "shared"}
    changed = objects.change_server_flavors(flavors, {"new": objects.flavor_object(flavor(2), {})})
    assert changed == flavors | {"new": flavor_object(2)}
    assert objects.change_server_flavors(changed, {"new": None}) == flavors


def test_what_is_no_such_object_is_refused_by_name() -> None:
    with pytest.raises(BadObject, match=r"Nova's RequestSpec and holds Flavor"):
        objects.change_request_spec(flavor_object(1), {})
    with pytest.raises(BadObject, match=r"keys cur, old and new, not cur"):
        objects.change_server_flavors({"cur": flavor_object(1)}, {})
    with pytest.raises(BadObject, match=r"JSON"):
        objects.decode("{")
    with pytest.raises(BadObject, match=r"no field colour"):
        objects.image_meta({"colour": "red"})


def test_a_group_leaves_out_its_members() -> None:
    row = api.InstanceGroup(id=1, uuid="g", name="g1", project_id=PROJECT, user_id=USER)
    policy = api.InstanceGroupPolicy(policy="anti-affinity", rules='{"max_server_per_host": "1"}')
    data = objects.unpack(objects.server_group(row, policy), "InstanceGroup").data
    assert (data["policy"], data["_rules"]) == ("anti-affinity", {"max_server_per_host": "1"})
    assert data["members"] is None
    assert data["hosts"] is None
