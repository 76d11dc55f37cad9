"""A shelved server in a lab: what the databases and services have of it, and what commands say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.lab import operations, servers
from droveway.lab.cloud import Server, Volume
from droveway.persistence.nova import api, catalog, cell
from droveway.workers.directories import Directories

CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
  cell2: {hosts: {host3: {az: az2}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1, ephemeral_gb: 1}}
images: {base: {size_mb: 1}, other: {size_mb: 2, traits: [CUSTOM_X], min_disk_gb: 1}}
groups: {g: {policy: anti-affinity}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], group: g}
  old: {flavor: small, cell: cell1, image: base, ports: [{}, {}], volumes: [{size_gb: 1}], state: shelved_offloaded,
        group: g}
  far: {flavor: small, cell: cell2, image: other, state: shelved_offloaded, az: az2}
  vol: {flavor: small, cell: cell2, ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}],
        state: shelved_offloaded}
"""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("shelved") / "lab", CLOUD) as made:
        yield made


def row(lab: Stage, name: str, cell_name: str = "cell1") -> cell.Instance:
    with lab.lab.cells.database(cell_name).read() as session:
        return session.scalars(sa.select(cell.Instance).where(cell.Instance.uuid == lab.id_of(name))).one()


def metadata(lab: Stage, name: str, cell_name: str = "cell1") -> dict[str, str | None]:
    model = cell.InstanceSystemMetadata
    with lab.lab.cells.database(cell_name).read() as session:
        rows = session.scalars(sa.select(model).where(model.instance_uuid == lab.id_of(name)))
        return {str(each.key): each.value for each in rows}


def test_the_row_is_what_nova_leaves(lab: Stage) -> None:
    old, web = row(lab, "old"), row(lab, "web")
    nothing = (old.host, old.node, old.compute_id, old.launched_on, old.availability_zone, old.task_state)
    assert nothing == (None,) * 6
    assert (old.vm_state, old.power_state, old.hidden) == ("shelved_offloaded", 4, False)
    assert old.launched_at is not None
    assert (old.image_ref, old.instance_type_id) == (web.image_ref, web.instance_type_id)
    assert row(lab, "far", "cell2").host is None


def test_three_keys_name_the_image_and_none_where_the_root_disk_is_a_volume(lab: Stage) -> None:
    found = metadata(lab, "old")
    (image,) = [each for each in lab.lab.cloud.images.images() if each.name == "old-shelved"]
    assert (found["shelved_image_id"], found["shelved_host"]) == (image.id, "host1")
    assert "T" in str(found["shelved_at"])
    assert not str(found["shelved_at"]).endswith("Z")
    assert not [key for key in metadata(lab, "vol", "cell2") if key.startswith("shelved_")]


def test_the_image_holds_the_server_s_own_bytes(lab: Stage) -> None:
    images = {each.name: each for each in lab.lab.cloud.images.images()}
    old, base, far = images["old-shelved"], images["base"], images["far-shelved"]
    assert old.properties["instance_uuid"] == lab.id_of("old")
    assert (old.properties["image_type"], old.properties["base_image_ref"]) == ("snapshot", base.id)
    assert (old.min_disk_gb, far.properties["trait:CUSTOM_X"]) == (1, "required")
    own, common = ((lab.lab.layout.images / image.id).read_bytes() for image in (old, base))
    assert len(own) == len(common) == 1024**2
    assert own[: 512 * 1024] == common[: 512 * 1024]
    assert own != common
    assert "vol-shelved" not in images


