"""The trial of docs/install.rst and docs/three-zookeepers.rst: their commands, on fresh machines, with the wheel."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from proofs.install_trial import cloud, page
from proofs.install_trial.network import CONTROL as ADDRESS
from proofs.install_trial.network import HOSTS, ZOOKEEPERS, networks, space
from support.daemons.daemons import copy_rows
from support.labs.small_lab import until
from support.servers import openstack_lab
from support.servers.openstack_services import OpenStack
from support.servers.systemd_machine import Machine, machine

from droveway.lab.serve_settings import map_cell
from droveway.lab.session import Lab
from droveway.persistence.database import Database
from droveway.persistence.nova.base import ApiBase, CellBase

ROOT: Final = Path(__file__).parents[3]
CONTROL: Final = "control1.example"
NAMES: Final = {ADDRESS: f"{CONTROL} db.example keystone.example"} | {
    address: name for name, address in {**HOSTS, **ZOOKEEPERS}.items()
}
HOST: Final = "node1.example"
"""The one that the page names."""
OTHER: Final = "node2.example"
ALL_THREE: Final = "Let the daemons know all three"
"""The section at whose end one of the ZooKeeper servers may fail."""
JUDGED: Final = ("Check it", "Back the journal up", "Upgrade", "The way back", ALL_THREE)
"""The pages' sections at whose end there is an installation that works."""
_ZOOKEEPER: Final = 2281
"""The port of each ZooKeeper server."""
PORTS: Final = {"Keystone": cloud.PORT, "MariaDB": 3306, "PostgreSQL": 5432}

_ROOM: Final = (
    "{vcpus: 8, memory_mb: 2048, disk_gb: 10, kpps: 40,"
    " bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000}}}"
)
_CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{{HOST}: {_ROOM}, {OTHER}: {_ROOM}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: net-a}}}}
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}}}}
servers:
  web:
    flavor: small
    host: {HOST}
    image: base
    state: stopped
    ports: [{{network: a}}, {{network: a, qos: gold}}]
"""
_TEMPLATE: Final = "{scheme}://{username}:{password}@{hostname}:{port}/nova?{query}"
"""How Nova says where the cell's database is: the page says that then Droveway's own user reaches it."""

_LISTENS: Final = {
    "/etc/mysql/mariadb.conf.d/99-trial.cnf": "[mariadbd]\nbind-address = 0.0.0.0\n",
    "/etc/postgresql/15/main/conf.d/trial.conf": "listen_addresses = '*'\n",
}
"""How an operator's database servers listen already, for Nova."""
_LETS_IN: Final = f"host all all {ADDRESS}/24 scram-sha-256"
"""A line of pg_hba.conf."""
_NOVA: Final = "nova-trial"
"""The password of Nova's own user in PostgreSQL."""

_DROP_IN: Final = """
[Service]
Environment=OS_WORKER__HYPERVISOR=sandbox
"""
"""These machines have no KVM, and a sandbox's guests need none."""

_ENVIRONMENT: Final = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
}
_WARNED: Final = 1
_WARNS: Final = ("droveway doctor\n", "droveway upgrade check\n")
"""The commands that the page says end with `_WARNED` here."""
_READY_WITHIN: Final = 120.0


class Failed(Exception):
    """A command of the page did not do what the page says."""


def main(argv: Sequence[str]) -> int:
    """Carry the trial out and return the exit code; ``argv``: the options."""
    parser = argparse.ArgumentParser(prog="tools/install-trial", description=__doc__)
    parser.add_argument("wheels", type=Path, help="the directory with the wheel and all that it depends on")
    parser.add_argument("root", type=Path, help="a fresh Debian with ZooKeeper and both makes of database servers")
    parser.add_argument("client", type=Path, help="the directory with the command openstack")
    parser.add_argument("database", choices=page.DATABASES, help="the make whose commands are followed")
    options = parser.parse_args(argv)
    for name, port in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError as error:
                sys.exit(f"install-trial: port {port}, which {name} needs here, cannot be had: {error.strerror}")
    folder = Path(tempfile.mkdtemp(prefix="droveway-trial-", dir="/var/lib"))
    try:
        _carry_out(folder, options.wheels.resolve(), options.root.resolve(), options.client, options.database)
    except Failed as failed:
        _say(f"install-trial: {failed}")
        return 1
    finally:
        shutil.rmtree(folder)
    _say(f"install-trial: who follows the page with {options.database} has an installation that moves servers")
    return 0


