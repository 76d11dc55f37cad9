"""A small real lab for the audit's tests: a running server, a stopped one, a shelved one, and one that was moved.

The moved server is brought there by hand, service by service: the audit is tested without the flows that it audits.
Each test plants on every hypervisor, and says by `plants` which kinds of finding it makes the audit report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import re
import shutil
import sqlite3
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from support import checksums
from support.daemons.libvirt_daemons import kill_daemon

from droveway.audit import Finding, Kind, Report, Sources, audit
from droveway.audit.checks import (
    allocations,
    bindings,
    cells,
    commands,
    connections,
    contents,
    disks,
    guaranteed,
    guests,
    hosts,
    images,
    journal,
    migrations,
    owners,
    rows,
    volumes,
)
from droveway.audit.checks import usage as node_usage
from droveway.audit.read import hosts as read_hosts
from droveway.audit.records import CommandView, HostsSeen
from droveway.cli.registry import COMMANDS
from droveway.clients.placement import Placement
from droveway.lab import build, daemons
from droveway.lab.cloud import Cell, Cloud, Flavor, Host, Image, Port, Server, Volume
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.moves import FlowRef, Request
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import MoveFlow, MoveStep
from droveway.persistence.nova import cell, objects, servers, usage
from droveway.persistence.nova.cell_hosts import ComputeNode
from droveway.workers.hypervisors import base

F = TypeVar("F", bound=Callable[..., None])

SERVICE_CHECKS: Final = (
    allocations,
    bindings,
    guaranteed,
    volumes,
    images,
    disks,
    guests,
    connections,
    hosts,
    contents,
    commands,
    owners,
)
ROW_CHECKS: Final = (rows, migrations, node_usage, journal)
UNREAD_CHECKS: Final = (cells,)
"""The modules of the audit, parted by where their findings are planted; of a lab each cell can be read."""
HYPERVISORS: Final = ("sandbox", "libvirt")
FLOW = FlowRef("resize", 1, "digest")
CLOUD = Cloud(
    cells={
        "cell1": Cell(hosts={"host1": Host(), "host2": Host(), "host3": Host()}),
        "cell2": Cell(hosts={"host4": Host(), "host5": Host(shared="nfs"), "host6": Host(shared="nfs")}),
    },
    flavors={
        "small": Flavor(vcpus=1, memory_mb=512, root_gb=1, ephemeral_gb=1, swap_mb=64),
        "big": Flavor(vcpus=2, memory_mb=1024, root_gb=2, ephemeral_gb=1, swap_mb=64),
    },
    images={"base": Image(size_mb=4)},
    servers={
        "web": Server(flavor="small", host="host1", image="base", ports=(Port(),), volumes=(Volume(size_gb=1),)),
        "idle": Server(flavor="small", host="host2", image="base", state="stopped"),
        "boot": Server(flavor="small", host="host5", volumes=(Volume(size_gb=1, boot=True),), state="stopped"),
        "moved": Server(flavor="small", host="host1", image="base", ports=(Port(),), volumes=(Volume(size_gb=1),)),
        "old": Server(
            flavor="small",
            cell="cell1",
            image="base",
            ports=(Port(),),
            volumes=(Volume(size_gb=1),),
            state="shelved_offloaded",
        ),
    },
)

_PLANTED: Final[defaultdict[str, set[Kind]]] = defaultdict(set)
"""What the tests of each module plant; they run on each hypervisor."""

_MENDS: Final = (
    *(rf"droveway {command}( [^ ]+)*(, then .+)?" for command in COMMANDS),
    r"(UPDATE|DELETE FROM) \w+ .*WHERE .+;",
    r"rm (-r )?/.+",
    r"(virsh destroy [^;]+; )?virsh undefine .+",
    r"virsh (destroy|start|shutdown) .+",
    r"openstack [a-z]+ .+",
    r"nova-manage [a-z_0-9]+ [a-z_]+ .+",
    r"curl -X DELETE .+",
    r"curl -X PUT .+/activate",
    r"zkCli.sh delete /droveway/hosts/.+",
)
"""A mend is one of Droveway's own commands, or one of the cloud's tools with what it acts on."""


def plants(*kinds: Kind) -> Callable[[F], F]:
    """Note that the test plants these kinds; see that its audit reported them, and that what it says mends them.

    The test's world is to be a fixture of the name ``world``.
    """

    def note(test: F) -> F:
        _PLANTED[test.__module__].update(kinds)

        @functools.wraps(test)
        def planted(*args: Any, **fixtures: Any) -> None:
            test(*args, **fixtures)
            fixtures["world"].assert_mended(kinds)

        return pytest.mark.plants(*kinds)(planted)  # type: ignore[no-any-return]

    return note


def planted(module: str) -> set[Kind]:
    """The kinds that the tests of a module plant."""
    return _PLANTED[module]


def reportable(checks: tuple[ModuleType, ...]) -> set[Kind]:
    """Every kind that the code of these checks names."""
    return {Kind[name] for check in checks for name in re.findall(r"\bKind\.([A-Z]+)\b", inspect.getsource(check))}


class World:
    """The lab; what a test plants in it is taken out again by `restored`."""

    def __init__(self, root: Path, hypervisor: str) -> None:
        self.hypervisor = hypervisor
        self._reported: set[Finding] = set()
        root.mkdir()
        root.chmod(0o711)
        self.lab = build.create(root / "lab", msgspec.structs.replace(CLOUD, hypervisor=hypervisor))
        self.ids = self._ids()
        self.move = _verify(self.lab, self.ids["moved"], "host1", "host3")
        self.mends = contextlib.ExitStack()
        self.standing: list[CommandView] = []
        """What lies in a ZooKeeper for workers, which a lab has not."""
        self._kept = root / "kept"
        self._kept.mkdir()
        for path in self._databases():
            _copy_database(path, self._kept / path.name)

    @property
    def sources(self) -> Sources:
        """What the audit reads."""
        lab = self.lab
        return Sources(
            api=lab.api,
            cells=lab.cells,
            journal=lab.journal,
            cloud=lab.cloud,
            read_hosts=self._read_hosts,
            guests_log=lab.layout.guests_log,
        )

    def _read_hosts(self) -> HostsSeen:
        looked = read_hosts.read({host: self.lab.hypervisor(host) for host in self.lab.identity.hosts})
        return dataclasses.replace(looked, commands=tuple(self.standing))

    def audit(self) -> Report:
        """One whole audit, of which each finding says what is wrong, whose it is, and the command that mends it."""
        report = audit(self.sources)
        for finding in (*report.findings, *report.noted):
            assert finding.subject, finding
            assert finding.detail, finding
            assert finding.server or finding.host or finding.move, finding
            assert any(re.fullmatch(mend, finding.mend) for mend in _MENDS), finding
        self._reported |= set(report.findings)
        return report

    def assert_mended(self, kinds: tuple[Kind, ...]) -> None:
        """These kinds were reported; whatever a statement or a removal is to mend is gone once that was done."""
        assert set(kinds) <= {finding.kind for finding in self._reported}
        ours = {finding for finding in self._reported if self._mend(finding.mend)}
        if ours:
            assert not ours & set(self.audit().findings)

    def _mend(self, command: str) -> bool:
        """Do it, if it is not for a service that this cloud has not; a statement is given to every cell."""
        if command.startswith("rm "):
            subprocess.run(command, shell=True, check=True)
        elif command.endswith(";"):
            for database in (self.lab.api, *self.lab.cell_databases.values()):
                table = command.removeprefix("DELETE FROM ").removeprefix("UPDATE ").split()[0]
                with database.write() as session:
                    if sa.inspect(session.connection()).has_table(table):
                        session.connection().exec_driver_sql(command)
        else:
            return False
        return True

    def found(self) -> set[tuple[str, str]]:
        """Kind and subject of every finding."""
        return {(finding.kind.value, finding.subject) for finding in self.audit().findings}

    def only(self, kind: str) -> Finding:
        """The one finding that there is; it is of this kind."""
        findings = self.audit().findings
        assert [finding.kind for finding in findings] == [kind], findings
        return findings[0]

    def node(self, host: str) -> str:
        """The provider of a host."""
        cell_name = self.lab.host(host).cell
        with self.lab.cells.database(cell_name).read() as session:
            return str(session.scalars(sa.select(ComputeNode.uuid).where(ComputeNode.host == host)).one())

    def hold(self, consumer: str, **hosts: dict[str, int]) -> None:
        """Let a consumer hold exactly this."""
        owner = {"project_id": self.lab.identity.project, "user_id": self.lab.identity.user}
        held = {self.node(host): amounts for host, amounts in hosts.items()}
        self.lab.cloud.placement.release(consumer)
        if held:
            self.lab.cloud.placement.ensure_allocation(consumer, held, **owner)

    @contextlib.contextmanager
    def rows(self, cell_name: str = "cell1") -> Iterator[orm.Session]:
        """Write in a cell's database, whatever the cost."""
        with self.lab.cells.database(cell_name).write() as session:
            yield session

    def instance(self, session: orm.Session, name: str) -> cell.Instance:
        """A server's row."""
        return session.scalars(sa.select(cell.Instance).where(cell.Instance.uuid == self.ids[name])).one()

    def instances(self, host: str) -> Path:
        """A host's instances directory."""
        return self.lab.layout.host(host) / "instances"

    def make_directory(self, host: str, name: str, **files: dict[str, Any]) -> Path:
        """A directory below a host's instances, with JSON files; removed after the test."""
        path = self.instances(host) / name
        path.mkdir()
        self.mends.callback(shutil.rmtree, path, ignore_errors=True)
        for stem, content in files.items():
            (path / f"{stem.replace('_', '-')}.json").write_text(json.dumps(content))
        return path

    def kill_daemon(self, host: str) -> None:
        """Kill the host's libvirt daemon; started again after the test."""
        daemon = daemons.host(self.lab.layout, self.lab.identity, host)
        self.mends.callback(daemon.start)
        kill_daemon(daemon)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a path; back again after the test."""
        old.rename(new)
        self.mends.callback(new.rename, old)

    def stop(self, host: str, name: str) -> None:
        """Cut a guest off; started again after the test."""
        hypervisor, server = self.lab.hypervisor(host), self.ids[name]
        hypervisor.stop(server, grace=0.0, fence=_no_fence)
        self.mends.callback(hypervisor.start, server, _no_fence)

    def start(self, host: str, name: str) -> None:
        """Start a guest; stopped again after the test."""
        hypervisor, server = self.lab.hypervisor(host), self.ids[name]
        hypervisor.start(server, _no_fence)
        self.mends.callback(hypervisor.stop, server, grace=0.0, fence=_no_fence)

    def define(self, host: str, server: str, mark: base.Mark | None) -> None:
        """Define a guest without disks; undefined again after the test."""
        hypervisor = self.lab.hypervisor(host)
        definition = hypervisor.create_definition(
            server=server, name=f"instance-{server[:8]}", vcpus=1, memory_mb=512, disks=[], boot_volume=False
        )
        hypervisor.define(server, definition, vcpus=1, memory_mb=512, disks=[], volumes=[], ports=[], mark=mark)
        self.mends.callback(hypervisor.undefine, server)

    def submit(self, name: str) -> str:
        """A new move of a server, which no conductor has claimed yet."""
        request = Request(
            kind="resize",
            server=self.ids[name],
            server_name=name,
            cell="cell1",
            host="host2",
            old_flavor="small",
            new_flavor="big",
        )
        with self.lab.journal.write() as session:
            return moves.submit(session, request, FLOW).id

    def ended_move(self, name: str, state: State, *, status: str) -> str:
        """A move of a server that ended in this state and left a migration of this status."""
        move_id = self.submit(name)
        with self.lab.journal.write() as session:
            move = moves.get(session, move_id)
            move.state, move.active_server, move.flow_uuid = state.value, None, None
        with self.rows() as session:
            session.add(migration_row(move_id, self.ids[name], status))
        return move_id

    @contextlib.contextmanager
    def restored(self) -> Iterator[World]:
        """The lab as it was built, again after the test."""
        self._reported.clear()
        try:
            yield self
        finally:
            self.mends.close()
            self.standing.clear()
            for path in self._databases():
                _copy_database(self._kept / path.name, path)

    def close(self) -> None:
        """Stop every guest and remove the lab."""
        self.lab.close()
        build.destroy(self.lab.layout.root)

    def _ids(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for database in self.lab.cell_databases.values():
            with database.read() as session:
                found |= {
                    str(row.display_name): row.uuid
                    for row in session.execute(sa.select(cell.Instance.display_name, cell.Instance.uuid))
                }
        return found

    def _databases(self) -> list[Path]:
        files = self.lab.layout
        return [files.api, files.journal, files.placement, files.services, *sorted(files.cells.glob("*.sqlite"))]


def about(finding: Finding) -> tuple[str, str, str, str]:
    """Subject, host, server and move of a finding."""
    return finding.subject, finding.host, finding.server, finding.move


def migration_row(uuid: str, server: str, status: str) -> cell.Migration:
    """A resize of a server from host2."""
    return cell.Migration(
        uuid=uuid, instance_uuid=server, status=status, migration_type="resize", source_compute="host2", deleted=0
    )


def _copy_database(source: Path, target: Path) -> None:
    """Copy by SQLite itself: connections to the target may stay open, and the next thing they read is the copy."""
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        new.execute("PRAGMA synchronous = OFF")
        old.backup(new)


def _no_fence() -> None:
    """Nobody else is at work in a test's lab."""


