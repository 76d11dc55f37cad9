"""What OpenStack's own commands do that an audit names."""

from __future__ import annotations

import re
from typing import Final

from support.labs.operations import Stage
from support.two_faults.world import cell_rows, the_row

from droveway.clients.embedded.placement import embedded_placement
from droveway.clients.placement import Placement

_RELEASE: Final = re.compile(r"openstack resource provider allocation delete ([\w-]+)")
_HEAL: Final = re.compile(r"nova-manage placement heal_allocations --instance ([\w-]+) --force")
_DELETE_IMAGE: Final = re.compile(r"openstack image delete ([\w-]+)")


def does(lab: Stage, named: str) -> bool:
    """Do what one of the commands does; whether the sentence names one."""
    if released := _RELEASE.fullmatch(named):
        _books(lab).release(released[1])
    elif healed := _HEAL.fullmatch(named):
        _heal(lab, healed[1])
    elif image := _DELETE_IMAGE.fullmatch(named):
        assert lab.lab.cloud.images is not None
        lab.lab.cloud.images.delete(image[1])
    else:
        return False
    return True


def _heal(lab: Stage, server: str) -> None:
    row = the_row(lab.root, server)
    (node,) = [each["uuid"] for each in cell_rows(lab.root, "compute_nodes") if each["host"] == row["host"]]
    held = {"VCPU": row["vcpus"], "MEMORY_MB": row["memory_mb"]}
    if row["root_gb"] and row["image_ref"]:
        held["DISK_GB"] = row["root_gb"]
    _books(lab).ensure_allocation(server, {node: held}, project_id=row["project_id"], user_id=row["user_id"])


def _books(lab: Stage) -> Placement:
    return Placement(embedded_placement(lab.lab.layout.placement))
