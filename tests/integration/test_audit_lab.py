"""Each kind of leak, planted in the databases, services and hosts of a real lab, is found, and nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.audit_world import (
    CLOUD,
    HYPERVISORS,
    SERVICE_CHECKS,
    World,
    about,
    note_digest,
    planted,
    plants,
    reportable,
)

from droveway.audit import Kind
from droveway.audit.records import CommandView
from droveway.persistence.journal import debts, moves
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Debt, MoveFlow
from droveway.persistence.nova import servers
from droveway.workers.hypervisors import base
from droveway.workers.hypervisors.libvirt import connection, xml

SMALL = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 3}
BIG = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 4}
NOBODY = str(uuid.uuid4())
NOW = datetime(2026, 1, 1)  # noqa: DTZ001 - as the journal's columns have it


@pytest.fixture(scope="module", name="built", params=HYPERVISORS)
def fixture_built(libvirt_folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(libvirt_folder / request.param, request.param)
    yield world
    world.close()


@pytest.fixture(name="world")
def fixture_world(built: World) -> Iterator[World]:
    with built.restored() as world:
        yield world


def test_a_lab_with_running_stopped_and_verifying_servers_is_clean(world: World) -> None:
    report = world.audit()
    assert report.findings == ()
    assert report.noted == ()
    assert report.clean
    assert report.counted["servers"] == len(CLOUD.servers)
    assert report.counted["allocations"] == len([server for server in CLOUD.servers.values() if server.host]) + 1
    assert report.counted["hosts"] == 6


def test_every_kind_that_is_reported_is_planted(world: World) -> None:
    assert world.hypervisor in HYPERVISORS
    assert planted(__name__) == reportable(SERVICE_CHECKS)


class TestAllocations:
    @plants(Kind.ALLOCATION)
    def test_of_nobody(self, world: World) -> None:
        world.hold(NOBODY, host2=SMALL)
        finding = world.only("allocation")
        assert about(finding) == (NOBODY, "host2", "", "")
        assert finding.mend == f"openstack resource provider allocation delete {NOBODY}"

    @plants(Kind.ALLOCATION)
    def test_of_the_migration_of_an_ended_move(self, world: World) -> None:
        ended = world.ended_move("web", State.DONE, status="confirmed")
        world.hold(ended, host2=SMALL)
        assert about(world.only("allocation")) == (ended, "host2", world.ids["web"], ended)

    @plants(Kind.ALLOCATION)
    def test_missing(self, world: World) -> None:
        world.hold(world.ids["web"])
        finding = world.only("allocation")
        assert about(finding) == (world.ids["web"], "host1", world.ids["web"], "")
        assert "holds no allocation" in finding.detail

    @plants(Kind.ALLOCATION)
    def test_with_wrong_amounts(self, world: World) -> None:
        world.hold(world.ids["web"], host1=BIG)
        assert "VCPU 2 on host1 and should hold DISK_GB 3, MEMORY_MB 512, VCPU 1" in world.only("allocation").detail

    @plants(Kind.ALLOCATION)
    def test_on_a_wrong_host(self, world: World) -> None:
        world.hold(world.ids["web"], host2=SMALL)
        assert about(world.only("allocation"))[:2] == (world.ids["web"], "host2")

    @plants(Kind.ALLOCATION)
    def test_doubled(self, world: World) -> None:
        world.hold(world.ids["web"], host1=SMALL, host2=SMALL)
        assert "no consumer may hold two hosts" in world.only("allocation").detail

    @plants(Kind.ALLOCATION)
    def test_of_a_boot_volume_hold_no_root_disk(self, world: World) -> None:
        world.hold(world.ids["boot"], host5=SMALL)
        assert "should hold DISK_GB 2" in world.only("allocation").detail

    @plants(Kind.ALLOCATION)
    def test_the_source_s_share_is_missing_while_verifying(self, world: World) -> None:
        world.hold(world.move)
        finding = world.only("allocation")
        assert about(finding) == (world.move, "host1", world.ids["moved"], world.move)
        assert "the migration of moved holds no allocation" in finding.detail

    @plants(Kind.ALLOCATION)
    @pytest.mark.parametrize(
        "wrong", [{"consumer_type": "MIGRATION"}, {"project_id": "somebody"}, {"user_id": "somebody"}]
    )
    def test_of_a_wrong_type_project_or_user(self, world: World, wrong: dict[str, str]) -> None:
        server, owner = world.ids["web"], {"project_id": world.lab.identity.project, "user_id": world.lab.identity.user}
        world.lab.cloud.placement.release(server)
        world.lab.cloud.placement.ensure_allocation(server, {world.node("host1"): SMALL}, **(owner | wrong))
        finding = world.only("allocation")
        assert about(finding) == (server, "host1", server, "")
        assert next(iter(wrong.values())) in finding.detail
        assert finding.mend.startswith("openstack resource provider allocation set --allocation rp=")

    @plants(Kind.ALLOCATION)
    def test_of_a_migration_that_counts_as_a_server(self, world: World) -> None:
        world.hold(world.move, host1=SMALL)
        finding = world.only("allocation")
        assert about(finding) == (world.move, "host1", world.ids["moved"], world.move)
        assert "consumer type INSTANCE, not MIGRATION" in finding.detail


class TestBindings:
    @plants(Kind.BINDING)
    @pytest.mark.parametrize("owner", ["", "network:dhcp", "compute:elsewhere"])
    def test_of_a_port_with_a_wrong_device_owner(self, world: World, owner: str) -> None:
        port = self._port(world, "web")
        world.lab.cloud.network.activate(port, "host1", device_owner=owner)
        finding = world.only("binding")
        assert about(finding) == (port, "host1", world.ids["web"], "")
        assert finding.mend.endswith(f"--device-owner compute:nova {port}")

    @plants(Kind.BINDING)
    def test_of_a_port_that_lost_its_profile_in_its_move(self, world: World) -> None:
        port = self._port(world, "moved")
        with world.lab.journal.write() as session:
            moves.get(session, world.move).before = {"ports": [{"port": port, "profile": {"trusted": True}}]}
        finding = world.only("binding")
        assert about(finding) == (port, "host3", world.ids["moved"], world.move)
        assert "has the binding profile {}, and had {'trusted': True} before the move" in finding.detail

    @plants(Kind.BINDING)
    def test_left_inactive(self, world: World) -> None:
        port = self._port(world, "web")
        world.lab.cloud.network.ensure_binding(port, "host2", {})
        assert about(world.only("binding")) == (port, "host2", world.ids["web"], "")

    @plants(Kind.BINDING)
    def test_on_a_wrong_host(self, world: World) -> None:
        port = self._port(world, "moved")
        world.lab.cloud.network.ensure_binding(port, "host1", {})
        world.lab.cloud.network.activate(port, "host1", device_owner="compute:nova")
        world.lab.cloud.network.delete_binding(port, "host3")
        finding = world.only("binding")
        assert about(finding) == (port, "host3", world.ids["moved"], world.move)
        assert "is bound to host1 (ACTIVE)" in finding.detail

    @plants(Kind.BINDING)
    def test_missing(self, world: World) -> None:
        port = self._port(world, "web")
        world.lab.cloud.network.delete_binding(port, "host1")
        assert "is unbound" in world.only("binding").detail

    @plants(Kind.BINDING)
    def test_of_a_server_that_does_not_exist(self, world: World) -> None:
        network = world.lab.cloud.network
        port = network.create_port(NOBODY, mac="fa:16:3e:00:00:01", network_id=str(uuid.uuid4()), host="host2")
        assert about(world.only("binding")) == (port, "host2", NOBODY, "")

    def _port(self, world: World, name: str) -> str:
        return world.lab.cloud.network.ports(world.ids[name])[0].id


class TestAttachments:
    @plants(Kind.ATTACHMENT)
    def test_left_reserved(self, world: World) -> None:
        volumes, server = world.lab.cloud.volumes, world.ids["web"]
        (old,) = volumes.for_server(server)
        left = volumes.create_attachment(old.volume, server, known=[old.id])
        finding = world.only("attachment")
        assert about(finding)[::2] == (left, server)
        assert finding.mend == f"openstack volume attachment delete {left}"

    @plants(Kind.ATTACHMENT)
    def test_named_by_a_block_device_mapping_but_gone(self, world: World) -> None:
        (row,) = world.lab.cloud.volumes.for_server(world.ids["web"])
        world.lab.cloud.volumes.delete_attachment(row.id)
        finding = world.only("attachment")
        assert about(finding) == (row.volume, "host1", world.ids["web"], "")
        assert row.id in finding.detail

    @plants(Kind.ATTACHMENT)
    def test_of_a_server_that_does_not_exist(self, world: World) -> None:
        volume = world.lab.cloud.volumes.create_volume(name="x", size_gb=1)
        left = world.lab.cloud.volumes.create_attachment(volume, NOBODY)
        world.mends.callback((world.lab.layout.volumes / volume).unlink)
        assert about(world.only("attachment"))[::2] == (left, NOBODY)

    @plants(Kind.ATTACHMENT)
    def test_on_a_wrong_host(self, world: World) -> None:
        volumes, server = world.lab.cloud.volumes, world.ids["web"]
        (old,) = volumes.for_server(server)
        new = volumes.create_attachment(old.volume, server, known=[old.id])
        volumes.delete_attachment(old.id)
        volumes.connect(new, world.lab.hypervisor("host2").connector(), "/dev/vdb")
        volumes.complete(new)
        with world.rows() as session:
            servers.volumes(session, server)[0].attachment_id = new
        finding = world.only("attachment")
        assert about(finding) == (new, "host2", server, "")
        assert "lives on host1" in finding.detail

    @plants(Kind.ATTACHMENT)
    def test_not_completed(self, world: World) -> None:
        volumes, server = world.lab.cloud.volumes, world.ids["web"]
        (old,) = volumes.for_server(server)
        new = volumes.create_attachment(old.volume, server, known=[old.id])
        volumes.delete_attachment(old.id)
        with world.rows() as session:
            servers.volumes(session, server)[0].attachment_id = new
        assert "is reserved, not attached" in world.only("attachment").detail


@plants(Kind.IMAGE)
def test_an_image_that_a_move_left(world: World) -> None:
    image = str(uuid.uuid4())
    properties = {"droveway_move": world.move}
    world.lab.cloud.images.create(image, name="moved-resize-temp", min_disk_gb=0, properties=properties)
    assert about(world.only("image")) == (image, "", world.ids["moved"], world.move)


class TestDisks:
    @plants(Kind.DISK)
    def test_set_aside_and_left(self, world: World) -> None:
        ended = world.ended_move("web", State.REVERTED, status="reverted")
        name = f"{world.ids['web']}_resize"
        path = world.make_directory("host2", name, droveway_manifest={"move": ended, "epoch": 3})
        finding = world.only("disk")
        assert about(finding) == (f"instances/{name}", "host2", world.ids["web"], ended)
        assert finding.mend == f"rm -r {path}"

    @plants(Kind.DISK)
    @pytest.mark.parametrize("suffix", ["_del", ".part-{move}-host2", ".gone-{move}", "_keep-{move}"])
    def test_left_beside_the_server_s_own(self, world: World, suffix: str) -> None:
        name = world.ids["web"] + suffix.format(move=world.move)
        world.make_directory("host1", name)
        assert about(world.only("disk"))[:3] == (f"instances/{name}", "host1", world.ids["web"])

    @plants(Kind.DISK)
    def test_kept_on_purpose_is_no_finding(self, world: World) -> None:
        """It explains nothing else of its move on that host."""
        ended = world.ended_move("web", State.DONE, status="confirmed")
        world.make_directory("host2", f"{world.ids['web']}_keep-{ended}")
        with world.lab.journal.write() as session:
            debts.keep(session, move_id=ended, host="host2", seconds=60, details={})
        report = world.audit()
        assert report.clean
        assert report.noted == ()
        left = world.make_directory(
            "host2", f"{world.ids['web']}_resize", droveway_manifest={"move": ended, "epoch": 3}
        )
        assert world.only("disk").subject == f"instances/{left.name}"

    @plants(Kind.DISK)
    def test_kept_and_forgotten(self, world: World) -> None:
        ended = world.ended_move("web", State.DONE, status="confirmed")
        path = world.make_directory("host2", f"{world.ids['web']}_keep-{ended}")
        finding = world.only("disk")
        assert finding.subject == f"instances/{path.name}"
        assert f"the move {ended[:8]} keeps it no more" in finding.detail
        assert finding.mend == f"rm -r {path}"

    @plants(Kind.DISK)
    @pytest.mark.parametrize("name", ["disk.swap.part", ".droveway.json.new"])
    def test_unfinished_among_the_server_s_own(self, world: World, name: str) -> None:
        path = world.instances("host2") / world.ids["idle"] / name
        path.touch()
        world.mends.callback(path.unlink, missing_ok=True)
        finding = world.only("disk")
        assert about(finding) == (f"instances/{world.ids['idle']}/{name}", "host2", world.ids["idle"], "")
        assert finding.mend == f"rm {path}"

    @plants(Kind.DISK)
    def test_of_no_server(self, world: World) -> None:
        world.make_directory("host2", NOBODY)
        assert about(world.only("disk")) == (f"instances/{NOBODY}", "host2", NOBODY, "")

    @plants(Kind.DISK)
    def test_of_a_server_that_lives_elsewhere(self, world: World) -> None:
        world.make_directory("host2", world.ids["web"], droveway={"move": world.move, "epoch": 3})
        finding = world.only("disk")
        assert about(finding) == (f"instances/{world.ids['web']}", "host2", world.ids["web"], world.move)
        assert "lives on host1" in finding.detail

    @plants(Kind.DISK)
    def test_on_shared_storage_is_named_with_every_host_that_sees_it(self, world: World) -> None:
        world.make_directory("host5", f"{world.ids['boot']}_resize")
        assert world.only("disk").host == "host5,host6"

    @plants(Kind.DISK)
    def test_missing(self, world: World) -> None:
        path = world.instances("host2") / world.ids["idle"]
        world.rename(path / "disk", path / "lost")
        finding = world.only("disk")
        assert about(finding) == (f"instances/{world.ids['idle']}", "host2", world.ids["idle"], "")
        assert finding.detail.startswith("disk in")

    @plants(Kind.DISK)
    def test_what_a_revert_needs_is_missing(self, world: World) -> None:
        path = world.instances("host1") / f"{world.ids['moved']}_resize"
        world.rename(path / "disk.eph0", path / "lost")
        finding = world.only("disk")
        assert about(finding)[2:] == (world.ids["moved"], world.move)
        assert "needed for a revert" in finding.detail

    @plants(Kind.DISK)
    def test_set_aside_by_another_move(self, world: World) -> None:
        manifest = world.instances("host1") / f"{world.ids['moved']}_resize" / "droveway-manifest.json"
        kept = manifest.read_text()
        world.mends.callback(manifest.write_text, kept)
        manifest.write_text(json.dumps(json.loads(kept) | {"move": NOBODY}))
        finding = world.only("disk")
        assert "set aside by another move" in finding.detail
        # It may hold the only disks that a revert could use.
        assert finding.mend.startswith(f"droveway server show {world.ids['moved']}")

    def test_set_aside_with_the_marker_of_an_earlier_move_is_no_finding(self, world: World) -> None:
        marker = world.instances("host1") / f"{world.ids['moved']}_resize" / "droveway.json"
        marker.write_text(json.dumps({"move": NOBODY, "epoch": 1}))
        world.mends.callback(marker.unlink)
        assert world.audit().clean

    @plants(Kind.DISK)
    def test_a_storage_probe(self, world: World) -> None:
        probe = world.instances("host3") / f".droveway-probe-{world.move}-1"
        probe.touch()
        world.mends.callback(probe.unlink, missing_ok=True)
        finding = world.only("disk")
        assert about(finding) == (f"instances/{probe.name}", "host3", world.ids["moved"], world.move)
        assert finding.mend == f"rm {probe}"

    @plants(Kind.DISK)
    @pytest.mark.parametrize("disk", ["disk", "disk.eph0"])
    def test_set_aside_with_other_bytes_than_were_copied(self, world: World, disk: str) -> None:
        path = world.instances("host1") / f"{world.ids['moved']}_resize" / disk
        whole = path.read_bytes()
        world.mends.callback(path.write_bytes, whole)
        note_digest(world, disk, path)
        assert world.audit().clean
        status = path.stat()
        with path.open("r+b") as file:
            file.seek(status.st_size // 2)
            file.write(b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        finding = world.only("disk")
        assert about(finding) == (f"instances/{path.parent.name}/{disk}", "host1", world.ids["moved"], world.move)
        assert "holds other bytes than the move" in finding.detail


@plants(Kind.COMMAND)
def test_a_command_that_belongs_to_nothing(world: World) -> None:
    ended = world.ended_move("web", State.DONE, status="confirmed")
    with world.lab.journal.write() as session:
        (flow,) = session.scalars(sa.select(MoveFlow.uuid).where(MoveFlow.move_id == ended))
        session.get_one(MoveFlow, flow).ended_at = NOW
    keys = {f"{NOBODY}.stop_guest.execute.1": "", f"{flow}.stop_guest.execute.1": ended}
    world.standing += [CommandView(host="host1", folder="commands", key=key) for key in keys]
    found = world.audit().findings
    assert {(each.kind, each.subject, each.host, each.move) for each in found} == {
        ("command", f"commands/{key}", "host1", move) for key, move in keys.items()
    }


class TestGuests:
    @plants(Kind.GUEST)
    def test_of_no_server(self, world: World) -> None:
        world.define("host2", NOBODY, mark=base.Mark(move=world.move, epoch=1))
        assert about(world.only("guest")) == (NOBODY, "host2", NOBODY, world.move)

    @plants(Kind.GUEST)
    def test_on_a_wrong_host(self, world: World) -> None:
        world.define("host2", world.ids["web"], mark=None)
        finding = world.only("guest")
        assert about(finding) == (world.ids["web"], "host2", world.ids["web"], "")
        assert "lives on host1" in finding.detail

    @plants(Kind.GUEST)
    def test_off_although_active(self, world: World) -> None:
        world.stop("host1", "web")
        found = world.only("guest")
        assert "is off on host1, but the server is recorded as active" in found.detail
        assert found.mend == f"openstack server reboot --hard {world.ids['web']}"

    @plants(Kind.GUEST)
    def test_off_although_it_is_to_run_while_verifying(self, world: World) -> None:
        world.stop("host3", "moved")
        found = world.only("guest")
        assert about(found) == (world.ids["moved"], "host3", world.ids["moved"], world.move)
        assert found.mend == f"virsh start {world.ids['moved']}"

    @plants(Kind.GUEST)
    def test_running_although_stopped(self, world: World) -> None:
        world.start("host2", "idle")
        found = world.only("guest")
        assert "runs on host2, but the server is recorded as stopped" in found.detail
        assert found.mend == f"virsh shutdown {world.ids['idle']}"

    @plants(Kind.ROW)
    @pytest.mark.parametrize(("name", "wrong"), [("idle", 1), ("web", 4)])
    def test_power_state_is_not_what_the_guest_does(self, world: World, name: str, wrong: int) -> None:
        with world.rows() as session:
            world.instance(session, name).power_state = wrong
        finding = world.only("row")
        assert about(finding)[::2] == ("power_state", world.ids[name])
        assert f"but its power_state is {wrong}" in finding.detail

    @plants(Kind.GUEST)
    def test_missing(self, world: World) -> None:
        hypervisor, server = world.lab.hypervisor("host2"), world.ids["idle"]
        guest = hypervisor.guest(server)
        assert guest is not None
        hypervisor.undefine(server)
        world.mends.callback(_redefine, world, "host2", guest)
        assert "no guest of it is defined" in world.only("guest").detail

    @plants(Kind.GUEST)
    def test_of_another_size(self, world: World) -> None:
        hypervisor, server = world.lab.hypervisor("host2"), world.ids["idle"]
        guest = hypervisor.guest(server)
        assert guest is not None
        _redefine(world, "host2", guest, vcpus=7)
        world.mends.callback(_redefine, world, "host2", guest)
        assert "has 7 vCPUs" in world.only("guest").detail

    @plants(Kind.GUEST)
    def test_running_twice(self, world: World) -> None:
        source = world.instances("host1")
        shutil.move(source / f"{world.ids['moved']}_resize", source / world.ids["moved"])
        world.mends.callback(shutil.move, source / world.ids["moved"], source / f"{world.ids['moved']}_resize")
        kept = _bare_definition(world, "host1", "moved")
        world.mends.callback(_redefine, world, "host1", kept)
        log = world.lab.layout.guests_log
        if log.exists():
            world.mends.callback(log.write_bytes, log.read_bytes())
        world.start("host1", "moved")
        kinds = [(finding.kind, finding.host) for finding in world.audit().findings]
        assert ("guest", "host1,host3") in kinds
        texts = [finding.detail for finding in world.audit().findings]
        assert any("runs on host1 and host3 at once" in text for text in texts)
        with world.lab.journal.write() as session:
            owing = {"move_id": world.move, "action": "remove_guest", "details": {}, "created_at": NOW}
            session.add_all(Debt(host=host, **owing) for host in ("host1", "host3"))
        assert ("guest", "host1,host3") in {(finding.kind, finding.host) for finding in world.audit().findings}
        # Only guests of the sandbox write a log.
        assert any("the log of all guests shows" in text for text in texts) == (world.hypervisor == "sandbox")


class TestConnections:
    @plants(Kind.CONNECTION)
    @pytest.mark.parametrize("host", ["host1", "host2"])
    def test_left(self, world: World, host: str) -> None:
        volume = _volume(world, "moved")
        hypervisor, server = world.lab.hypervisor(host), world.ids["moved"]
        hypervisor.connect_volume(server, volume)
        world.mends.callback(hypervisor.disconnect_volume, server, volume.volume)
        assert about(world.only("connection")) == (volume.volume, host, server, world.move)

    @plants(Kind.CONNECTION)
    def test_missing(self, world: World) -> None:
        volume = _volume(world, "web")
        hypervisor, server = world.lab.hypervisor("host1"), world.ids["web"]
        hypervisor.disconnect_volume(server, volume.volume)
        world.mends.callback(hypervisor.connect_volume, server, volume)
        assert "is not connected on host1" in world.only("connection").detail

    @plants(Kind.INTERFACE)
    def test_interface_left(self, world: World) -> None:
        port = world.lab.cloud.network.ports(world.ids["moved"])[0]
        hypervisor, server = world.lab.hypervisor("host1"), world.ids["moved"]
        hypervisor.plug(server, base.Port(port=port.id, mac=port.mac))
        world.mends.callback(hypervisor.unplug, server, port.id)
        assert about(world.only("interface")) == (port.id, "host1", server, world.move)

    @plants(Kind.INTERFACE)
    def test_interface_missing(self, world: World) -> None:
        port = world.lab.cloud.network.ports(world.ids["web"])[0]
        hypervisor, server = world.lab.hypervisor("host1"), world.ids["web"]
        hypervisor.unplug(server, port.id)
        world.mends.callback(hypervisor.plug, server, base.Port(port=port.id, mac=port.mac))
        assert "is not plugged on host1" in world.only("interface").detail


def test_what_a_debt_explains_is_noted_and_no_finding(world: World) -> None:
    ended = world.ended_move("web", State.DONE, status="confirmed")
    world.make_directory("host2", f"{world.ids['web']}_resize", droveway_manifest={"move": ended, "epoch": 3})
    assert world.only("disk").move == ended
    with world.lab.journal.write() as session:
        session.add(Debt(host="host2", move_id=ended, action="discard_source", details={}, created_at=NOW))
    report = world.audit()
    assert report.clean
    assert {finding.kind.value for finding in report.noted} == {"disk", "host"}


@plants(Kind.HOST)
def test_a_host_that_cannot_be_looked_at_is_never_clean(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.hypervisor == "libvirt":
        monkeypatch.setattr(connection, "OPEN_SECONDS", 0.1)
        world.kill_daemon("host2")
    else:
        definition = world.lab.layout.host("host2") / "domains" / f"{world.ids['idle']}.json"
        world.mends.callback(definition.write_bytes, definition.read_bytes())
        definition.write_text("{")
    assert about(world.only("host"))[:2] == ("host2", "host2")


@plants(Kind.GUEST)
def test_an_overlap_in_the_log_of_all_guests(world: World) -> None:
    log = world.lab.layout.guests_log
    before = log.read_bytes() if log.exists() else None
    world.mends.callback(log.unlink if before is None else lambda: log.write_bytes(before))
    known = {"time": 1.0, "event": "start", "server": world.ids["web"], "pid": 1, "born": 1}
    log.write_text("".join(json.dumps(known | {"host": host}) + "\n" for host in ("host1", "host2")))
    finding = world.only("guest")
    assert about(finding) == ("guests.log", "host1,host2", world.ids["web"], "")
    assert "while it ran on host1" in finding.detail


def test_an_audit_changes_nothing(world: World) -> None:
    before = _fingerprint(world.lab.layout.root)
    world.audit()
    assert _fingerprint(world.lab.layout.root) == before


def _fingerprint(root: Path) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns
        for path in root.rglob("*")
        if path.is_file()
        and not path.name.endswith(("-wal", "-shm", ".lock", "lock"))
        # A daemon of libvirt keeps its own log, and guests go on.
        and "libvirt" not in path.relative_to(root).parts
    }


def _volume(world: World, name: str) -> base.Volume:
    (row,) = world.lab.cloud.volumes.for_server(world.ids[name])
    info = world.lab.cloud.volumes.connection_info(row.id)
    return base.Volume(volume=row.volume, device="/dev/vdb", boot=False, connection=info)


def _redefine(world: World, host: str, guest: base.GuestRecord, vcpus: int | None = None) -> None:
    disks = [world.instances(host) / guest.server / name for name in _disks(world, guest.definition)]
    world.lab.hypervisor(host).define(
        guest.server,
        guest.definition,
        vcpus=vcpus,
        memory_mb=None,
        disks=disks,
        formats={disk.name: world.lab.hypervisor(host).disk_format for disk in disks},
        volumes=[],
        ports=[],
        mark=guest.mark,
    )


def _disks(world: World, definition: str) -> list[str]:
    """The names of the local disks that a definition lists, in order."""
    if world.hypervisor == "libvirt":
        return [Path(source).name for _, source, serial in xml.Domain(definition).sources if not serial]
    return [str(name) for name in json.loads(definition)["disks"]]


def _bare_definition(world: World, host: str, name: str) -> base.GuestRecord:
    """Let the guest use its disks only, so that it can start without its volumes; what was defined before."""
    guest = world.lab.hypervisor(host).guest(world.ids[name])
    assert guest is not None
    _redefine(world, host, guest)
    return guest
