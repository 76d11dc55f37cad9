"""The trial of docs/install.rst: its commands, word for word, on fresh machines with the wheel that was just built."""

from __future__ import annotations

import argparse
import contextlib
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

import sqlalchemy as sa
from proofs.install_trial import cloud, page
from support.daemons.daemons import copy_rows
from support.labs.small_lab import until
from support.servers.systemd_machine import Machine, machine

from droveway.lab import build
from droveway.lab.cloud import parse_cloud
from droveway.lab.serve_settings import map_cell
from droveway.lab.session import Lab
from droveway.persistence.database import Database
from droveway.persistence.nova.base import ApiBase, CellBase

ROOT: Final = Path(__file__).parents[3]
NAMES: Final = ("control1.example", "node1.example", "zk1.example", "db.example", "keystone.example")
HOST: Final = "node1.example"
CONTROL: Final = "control1.example"
PORTS: Final = {"Keystone": cloud.PORT, "MariaDB": 3306, "ZooKeeper": 2281, "the disk transfer": 4790}

_CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{{HOST}: {{vcpus: 8, memory_mb: 2048, disk_gb: 10}}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
servers:
  web: {{flavor: small, host: {HOST}, image: base, state: stopped, ports: [{{}}]}}
"""
_TEMPLATE: Final = "{scheme}://{username}:{password}@{hostname}:{port}/nova?{query}"
"""How Nova says where the cell's database is: the page says that then Droveway's own user reaches it."""

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
_READY_WITHIN: Final = 120.0


class Failed(Exception):
    """A command of the page did not do what the page says."""


def main(argv: Sequence[str]) -> int:
    """Carry the trial out and return the exit code; ``argv``: the options."""
    parser = argparse.ArgumentParser(prog="tools/install-trial", description=__doc__)
    parser.add_argument("wheels", type=Path, help="the directory with the wheel and all that it depends on")
    parser.add_argument("root", type=Path, help="a fresh Debian with MariaDB and ZooKeeper installed")
    options = parser.parse_args(argv)
    for name, port in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                sys.exit(f"install-trial: port {port}, which {name} needs here, cannot be had: {error.strerror}")
    folder = Path(tempfile.mkdtemp(prefix="droveway-trial-", dir="/var/lib"))
    try:
        _carry_out(folder, options.wheels.resolve(), options.root.resolve())
    except Failed as failed:
        _say(f"install-trial: {failed}")
        return 1
    finally:
        shutil.rmtree(folder)
    _say("install-trial: who follows the page has a conductor and a worker that run")
    return 0


def _carry_out(folder: Path, wheels: Path, root: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shutil.copytree(wheels, shared / "wheels")
    build.create(shared / "lab", parse_cloud(_CLOUD, "the trial")).close()
    lab = Lab.open(shared / "lab")
    with contextlib.ExitStack() as stack:
        stack.callback(lab.close)
        stack.enter_context(cloud.served(lab.layout))
        conductor = stack.enter_context(_machine(folder / "control1", shared, root, CONTROL, {}))
        drop_in = {"/etc/systemd/system/droveway-worker.service.d/trial.conf": _DROP_IN}
        host = stack.enter_context(_machine(folder / "node1", shared, root, HOST, drop_in))
        # Such a machine does not make its files for the time being at its start.
        conductor.run("systemd-tmpfiles", "--create", "--prefix=/run/mysqld")
        # As nova-compute has it.
        host.run("mkdir", "-p", "/var/lib/nova/instances")
        conductor.start("mariadb", "zookeeper")
        _give_nova_s_databases(conductor, lab)
        machines = {"conductor": conductor, "zookeeper": conductor, "database": conductor, "host": host}
        for block in page.blocks(page.PAGE.read_text(encoding="utf-8")):
            for name in block.machines:
                _bring(conductor, host, block)
                _follow(name, machines[name], block)
        _judge(conductor, host)


@contextlib.contextmanager
def _machine(work: Path, shared: Path, root: Path, name: str, files: Mapping[str, str]) -> Iterator[Machine]:
    """Boot a fresh machine of this name, which reaches what the machine that the trial runs on reaches."""
    made = {
        "/etc/hostname": f"{name}\n",
        "/etc/hosts": f"127.0.0.1 localhost {' '.join(NAMES)}\n",
        "/etc/resolv.conf": Path("/etc/resolv.conf").read_text(),
        "/etc/pip.conf": f"[global]\nno-index = true\nfind-links = {shared / 'wheels'}\n",
        **files,
    }
    with machine(work, shared, made, root) as booted:
        booted.run("hostname", name)
        (wheel,) = shared.glob("wheels/droveway-*.whl")
        booted.run("install", "-d", "-m", "700", "/srv/droveway")
        booted.run("cp", str(wheel), "/srv/droveway/")
        yield booted


def _give_nova_s_databases(conductor: Machine, lab: Lab) -> None:
    """Make Nova's databases on the database server, with the lab's rows."""
    socket_file = conductor.files / "run/mysqld/mysqld.sock"
    until(socket_file.exists, "MariaDB", _READY_WITHIN)
    for name in ("nova_api", "nova_cell0", "nova"):
        conductor.run("mariadb", "-e", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    urls = {name: f"mysql+pymysql://root@localhost/{name}?unix_socket={socket_file}" for name in ("nova_api", "nova")}
    api = Database(urls["nova_api"])
    copy_rows(lab.api, api, ApiBase.metadata)
    map_cell(api, "cell1", _TEMPLATE)
    api.close()
    copy_rows(lab.cell_databases["cell1"], Database(urls["nova"]), CellBase.metadata)
    cell0 = sa.create_engine(urls["nova"].replace("/nova?", "/nova_cell0?"))
    CellBase.metadata.create_all(cell0)
    cell0.dispose()


def _bring(conductor: Machine, host: Machine, block: page.Block) -> None:
    """Copy from machine to machine what the page's text says, before the first block that wants it."""
    made = "srv/droveway/authority"
    wanted = {
        "/srv/droveway/tls/": ((f"conductor-{CONTROL}", conductor), (f"host-{HOST}", host)),
        "/srv/droveway/zookeeper-tls/": (("zookeeper-zk1.example", conductor),),
    }
    for place, copies in wanted.items():
        if place in block.text:
            for name, machine_of in copies:
                target = machine_of.files / place.strip("/")
                if not target.exists() and (conductor.files / made / name).exists():
                    shutil.copytree(conductor.files / made / name, target)
    if "/srv/droveway/sql/" in block.text and not (conductor.files / "srv/droveway/sql").exists():
        conductor.run("cp", "-r", "/opt/droveway/share/droveway/sql", "/srv/droveway/sql")


def _follow(name: str, followed: Machine, block: page.Block) -> None:
    """Run a block as somebody would who pastes it into a shell of root's."""
    began = time.monotonic()
    _say(f"== {name}, docs/install.rst line {block.line}")
    _say(textwrap.indent(block.text, "   ").rstrip())
    clean = ["env", "-i", *(f"{key}={value}" for key, value in _ENVIRONMENT.items())]
    done = subprocess.run(
        followed.entering(*clean, "bash", "-c", f"cd /root\nset -eo pipefail\n{block.text}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    _say(done.stdout.rstrip())
    _say(f"   exit {done.returncode} after {time.monotonic() - began:.1f} s")
    warned = done.returncode == _WARNED and block.text == "droveway doctor\n"
    if done.returncode != 0 and not warned:
        _say(followed.run("journalctl", "--no-pager", "--lines=40"))
        raise Failed(f"the commands on line {block.line} of docs/install.rst end with {done.returncode} on the {name}")


def _judge(conductor: Machine, host: Machine) -> None:
    """Raise `Failed` unless the daemons run, are seen and their units are without fault."""
    for made, unit in ((conductor, "droveway-conductor"), (host, "droveway-worker")):
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
        _await_listed(conductor, unit.removeprefix("droveway-"), made.shown(unit, "MainPID"))
    kept = [path for path in (host.files / "etc/droveway").rglob("*") if path.is_file()]
    if exposed := [path.name for path in kept if "CHANGE-ME-database" in path.read_text()]:
        raise Failed(f"the host holds the password of the databases, in {', '.join(exposed)}")


def _await_listed(conductor: Machine, noun: str, pid: str) -> None:
    """Wait until the daemon with this process is listed as up.

    A journal that was put back still lists those that were up when it was copied.
    """
    listed = ("/usr/local/bin/droveway", noun, "list", "-f", "value", "-c", "pid", "-c", "state")

    def is_up() -> bool:
        return any({pid, "up"} == {*line.split()} for line in conductor.run(*listed).splitlines())

    until(is_up, f"a {noun} with process {pid} that is up", _READY_WITHIN)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