def _verify(lab: Lab, server: str, source: str, dest: str) -> str:
    """Bring the server to where Nova has it in VERIFY_RESIZE, with its old flavor kept on the source."""
    with lab.journal.write() as session:
        request = Request(
            kind="resize",
            server=server,
            server_name="moved",
            cell="cell1",
            host=source,
            old_flavor="small",
            new_flavor="big",
        )
        move = moves.submit(session, request, FLOW)
        move.dest_cell, move.dest_host = "cell1", dest
        moves.change_state(session, move, State.RUNNING)
        moves.end_flow(session, move.id, str(move.flow_uuid), done=True)
    move_id = move.id
    _claim(lab, lab.cloud.placement, server, move_id, dest)
    _rebind(lab, server, source, dest)
    _carry(lab, server, move_id, source, dest)
    _record(lab, server, move_id, source, dest)
    return move_id


def _claim(lab: Lab, placement: Placement, server: str, move_id: str, dest: str) -> None:
    with lab.cells.database("cell1").read() as session:
        node = str(session.scalars(sa.select(ComputeNode.uuid).where(ComputeNode.host == dest)).one())
    wanted = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 4}
    placement.claim_move(
        server=server,
        migration=move_id,
        source=placement.allocations(server),
        destination={"allocations": {node: {"resources": wanted}}},
        project_id=lab.identity.project,
        user_id=lab.identity.user,
    )


