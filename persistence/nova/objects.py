"""Reads and writes the versioned objects that Nova keeps as JSON in its columns, as plain dictionaries.

The JSON is an envelope: it has the object's name, namespace, version and data. If fields had unsaved changes when Nova
wrote it, it also lists their names. The versions below are those of Nova 34. An object that is rewritten keeps its
version and all other fields, because an older Nova fails on a newer version or an unknown field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from droveway.errors import BadObject
from droveway.persistence.nova import api
from droveway.persistence.times import to_json

Json = dict[str, Any]

MIB_PER_GIB = 1024
"""A flavor has its swap in MiB, its other disks in GiB."""

_PREFIX = "nova_object."
_VERSIONS = {
    "Flavor": "1.2",
    "ImageMeta": "1.8",
    "ImageMetaProps": "1.44",
    "InstanceGroup": "1.11",
    "InstancePCIRequests": "1.1",
    "KeyPairList": "1.3",
    "MigrationContext": "1.2",
    "PciDeviceList": "1.3",
    "RequestSpec": "1.15",
    "SchedulerLimits": "1.0",
    "SecurityGroup": "1.2",
    "SecurityGroupList": "1.1",
}
_IMAGE_FIELDS = frozenset(
    {
        "id",
        "name",
        "status",
        "visibility",
        "protected",
        "checksum",
        "owner",
        "size",
        "virtual_size",
        "container_format",
        "disk_format",
        "created_at",
        "updated_at",
        "tags",
        "direct_url",
        "min_ram",
        "min_disk",
    },
)
_FLAVOR_COLUMNS = (
    "id",
    "name",
    "memory_mb",
    "vcpus",
    "root_gb",
    "ephemeral_gb",
    "flavorid",
    "swap",
    "rxtx_factor",
    "vcpu_weight",
    "disabled",
    "is_public",
    "description",
)
_FLAVOR_SLOTS = ("cur", "old", "new")


@dataclass(frozen=True)
class Envelope:
    """Holds the parts of a versioned object; `changes` is None when its JSON has no such key."""

    name: str
    version: str
    data: Json
    changes: list[str] | None = None
    namespace: str = "nova"

    def pack(self) -> Json:
        """Return the object in the form in which Nova writes it."""
        packed = {
            f"{_PREFIX}name": self.name,
            f"{_PREFIX}namespace": self.namespace,
            f"{_PREFIX}version": self.version,
            f"{_PREFIX}data": self.data,
        }
        return packed if self.changes is None else packed | {f"{_PREFIX}changes": self.changes}


def unpack(packed: Mapping[str, Any], name: str) -> Envelope:
    """Return the parts of an object of Nova's class `name`; raise `droveway.errors.BadObject` when it is none."""
    found = packed.get(f"{_PREFIX}name")
    if found != name:
        message = f"A column should hold Nova's {name} and holds {found or 'no versioned object'}; restore the row."
        raise BadObject(message)
    return Envelope(
        name=name,
        namespace=packed[f"{_PREFIX}namespace"],
        version=packed[f"{_PREFIX}version"],
        data=dict(packed[f"{_PREFIX}data"]),
        changes=packed.get(f"{_PREFIX}changes"),
    )