class Administrator:
    """Who administers the cloud, with its command on the machine that the trial runs on."""

    def __init__(self, services: OpenStack, client: Path) -> None:
        auth = {f"OS_{name.upper()}": value for name, value in services.keystone.auth("admin", "admin").items()}
        self.environment = {**auth, "OS_IDENTITY_API_VERSION": "3", "PATH": f"{client}:{_ENVIRONMENT['PATH']}"}

    def entering(self, *words: str) -> list[str]:
        """Return the words that run a command here."""
        return [*words]

    def run(self, *words: str) -> str:
        """What a command prints here."""
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _carry_out(folder: Path, wheels: Path, root: Path, client: Path, database: str) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shutil.copytree(wheels, shared / "wheels")
    with contextlib.ExitStack() as stack:
        stack.enter_context(networks({**HOSTS, **ZOOKEEPERS}))
        services, lab = stack.enter_context(cloud.running(folder / "cloud", _CLOUD))
        conductor = stack.enter_context(_machine(folder / "control1", shared, root, CONTROL, _LISTENS))
        drop_in = {"/etc/systemd/system/droveway-worker.service.d/trial.conf": _DROP_IN}
        hosts = {
            name: stack.enter_context(_machine(folder / name, shared, root, name, drop_in, space(name)))
            for name in HOSTS
        }
        zookeepers = [
            stack.enter_context(_machine(folder / name, shared, root, name, {}, space(name))) for name in ZOOKEEPERS
        ]
        for name, host in hosts.items():
            # As nova-compute has it.
            shutil.copytree(lab.layout.host(name), host.files / "var/lib/nova")
        rules = conductor.files / "etc/postgresql/15/main/pg_hba.conf"
        rules.write_text(f"{rules.read_text()}{_LETS_IN}\n")
        # Such a machine does not make its files for the time being at its start.
        conductor.run("systemd-tmpfiles", "--create", "--prefix=/run/mysqld", "--prefix=/run/postgresql")
        zookeepers[0].start("zookeeper")
        conductor.start(_UNITS[database])
        _give_nova_s_databases(conductor, lab, database)
        machines: dict[str, Sequence[Machine | Administrator]] = {
            "administrator": [Administrator(services, client)],
            "conductor": [conductor],
            "database": [conductor],
            "host": [*hosts.values()],
            **{name: [each] for name, each in zip(("zookeeper", "zk2", "zk3"), zookeepers, strict=True)},
        }
        release = ""
        for path in (page.PAGE, page.ENSEMBLE):
            blocks = [each for each in page.blocks(path.read_text("utf-8")) if each.database in (None, database)]
            for section, of_section in itertools.groupby(blocks, key=lambda block: block.section):
                for block in of_section:
                    release = re.findall(r"/droveway-([0-9.]+)-", f"/droveway-{release}-{block.text}")[-1]
                    followed = [(name, each) for name in block.machines for each in machines[name]]
                    _bring(conductor, hosts, zookeepers, block, shared)
                    for name, each in followed:
                        _follow(name, each, block, path)
                if section in JUDGED:
                    _judge(conductor, hosts, release)
                    _move(conductor, hosts, services)
                if section == ALL_THREE:
                    # It leads, since it was the first of the three.
                    zookeepers[0].run("systemctl", "kill", "--signal=KILL", "zookeeper")
                    until(lambda: not _listens(ZOOKEEPERS["zk1.example"]), "the leader's end", _READY_WITHIN)
                    _move(conductor, hosts, services)


_UNITS: Final = {"mariadb": "mariadb", "postgresql": "postgresql@15-main"}


@contextlib.contextmanager
def _machine(
    work: Path, shared: Path, root: Path, name: str, files: Mapping[str, str], network: str | None = None
) -> Iterator[Machine]:
    """Boot a fresh machine of this name, which reaches what the machine that the trial runs on reaches."""
    made = {
        "/etc/hostname": f"{name}\n",
        "/etc/hosts": "".join(f"{address} {names}\n" for address, names in {"127.0.0.1": "localhost", **NAMES}.items()),
        "/etc/resolv.conf": Path("/etc/resolv.conf").read_text(),
        "/etc/pip.conf": f"[global]\nno-index = true\nfind-links = {shared / 'wheels'}\n",
        **files,
    }
    with machine(work, shared, made, root, network) as booted:
        booted.run("hostname", name)
        booted.run("install", "-d", "-m", "700", "/srv/droveway")
        for wheel in shared.glob("wheels/droveway-*.whl"):
            booted.run("cp", str(wheel), "/srv/droveway/")
        yield booted