def test_ports_are_unbound_and_volumes_reserved(lab: Stage) -> None:
    for name, ports in (("old", 2), ("vol", 1)):
        found = lab.lab.cloud.network.ports(lab.id_of(name))
        assert [(port.bindings, port.host) for port in found] == [({}, "")] * ports
        assert {port.device_owner.partition(":")[0] for port in found} == {"compute"}
    for name, cell_name, volumes in (("old", "cell1", 1), ("vol", "cell2", 2)):
        attachments = lab.lab.cloud.volumes.for_server(lab.id_of(name))
        assert [(each.status, each.host) for each in attachments] == [("reserved", None)] * volumes
        model = cell.BlockDeviceMapping
        with lab.lab.cells.database(cell_name).read() as session:
            rows = session.scalars(
                sa.select(model).where(model.instance_uuid == lab.id_of(name), model.volume_id.is_not(None))
            ).all()
            assert {each.attachment_id for each in rows} == {each.id for each in attachments}
            assert all(json.loads(str(each.connection_info))["serial"] == each.volume_id for each in rows)


def test_no_host_and_no_provider_has_anything_of_it(lab: Stage) -> None:
    for name in ("old", "far", "vol"):
        server = lab.id_of(name)
        assert lab.lab.cloud.placement.allocations(server).allocations == {}
        for host in lab.lab.identity.hosts:
            hypervisor = lab.lab.hypervisor(host)
            assert hypervisor.guest(server) is None
            assert not Directories(hypervisor.instances).exists(server)


def test_its_group_its_mapping_and_its_actions_stay(lab: Stage) -> None:
    server = lab.id_of("old")
    with lab.lab.api.read() as session:
        members = session.scalars(sa.select(api.InstanceGroupMember.instance_uuid)).all()
    assert server in members
    found = catalog.find_server(lab.lab.api, lab.lab.cell_databases, "old")
    assert (found.status, found.cell, found.host) == ("SHELVED_OFFLOADED", "cell1", None)
    with lab.lab.cells.database("cell1").read() as session:
        names = session.scalars(
            sa.select(cell.InstanceAction.action)
            .where(cell.InstanceAction.instance_uuid == server)
            .order_by(cell.InstanceAction.id)
        ).all()
    assert list(names) == ["create", "shelve"]


def test_people_read_a_dash_and_programs_null(lab: Stage) -> None:
    (listed,) = [line for line in lab.cli("server", "list").splitlines() if " old " in line]
    assert " - " in listed
    assert "None" not in lab.cli("server", "list") + lab.cli("server", "show", "old") + lab.cli("server", "show", "vol")
    assert json.loads(lab.cli("server", "show", "old", "-f", "json"))["host"] is None
    assert json.loads(lab.cli("server", "list", "-f", "json", "--cell", "cell2"))[0]["host"] is None


def test_it_is_neither_started_nor_stopped_nor_moved_as_it_is(lab: Stage) -> None:
    for words in (("lab", "server", "start"), ("lab", "server", "stop"), ("server", "migrate"), ("move", "plan")):
        lab.cli(*words, "old", code=2)
        assert "shelved_offloaded" in lab.error


def test_one_more_is_built_and_one_that_fails_leaves_nothing(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Server(flavor="small", cell="cell1", image="base", state="shelved_offloaded")
    server = operations.create_server(lab.lab, "late", spec)
    found = catalog.find_server(lab.lab.api, lab.lab.cell_databases, "late")
    assert (found.id, found.host, found.vm_state) == (server, None, "shelved_offloaded")
    before = [image.id for image in lab.lab.cloud.images.images()]

    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(servers.server_rows, "add_to_cell", fail)
    with pytest.raises(OSError, match="full"):
        operations.create_server(lab.lab, "never", spec)
    assert [image.id for image in lab.lab.cloud.images.images()] == before


def test_its_delete_is_a_move_from_no_host(lab: Stage) -> None:
    spec = Server(flavor="small", cell="cell1", volumes=(Volume(size_gb=1, boot=True),), state="shelved_offloaded")
    operations.create_server(lab.lab, "doomed", spec)
    lab.cli("lab", "server", "delete", "doomed")
    (move,) = json.loads(lab.cli("move", "list", "-f", "json", "--server", "doomed"))
    assert (move["state"], move["source"], move["destination"]) == ("done", None, None)
    for words in (("list",), ("show", move["id"]), ("show", move["id"], "-f", "json"), ("history", move["id"])):
        assert "None" not in lab.cli("move", *words)