def _rebind(lab: Lab, server: str, source: str, dest: str) -> None:
    for port in lab.cloud.network.ports(server):
        lab.cloud.network.ensure_binding(port.id, dest, {})
        lab.cloud.network.activate(port.id, dest, device_owner=port.device_owner)
        lab.cloud.network.delete_binding(port.id, source)


def _carry(lab: Lab, server: str, move_id: str, source: str, dest: str) -> None:
    """Volumes, disks and guest."""
    old_host, new_host = lab.hypervisor(source), lab.hypervisor(dest)
    guest = old_host.guest(server)
    assert guest is not None
    old_host.stop(server, grace=0.0, fence=_no_fence)
    ports = [base.Port(port=port.id, mac=port.mac) for port in lab.cloud.network.ports(server)]
    for port in ports:
        old_host.unplug(server, port.port)
        new_host.plug(server, port)
    volumes = []
    with lab.cells.database("cell1").write() as session:
        for device in servers.volumes(session, server):
            volume, old = str(device.volume_id), str(device.attachment_id)
            new = lab.cloud.volumes.create_attachment(volume, server, known=[old])
            lab.cloud.volumes.delete_attachment(old)
            lab.cloud.volumes.connect(new, new_host.connector(), str(device.device_name))
            lab.cloud.volumes.complete(new)
            device.attachment_id = new
            old_host.disconnect_volume(server, volume)
            info = lab.cloud.volumes.connection_info(new)
            volumes.append(base.Volume(volume=volume, device=str(device.device_name), boot=False, connection=info))
            new_host.connect_volume(server, volumes[-1])
    kept = old_host.instances / f"{server}_resize"
    (old_host.instances / server).rename(kept)
    (kept / "droveway-manifest.json").write_text(json.dumps({"move": move_id, "epoch": 1, "server": server}))
    copy = new_host.instances / server
    # Not by shutil: it would fill the holes of sparse disks.
    subprocess.run(["cp", "-a", "--sparse=always", kept, copy], check=True)
    (copy / "droveway-manifest.json").unlink()
    (copy / "droveway.json").write_text(json.dumps({"move": move_id, "epoch": 1, "server": server}))
    new_host.define(
        server,
        guest.definition,
        vcpus=2,
        memory_mb=1024,
        disks=[copy / "disk", copy / "disk.eph0", copy / "disk.swap"],
        formats=dict.fromkeys(("disk", "disk.eph0", "disk.swap"), new_host.disk_format),
        volumes=volumes,
        ports=ports,
        mark=base.Mark(move=move_id, epoch=1),
    )
    new_host.start(server, _no_fence)


