"""What Nova does to a server beside Droveway, planted in a lab as a real one leaves it: rows, services and hosts."""

from __future__ import annotations

import collections
import contextlib
import json
import shutil
import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from support.labs import guaranteed_clouds
from support.labs.guaranteed import AGENT, PACKETS, provider
from support.labs.operations import Stage

from droveway.errors import DestinationFault, StepError
from droveway.persistence.nova import cell, deletion, devices, mappings, objects, usage
from droveway.persistence.nova.api import RequestSpec
from droveway.persistence.nova.cell import BlockDeviceMapping, Instance, InstanceExtra, Migration
from droveway.workers.hypervisors.base import Port, Volume

CELL = "cell1"
"""Where a server without a mapping is looked for."""


class Once:
    """A probe that does something at one boundary of one step, once, and may let another step fail."""

    def __init__(self, step: str, direction: str, phase: str, act: Callable[[], None], *, fails: str = "") -> None:
        self.at = (step, direction, phase)
        self.act = act
        self.fails = fails
        self.done = False

    def __call__(self, _move: str, step: str, direction: str, phase: str) -> None:
        if not self.done and (step, direction, phase) == self.at:
            self.done = True
            self.act()
        # Before the point of no return, else after the step.
        if (step, direction) == (self.fails, "execute") and phase == ("before" if step == "start_guest" else "after"):
            kind = DestinationFault if step == "start_guest" else StepError
            raise kind(f"{step} broke", code="fault", host="")


