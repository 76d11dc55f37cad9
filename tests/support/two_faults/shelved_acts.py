"""What Nova and its users do to a server that is shelved, and Nova's own shelve and unshelve, as a real one leaves it.

Which rows, in which order, is Nova 34's: `_delete` with its snapshot of a shelved server, `_local_delete`,
`_attach_volume_shelved_offloaded`, `shelve_instance` with its offload, and `unshelve_instance`.
"""

from __future__ import annotations

import json
import shutil
import uuid
from typing import Final

from support.two_faults import world
from support.two_faults.nova_acts import NOW, POWER_OFF, POWER_ON, Acts

from droveway.persistence.nova import usage
from droveway.workers.hypervisors.base import Port

_KEYS: Final = ("shelved_at", "shelved_image_id", "shelved_host")
_NOWHERE: Final = "host = NULL, node = NULL, compute_id = NULL, launched_on = NULL, availability_zone = NULL"


class ShelvedActs(Acts):
    """One server, wherever it is or is not."""

    def delete(self) -> None:
        """DELETE: the image of a shelved server goes first; one that is on no host nova-api deletes by itself."""
        row = self.row
        if row["deleted"]:
            return
        self._delete_snapshot(row)
        if row["host"] is None:
            self._forget()
        else:
            super().delete()

    def delete_without_host(self) -> None:
        """DELETE while the nova-compute of the row's host is down, or of a server that has none."""
        self._delete_snapshot(self.row)
        super().delete_without_host()

    def reap(self) -> None:
        """Nothing where the deleted server was on no host."""
        if self.row["host"] is not None:
            super().reap()

    def attach_volume(self, device: str = "/dev/vdx") -> str:
        """Attach; to a server on no host a volume is reserved, which its unshelve connects."""
        if self.row["host"] is not None:
            return super().attach_volume(device)
        volumes = self.lab.cloud.volumes
        volume = volumes.create_volume(name=f"late-{uuid.uuid4().hex[:6]}", size_gb=1)
        self.write(
            "INSERT INTO block_device_mapping (instance_uuid, uuid, source_type, destination_type, device_name, "
            "delete_on_termination, volume_id, volume_size, attachment_id, connection_info, created_at, deleted) "
            "VALUES (?, ?, 'volume', 'volume', ?, 0, ?, 1, ?, '{}', ?, 0)",
            *(self.server, str(uuid.uuid4()), device, volume, volumes.create_attachment(volume, self.server), NOW),
        )
        return volume

    def detach_volume(self, volume: str) -> None:
        """Detach; of a server on no host by nova-api."""
        if self.row["host"] is not None:
            super().detach_volume(volume)
            return
        self.lab.cloud.volumes.delete_attachment(self.volumes()[volume][0])
        self.write(
            "UPDATE block_device_mapping SET deleted = id, deleted_at = ? WHERE volume_id = ? AND instance_uuid = ?",
            *(NOW, volume, self.server),
        )

    def delete_port(self, port: str) -> None:
        """A tenant deletes a port; no host is told where the server is on none."""
        if self.row["host"] is not None:
            super().delete_port(port)
        else:
            self.delete_port_alone(port)

    def shelve(self) -> None:
        """`shelve` and its offload, as the server's host carries both out."""
        row = self.row
        name, host = row["host"], self.lab.hypervisor(row["host"])
        image = str(uuid.uuid4())
        host.stop(self.server, grace=0.0, fence=lambda: None)
        properties = {"image_type": "snapshot", "instance_uuid": self.server, "base_image_ref": row["image_ref"]}
        images = self.lab.cloud.images
        images.create(image, name=f"{row['display_name']}-shelved", min_disk_gb=row["root_gb"], properties=properties)
        images.upload(image, self._place(name, "") / "disk")
        self._destroy_on_host(name)
        self._placement.delete(f"/allocations/{self.server}", raise_exc=False)
        for volume, (attachment, _host) in self.volumes().items():
            new = self.lab.cloud.volumes.create_attachment(volume, self.server, known=(attachment,))
            self.lab.cloud.volumes.delete_attachment(attachment)
            self.write(
                "UPDATE block_device_mapping SET attachment_id = ? WHERE volume_id = ? AND deleted = 0", new, volume
            )
        for port in self.lab.cloud.network.ports(self.server):
            self.lab.cloud.network.unbind(port.id, profile={})
        for key, value in zip(_KEYS, (NOW.replace(" ", "T"), image, name), strict=True):
            self.write(
                "INSERT INTO instance_system_metadata (instance_uuid, key, value, created_at, deleted) "
                "VALUES (?, ?, ?, ?, 0)",
                *(self.server, key, value, NOW),
            )
        self.write(
            f"UPDATE instances SET {_NOWHERE}, vm_state = 'shelved_offloaded', task_state = NULL, power_state = ? "
            "WHERE uuid = ?",
            *(POWER_OFF, self.server),
        )
        self._count(name)

    def unshelve(self) -> None:
        """`unshelve` on a host of Nova's choice: the refuge."""
        row, root, refuge = self.row, self.stage.root, self.refuge
        (node,) = [each for each in world.cell_rows(root, "compute_nodes") if each["host"] == refuge]
        self._claim_refuge(row, node["uuid"])
        image = self._snapshot()
        place = self._place(refuge, "")
        place.mkdir()
        shutil.copyfile(root / "images" / image, place / "disk")
        (place / "disk.info").write_text(json.dumps({str(place / "disk"): "raw"}))
        found = self.lab.cloud.network.ports(self.server)
        for port in found:
            self.lab.cloud.network.bind(port.id, refuge, profile={}, device_owner="compute:nova")
        ports = [Port(port=port.id, mac=port.mac) for port in found]
        self._build_at_refuge(row, ports, self._attach_at_refuge())
        self.lab.hypervisor(refuge).start(self.server, lambda: None)
        self.write(
            "UPDATE instances SET host = ?, node = ?, compute_id = ?, launched_on = ?, availability_zone = 'nova', "
            "vm_state = 'active', task_state = NULL, power_state = ? WHERE uuid = ?",
            *(refuge, node["hypervisor_hostname"], node["id"], refuge, POWER_ON, self.server),
        )
        self.write(
            f"DELETE FROM instance_system_metadata WHERE instance_uuid = ? AND key IN ({', '.join('?' * len(_KEYS))})",
            *(self.server, *_KEYS),
        )
        self.lab.cloud.images.delete(image)
        self._count(refuge)

    def _count(self, host: str) -> None:
        """The tracker of the host's nova-compute writes what lives there now."""
        with self.lab.cell_databases[self.cell].write() as session:
            usage.recompute(session, host)

    def _snapshot(self) -> str:
        """The image that the rows name, or none."""
        kept = world.own_rows(self.stage.root, "instance_system_metadata", self.server)
        return next((row["value"] for row in kept if row["key"] == "shelved_image_id" and not row["deleted"]), "")

    def _delete_snapshot(self, row: world.Row) -> None:
        if row["vm_state"] in ("shelved", "shelved_offloaded") and (image := self._snapshot()):
            self.lab.cloud.images.delete(image)
