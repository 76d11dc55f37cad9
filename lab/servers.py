"""Builds, starts, stops and deletes a lab's servers as Nova would do it."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.network import COMPUTE_OWNER
from droveway.errors import NotFound, Refused
from droveway.lab import cloud, disks, guaranteed_ports, server_rows
from droveway.lab.server_rows import NewServer, ServerImage, ServerVolume
from droveway.lab.session import Lab
from droveway.lab.topology import Owner
from droveway.persistence.nova import api, catalog, cell, devices, objects, servers
from droveway.persistence.nova.vm_states import PowerState, TaskState, VmState
from droveway.scheduler.hosts import zone_of
from droveway.workers.directories import Directories
from droveway.workers.hypervisors.base import Port, Volume

STOP_SECONDS = 60.0
"""Seconds that a guest has to shut down, as Nova's shutdown_timeout."""

_SUBNET = "10.0.0.0/16"


def create(lab: Lab, name: str, spec: cloud.Server) -> str:
    """Build the server and return its uuid; when something fails, what was made is removed.

    Raises `droveway.errors.Refused` when the lab has not what the server asks for, or a server of that name.
    """
    server = str(uuid.uuid4())
    host = spec.host or _first_host(lab, str(spec.cell))
    cell_name = lab.host(host).cell
    with contextlib.ExitStack() as undo:
        new = _acquire(lab, server, name, spec, host, undo)
        if spec.offloaded:
            new = _offload(lab, new, undo)
        else:
            new = _claim(lab, new, undo)
            _build_guest(lab, new, undo)
        with lab.api.write() as session:
            server_rows.add_to_api(session, new, cell_name)
        undo.callback(_forget, lab, server)
        with lab.cells.database(cell_name).write() as session:
            server_rows.add_to_cell(session, new, lab.cloud.placement)
        undo.pop_all()
    return server


def start(lab: Lab, found: catalog.Server) -> bool:
    """Start a server that is off, also one whose guest died; False when it runs.

    Raises `droveway.errors.Refused` for a server that has a task, or that is neither active nor stopped.
    """
    return _power(lab, found, VmState.STOPPED, VmState.ACTIVE)


def stop(lab: Lab, found: catalog.Server) -> bool:
    """Stop a server that runs; False when it is off.  Raises `droveway.errors.Refused` as `start` does."""
    return _power(lab, found, VmState.ACTIVE, VmState.STOPPED)


def _power(lab: Lab, found: catalog.Server, before: str, after: str) -> bool:
    starts = after == VmState.ACTIVE
    with _tasked(lab, found, (before, after), TaskState.POWERING_ON if starts else TaskState.POWERING_OFF) as row:
        hypervisor = lab.hypervisor(str(row.host))
        guest = hypervisor.guest(found.id)
        runs = guest is not None and guest.running
        if row.vm_state == after and runs == starts:
            return False
        if starts:
            hypervisor.start(found.id, _unfenced)
        else:
            hypervisor.stop(found.id, grace=STOP_SECONDS, fence=_unfenced)
        with lab.cells.database(found.cell).write() as session:
            own = servers.live(session, found.id)
            own.vm_state = after
            own.power_state = PowerState.RUNNING if starts else PowerState.SHUTDOWN
    return True


@contextlib.contextmanager
def _tasked(lab: Lab, found: catalog.Server, states: tuple[str, str], task: str) -> Iterator[cell.Instance]:
    """Give the server the task for the block, so that no move of it begins, and yield its row as it was then.

    Takes over the task of a start or stop that was killed.  Raises `droveway.errors.Refused` for a server in any other
    task or state.
    """
    before, after = states
    with lab.cells.database(found.cell).write() as session:
        row = servers.find(session, found.id)
        if row.vm_state not in states or row.task_state not in (None, TaskState.POWERING_ON, TaskState.POWERING_OFF):
            raise Refused(
                f"server {found.name} is {row.vm_state} (task: {row.task_state or 'none'}), and only one that is "
                f"{before} or {after} without a task can be started or stopped: droveway server show {found.name}"
            )
        row.task_state = task
        session.flush()
        session.expunge(row)
    try:
        yield row
    finally:
        with contextlib.suppress(NotFound), lab.cells.database(found.cell).write() as session:
            row = servers.find(session, found.id)
            if row.task_state == task:  # else the server is being deleted by now
                row.task_state = None


def _first_host(lab: Lab, cell_name: str) -> str:
    """Return the cell's first host by name; a server that is made shelved is said to have been on it.

    The cloud file names only the cell of such a server, but Nova's rows also name its last host.
    """
    return min(name for name, host in lab.identity.hosts.items() if host.cell == cell_name)


