"""Makes a new definition for a server that Nova shelved, since no host has one for it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from droveway.wire.commands import VolumeRef
    from droveway.workers.context import Context


def new_definition(
    ctx: Context, *, vcpus: int, memory_mb: int, disks: Sequence[Path], volumes: Sequence[VolumeRef]
) -> str:
    """Return the definition that this host's hypervisor makes for a new guest; ``memory_mb`` in MiB."""
    return ctx.hypervisor.create_definition(
        server=ctx.server,
        name=f"instance-{ctx.server[:8]}",
        vcpus=vcpus,
        memory_mb=memory_mb,
        disks=disks,
        boot_volume=any(volume.boot for volume in volumes),
    )