def _record(lab: Lab, server: str, move_id: str, source: str, dest: str) -> None:
    """The rows."""
    with lab.api.write() as session:
        flavor = servers.flavor(session, "big")
        spec = servers.request_spec(session, server)
        spec.spec = objects.encode(objects.change_request_spec(objects.decode(spec.spec), {"flavor": flavor}))
    fields = objects.flavor_data(flavor)
    with lab.cells.database("cell1").write() as session:
        row, extra = servers.find(session, server), servers.extra_row(session, server)
        old = servers.flavors(extra)["cur"]
        node = session.scalars(sa.select(ComputeNode).where(ComputeNode.host == dest)).one()
        migration = cell.Migration(
            uuid=move_id,
            instance_uuid=server,
            status="finished",
            migration_type="resize",
            source_compute=source,
            dest_compute=dest,
            source_node=source,
            dest_node=dest,
            deleted=0,
        )
        session.add(migration)
        session.flush()
        row.host, row.node, row.compute_id, row.vm_state = dest, dest, node.id, "resized"
        row.instance_type_id, row.vcpus, row.memory_mb = fields["id"], fields["vcpus"], fields["memory_mb"]
        row.root_gb, row.ephemeral_gb = fields["root_gb"], fields["ephemeral_gb"]
        extra.flavor = objects.encode(objects.server_flavors(flavor, old=old, new=flavor))
        extra.migration_context = objects.encode(objects.migration_context(server, migration.id))
        servers.set_system_metadata(session, server, "old_vm_state", "active")
        usage.recompute(session, source, dest)


def note_digest(world: World, disk: str, path: Path) -> None:
    """As `copy_disks` leaves it in the history."""
    now = datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns have it
    with world.lab.journal.write() as session:
        (flow,) = session.scalars(sa.select(MoveFlow.uuid).where(MoveFlow.move_id == world.move))
        session.add(
            MoveStep(
                move_id=world.move,
                flow_uuid=flow,
                flow="resize",
                step="copy_disks",
                direction="execute",
                attempt=1,
                epoch=1,
                started_at=now,
                ended_at=now,
                result={"disks": [{"name": disk, "source_checksum": checksums.recorded(path)}]},
            )
        )
