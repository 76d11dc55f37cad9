"""Makes the hypervisor that a worker's configuration names, and finds the worker's directories."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oslo_config import cfg

from droveway.workers.hypervisors.base import Hypervisor

_HOST: Final = "{host}"


def directory(option: str, host: str) -> Path:
    """Return the directory that an option of the group worker names for the host."""
    return Path(option.replace(_HOST, host))


def configured(conf: cfg.ConfigOpts, host: str) -> Hypervisor:
    """Make the hypervisor of the host; it connects to nothing yet."""
    root = directory(conf.worker.instances_root, host)
    if conf.worker.hypervisor == "sandbox":
        from droveway.workers.hypervisors.sandbox.hypervisor import Sandbox

        guests_log = conf.sandbox.guests_log or root / "guests.log"
        volumes = Path(conf.sandbox.volumes) if conf.sandbox.volumes else None
        return Sandbox(host, root, guests_log=Path(guests_log), volumes=volumes)
    from droveway.workers.hypervisors.libvirt.hypervisor import Libvirt

    return Libvirt(host, root, uri=conf.libvirt.uri)
