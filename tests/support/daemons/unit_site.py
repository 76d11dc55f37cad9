"""A machine with systemd, and what an installation on it needs: ZooKeeper, databases, services, a lab's hosts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.daemons.daemons import SESSION
from support.servers import zookeeper_server
from support.servers.systemd_machine import Machine, interpreter, machine

from droveway.lab import daemons, served_cloud
from droveway.lab.serve_settings import in_place, settings_of
from droveway.lab.session import Lab

ETC: Final = Path(__file__).parents[3] / "etc"
CONFIGURATION: Final = "/etc/droveway/droveway.conf"
CONDUCTOR: Final = "droveway-conductor.service"
WORKERS: Final = {"host1": "droveway-worker.service", "host2": "droveway-worker-host2.service"}

_CLOUD: Final = """
hypervisor: {hypervisor}
cells: {{cell1: {{hosts: {{host1: {{}}, host2: {{}}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: {small}, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: {large}, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: {image}}}}}
servers:
  web: {{flavor: small, host: host1, image: base, ports: [{{}}]{volumes}}}
"""
_SIZES: Final = {
    "sandbox": {"small": 256, "large": 512, "image": 256, "volumes": ", volumes: [{size_gb: 1}]"},
    "libvirt": {"small": 32, "large": 48, "image": 16, "volumes": ""},
}

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
def prepared(files: Mapping[str, str], hypervisor: str = "sandbox") -> Iterator[Prepared]:
    """The machine with ``files`` by their paths, and with drop-ins for the units of the hosts of a hypervisor."""
    # Not among temporary files, which the units do not see.
    folder = Path(tempfile.mkdtemp(prefix="droveway-units-", dir="/var/lib"))
    folder.chmod(0o755)
    shared = folder / "shared"
    shared.mkdir()
    root = shared / "lab"
    made = {
        **files,
        **dict.fromkeys(("/usr/bin/droveway", "/opt/droveway/bin/droveway"), interpreter("-m droveway.cli.main")),
        f"/etc/systemd/system/{CONDUCTOR}.d/test.conf": _DROP_IN.format(shared=shared),
    }
    for host, unit in WORKERS.items():
        drop_in = _DROP_IN.format(shared=shared) + _HOST.format(root=root / "hosts" / host)
        made[f"/etc/systemd/system/{unit}.d/test.conf"] = drop_in
    (shared / "cloud.yaml").write_text(_CLOUD.format(hypervisor=hypervisor, **_SIZES[hypervisor]))
    with (
        zookeeper_server.running_server(folder / "zookeeper") as zookeeper,
        machine(folder / "machine", shared, made) as booted,
    ):
        booted.run("hostname", "host1")
        # Its guests are processes of that machine.
        booted.run("droveway", "lab", "create", str(root), "--cloud", str(shared / "cloud.yaml"))
        lab = Lab.open(root)
        if hypervisor == "libvirt":
            _name_daemons(booted, lab)
        urls = in_place(lab)
        with served_cloud.served(lab.layout) as cloud:
            settings = settings_of(lab, zookeeper.hosts, urls, cloud.server_port, Path("/run/droveway"))
            settings["worker"]["hypervisor"] = hypervisor
            settings["zookeeper"]["session_timeout"] = str(SESSION)
            yield Prepared(booted, lab, zookeeper, settings, shared)
        lab.close()
    shutil.rmtree(folder)


def _name_daemons(booted: Machine, lab: Lab) -> None:
    """Tell each host's unit where its libvirt daemon is, which runs on that machine."""
    for host, unit in WORKERS.items():
        line = f"Environment=OS_LIBVIRT__URI={daemons.host(lab.layout, lab.identity, host).uri}"
        drop_in = f"/etc/systemd/system/{unit}.d/libvirt.conf"
        booted.run("sh", "-c", f"printf '[Service]\n%s\n' '{line}' > {drop_in}")
    booted.run("systemctl", "daemon-reload")