def _offload(lab: Lab, new: NewServer, undo: contextlib.ExitStack) -> NewServer:
    """Change Neutron, Cinder and Glance as a shelve does, and return the server with what has changed.

    The ports lose their bindings. Each volume gets a reserved attachment in place of the connected one. The root disk
    becomes an image, unless it is a volume. For each thing that it makes, it pushes a function onto ``undo`` that
    removes the thing.
    """
    for port in new.ports:
        lab.cloud.network.unbind(port.id, profile={})
    volumes = []
    for volume in new.volumes:
        reserved = lab.cloud.volumes.create_attachment(volume.volume, new.uuid)
        undo.callback(lab.cloud.volumes.delete_attachment, reserved)
        lab.cloud.volumes.delete_attachment(volume.attachment)
        volumes.append(dataclasses.replace(volume, attachment=reserved))
    image = _shelve(lab, new, undo) if new.image is not None and not new.boots_from_volume else None
    return dataclasses.replace(new, volumes=volumes, shelved_image=image)


def _shelve(lab: Lab, new: NewServer, undo: contextlib.ExitStack) -> str:
    """Make the image of the server's root disk, and return its id."""
    image, base = str(uuid.uuid4()), new.image
    if base is None:
        raise ValueError(f"server {new.name} was made from no image")
    traits = {f"trait:{trait}": "required" for trait in base.traits}
    lab.cloud.images.create(
        image,
        name=f"{new.name}-shelved",
        min_disk_gb=max(base.min_disk, new.fields["root_gb"]),
        properties={**traits, "instance_uuid": new.uuid, "image_type": "snapshot", "base_image_ref": base.id},
        owner=new.owner.project,
        visibility="private",
    )
    undo.callback(lab.cloud.images.delete, image)
    with tempfile.TemporaryDirectory(dir=lab.layout.images) as folder:
        path = Path(folder, "disk")
        disks.make_snapshot(path, base=lab.layout.images / base.id, name=new.name)
        lab.cloud.images.upload(image, path)
    return image


def _acquire(lab: Lab, server: str, name: str, spec: cloud.Server, host: str, undo: contextlib.ExitStack) -> NewServer:
    """Get all that the server needs from the services.

    For each thing that it gets, it pushes a function onto ``undo`` that gives the thing back.
    """
    with lab.api.read() as session:
        flavor = servers.flavor(session, spec.flavor)
        zone = zone_of(session, host)
        if spec.group is not None:
            _require_group(session, spec.group)
    fields = objects.flavor_data(flavor)
    names = server_rows.device_names(name, fields, volumes=len(spec.volumes), boots=spec.boots_from_volume)
    free = iter(names["volumes"])
    volumes = [
        _attach(lab, server, f"{name}-{number}", wanted, names["root"][0] if wanted.boot else next(free), host, undo)
        for number, wanted in enumerate(spec.volumes, 1)
    ]
    return NewServer(
        uuid=server,
        name=name,
        owner=Owner(lab.identity.project, lab.identity.user),
        flavor=flavor,
        image=_image(lab, spec.image) if spec.image else None,
        host=host,
        zone=zone,
        requested_zone=spec.az,
        group=spec.group,
        ports=[_bind(lab, server, wanted, host, zone, undo) for wanted in spec.ports],
        volumes=volumes,
        active=spec.state == "active",
        offloaded=spec.offloaded,
    )


def _attach(
    lab: Lab,
    server: str,
    name: str,
    wanted: cloud.Volume,
    device: str,
    host: str,
    undo: contextlib.ExitStack,
) -> ServerVolume:
    volume = lab.cloud.volumes.create_volume(name=name, size_gb=wanted.size_gb, bootable=wanted.boot)
    undo.callback(lab.cloud.volumes.delete_volume, volume)
    if wanted.boot:
        disks.make_bootable(lab.identity.hypervisor, lab.layout.volumes / volume)
    attachment = lab.cloud.volumes.create_attachment(volume, server)
    undo.callback(lab.cloud.volumes.delete_attachment, attachment)
    lab.cloud.volumes.connect(attachment, lab.hypervisor(host).connector(), device)
    lab.cloud.volumes.complete(attachment)
    return ServerVolume(
        volume=volume,
        attachment=attachment,
        shown=lab.cloud.volumes.shown(attachment),
        connection=lab.cloud.volumes.connection_info(attachment),
        device=device,
        boot=wanted.boot,
        size_gb=wanted.size_gb,
        delete_on_termination=wanted.delete_on_termination,
    )


