"""Writes the rows that Nova has of a server which was built and has never been moved."""

from __future__ import annotations

import re
import secrets
import string
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from oslo_utils import units
from sqlalchemy import orm

from droveway.clients.placement import Placement
from droveway.errors import Refused
from droveway.lab.topology import Owner
from droveway.persistence.nova import actions, api, cell, devices, objects, usage
from droveway.persistence.nova.vm_states import PowerState, VmState
from droveway.persistence.times import to_json, utcnow

_BUILD_EVENT = "compute__do_build_and_run_instance"
_SHELVE_EVENT = "compute_shelve_instance"
_OFFLOAD_EVENT = "compute_shelve_offload_instance"


@dataclass(frozen=True)
class ServerImage:
    """The image that a server was made from; `size` in bytes, `min_disk` in GiB."""

    id: str
    name: str
    size: int
    min_disk: int
    traits: Sequence[str]


@dataclass(frozen=True)
class ServerVolume:
    """An attached volume of a server; `size_gb` in GiB."""

    volume: str
    attachment: str
    """The id of the attachment that the server has now; a shelve replaces it by a reserved one."""
    shown: Mapping[str, Any]
    """Cinder's whole answer for the attachment by which the volume was connected when the server was built.

    The lab writes it into the server's block device mapping, as Nova does, also for a shelved server.
    """
    connection: Mapping[str, Any]
    """The connection info of the same attachment: how the host reaches the volume, as os-brick takes it."""
    device: str
    boot: bool
    size_gb: int
    delete_on_termination: bool


@dataclass(frozen=True, kw_only=True)
class NewServer:
    """A new server: what was asked for, and what was made for it."""

    uuid: str
    name: str
    owner: Owner
    flavor: Mapping[str, Any]
    """Nova's Flavor object."""
    image: ServerImage | None
    host: str
    """The host that it is on, or that it was on before it was shelved."""
    zone: str
    """The zone of its host."""
    requested_zone: str | None
    group: str | None
    ports: Sequence[devices.Port]
    volumes: Sequence[ServerVolume]
    active: bool
    offloaded: bool = False
    """Whether it is shelved."""
    shelved_image: str | None = None
    """The image with the root disk of a shelved server; None when that disk is a volume."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the flavor's fields."""
        return objects.flavor_data(self.flavor)

    @property
    def boots_from_volume(self) -> bool:
        """Say whether its root disk is a volume."""
        return any(volume.boot for volume in self.volumes)


def device_names(server: str, flavor: Mapping[str, Any], *, volumes: int, boots: bool) -> dict[str, list[str]]:
    """Return Nova's device names on a virtio bus: root, ephemeral, swap, then the other volumes.

    ``boots`` says whether the server boots from a volume.  Raises `droveway.errors.Refused` when it would have more
    disks than there are names.
    """
    counts = {"ephemeral": bool(flavor["ephemeral_gb"]), "swap": bool(flavor["swap"]), "volumes": volumes - boots}
    disks, letters = 1 + sum(counts.values()), string.ascii_lowercase
    if disks > len(letters):
        raise Refused(
            f"server {server} would have {disks} disks, and there are names for {len(letters)}: give it fewer volumes"
        )
    free = iter(letters)
    return {kind: [f"/dev/vd{next(free)}" for _ in range(count)] for kind, count in {"root": 1, **counts}.items()}


def add_to_api(session: orm.Session, server: NewServer, cell_name: str) -> None:
    """Write the mapping, the request spec and the group's member."""
    cell_id = session.scalar(sa.select(api.CellMapping.id).where(api.CellMapping.name == cell_name))
    session.add(
        api.InstanceMapping(
            instance_uuid=server.uuid,
            cell_id=cell_id,
            project_id=server.owner.project,
            user_id=server.owner.user,
            queued_for_delete=False,
        )
    )
    group = _group(session, server)
    if group is not None:
        session.add(api.InstanceGroupMember(instance_uuid=server.uuid, group_id=group[0].id))
    row = api.RequestSpec(instance_uuid=server.uuid, spec="")
    session.add(row)
    session.flush()
    request = objects.ServerRequest(
        spec_id=row.id,
        instance_uuid=server.uuid,
        project_id=server.owner.project,
        user_id=server.owner.user,
        flavor=dict(server.flavor),
        image=_image_meta(server),
        availability_zone=server.requested_zone,
        group=objects.server_group(*group) if group is not None else None,
        scheduler_hints={"group": [group[0].uuid]} if group is not None else None,
        is_bfv=server.boots_from_volume,
        pci_requests=objects.pci_requests(instance_uuid=server.uuid),
    )
    row.spec = objects.encode(objects.request_spec(request))


