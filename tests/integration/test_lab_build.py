from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from droveway.errors import Refused, StepError
from droveway.lab import books, build, cloud, layout, operations, server_rows, servers
from droveway.lab.session import Lab
from droveway.persistence.nova import api, catalog, cell
from droveway.workers.directories import Directories
from droveway.workers.hypervisors import guests_log

CLOUD = """
cells:
  cell1:
    hosts:
      host1: {az: az1, aggregates: [rack1], traits: [CUSTOM_X]}
      host2: {shared: nfs, enabled: false}
      host3: {shared: nfs}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1, ephemeral_gb: 1, swap_mb: 8}
  plain: {vcpus: 1, memory_mb: 512, root_gb: 1, extra_specs: {"hw:mem_page_size": any}}
images: {base: {size_mb: 5, traits: [CUSTOM_X]}}
groups: {g: {policy: anti-affinity, max_server_per_host: 2}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}], group: g, az: az1}
  db: {flavor: plain, host: host2, volumes: [{size_gb: 1, boot: true}], state: stopped}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("labs") / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    yield path
    build.destroy(path)
    assert not path.exists()


@pytest.fixture
def lab(root: Path) -> Iterator[Lab]:
    opened = Lab.open(root)
    yield opened
    opened.close()


def found(lab: Lab, name: str) -> catalog.Server:
    return catalog.find_server(lab.api, lab.cell_databases, name)


def test_the_guests_of_active_servers_run(lab: Lab) -> None:
    running = {guest.server: guest.running for host in lab.identity.hosts for guest in lab.hypervisor(host).guests()}
    assert running == {found(lab, "web").id: True, found(lab, "db").id: False}
    told = lab.hypervisor("host1").probe_guest(found(lab, "web").id)
    assert (told["boots"], told["vcpus"], told["memory_mb"]) == (1, 1, 512)


def test_the_books_of_a_new_lab_balance(lab: Lab) -> None:
    report = books.balance(lab)
    assert report.findings == ()
    assert report.counted["servers"] == 2


def test_the_directory_is_laid_out_as_fixed(root: Path, lab: Lab) -> None:
    expected = {"lab.json", "droveway.conf", "api.sqlite", "cells", "journal.sqlite", "placement.sqlite"}
    expected |= {"services.sqlite", "images", "volumes", "shared", "hosts", "lock", "guests.log"}
    assert expected <= {path.name for path in root.iterdir()}
    assert (root / "cells" / "cell1.sqlite").is_file()
    web = root / "hosts" / "host1" / "instances" / found(lab, "web").id
    assert sorted(path.name for path in web.iterdir()) == ["disk", "disk.eph0", "disk.info", "disk.swap"]
    assert (web / "disk").stat().st_size == 1024**3
    assert (web / "disk.swap").stat().st_size == 8 * 1024**2
    assert json.loads((web / "disk.info").read_text()) == dict.fromkeys(
        (str(web / name) for name in ("disk", "disk.eph0", "disk.swap")), "raw"
    )


def test_hosts_that_share_see_one_directory(root: Path, lab: Lab) -> None:
    db = found(lab, "db").id
    assert Directories(lab.hypervisor("host3").instances).exists(db)
    assert (root / "shared" / "nfs" / db).is_dir()


def test_the_root_disk_begins_with_the_images_bytes(lab: Lab) -> None:
    (image,) = lab.cloud.images.images()
    data = (lab.layout.images / image.id).read_bytes()
    assert len(data) == 5 * 1024**2
    assert len(set(data[64 * 1024 : 128 * 1024])) > 200
    disk = Directories(lab.hypervisor("host1").instances).path(found(lab, "web").id, "disk")
    with disk.open("rb") as file:
        # The guest keeps its boot count in the first block.
        assert file.read(len(data))[4096:] == data[4096:]


def test_the_sockets_lie_in_a_short_directory_that_others_may_enter(lab: Lab) -> None:
    sockets = Path(lab.identity.sockets)
    assert sockets.stat().st_mode & 0o777 == 0o711
    assert len(str(sockets)) < 60


@pytest.mark.parametrize("length", [0, 10, 20, 40])
def test_the_longest_socket_of_a_host_has_a_name_that_the_kernel_takes(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libvirt puts a guest's monitor far below; what binds here is what the daemon binds."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as short:
        root = Path(short, "t" * length)
        root.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        sockets = layout.make_socket_directory(["host1", "compute-017"], "libvirt")
        try:
            deep = sockets / "compute-017/config/libvirt/qemu/lib/domain-1234-instance-a32058df"
            deep.mkdir(parents=True)
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.bind(str(deep / "monitor.sock"))
        finally:
            shutil.rmtree(sockets)


def test_a_host_whose_name_leaves_no_room_for_sockets_is_refused() -> None:
    with pytest.raises(Refused, match=r"host a-host-with-a-very-long-name has a name that is too long"):
        layout.make_socket_directory(["host1", "a-host-with-a-very-long-name"], "libvirt")


def test_the_log_of_guests_has_one_line_for_each_start(lab: Lab) -> None:
    lines = [json.loads(line) for line in lab.layout.guests_log.read_text().splitlines()]
    web = [(line["event"], line["host"]) for line in lines if line["server"] == found(lab, "web").id]
    assert web == [("start", "host1")]
    assert list(guests_log.overlaps(lab.layout.guests_log)) == []


def test_rows_are_those_that_a_nova_writes(lab: Lab) -> None:
    web = found(lab, "web")
    with lab.cells.database("cell1").read() as session:
        row = session.scalars(sa.select(cell.Instance).where(cell.Instance.uuid == web.id)).one()
        devices = session.scalars(
            sa.select(cell.BlockDeviceMapping)
            .where(cell.BlockDeviceMapping.instance_uuid == web.id)
            .order_by(cell.BlockDeviceMapping.device_name)
        ).all()
        cache = session.scalars(
            sa.select(cell.InstanceInfoCache.network_info).where(cell.InstanceInfoCache.instance_uuid == web.id)
        ).one()
        events = session.scalars(sa.select(cell.InstanceActionEvent.result)).all()
    assert (row.vm_state, row.task_state, row.power_state, row.host, row.node) == ("active", None, 1, "host1", "host1")
    assert (row.availability_zone, row.hidden, row.cleaned, row.deleted) == ("az1", False, 0, 0)
    assert [(each.device_name, each.source_type, each.guest_format, each.boot_index) for each in devices] == [
        ("/dev/vda", "image", None, 0),
        ("/dev/vdb", "blank", None, -1),
        ("/dev/vdc", "blank", "swap", -1),
        ("/dev/vdd", "volume", None, None),
    ]
    connection = json.loads(devices[-1].connection_info or "{}")
    assert connection["serial"] == devices[-1].volume_id
    (vif,) = json.loads(cache or "[]")
    (port,) = lab.cloud.network.ports(web.id)
    assert (vif["id"], vif["address"], port.host, port.bindings) == (port.id, port.mac, "host1", {"host1": "ACTIVE"})
    assert set(events) == {"Success"}


def test_the_request_spec_says_what_was_asked_for(lab: Lab) -> None:
    with lab.api.read() as session:
        specs = {row.instance_uuid: json.loads(row.spec) for row in session.scalars(sa.select(api.RequestSpec))}
    web = specs[found(lab, "web").id]["nova_object.data"]
    assert web["availability_zone"] == "az1"
    assert web["instance_group"]["nova_object.data"]["policy"] == "anti-affinity"
    assert web["image"]["nova_object.data"]["properties"]["nova_object.data"] == {"traits_required": ["CUSTOM_X"]}
    db = specs[found(lab, "db").id]["nova_object.data"]
    assert (db["is_bfv"], db["availability_zone"]) == (True, None)
    assert db["flavor"]["nova_object.data"]["extra_specs"] == {"hw:mem_page_size": "any"}


def test_hosts_are_described_in_placement_and_in_the_cell_alike(lab: Lab) -> None:
    hosts = {host.name: host for host in catalog.hosts(lab.api, lab.cell_databases)}
    assert {provider.name: provider.uuid for provider in lab.cloud.placement.providers()} == {
        name: host.node for name, host in hosts.items()
    }
    assert (hosts["host1"].vcpus_used, hosts["host1"].memory_mb_used, hosts["host1"].disk_gb_used) == (1, 512, 2)
    assert "CUSTOM_X" in lab.cloud.placement.provider_traits(hosts["host1"].node)
    assert "COMPUTE_STATUS_DISABLED" in lab.cloud.placement.provider_traits(hosts["host2"].node)
    assert lab.cloud.placement.provider_inventories(hosts["host1"].node)["VCPU"]["allocation_ratio"] == 4.0


def test_a_server_can_be_built_stopped_started_and_deleted(lab: Lab) -> None:
    spec = cloud.Server(
        flavor="plain", host="host3", volumes=(cloud.Volume(size_gb=1, boot=True),), ports=(cloud.Port(),)
    )
    server = operations.create_server(lab, "extra", spec)
    assert operations.stop_server(lab, "extra")
    assert not operations.stop_server(lab, "extra")
    assert operations.start_server(lab, server[:8])
    lab.hypervisor("host3").stop(server, grace=0, fence=lambda: None)
    assert [finding.mend for finding in books.balance(lab).findings] == [f"openstack server reboot --hard {server}"]
    assert operations.start_server(lab, "extra")
    assert not operations.start_server(lab, "extra")
    assert books.balance(lab).findings == ()
    with pytest.raises(Refused, match="there is a server extra already"):
        operations.create_server(lab, "extra", spec)
    operations.delete_server(lab, "extra")
    assert books.balance(lab).findings == ()
    assert [each.name for each in catalog.servers(lab.api, lab.cell_databases)] == ["db", "web"]
    assert not Directories(lab.hypervisor("host3").instances).exists(server)


@pytest.fixture(name="extra")
def fixture_extra(lab: Lab) -> Iterator[str]:
    """The id of one more server, which is off."""
    spec = cloud.Server(flavor="plain", host="host3", volumes=(cloud.Volume(size_gb=1, boot=True),), state="stopped")
    yield operations.create_server(lab, "extra", spec)
    operations.delete_server(lab, "extra")


def give_task(lab: Lab, server: str, task: str | None) -> None:
    with lab.cells.database("cell1").write() as session:
        session.execute(sa.update(cell.Instance).where(cell.Instance.uuid == server).values(task_state=task))


@pytest.mark.parametrize(("before", "after", "task"), [("stopped", "active", "on"), ("active", "stopped", "off")])
def test_a_server_has_a_task_while_it_is_started_or_stopped_so_that_no_move_begins(
    lab: Lab, extra: str, monkeypatch: pytest.MonkeyPatch, before: str, after: str, task: str
) -> None:
    """As with Nova.  Whoever comes after a killed command ends what that began."""
    turns = {"active": ("start", operations.start_server), "stopped": ("stop", operations.stop_server)}
    turns[before][1](lab, "extra")
    call, power = turns[after]
    act, met = getattr(lab.hypervisor("host3"), call), []

    def states() -> tuple[str | None, str | None]:
        return found(lab, "extra").vm_state, found(lab, "extra").task_state

    def acting(*args: Any, **named: Any) -> None:
        met.append(states())
        if len(met) == 1:
            raise StepError("no")
        act(*args, **named)

    monkeypatch.setattr(lab.hypervisor("host3"), call, acting)
    with pytest.raises(StepError, match="no"):
        power(lab, "extra")
    assert states() == (before, None)
    give_task(lab, extra, f"powering-{task}")
    assert power(lab, "extra")
    assert states() == (after, None)
    assert met == [(before, f"powering-{task}")] * 2
    assert books.balance(lab).findings == ()


def test_a_server_with_which_a_move_has_begun_meanwhile_is_not_started(lab: Lab, extra: str) -> None:
    seen = found(lab, "extra")
    give_task(lab, extra, "resize_prep")
    with pytest.raises(Refused, match=r"server extra is stopped \(task: resize_prep\), and only one"):
        servers.start(lab, seen)
    guest = lab.hypervisor("host3").guest(extra)
    assert guest is not None
    assert not guest.running
    give_task(lab, extra, None)


def test_a_server_that_cannot_be_built_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = cloud.Server(
        flavor="plain", host="host3", volumes=(cloud.Volume(size_gb=1, boot=True),), ports=(cloud.Port(),)
    )

    def refuse(*_arguments: object) -> None:
        raise StepError("no")

    monkeypatch.setattr(lab.hypervisor("host3"), "start", refuse)
    with pytest.raises(Refused, match="cannot be built on host host3: no"):
        operations.create_server(lab, "half", spec)
    assert books.balance(lab).findings == ()
    with contextlib.closing(sqlite3.connect(lab.layout.services)) as services:
        assert services.execute("SELECT * FROM volumes WHERE name LIKE 'half%'").fetchall() == []


def test_a_server_with_more_disks_than_device_names_is_refused_before_anything_is_made(lab: Lab) -> None:
    volumes = (cloud.Volume(size_gb=1),) * 24
    with pytest.raises(Refused, match="server many would have 27 disks, and there are names for 26: give it fewer"):
        operations.create_server(lab, "many", cloud.Server(flavor="small", host="host3", image="base", volumes=volumes))
    assert books.balance(lab).findings == ()


@pytest.mark.parametrize("write", ["add_to_api", "add_to_cell"])
def test_a_server_whose_rows_cannot_be_written_leaves_none_of_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    add, tables = getattr(server_rows, write), (api.InstanceMapping, api.RequestSpec, api.InstanceGroupMember)

    def refuse(*args: Any) -> None:
        add(*args)
        raise StepError("no")

    def rows() -> set[str]:
        with lab.api.read() as session:
            return {str(server) for table in tables for server in session.scalars(sa.select(table.instance_uuid))}

    before = rows()

    monkeypatch.setattr(server_rows, write, refuse)
    with pytest.raises(Refused, match="cannot be built on host host3: no"):
        operations.create_server(lab, "half", cloud.Server(flavor="plain", host="host3", image="base", group="g"))
    assert books.balance(lab).findings == ()
    assert [each.name for each in catalog.servers(lab.api, lab.cell_databases)] == ["db", "web"]
    assert rows() == before


def test_a_lab_that_fails_halfway_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    build_one = servers.create

    def fail_at_the_second(lab: Lab, name: str, spec: cloud.Server) -> str:
        if started:
            raise OSError(28, "No space left on device", "disk")
        started.append(build_one(lab, name, spec))
        return started[0]

    monkeypatch.setattr(servers, "create", fail_at_the_second)
    with pytest.raises(Refused, match="cannot be made: No space left on device"):
        build.create(tmp_path / "deep" / "lab", cloud.parse_cloud(CLOUD, "test"))
    assert not (tmp_path / "deep" / "lab").exists()
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    commands = [Path(f"/proc/{pid}/cmdline") for pid in pids if pid != os.getpid()]
    assert [path for path in commands if path.exists() and started[0].encode() in path.read_bytes()] == []


def test_a_directory_that_holds_something_is_refused(tmp_path: Path, root: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(Refused, match="is not empty"):
        build.create(tmp_path, cloud.demo_cloud())
    with pytest.raises(Refused, match="is a lab already"):
        build.create(root, cloud.demo_cloud())
    assert (tmp_path / "mine").read_text() == "keep"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "is no lab"),
        ('{"version": 99}', "is of version 99"),
        ("{", "is corrupt"),
        ('{"version": 1}', "is corrupt"),
    ],
)
def test_what_is_no_usable_lab_is_refused(tmp_path: Path, content: str | None, named: str) -> None:
    if content is not None:
        (tmp_path / "lab.json").write_text(content)
    with pytest.raises(Refused, match=named):
        Lab.open(tmp_path)
    with pytest.raises(Refused, match=named):
        build.destroy(tmp_path)
    assert tmp_path.is_dir()


def test_an_unfinished_lab_can_only_be_destroyed(tmp_path: Path) -> None:
    files = layout.Layout(tmp_path / "lab")
    files.root.mkdir()
    identity = layout.Identity(
        version=layout.VERSION,
        hypervisor="sandbox",
        sockets=str(layout.make_socket_directory(["host1"], "sandbox")),
        project="p",
        user="u",
        network="n",
        hosts={},
        complete=False,
    )
    layout.write_identity(files, identity)
    with pytest.raises(Refused, match="never finished"):
        Lab.open(files.root)
    assert build.destroy(files.root) == 0
    assert not files.root.exists()
    assert not Path(identity.sockets).exists()
