"""A machine with systemd, and what an installation on it needs: ZooKeeper, databases, services, a lab's hosts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support import served_cloud, zookeeper_server
from support.daemons import in_place, settings_of
from support.systemd_machine import Machine, interpreter, machine

from droveway.lab.session import Lab

ETC: Final = Path(__file__).parents[2] / "etc"
CONFIGURATION: Final = "/etc/droveway/droveway.conf"
CONDUCTOR: Final = "droveway-conductor.service"
WORKERS: Final = {"host1": "droveway-worker.service", "host2": "droveway-worker-host2.service"}

_CLOUD: Final = """
hypervisor: sandbox
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}
images: {base: {size_mb: 256}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
"""

# This checkout may lie in somebody's home or among temporary files, and a sandbox's guests are its worker's children.
_DROP_IN: Final = """
[Service]
ProtectHome=no
PrivateTmp=no
ReadWritePaths={shared} /var/tmp
WatchdogSec=10
RestartSec=0.2
"""
_HOST: Final = """
KillMode=process
Environment=OS_WORKER__STATE_PATH={root} OS_WORKER__INSTANCES_ROOT={root}
"""


@dataclass(frozen=True)
class Prepared:
    """What is there before Droveway is installed on the machine."""

    machine: Machine
    lab: Lab
    zookeeper: zookeeper_server.Server
    settings: dict[str, dict[str, str]]
    """What the configuration has to say."""
    shared: Path
    """The directory that the machine and this one both see."""

    def let_the_units_in(self) -> None:
        """Give the conductor's user, once it is there, what is the lab's, and the way to this checkout."""
        self.machine.run("chown", "-R", "droveway", str(self.lab.layout.root))
        for path in (*Path(__file__).parents, *Path(shutil.which("python3") or "").resolve().parents):
            self.machine.run("chmod", "o+x", str(path))


@contextlib.contextmanager
def prepared(files: Mapping[str, str]) -> Iterator[Prepared]:
    """The machine with ``files`` by their paths, and with drop-ins for the units of a sandbox's hosts."""
    # Not among temporary files, which the units do not see.
    folder = Path(tempfile.mkdtemp(prefix="droveway-units-", dir="/var/lib"))
    folder.chmod(0o755)
    shared = folder / "shared"
    shared.mkdir()
    root = shared / "lab"
    made = {
        **files,
        "/usr/bin/droveway": interpreter("-m droveway.cli.main"),
        f"/etc/systemd/system/{CONDUCTOR}.d/test.conf": _DROP_IN.format(shared=shared),
    }
    for host, unit in WORKERS.items():
        drop_in = _DROP_IN.format(shared=shared) + _HOST.format(root=root / "hosts" / host)
        made[f"/etc/systemd/system/{unit}.d/test.conf"] = drop_in
    (shared / "cloud.yaml").write_text(_CLOUD)
    with (
        zookeeper_server.running_server(folder / "zookeeper") as zookeeper,
        machine(folder / "machine", shared, made) as booted,
    ):
        booted.run("hostname", "host1")
        # Its guests are processes of that machine.
        booted.run("droveway", "lab", "create", str(root), "--cloud", str(shared / "cloud.yaml"))
        lab = Lab.open(root)
        urls = in_place(lab)
        with served_cloud.served(lab.layout) as cloud:
            settings = settings_of(lab, zookeeper.hosts, urls, cloud, Path("/run/droveway"))
            yield Prepared(booted, lab, zookeeper, settings, shared)
        lab.close()
    shutil.rmtree(folder)