def remove_from_api(session: orm.Session, server: str) -> None:
    """Remove what `add_to_api` wrote."""
    for table in (api.InstanceMapping, api.InstanceGroupMember, api.RequestSpec):
        session.execute(sa.delete(table).where(table.instance_uuid == server))


def add_to_cell(session: orm.Session, server: NewServer, placement: Placement) -> None:
    """Write the server's rows into its cell's database, and update the usage in the row of its host."""
    node = session.scalars(
        sa.select(cell.ComputeNode).where(cell.ComputeNode.host == server.host, cell.ComputeNode.deleted == 0)
    ).one()
    now = utcnow()
    session.add(_instance(server, node, now))
    session.flush()
    session.add(_extra(server))
    session.add(
        cell.InstanceInfoCache(
            instance_uuid=server.uuid, network_info=objects.encode(devices.network_info(server.ports))
        )
    )
    session.add(cell.InstanceIdMapping(uuid=server.uuid))
    session.add_all(
        cell.InstanceSystemMetadata(instance_uuid=server.uuid, key=key, value=value)
        for key, value in _system_metadata(server).items()
    )
    session.add_all(_block_devices(server))
    session.add_all(
        cell.VirtualInterface(address=f"{port.mac}/{port.id}", uuid=port.id, instance_uuid=server.uuid)
        for port in server.ports
    )
    _ensure_security_group(session, server.owner)
    request = actions.ActionRef(server.uuid, f"req-{server.uuid}")
    actions.begin(session, request, "create", user_id=server.owner.user, project_id=server.owner.project)
    actions.open_event(session, request, _BUILD_EVENT, server.host)
    actions.close_event(session, request, _BUILD_EVENT)
    if server.offloaded:
        _offload(session, server, now)
        return
    reserved = usage.reserved_of(placement.provider_inventories(str(node.uuid)))
    usage.recompute(session, server.host, reserved={server.host: reserved})


def _offload(session: orm.Session, server: NewServer, now: datetime) -> None:
    """Change the rows of a built server to what Nova's rows are after it has shelved and offloaded a server."""
    session.execute(
        sa.update(cell.Instance)
        .where(cell.Instance.uuid == server.uuid)
        .values(
            **dict.fromkeys(("host", "node", "compute_id", "launched_on", "availability_zone")),
            power_state=PowerState.SHUTDOWN,
            vm_state=VmState.SHELVED_OFFLOADED,
        )
    )
    if server.shelved_image is not None:
        names = {"shelved_at": now.isoformat(), "shelved_image_id": server.shelved_image, "shelved_host": server.host}
        session.add_all(
            cell.InstanceSystemMetadata(instance_uuid=server.uuid, key=key, value=value) for key, value in names.items()
        )
    event = _SHELVE_EVENT if server.shelved_image is not None else _OFFLOAD_EVENT
    request = actions.ActionRef(server.uuid, f"req-{uuid.uuid4()}")
    actions.begin(session, request, "shelve", user_id=server.owner.user, project_id=server.owner.project)
    actions.open_event(session, request, event, server.host)
    actions.close_event(session, request, event)


def _instance(server: NewServer, node: cell.ComputeNode, now: datetime) -> cell.Instance:
    flavor = server.fields
    names = _names(server)
    return cell.Instance(
        uuid=server.uuid,
        user_id=server.owner.user,
        project_id=server.owner.project,
        image_ref=server.image.id if server.image else "",
        kernel_id="",
        ramdisk_id="",
        launch_index=0,
        power_state=PowerState.RUNNING if server.active else PowerState.SHUTDOWN,
        vm_state=VmState.ACTIVE if server.active else VmState.STOPPED,
        memory_mb=flavor["memory_mb"],
        vcpus=flavor["vcpus"],
        root_gb=flavor["root_gb"],
        ephemeral_gb=flavor["ephemeral_gb"],
        instance_type_id=flavor["id"],
        hostname=re.sub(r"[^a-z0-9-]", "-", server.name.lower()),
        display_name=server.name,
        host=server.host,
        node=node.hypervisor_hostname,
        compute_id=node.id,
        launched_on=server.host,
        launched_at=now,
        reservation_id=f"r-{secrets.token_hex(4)}",
        availability_zone=server.zone,
        locked=False,
        config_drive="",
        progress=0,
        auto_disk_config=False,
        root_device_name=names["root"][0],
        default_ephemeral_device=next(iter(names["ephemeral"]), None),
        default_swap_device=next(iter(names["swap"]), None),
    )