def _bind(lab: Lab, server: str, wanted: cloud.Port, host: str, zone: str, undo: contextlib.ExitStack) -> devices.Port:
    """Make a port of the server; a port that asks Placement for resources is bound later, after the claim."""
    mac = "fa:16:3e:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))
    owner = f"{COMPUTE_OWNER}{zone}"
    network_id, policy = guaranteed_ports.network_and_policy(lab, wanted)
    port = lab.cloud.network.create_port(
        server, mac=mac, network_id=network_id, host="" if policy else host, device_owner=owner, policy=policy
    )
    undo.callback(lab.cloud.network.delete_port, port)
    if wanted.format == "legacy":
        lab.cloud.tell_legacy(port)
    address = f"10.0.{secrets.randbelow(255)}.{secrets.randbelow(253) + 2}"
    subnet = devices.Subnet(cidr=_SUBNET, gateway="10.0.0.1", addresses=(address,))
    network = devices.Network(
        id=network_id,
        label=wanted.network or "lab",
        tenant_id=lab.identity.project,
        subnets=(subnet,),
        tunneled=wanted.network is None,
    )
    return devices.Port(id=port, mac=mac, network=network, active=True)


def _image(lab: Lab, name: str) -> ServerImage:
    for image in lab.cloud.images.images():
        if image.name == name:
            traits = sorted(key.removeprefix("trait:") for key in image.properties if key.startswith("trait:"))
            return ServerImage(image.id, image.name, image.size or 0, image.min_disk_gb, traits)
    raise Refused(f"image {name} is unknown: the lab's images are named in its cloud file")


def _claim(lab: Lab, new: NewServer, undo: contextlib.ExitStack) -> NewServer:
    """Claim what flavor and ports ask for; raises `droveway.errors.StepError` when the host is full."""
    with lab.cells.database(lab.host(new.host).cell).read() as session:
        node = session.scalars(
            sa.select(cell.ComputeNode.uuid).where(cell.ComputeNode.host == new.host, cell.ComputeNode.deleted == 0)
        ).one()
    needs = _needs(new.fields, boots_from_volume=new.boots_from_volume)
    undo.callback(lab.cloud.placement.release, new.uuid)
    asking = guaranteed_ports.asking(lab, new.uuid)
    if asking:
        return guaranteed_ports.claim_and_bind(lab, new, str(node), needs, asking)
    lab.cloud.placement.ensure_allocation(
        new.uuid, {str(node): needs}, project_id=new.owner.project, user_id=new.owner.user
    )
    return new


def _needs(fields: Mapping[str, int], *, boots_from_volume: bool) -> dict[str, int]:
    flavor = cloud.Flavor(
        vcpus=fields["vcpus"],
        memory_mb=fields["memory_mb"],
        root_gb=fields["root_gb"],
        ephemeral_gb=fields["ephemeral_gb"],
        swap_mb=fields["swap"],
    )
    return cloud.needs(flavor, boots_from_volume=boots_from_volume)


def _build_guest(lab: Lab, new: NewServer, undo: contextlib.ExitStack) -> None:
    hypervisor = lab.hypervisor(new.host)
    undo.callback(Directories(hypervisor.instances).remove, new.uuid)
    made = disks.make(hypervisor, new, lab.layout.images)
    volumes = [
        Volume(volume=each.volume, device=each.device, boot=each.boot, connection=dict(each.connection))
        for each in new.volumes
    ]
    ports = [Port(port=each.id, mac=each.mac) for each in new.ports]
    undo.callback(_unready, lab, new)
    for volume in volumes:
        hypervisor.connect_volume(new.uuid, volume)
    for port in ports:
        hypervisor.plug(new.uuid, port)
    sizes = {"vcpus": new.fields["vcpus"], "memory_mb": new.fields["memory_mb"]}
    definition = hypervisor.create_definition(
        server=new.uuid,
        name=f"instance-{new.uuid[:8]}",
        disks=made,
        boot_volume=new.boots_from_volume,
        **sizes,
    )
    hypervisor.define(
        new.uuid,
        definition,
        vcpus=None,
        memory_mb=None,
        disks=made,
        formats={path.name: hypervisor.disk_format for path in made},
        volumes=volumes,
        ports=ports,
        mark=None,
    )
    if new.active:
        hypervisor.start(new.uuid, _unfenced)


def _unready(lab: Lab, new: NewServer) -> None:
    hypervisor = lab.hypervisor(new.host)
    hypervisor.stop(new.uuid, grace=0.0, fence=_unfenced)
    hypervisor.undefine(new.uuid)
    for volume in new.volumes:
        hypervisor.disconnect_volume(new.uuid, volume.volume)
    for port in new.ports:
        hypervisor.unplug(new.uuid, port.id)


def _forget(lab: Lab, server: str) -> None:
    with lab.api.write() as session:
        server_rows.remove_from_api(session, server)


def _require_group(session: orm.Session, name: str) -> None:
    known: Sequence[str | None] = session.scalars(sa.select(api.InstanceGroup.name)).all()
    if name not in known:
        raise Refused(f"group {name} is unknown: the lab's groups are {', '.join(map(str, known)) or 'none'}")


def _unfenced() -> None:
    """Check nothing: the lab's own commands have no claim that another one could have replaced."""
