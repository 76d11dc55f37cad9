"""What Nova and its users do to a server, planted as a real one leaves it: raw rows, services and hosts.

Which rows, in which order, is Nova 34's: `instance_destroy`, `_delete`, `_reset_state`, `evacuate`, `_init_instance`
and libvirt's `delete_instance_files`.  No query of the product is used for them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import sqlite3
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from keystoneauth1 import adapter
from support.labs import shares
from support.labs.beside_nova import Nova
from support.two_faults import world

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.network import PortRecord
from droveway.clients.port_resources import ALLOCATION
from droveway.workers.hypervisors.base import Port, Volume

NOW: Final = "2026-11-25 01:00:00"

_IMAGE_BYTES: Final = 1024**2
"""Bytes of a root disk that is as large as its image."""

REFUGE: Final = "host3"
REFUGES: Final = {"cell1": REFUGE, "cell2": "host4"}
"""Where Nova evacuates to: a host of the cell that the server is mapped to."""

_DEPENDENTS: Final = (
    "instance_info_caches",
    "instance_metadata",
    "instance_faults",
    "instance_extra",
    "instance_system_metadata",
    "block_device_mapping",
    "migrations",
    "virtual_interfaces",
)
"""What `instance_destroy` soft-deletes, where the lab has the table."""

POWER_ON, POWER_OFF = 1, 4


class Acts(Nova):
    """One server, and what is done to it."""

    late: Collection[str] = ()
    """The cells in whose copy a late DELETE was left."""

    @functools.cached_property
    def _placement(self) -> adapter.Adapter:
        """Placement as Nova speaks to it: of consumers' types it knows nothing."""
        session = embedded_placement(self.lab.layout.placement)
        return adapter.Adapter(session, service_type="placement", default_microversion="1.36")

    @property
    def refuge(self) -> str:
        """Where Nova evacuates the server to, or has."""
        return REFUGES[self.cell]

    @property
    def row(self) -> world.Row:
        """The server's row as it is stored."""
        return world.the_row(self.stage.root, self.server)

    def delete(self) -> None:
        """DELETE, carried out by the nova-compute of the row's host; a server that waits is confirmed first.

        One that waits in another cell is not: its super conductor, which Nova asks for that, is Droveway's.  The
        request came before the server waited, and lands now.
        """
        row = self.row
        if row["deleted"]:
            return
        waiting = [each for each in self.migrations() if each["status"] in ("finished", "confirming")]
        between = any(each["cross_cell_move"] for each in waiting)
        if row["vm_state"] == "resized" and waiting and not between and row["task_state"] != "deleting":
            self._confirm_while_deleting(waiting[0])
        self._destroy_on_host(row["host"])
        self._forget()

    def delete_without_host(self) -> None:
        """DELETE while the nova-compute of the row's host is down: nova-api removes the rows by itself."""
        self._forget()

    def begin_delete(self) -> None:
        """DELETE, whose cast is still in the queue of the host."""
        self.write("UPDATE instances SET task_state = 'deleting', progress = 0 WHERE uuid = ?", self.server)

    def reset_state(self, vm_state: str) -> None:
        """os-resetState."""
        self.write("UPDATE instances SET vm_state = ?, task_state = NULL WHERE uuid = ?", vm_state, self.server)

    def stop(self) -> None:
        """`stop`, as its host carries it out."""
        self.lab.hypervisor(self.row["host"]).stop(self.server, grace=0.0, fence=_unfenced)
        self.write("UPDATE instances SET vm_state='stopped', power_state=4, task_state=NULL WHERE uuid=?", self.server)

    def reset_and_stop(self) -> None:
        """os-resetState, then `stop`, which a host carries out that may not know the guest (`InstanceNotFound`)."""
        self.reset_state("active")
        if self.lab.hypervisor(self.row["host"]).guest(self.server) is not None:
            self.stop()
        else:
            self.reset_state("stopped")
            self.write("UPDATE instances SET power_state = 4 WHERE uuid = ?", self.server)

    def start(self) -> None:
        """`start`, or a hard reboot, which leaves the guest running too."""
        self.lab.hypervisor(self.row["host"]).start(self.server, _unfenced)
        self.write("UPDATE instances SET vm_state='active', power_state=1, task_state=NULL WHERE uuid=?", self.server)

    def reboot(self) -> None:
        """A hard reboot."""
        self.lab.hypervisor(self.row["host"]).stop(self.server, grace=0.0, fence=_unfenced)
        self.start()

    def lock(self) -> None:
        """`lock` by the owner."""
        self.write("UPDATE instances SET locked = 1, locked_by = 'owner' WHERE uuid = ?", self.server)

    def rename(self) -> None:
        """A new name and description."""
        self.write("UPDATE instances SET display_description = 'mine' WHERE uuid = ?", self.server)

    def set_metadata(self) -> None:
        """A pair of metadata."""
        self.write(
            "INSERT INTO instance_metadata (instance_uuid, key, value, created_at, deleted) VALUES (?, 'k', 'v', ?, 0)",
            self.server,
            NOW,
        )

    def delete_flavor(self, name: str) -> None:
        """`flavor delete`: its row and its extra specs are gone from the API database."""
        with writing(self.stage.root / "api.sqlite") as database:
            (number,) = database.execute("SELECT id FROM flavors WHERE name = ?", (name,)).fetchone()
            for table in ("flavor_extra_specs", "flavor_projects"):
                if table in world.tables(self.stage.root / "api.sqlite"):
                    database.execute(f"DELETE FROM {table} WHERE flavor_id = ?", (number,))
            database.execute("DELETE FROM flavors WHERE id = ?", (number,))

    def touch_ports(self) -> None:
        """Somebody writes to each port: its revision is another one."""
        with writing(self.stage.root / "services.sqlite") as database:
            database.execute("UPDATE ports SET revision = revision + 1 WHERE server = ?", (self.server,))

    def rebind_ports(self) -> None:
        """`_heal_instance_info_cache`: what is bound on the row's host is bound there anew."""
        network, host = self.lab.cloud.network, self.row["host"]
        for port in network.ports(self.server):
            if dict(port.bindings).get(host) == "ACTIVE":
                network.delete_binding(port.id, host)
                network.ensure_binding(port.id, host, port.profile)
                network.activate(port.id, host, device_owner=port.device_owner)

    def restart_compute(self, host: str) -> str:
        """`_init_instance` on the host, which resumes guests on boot; "" or what it would break.

        It knows the rows of its own cell, hidden ones too.
        """
        (cell,) = [
            database.stem
            for database in sorted(self.stage.root.glob("cells/*.sqlite"))
            if any(node["host"] == host for node in world.rows(database, "compute_nodes"))
        ]
        row = world.copies(self.stage.root, self.server).get(cell)
        if row is None or row["host"] != host or row["vm_state"] == "error":
            return ""
        if row["task_state"] == "resize_prep":
            self.write("UPDATE instances SET task_state = NULL WHERE uuid = ?", self.server)
        if row["task_state"] == "resize_migrating":
            return f"a restarting nova-compute on {host} would undo a resize_migrating"
        if row["power_state"] == POWER_ON and not world.is_running(self.stage.root, host, self.server):
            return f"a restarting nova-compute that resumes guests would start the guest on {host}, where it is off"
        return ""

    def evacuate(self) -> None:
        """`evacuate`: the row's host was off, so its guest is; the server is built in its refuge from its image."""
        row, root, refuge = self.row, self.stage.root, self.refuge
        left = row["host"]
        if world.is_running(root, left, self.server):
            self.lab.hypervisor(left).stop(self.server, grace=0.0, fence=_unfenced)
        runs = row["vm_state"] != "stopped"
        (node,) = [each for each in world.cell_rows(root, "compute_nodes") if each["host"] == refuge]
        self.write(
            "INSERT INTO migrations (uuid, instance_uuid, migration_type, status, source_compute, source_node, "
            "dest_compute, dest_node, hidden, cross_cell_move, created_at, deleted) "
            "VALUES (?, ?, 'evacuation', 'done', ?, ?, ?, ?, 0, 0, ?, 0)",
            str(uuid.uuid4()),
            self.server,
            left,
            row["node"],
            refuge,
            node["hypervisor_hostname"],
            NOW,
        )
        self._claim_refuge(row, node["uuid"])
        ports, volumes = self._bind_at_refuge(left), self._attach_at_refuge()
        self._build_at_refuge(row, ports, volumes)
        self.write(
            "UPDATE instances SET host = ?, node = ?, compute_id = ?, task_state = NULL, vm_state = ?, power_state = ? "
            "WHERE uuid = ?",
            refuge,
            node["hypervisor_hostname"],
            node["id"],
            "active" if runs else "stopped",
            POWER_ON if runs else POWER_OFF,
            self.server,
        )
        self.write("UPDATE instance_extra SET migration_context = NULL WHERE instance_uuid = ?", self.server)
        if runs:
            self.lab.hypervisor(refuge).start(self.server, _unfenced)

    def reset_and_evacuate(self) -> None:
        """os-resetState, then `evacuate`."""
        self._reset()
        self.evacuate()

    def reset_and_delete(self) -> None:
        """os-resetState, then DELETE, which confirms nothing then."""
        self._reset()
        self.delete()

    def _reset(self) -> None:
        self.reset_state("stopped" if self.was["instance"]["vm_state"] == "stopped" else "active")

    def begin_confirm(self, move: str) -> None:
        """`confirm` of a server in another cell, which nova-api has handed to the super conductor."""
        self.write("UPDATE migrations SET status = 'confirming' WHERE uuid = ?", move)

    def begin_revert(self, move: str) -> None:
        """`revert` of one, which nova-api has handed to the super conductor."""
        self.write(
            "UPDATE instances SET task_state = 'resize_reverting', availability_zone = ? WHERE uuid = ?",
            self.was["instance"]["availability_zone"],
            self.server,
        )
        self.write("UPDATE migrations SET status = 'reverting' WHERE uuid = ?", move)
        with writing(self.stage.root / "api.sqlite") as database:
            database.execute(
                "UPDATE request_specs SET spec = ? WHERE instance_uuid = ?", (self.was["spec"], self.server)
            )

    def begin_delete_late(self) -> None:
        """DELETE by a nova-api that had read the mapping before the move switched it; its cast is in the queue."""
        self.late = {cell for cell in world.copies(self.stage.root, self.server) if cell != self.cell}
        self.write_late("UPDATE instances SET task_state = 'deleting', progress = 0 WHERE uuid = ?")

    def write_late(self, statement: str) -> None:
        """What a nova-api writes that had read the mapping before the move switched it, to the copy that is left."""
        for cell in world.copies(self.stage.root, self.server):
            if cell != self.cell:
                with writing(self.stage.root / "cells" / f"{cell}.sqlite") as database:
                    database.execute(statement, (self.server,))

    def begin_evacuate(self) -> None:
        """`evacuate`, of which nova-api has done its part: the task, and the migration for the conductor."""
        row = self.row
        self.write(
            "INSERT INTO migrations (uuid, instance_uuid, migration_type, status, source_compute, source_node, "
            "hidden, cross_cell_move, created_at, deleted) VALUES (?, ?, 'evacuation', 'accepted', ?, ?, 0, 0, ?, 0)",
            str(uuid.uuid4()),
            self.server,
            row["host"],
            row["node"],
            NOW,
        )
        self.write("UPDATE instances SET task_state = 'rebuilding' WHERE uuid = ?", self.server)

    def end_evacuate(self) -> None:
        """The rest of it, once its host has taken it; it ends by itself where its mark was overwritten."""
        if self.row["task_state"] != "rebuilding":
            return
        self.write(
            "DELETE FROM migrations WHERE instance_uuid = ? AND migration_type = 'evacuation' AND status = 'accepted'",
            self.server,
        )
        self.evacuate()

    def reap(self) -> None:
        """`_cleanup_running_deleted_instances` of a nova-compute that is back: a guest that it still lists goes."""
        host = self.row["host"]
        if (self.stage.root / "hosts" / host / "domains" / f"{self.server}.json").exists():
            self._destroy_on_host(host)

    def migrations(self) -> list[world.Row]:
        """The live rows of the server's migrations."""
        found = world.own_rows(self.stage.root, "migrations", self.server)
        return [row for row in found if not row["deleted"]]

    def write(self, statement: str, *values: Any) -> None:
        """Write to the server's cell."""
        with writing(self._database()) as database:
            database.execute(statement, values)

    def _database(self) -> Path:
        return self.stage.root / "cells" / f"{self.cell}.sqlite"

    def _confirm_while_deleting(self, migration: world.Row) -> None:
        """`_confirm_resize_on_deleting`: the source drops what it set aside and the migration's allocation goes."""
        host = self.lab.hypervisor(migration["source_compute"])
        if migration["source_compute"] != self.row["host"]:
            host.undefine(self.server)
            self._disconnect(migration["source_compute"])
        shutil.rmtree(self._place(migration["source_compute"], "_resize"), ignore_errors=True)
        self._placement.delete(f"/allocations/{migration['uuid']}", raise_exc=False)
        self.write("UPDATE migrations SET status = 'confirmed' WHERE id = ?", migration["id"])
        self.write("UPDATE instances SET vm_state = 'active', task_state = NULL WHERE uuid = ?", self.server)

    def _destroy_on_host(self, name: str) -> None:
        """The driver's `destroy`, with `delete_instance_files`: one directory of the server goes, not both."""
        host = self.lab.hypervisor(name)
        host.stop(self.server, grace=0.0, fence=_unfenced)
        host.undefine(self.server)
        self._disconnect(name)
        for ending in ("", "_resize"):
            if self._place(name, ending).exists():
                shutil.rmtree(self._place(name, ending))
                break

    def _disconnect(self, name: str) -> None:
        host = self.lab.hypervisor(name)
        for volume in [volume for owner, volume in host.connections() if owner == self.server]:
            host.disconnect_volume(self.server, volume)
        for port in [port for owner, port in host.plugged() if owner == self.server]:
            host.unplug(self.server, port)

    def _forget(self) -> None:
        """Ports, attachments, allocation; then the rows, and the mapping last."""
        for port in self.ports():
            self.lab.cloud.network.delete_port(port)
        for attachment, _host in self.volumes().values():
            self.lab.cloud.volumes.delete_attachment(attachment)
        known = set(world.tables(self._database()))
        with writing(self._database()) as database:
            database.execute(
                "UPDATE instances SET deleted = id, deleted_at = ?, terminated_at = ?, vm_state = 'deleted', "
                "task_state = NULL, power_state = 0 WHERE uuid = ?",
                (NOW, NOW, self.server),
            )
            for table in known.intersection(_DEPENDENTS):
                database.execute(
                    f"UPDATE {table} SET deleted = id, deleted_at = ? WHERE instance_uuid = ? AND deleted = 0",
                    (NOW, self.server),
                )
            database.execute(
                "UPDATE instance_id_mappings SET deleted = id, deleted_at = ? WHERE uuid = ? AND deleted = 0",
                (NOW, self.server),
            )
            if "console_auth_tokens" in known:
                database.execute("DELETE FROM console_auth_tokens WHERE instance_uuid = ?", (self.server,))
        self._placement.delete(f"/allocations/{self.server}", raise_exc=False)
        with writing(self.stage.root / "api.sqlite") as database:
            database.execute(
                "UPDATE instance_mappings SET queued_for_delete = 1 WHERE instance_uuid = ?", (self.server,)
            )

    def _claim_refuge(self, row: world.Row, node: str) -> None:
        """`claim_resources` of a server that moves: what it holds, and the same on the new host."""
        path = f"/allocations/{self.server}"
        body = self._placement.get(path).json()
        wanted = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"], "DISK_GB": row["root_gb"] + row["ephemeral_gb"]}
        held = {name: {"resources": each["resources"]} for name, each in body["allocations"].items()}
        held[node] = {"resources": {name: amount for name, amount in wanted.items() if amount}}
        for provider, amounts in shares.together(self._needed_at_refuge()).items():
            held[self._providers()[provider]] = {"resources": dict(amounts)}
        body = {
            "allocations": held,
            "consumer_generation": body.get("consumer_generation"),
            "project_id": body.get("project_id", row["project_id"]),
            "user_id": body.get("user_id", row["user_id"]),
        }
        answer = self._placement.put(path, json=body, raise_exc=False)
        assert answer.status_code == 204, answer.text

    def _needed_at_refuge(self) -> dict[str, shares.Shares]:
        return shares.needed(self.stage.root / "services.sqlite")[self.server][self.refuge]

    def _providers(self) -> dict[str, str]:
        return {
            row["name"]: row["uuid"] for row in world.rows(self.stage.root / "placement.sqlite", "resource_providers")
        }

    def _profile_at_refuge(self, port: PortRecord) -> dict[str, Any]:
        """`_set_port_binding_profile` with the providers that were claimed."""
        if port.resources is None:
            return {}
        given, providers = self._needed_at_refuge()[port.id], self._providers()
        mappings = {
            group.id: [providers[name] for name, amounts in given.items() if amounts == group.resources]
            for group in port.resources.groups
        }
        return {ALLOCATION: port.resources.allocation(mappings)}

    def _bind_at_refuge(self, left: str) -> list[Port]:
        """`migrate_instance_finish`: the active binding becomes the new host's."""
        network = self.lab.cloud.network
        found = network.ports(self.server)
        for port in found:
            active = [host for host, status in dict(port.bindings).items() if status == "ACTIVE"]
            network.ensure_binding(port.id, self.refuge, self._profile_at_refuge(port))
            network.activate(port.id, self.refuge, device_owner="compute:nova")
            for host in {*active, left} & set(dict(port.bindings)):
                network.delete_binding(port.id, host)
        return [Port(port=port.id, mac=port.mac) for port in found]

    def _attach_at_refuge(self) -> list[Volume]:
        """`_rebuild_volume_backed_instance`'s attachments: a new one for each row, the row's old one deleted."""
        volumes, made = self.lab.cloud.volumes, []
        for volume, (attachment, _host) in self.volumes().items():
            known = tuple(each.id for each in volumes.attachments(volume))
            new = volumes.create_attachment(volume, self.server, known=known)
            volumes.delete_attachment(attachment)
            for each in volumes.attachments(volume):
                # Cinder exports a volume to one host at a time; what the dead host still had of it is forced away.
                if each.host is not None and each.id != new:
                    volumes.delete_attachment(each.id)
            volumes.connect(new, self.lab.hypervisor(self.refuge).connector(), "/dev/vdb")
            volumes.complete(new)
            self.write(
                "UPDATE block_device_mapping SET attachment_id = ? WHERE volume_id = ? AND instance_uuid = ? "
                "AND deleted = 0",
                new,
                volume,
                self.server,
            )
            made.append(Volume(volume=volume, device="/dev/vdb", boot=False, connection=volumes.connection_info(new)))
        return made

    def _build_at_refuge(self, row: world.Row, ports: list[Port], volumes: list[Volume]) -> None:
        """`rebuild` there: on the disks that it finds where all hosts share them, else from the image."""
        host = self.lab.hypervisor(self.refuge)
        place = self._place(self.refuge, "")
        place.mkdir(exist_ok=True)
        disk = place / "disk"
        if not disk.exists():
            host.create_disk(disk, size=row["root_gb"] * 1024**3 or _IMAGE_BYTES, kind="root")
        for volume in volumes:
            host.connect_volume(self.server, volume)
        for port in ports:
            host.plug(self.server, port)
        made = host.create_definition(
            server=self.server,
            name=f"instance-{row['id']:08x}",
            vcpus=row["vcpus"],
            memory_mb=row["memory_mb"],
            disks=[disk],
            boot_volume=False,
        )
        host.define(
            self.server,
            made,
            vcpus=row["vcpus"],
            memory_mb=row["memory_mb"],
            disks=[disk],
            formats={"disk": "raw"},
            volumes=volumes,
            ports=ports,
            mark=None,
        )

    def _place(self, host: str, ending: str) -> Path:
        return world.instances(self.stage.root, host) / f"{self.server}{ending}"


@contextlib.contextmanager
def writing(database: Path) -> Iterator[sqlite3.Connection]:
    """A transaction of somebody else's on a database."""
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        connection.row_factory = sqlite3.Row
        yield connection


def definition(root: Path, host: str, server: str) -> dict[str, Any]:
    """The guest's definition on the host, as its file has it."""
    path = root / "hosts" / host / "domains" / f"{server}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _unfenced() -> None:
    """Nova knows of no fence."""