class Nova:
    """Acts on one server of a lab."""

    MIGRATION = Migration

    def __init__(self, lab: Stage, name: str) -> None:
        self.stage, self.lab, self.name = lab, lab.lab, name
        self.server = lab.id_of(name)
        self.was = self._columns()
        """The server's row and its instance_extra as they were at first, and its request spec."""

    @property
    def cell(self) -> str:
        """The cell that the server is mapped to: there Nova acts."""
        with self.lab.api.read() as session:
            return mappings.cell_of(session, self.server) or CELL

    @property
    def host(self) -> str:
        """The host that the server's row names."""
        return str(self.stage.server(self.name).host)

    def update(self, model: Any, where: Any, **values: Any) -> None:
        """Write columns of the rows of the cell."""
        with self.lab.cell_databases[self.cell].write() as session:
            session.execute(sa.update(model).where(where).values(**values))

    def set(self, **values: Any) -> None:
        """Write columns of the server's row."""
        self.update(Instance, Instance.uuid == self.server, **values)

    def column(self, name: str) -> Any:
        """A column of the server's row."""
        with self.lab.cell_databases[self.cell].read() as session:
            return session.scalar(sa.select(getattr(Instance, name)).where(Instance.uuid == self.server))

    def migration(self, move: str) -> str | None:
        """The status of the move's migration."""
        with self.lab.cell_databases[self.cell].read() as session:
            return session.scalar(sa.select(Migration.status).where(Migration.uuid == move))

    def volumes(self) -> dict[str, tuple[str, str | None]]:
        """Each volume of the server's rows: its attachment, and the host that Cinder says of that one."""
        query = sa.select(BlockDeviceMapping.volume_id, BlockDeviceMapping.attachment_id).where(
            BlockDeviceMapping.instance_uuid == self.server,
            BlockDeviceMapping.volume_id.is_not(None),
            BlockDeviceMapping.deleted == 0,
        )
        hosts = {each.id: each.host for each in self.lab.cloud.volumes.for_server(self.server)}
        with self.lab.cell_databases[self.cell].read() as session:
            return {row.volume_id: (row.attachment_id, hosts.get(row.attachment_id)) for row in session.execute(query)}

    def attach_volume(self, device: str = "/dev/vdx") -> str:
        """Nova's attach on the server's host; the volume."""
        host, volumes = self.lab.hypervisor(self.host), self.lab.cloud.volumes
        volume = volumes.create_volume(name=f"late-{uuid.uuid4().hex[:6]}", size_gb=1)
        attachment = volumes.create_attachment(volume, self.server)
        volumes.connect(attachment, host.connector(), device)
        volumes.complete(attachment)
        connection = volumes.connection_info(attachment)
        with self.lab.cell_databases[self.cell].write() as session:
            session.add(
                BlockDeviceMapping(
                    instance_uuid=self.server,
                    uuid=str(uuid.uuid4()),
                    source_type="volume",
                    destination_type="volume",
                    device_name=device,
                    delete_on_termination=False,
                    volume_id=volume,
                    volume_size=1,
                    attachment_id=attachment,
                    connection_info=objects.encode(devices.connection_info(volumes.shown(attachment))),
                    boot_index=None,
                    no_device=None,
                )
            )
        used = Volume(volume=volume, device=device, boot=False, connection=connection)
        host.connect_volume(self.server, used)
        local = json.loads(json.dumps({"volume": volume, "device": device, "boot": False, "path": volume}))
        self._define(lambda guest: guest["volumes"].append(local))
        return volume

    def detach_volume(self, volume: str) -> None:
        """Nova's detach on the server's host."""
        attachment = self.volumes()[volume][0]
        self.lab.hypervisor(self.host).disconnect_volume(self.server, volume)
        self._define(lambda guest: _without(guest, "volumes", "volume", volume))
        self.lab.cloud.volumes.delete_attachment(attachment)
        row = BlockDeviceMapping
        self.update(row, sa.and_(row.volume_id == volume, row.instance_uuid == self.server), deleted=row.id)

    def swap_volume(self, volume: str) -> str:
        """Nova's swap: the same device, another volume; the new one."""
        with self.lab.cell_databases[self.cell].read() as session:
            device = session.scalar(
                sa.select(BlockDeviceMapping.device_name).where(
                    BlockDeviceMapping.volume_id == volume, BlockDeviceMapping.deleted == 0
                )
            )
        self.detach_volume(volume)
        return self.attach_volume(str(device))

    def attach_port(self) -> str:
        """Nova's attach of an interface on the server's host; the port."""
        port, mac = self._make_port(network_id=self.lab.identity.network, host=self.host)
        self._plug(port, mac)
        return port

    def attach_guaranteed_port(self) -> str:
        """The same with a port that is guaranteed something, as in a cloud file of `guaranteed_clouds`."""
        known = self.lab.cloud.network
        network = known.named("/networks", guaranteed_clouds.NAME)
        policy = known.named("/qos/policies", guaranteed_clouds.NAME)
        port, mac = self._make_port(network_id=str(network), host="", policy=policy)
        agent = f"{self.host}:{AGENT}"
        (asked,) = [each.resources for each in known.listed_ports(self.server) if each.id == port]
        assert asked is not None
        givers = {
            group.id: provider(
                self.stage, agent if PACKETS in group.resources else f"{agent}:{guaranteed_clouds.BRIDGE}"
            )
            for group in asked.groups
        }
        placement = self.lab.cloud.placement
        found = placement.allocations(self.server)
        held = {giver: collections.Counter(amounts) for giver, amounts in found.allocations.items()}
        for group in asked.groups:
            held.setdefault(givers[group.id], collections.Counter()).update(group.resources)
        wanted = {"allocations": {giver: {"resources": dict(amounts)} for giver, amounts in held.items()}}
        placement.rewrite(
            {self.server: (found, wanted, found.consumer_type)}, project_id=found.project_id, user_id=found.user_id
        )
        known.bind(port, self.host, profile={"allocation": givers}, device_owner="compute:nova")
        self._plug(port, mac)
        return port

    def _make_port(self, **facts: Any) -> tuple[str, str]:
        mac = "fa:16:3e:" + ":".join(uuid.uuid4().hex[at : at + 2] for at in (0, 2, 4))
        port = self.lab.cloud.network.create_port(self.server, mac=mac, device_owner="compute:nova", **facts)
        return port, mac

    def _plug(self, port: str, mac: str) -> None:
        self.lab.hypervisor(self.host).plug(self.server, Port(port=port, mac=mac))
        self._define(lambda guest: guest["ports"].append({"port": port, "mac": mac}))

    def delete_port(self, port: str) -> None:
        """A tenant deletes a port, and the host of the server that Nova knows of unplugs it."""
        self.lab.cloud.network.delete_port(port)
        self.lab.hypervisor(self.host).unplug(self.server, port)
        self._define(lambda guest: _without(guest, "ports", "port", port))

    def detach_port(self, port: str) -> None:
        """Nova's detach of an interface that its user had made: the port stays, and is no server's."""
        self.lab.hypervisor(self.host).unplug(self.server, port)
        self._define(lambda guest: _without(guest, "ports", "port", port))
        network = self.lab.cloud.network
        for host in self.ports()[port]:
            network.delete_binding(port, host)
        with contextlib.closing(sqlite3.connect(self.lab.layout.services, timeout=30)) as services, services:
            services.execute("UPDATE ports SET server = '', device_owner = '' WHERE id = ?", (port,))

    def delete_port_alone(self, port: str) -> None:
        """A tenant deletes a port while no host is told of it."""
        self.lab.cloud.network.delete_port(port)

    def ports(self) -> dict[str, dict[str, str]]:
        """Each port of the server with its bindings."""
        return {port.id: dict(port.bindings) for port in self.lab.cloud.network.ports(self.server)}

    def confirm(self, move: str) -> None:
        """Nova's own confirm, as the source's nova-compute carries it out."""
        source = self.stage.move(self.name).source_host
        host = self.lab.hypervisor(source)
        if source != self.host:
            host.undefine(self.server)
        shutil.rmtree(self.lab.layout.host(source) / "instances" / f"{self.server}_resize")
        self.lab.cloud.placement.release(move)
        runs = any(guest.server == self.server and guest.running for guest in self.lab.hypervisor(self.host).guests())
        self._end(move, "confirmed", power_state=1 if runs else 4, vm_state="active" if runs else "stopped")

    def revert(self, move: str) -> None:
        """Nova's own revert, as both nova-computes carry it out."""
        source, left = self.stage.move(self.name).source_host, self.host
        old, new = self.lab.hypervisor(left), self.lab.hypervisor(source)
        old.stop(self.server, grace=0.0, fence=lambda: None)
        old.undefine(self.server)
        directories = self.lab.layout.host(left) / "instances"
        shutil.rmtree(directories / self.server)
        network, volumes = self.lab.cloud.network, self.lab.cloud.volumes
        for port in network.ports(self.server):
            network.ensure_binding(port.id, source, {})
            network.activate(port.id, source, device_owner="compute:nova")
            network.delete_binding(port.id, left)
            old.unplug(self.server, port.id)
            new.plug(self.server, Port(port=port.id, mac=port.mac))
        for volume, (attachment, _) in self.volumes().items():
            old.disconnect_volume(self.server, volume)
            again = volumes.create_attachment(volume, self.server, known=(attachment,))
            volumes.delete_attachment(attachment)
            volumes.connect(again, new.connector(), "/dev/vdb")
            volumes.complete(again)
            info = objects.encode(devices.connection_info(volumes.shown(again)))
            where = sa.and_(BlockDeviceMapping.volume_id == volume, BlockDeviceMapping.deleted == 0)
            self.update(BlockDeviceMapping, where, attachment_id=again, connection_info=info)
            connection = volumes.connection_info(again)
            new.connect_volume(self.server, Volume(volume=volume, device="/dev/vdb", boot=False, connection=connection))
        directories = self.lab.layout.host(source) / "instances"
        (directories / f"{self.server}_resize").rename(directories / self.server)
        if self.was["instance"]["vm_state"] == "active":
            new.start(self.server, lambda: None)
        self.lab.cloud.placement.return_move(server=self.server, migration=move)
        self._end(move, "reverted", **self.was["instance"])
        with self.lab.api.write() as session:
            session.execute(
                sa.update(RequestSpec).where(RequestSpec.instance_uuid == self.server).values(spec=self.was["spec"])
            )

    def _end(self, move: str, status: str, **columns: Any) -> None:
        found = self.stage.move(self.name)
        self.update(Migration, Migration.uuid == move, status=status)
        self.set(task_state=None, **columns)
        with self.lab.cell_databases[self.cell].write() as session:
            extra = session.scalars(sa.select(InstanceExtra).where(InstanceExtra.instance_uuid == self.server)).one()
            flavors = json.loads(str(extra.flavor))
            flavors |= {"old": None, "new": None}
            if status == "reverted":
                flavors["cur"] = json.loads(self.was["flavor"])["cur"]
            extra.flavor, extra.migration_context = json.dumps(flavors), None
            metadata = cell.InstanceSystemMetadata
            session.execute(
                sa.delete(metadata).where(metadata.instance_uuid == self.server, metadata.key == "old_vm_state")
            )
            session.flush()
            usage.recompute(session, found.source_host, found.dest_host)

    def _columns(self) -> dict[str, Any]:
        names = ("host", "node", "compute_id", "availability_zone", "instance_type_id", "memory_mb", "vcpus")
        kept = [getattr(Instance, name) for name in (*names, "root_gb", "ephemeral_gb", "vm_state", "power_state")]
        with self.lab.cell_databases[self.cell].read() as session:
            row = session.execute(sa.select(*kept).where(Instance.uuid == self.server)).one()
            flavor = session.scalar(sa.select(InstanceExtra.flavor).where(InstanceExtra.instance_uuid == self.server))
        with self.lab.api.read() as session:
            spec = session.scalar(sa.select(RequestSpec.spec).where(RequestSpec.instance_uuid == self.server))
        return {"instance": dict(row._mapping), "flavor": flavor, "spec": spec}

    def delete(self) -> None:
        """Nova's delete, as the host of the rows carries it out."""
        host = self.lab.hypervisor(self.host)
        host.stop(self.server, grace=0.0, fence=lambda: None)
        host.undefine(self.server)
        with self.lab.cell_databases[self.cell].write() as session:
            deletion.remove_from_cell(session, self.server)
            session.execute(
                sa.delete(cell.InstanceSystemMetadata).where(cell.InstanceSystemMetadata.instance_uuid == self.server)
            )
        with self.lab.api.write() as session:
            deletion.remove_from_api(session, self.server)

    def _define(self, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.lab.layout.host(self.host) / "domains" / f"{self.server}.json"
        if path.exists():
            guest = json.loads(path.read_bytes())
            change(guest)
            path.write_text(json.dumps(guest, separators=(",", ":")))


def _without(guest: dict[str, Any], group: str, key: str, gone: str) -> None:
    guest[group] = [each for each in guest[group] if each[key] != gone]
