"""What OpenStack's own commands do that an audit names."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from http import HTTPStatus
from typing import Final

from support.labs.operations import Stage
from support.two_faults.world import cell_rows, home_cell, own_rows, the_row

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement

_RELEASE: Final = re.compile(r"openstack resource provider allocation delete ([\w-]+)")
_HEAL: Final = re.compile(r"nova-manage placement heal_allocations --instance ([\w-]+) --force")
_BIND: Final = re.compile(r"openstack port set --host ([\w-]+) ([\w-]+)")
_UNBIND: Final = re.compile(r"curl -X DELETE .*/v2\.0/ports/([\w-]+)/bindings/([\w-]+)")
_ACTIVATE: Final = re.compile(r"curl -X PUT .*/v2\.0(/ports/[\w-]+/bindings/[\w-]+/activate)")
_REFRESH: Final = re.compile(r"nova-manage volume_attachment refresh ([\w-]+) ([\w-]+) connector-of-([\w-]+)\.json")
_DETACH: Final = re.compile(r"openstack volume attachment delete ([\w-]+)")
_DELETE_IMAGE: Final = re.compile(r"openstack image delete ([\w-]+)")


def does(lab: Stage, named: str) -> bool:
    """Do what one of the commands does; whether the sentence names one."""
    if released := _RELEASE.fullmatch(named):
        _books(lab).release(released[1])
    elif healed := _HEAL.fullmatch(named):
        _heal(lab, healed[1])
    elif bound := _BIND.fullmatch(named):
        body = {"port": {"binding:host_id": bound[1]}}
        assert lab.lab.cloud.network_root.request(f"/ports/{bound[2]}", "PUT", json=body).status_code == HTTPStatus.OK
    elif unbound := _UNBIND.fullmatch(named):
        lab.lab.cloud.network.delete_binding(unbound[1], unbound[2])
    elif activated := _ACTIVATE.fullmatch(named):
        assert lab.lab.cloud.network_root.request(activated[1], "PUT", json={}).status_code == HTTPStatus.OK
    elif refreshed := _REFRESH.fullmatch(named):
        _refresh(lab, *refreshed.groups())
    elif left := _DETACH.fullmatch(named):
        lab.lab.cloud.volumes.delete_attachment(left[1])
    elif image := _DELETE_IMAGE.fullmatch(named):
        assert lab.lab.cloud.images is not None
        lab.lab.cloud.images.delete(image[1])
    else:
        return False
    return True


def _refresh(lab: Stage, server: str, volume: str, host: str) -> None:
    """Do as Nova: a new attachment takes the place of the one that the row names, which may be gone."""
    volumes = lab.lab.cloud.volumes
    (row,) = [
        each
        for each in own_rows(lab.root, "block_device_mapping", server)
        if each["volume_id"] == volume and not each["deleted"]
    ]
    held = [each.id for each in volumes.attachments(volume) if each.server == server]
    new = volumes.create_attachment(volume, server, known=held)
    for other in held:
        # Cinder exports no volume to two hosts; Nova's command deletes the one that the row names.
        volumes.delete_attachment(other)
    volumes.connect(new, {"host": host}, row["device_name"])
    volumes.complete(new)
    with contextlib.closing(sqlite3.connect(lab.root / "cells" / f"{home_cell(lab.root, server)}.sqlite")) as cell:
        cell.execute("UPDATE block_device_mapping SET attachment_id = ? WHERE id = ?", (new, row["id"]))
        cell.commit()


def _heal(lab: Stage, server: str) -> None:
    row = the_row(lab.root, server)
    (node,) = [each["uuid"] for each in cell_rows(lab.root, "compute_nodes") if each["host"] == row["host"]]
    held = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"]}
    if row["root_gb"] and row["image_ref"]:
        held["DISK_GB"] = row["root_gb"]
    _books(lab).ensure_allocation(server, {node: held}, project_id=row["project_id"], user_id=row["user_id"])


def _books(lab: Stage) -> Placement:
    return Placement(embedded_placement(lab.lab.layout.placement))