def _extra(server: NewServer) -> cell.InstanceExtra:
    return cell.InstanceExtra(
        instance_uuid=server.uuid,
        pci_requests="[]",
        flavor=objects.encode(objects.server_flavors(dict(server.flavor))),
        keypairs=objects.encode(objects.key_pairs()),
    )


def _system_metadata(server: NewServer) -> dict[str, str]:
    image = server.image
    metadata = {
        "image_base_image_ref": image.id if image else "",
        "image_min_ram": "0",
        "image_min_disk": str(image.min_disk if image else 0),
        "boot_roles": "member,reader",
        "owner_user_name": "lab",
        "owner_project_name": "lab",
    }
    if image:
        metadata |= {"image_disk_format": "raw", "image_container_format": "bare"}
        metadata |= {f"image_trait:{trait}": "required" for trait in image.traits}
    return metadata


def _block_devices(server: NewServer) -> Iterator[cell.BlockDeviceMapping]:
    names = _names(server)
    if server.image and not server.boots_from_volume:
        yield _local(server, names["root"][0], source_type="image", image_id=server.image.id, boot_index=0)
    flavor = server.fields
    if flavor["ephemeral_gb"]:
        yield _local(server, names["ephemeral"][0], volume_size=flavor["ephemeral_gb"])
    if flavor["swap"]:
        yield _local(server, names["swap"][0], guest_format="swap", volume_size=flavor["swap"])
    for volume in server.volumes:
        yield cell.BlockDeviceMapping(
            instance_uuid=server.uuid,
            uuid=str(uuid.uuid4()),
            source_type="volume",
            destination_type="volume",
            device_name=volume.device,
            delete_on_termination=volume.delete_on_termination,
            volume_id=volume.volume,
            volume_size=volume.size_gb,
            attachment_id=volume.attachment,
            connection_info=objects.encode(devices.connection_info(volume.shown)),
            boot_index=0 if volume.boot else None,
            device_type="disk" if volume.boot else None,
            no_device=None,
        )


def _local(
    server: NewServer,
    device: str,
    *,
    source_type: str = "blank",
    boot_index: int = -1,
    **columns: Any,
) -> cell.BlockDeviceMapping:
    return cell.BlockDeviceMapping(
        instance_uuid=server.uuid,
        uuid=str(uuid.uuid4()),
        source_type=source_type,
        destination_type="local",
        device_name=device,
        device_type="disk",
        delete_on_termination=True,
        boot_index=boot_index,
        no_device=False,
        **columns,
    )


def _names(server: NewServer) -> dict[str, list[str]]:
    return device_names(server.name, server.fields, volumes=len(server.volumes), boots=server.boots_from_volume)


def _image_meta(server: NewServer) -> dict[str, Any]:
    image = server.image
    if image is None:
        # Nova keeps only this of a boot volume that was made from no image.
        size = next(volume.size_gb for volume in server.volumes if volume.boot) * units.Gi
        return objects.image_meta({"min_ram": 0, "min_disk": 0, "size": size, "status": "active"})
    now = to_json(utcnow())
    fields = {
        "id": image.id,
        "name": image.name,
        "status": "active",
        "owner": server.owner.project,
        "size": image.size,
        "container_format": "bare",
        "disk_format": "raw",
        "created_at": now,
        "updated_at": now,
        "min_ram": 0,
        "min_disk": image.min_disk,
    }
    return objects.image_meta(fields, {"traits_required": list(image.traits)} if image.traits else None)


def _group(session: orm.Session, server: NewServer) -> tuple[api.InstanceGroup, api.InstanceGroupPolicy] | None:
    if server.group is None:
        return None
    row = session.execute(
        sa.select(api.InstanceGroup, api.InstanceGroupPolicy)
        .join(api.InstanceGroupPolicy, api.InstanceGroupPolicy.group_id == api.InstanceGroup.id)
        .where(api.InstanceGroup.name == server.group)
    ).one()
    return row[0], row[1]


def _ensure_security_group(session: orm.Session, owner: Owner) -> None:
    found = session.scalar(
        sa.select(cell.SecurityGroup.id).where(
            cell.SecurityGroup.project_id == owner.project, cell.SecurityGroup.name == "default"
        )
    )
    if found is None:
        session.add(
            cell.SecurityGroup(name="default", description="default", user_id=owner.user, project_id=owner.project)
        )