def rewrite(packed: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> Json:
    """Return the object with some fields replaced; everything else, its version too, stays as it is."""
    envelope = unpack(packed, name)
    return replace(envelope, data=envelope.data | dict(fields)).pack()


def encode(value: Any) -> str:
    """Return the text of a JSON column."""
    return json.dumps(value)


def decode(text: str) -> Any:
    """Return the value of a JSON column; raise `droveway.errors.BadObject` when its text is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        message = f"A column that Nova keeps JSON in holds something else ({error}); restore the row."
        raise BadObject(message) from None


def flavor_object(row: api.Flavor, extra_specs: Mapping[str, str]) -> Json:
    """Make the Flavor object of a flavor's row in the API database, with its extra specs."""
    data = {column: getattr(row, column) for column in _FLAVOR_COLUMNS}
    data |= {"extra_specs": dict(extra_specs), "created_at": to_json(row.created_at)}
    return _new("Flavor", data | {"updated_at": to_json(row.updated_at), "deleted_at": None, "deleted": False})


def flavor_data(flavor: Mapping[str, Any]) -> Json:
    """Return the fields of a Flavor object; raise `droveway.errors.BadObject` when it is none."""
    return unpack(flavor, "Flavor").data


def server_flavors(cur: Json, *, old: Json | None = None, new: Json | None = None) -> Json:
    """Return the value of `instance_extra.flavor`: it always has all three keys, and flavors without descriptions."""
    return {"cur": _undescribed(cur), "old": _undescribed(old), "new": _undescribed(new)}


def change_server_flavors(found: Mapping[str, Any], changed: Mapping[str, Json | None]) -> Json:
    """Return the value of `instance_extra.flavor` with the flavors `cur`, `old` or `new` replaced as asked.

    Raises `droveway.errors.BadObject` when one of the three keys is missing, since Nova would fail too, and when
    ``changed`` has another key.
    """
    if any(slot not in found for slot in _FLAVOR_SLOTS) or changed.keys() - _FLAVOR_SLOTS:
        message = f"instance_extra.flavor must have the keys cur, old and new, not {', '.join(found)}; restore the row."
        raise BadObject(message)
    return dict(found) | {slot: _undescribed(flavor) for slot, flavor in changed.items()}


def image_meta(fields: Mapping[str, Any], properties: Mapping[str, Any] | None = None) -> Json:
    """Make an ImageMeta object; a field that is not given stays unset, as Nova does it for the image of a volume.

    Raises `droveway.errors.BadObject` for a field that Nova does not know.
    """
    if unknown := fields.keys() - _IMAGE_FIELDS:
        message = f"Nova's ImageMeta has no field {', '.join(sorted(unknown))}; give known image fields."
        raise BadObject(message)
    return _new("ImageMeta", dict(fields) | {"properties": _new("ImageMetaProps", dict(properties or {}))})


def pci_requests(*, instance_uuid: str | None = None) -> Json:
    """Make an InstancePCIRequests object without any request.

    `instance_uuid` is given only where Nova sets it too, which is not the case when a server is first scheduled.
    """
    data: Json = {} if instance_uuid is None else {"instance_uuid": instance_uuid}
    return _new("InstancePCIRequests", data | {"requests": []})


def key_pairs() -> Json:
    """Make the KeyPairList object of a server without key pairs."""
    return _new("KeyPairList", {"objects": []})


def server_group(row: api.InstanceGroup, policy: api.InstanceGroupPolicy) -> Json:
    """Make the InstanceGroup object for a request spec, without members and hosts: Nova reads these when scheduling."""
    data = {column: getattr(row, column) for column in ("id", "user_id", "project_id", "uuid", "name")}
    data |= {"policy": policy.policy, "_rules": decode(policy.rules) if policy.rules else {}}
    data |= {"members": None, "hosts": None, "deleted_at": None, "deleted": False}
    times = {"created_at": to_json(row.created_at), "updated_at": to_json(row.updated_at)}
    return _new("InstanceGroup", data | times)


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """Holds what a request spec says of a server; `flavor`, `image` and `group` are versioned objects."""

    spec_id: int
    instance_uuid: str
    project_id: str
    user_id: str
    flavor: Json
    image: Json
    availability_zone: str | None = None
    group: Json | None = None
    scheduler_hints: Mapping[str, list[str]] | None = None
    is_bfv: bool = False
    pci_requests: Json | None = None


def request_spec(request: ServerRequest) -> Json:
    """Make a RequestSpec object; the fields that Nova sets only while it schedules are null."""
    groups = [_new("SecurityGroup", {"name": "default"})]
    limits = dict.fromkeys(("numa_topology", "vcpu", "disk_gb", "memory_mb"))
    data: Json = dict.fromkeys(
        ("numa_topology", "ignore_hosts", "force_hosts", "force_nodes", "requested_destination", "retry"),
    )
    data |= {
        "id": request.spec_id,
        "image": request.image,
        "pci_requests": pci_requests() if request.pci_requests is None else request.pci_requests,
        "project_id": request.project_id,
        "user_id": request.user_id,
        "availability_zone": request.availability_zone,
        "flavor": request.flavor,
        "num_instances": 1,
        "limits": _new("SchedulerLimits", limits),
        "instance_group": request.group,
        "scheduler_hints": dict(request.scheduler_hints or {}),
        "instance_uuid": request.instance_uuid,
        "security_groups": _new("SecurityGroupList", {"objects": groups}),
        "is_bfv": request.is_bfv,
        "requested_resources": [],
    }
    return _new("RequestSpec", data)


def change_request_spec(found: Mapping[str, Any], fields: Mapping[str, Any]) -> Json:
    """Return a RequestSpec with some fields replaced, such as `flavor` or `availability_zone`; the rest is kept."""
    return rewrite(found, "RequestSpec", fields)


def migration_context(instance_uuid: str, migration_id: int) -> Json:
    """Make the MigrationContext object of a server without NUMA topology, PCI devices or other resources.

    `migration_id` is the id of the migration in the same cell.
    """
    data: Json = dict.fromkeys(("new_numa_topology", "old_numa_topology", "new_resources", "old_resources"))
    data |= {"instance_uuid": instance_uuid, "migration_id": migration_id}
    for side in ("new", "old"):
        data[f"{side}_pci_devices"] = _new("PciDeviceList", {"objects": []})
    for side in ("new", "old"):
        data[f"{side}_pci_requests"] = pci_requests(instance_uuid=instance_uuid)
    return _new("MigrationContext", data)


def _new(name: str, data: Json) -> Json:
    return Envelope(name, _VERSIONS[name], data).pack()


def _undescribed(flavor: Json | None) -> Json | None:
    return None if flavor is None else rewrite(flavor, "Flavor", {"description": None})