def _listens(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, _ZOOKEEPER)) == 0


def _give_nova_s_databases(conductor: Machine, lab: Lab, database: str) -> None:
    """Make Nova's databases on the database server, with the lab's rows."""
    urls = (_mariadb if database == "mariadb" else _postgresql)(conductor)
    api, cell, cell0 = (Database(urls[name]) for name in ("nova_api", "nova", "nova_cell0"))
    copy_rows(lab.api, api, ApiBase.metadata)
    map_cell(api, "cell1", _TEMPLATE)
    copy_rows(lab.cell_databases["cell1"], cell, CellBase.metadata)
    CellBase.metadata.create_all(cell0.engine)
    for each in (api, cell, cell0):
        each.close()


_DATABASES: Final = ("nova_api", "nova_cell0", "nova")


def _mariadb(conductor: Machine) -> dict[str, str]:
    """Make Nova's databases in MariaDB, and return their URLs."""
    socket_file = conductor.files / "run/mysqld/mysqld.sock"
    until(socket_file.exists, "MariaDB", _READY_WITHIN)
    for name in _DATABASES:
        conductor.run("mariadb", "-e", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    return {name: f"mysql+pymysql://root@localhost/{name}?unix_socket={socket_file}" for name in _DATABASES}


def _postgresql(conductor: Machine) -> dict[str, str]:
    """Make Nova's databases in PostgreSQL with Nova's own user, which owns them, and return their URLs."""
    asked = ("runuser", "-u", "postgres", "--", "psql", "-c")
    until(lambda: conductor.run(*asked, "SELECT 1", check=False) != "", "PostgreSQL", _READY_WITHIN)
    conductor.run(*asked, f"CREATE USER nova PASSWORD '{_NOVA}'")
    for name in _DATABASES:
        conductor.run(*asked, f"CREATE DATABASE {name} OWNER nova")
    return {name: f"postgresql+psycopg://nova:{_NOVA}@{ADDRESS}/{name}" for name in _DATABASES}


def _bring(
    conductor: Machine, hosts: Mapping[str, Machine], zookeepers: Sequence[Machine], block: page.Block, shared: Path
) -> None:
    """Copy from machine to machine what the page's text says, before the first block that wants it."""
    made = "srv/droveway/authority"
    new = {"zookeeper": zookeepers[:1]}.get(block.machines[0], zookeepers[1:])
    wanted = {
        "/srv/droveway/tls/": (
            (f"conductor-{CONTROL}", conductor),
            *((f"host-{name}", host) for name, host in hosts.items()),
        ),
        "/srv/droveway/zookeeper-tls/": [
            (f"zookeeper-{name}", each) for name, each in zip(ZOOKEEPERS, zookeepers, strict=True) if each in new
        ],
    }
    for place, copies in wanted.items():
        if place in block.text:
            for name, machine_of in copies:
                target = machine_of.files / place.strip("/")
                if not target.exists() and (conductor.files / made / name).exists():
                    shutil.copytree(conductor.files / made / name, target)
    if "/srv/droveway/sql/" in block.text and not (conductor.files / "srv/droveway/sql").exists():
        conductor.run("cp", "-r", "/opt/droveway/share/droveway/sql", "/srv/droveway/sql")
    if "echo 2 > /etc/zookeeper/conf/myid" in block.text:
        for name in ("zoo.cfg", "environment"):
            zookeepers[0].run("cp", f"/etc/zookeeper/conf/{name}", str(shared))
            for each in zookeepers[1:]:
                each.run("cp", str(shared / name), f"/etc/zookeeper/conf/{name}")


def _follow(name: str, followed: Machine | Administrator, block: page.Block, path: Path) -> None:
    """Run a block as somebody would who pastes it into a shell of root's; the page has one host, and here are two."""
    began = time.monotonic()
    text = re.sub(rf"^(droveway cert make .*){HOST}$", rf"\1{HOST}\n\1{OTHER}", block.text, flags=re.MULTILINE)
    _say(f"== {name}, docs/{path.name} line {block.line}")
    _say(textwrap.indent(text, "   ").rstrip())
    environment = _ENVIRONMENT | (followed.environment if isinstance(followed, Administrator) else {})
    clean = ["env", "-i", *(f"{key}={value}" for key, value in environment.items())]
    done = subprocess.run(
        followed.entering(*clean, "bash", "-c", f"cd /root\nset -eo pipefail\n{text}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    _say(done.stdout.rstrip())
    _say(f"   exit {done.returncode} after {time.monotonic() - began:.1f} s")
    warned = done.returncode == _WARNED and block.text.endswith(_WARNS)
    if done.returncode != 0 and not warned:
        _say(followed.run("journalctl", "--no-pager", "--lines=40"))
        raise Failed(f"the commands on line {block.line} of docs/{path.name} end with {done.returncode} on the {name}")


def _judge(conductor: Machine, hosts: Mapping[str, Machine], release: str) -> None:
    """Raise `Failed` unless the daemons run, are seen, have units without fault and no password that is not theirs."""
    for made, unit in ((conductor, "droveway-conductor"), *((host, "droveway-worker") for host in hosts.values())):
        if made.shown(unit, "ActiveState") != "active":
            raise Failed(f"{unit} does not run:\n{made.said(unit)}")
        said = subprocess.run(
            made.entering("systemd-analyze", "--man=no", "verify", f"/etc/systemd/system/{unit}.service"),
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode or f"{unit}.service" in said.stderr:
            raise Failed(f"systemd-analyze verify finds fault with {unit}: {said.stderr}")
        _await_listed(conductor, unit.removeprefix("droveway-"), made.shown(unit, "MainPID"), release)
    for name, host in hosts.items():
        kept = [path for path in (host.files / "etc/droveway").rglob("*") if path.is_file()]
        if exposed := [path.name for path in kept if "CHANGE-ME-database" in path.read_text()]:
            raise Failed(f"{name} holds the password of the databases, in {', '.join(exposed)}")


def _move(conductor: Machine, hosts: Mapping[str, Machine], services: OpenStack) -> None:
    """Raise `Failed` unless the server goes to the other host with its disk, by a move whose conductor is killed.

    Its ports and its allocation go along, by the tables of Neutron and Placement.
    """
    (old,) = (name for name, host in hosts.items() if _disks(host))
    (new,) = {*hosts} - {old}
    before = _disks(hosts[old])
    began = time.monotonic()
    _droveway(conductor, "server", "migrate", "web", "--confirm", "manual", "--reason", "the trial")
    conductor.run("systemctl", "kill", "--signal=KILL", "droveway-conductor")
    move = _droveway(conductor, "server", "show", "web", "-f", "value", "-c", "move")
    _say(_droveway(conductor, "move", "wait", move))
    _droveway(conductor, "server", "confirm", "web")
    _say(_droveway(conductor, "move", "wait", move))
    there = _droveway(conductor, "server", "show", "web", "-f", "value", "-c", "host")
    after = {name: _disks(host) for name, host in hosts.items()}
    if (there, after) != (new, {old: {}, new: before}):
        raise Failed(f"the server was to go from {old} to {new}: it is on {there}, and its disks are {after}")
    server = _droveway(conductor, "server", "show", "web", "-f", "value", "-c", "id")
    bound = openstack_lab.bindings(services, server)
    if [(host, status) for host, status, _providers in bound] != [(new, "ACTIVE")] * 2:
        raise Failed(f"its two ports were to be bound on {new}: Neutron has {bound}")
    held = openstack_lab.held(services)
    if [*held] != [server] or any(name.partition(":")[0] != new for name in held[server]):
        raise Failed(f"the server alone was to hold of {new}, and of nothing else: Placement has {held}")
    _say(_droveway(conductor, "audit"))
    _say(f"   moved from {old} to {new}, audit clean, after {time.monotonic() - began:.1f} s")


def _disks(host: Machine) -> dict[str, str]:
    """Return the checksum of each disk below the host's instances directory, by its path there."""
    root = host.files / "var/lib/nova/instances"
    found = [path for path in root.glob("*/disk*") if path.suffix != ".info" and "_base" not in path.parts]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _droveway(conductor: Machine, *words: str) -> str:
    return conductor.run("/usr/local/bin/droveway", *words)


def _await_listed(conductor: Machine, noun: str, pid: str, release: str) -> None:
    """Wait until the daemon with this process is listed as up, with this release.

    A journal that was put back still lists those that were up when it was copied.
    """
    listed = (noun, "list", "-f", "value", "-c", "pid", "-c", "state", "-c", "version")

    def is_up() -> bool:
        return any({pid, "up", release} == {*line.split()} for line in _droveway(conductor, *listed).splitlines())

    until(is_up, f"a {noun} of release {release} with process {pid} that is up", _READY_WITHIN)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
