"""Checks a machine that a worker runs on: its hypervisor, its free room, and the options of its nova-compute."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oslo_config import cfg
from oslo_utils import units

from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import DrovewayError, StepError
from droveway.workers.hypervisors.configured import configured, directory
from droveway.workers.seen import JOURNAL as WORKER_JOURNAL

NOVA_CONF: Final = Path("/etc/nova/nova.conf")
WINDOW: Final = "resize_confirm_window"
OFF: Final = "0"
LEAST: Final = units.Gi
TENTH: Final = 0.1


def check(examined: Examined) -> Iterator[Finding]:
    """Check this machine's hypervisor, file systems and nova.conf; yields nothing where no worker ever ran."""
    host, options = socket.gethostname(), examined.conf.worker
    state, instances = (directory(option, host) for option in (options.state_path, options.instances_root))
    if not (state / WORKER_JOURNAL).exists():
        return
    yield _hypervisor(examined.conf, host)
    for path in sorted({state, instances}):
        yield _room(path)
    # Where this user may not read nova.conf, the check cannot be made.
    if os.access(NOVA_CONF, os.R_OK):
        yield _window(NOVA_CONF)


def _hypervisor(conf: cfg.ConfigOpts, host: str) -> Finding:
    name = conf.worker.hypervisor
    try:
        hypervisor = configured(conf, host)
        try:
            count = sum(1 for _ in hypervisor.guests())
        finally:
            hypervisor.close()
    except (DrovewayError, StepError, ImportError, OSError) as error:
        return Finding("hypervisor-away", name, " ".join(str(error).split()))
    return Finding(FINE, name, f"it answers, and has {count} guest{'s' * (count != 1)}")


def _room(path: Path) -> Finding:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Finding("space-none", str(path), f"{path} cannot be looked at: {error.strerror}")
    detail = f"{usage.free / LEAST:.1f} GiB of {usage.total / LEAST:.1f} GiB are free"
    if usage.free < LEAST:
        return Finding("space-none", str(path), detail)
    return Finding("space-low" if usage.free < TENTH * usage.total else FINE, str(path), detail)


def _window(path: Path) -> Finding:
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(str(path), sections).parse()
    except cfg.ParseError as error:
        return Finding("nova-confirms", str(path), f"{path} cannot be read as a configuration: {error}")
    value = (sections.get("DEFAULT", {}).get(WINDOW) or [OFF])[-1]
    return Finding(FINE if value == OFF else "nova-confirms", str(path), f"{WINDOW} is {value}")
