"""Each thing that a shelved server should not hold, planted in a real lab, is found, and so is a lost or left image."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.audit_world import HYPERVISORS, World, about, plants

from droveway.audit import Kind
from droveway.persistence.nova import servers

SMALL = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 3}


@pytest.fixture(scope="module", name="built", params=HYPERVISORS)
def fixture_built(libvirt_folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(libvirt_folder / request.param, request.param)
    yield world
    world.close()


@pytest.fixture(name="world")
def fixture_world(built: World) -> Iterator[World]:
    with built.restored() as world:
        yield world


@plants(Kind.ALLOCATION)
def test_holds_an_allocation(world: World) -> None:
    world.hold(world.ids["old"], host1=SMALL)
    assert about(world.only("allocation"))[:3] == (world.ids["old"], "host1", world.ids["old"])
    world.hold(world.ids["old"])
    assert world.audit().clean


@plants(Kind.BINDING)
def test_has_a_bound_port(world: World) -> None:
    network = world.lab.cloud.network
    (port,) = network.ports(world.ids["old"])
    network.ensure_binding(port.id, "host2", {})
    network.activate(port.id, "host2", device_owner=port.device_owner)
    finding = world.only("binding")
    assert about(finding)[:3] == (port.id, "host2", world.ids["old"])
    assert finding.mend.endswith(f"/ports/{port.id}/bindings/host2")
    network.delete_binding(port.id, "host2")
    assert world.audit().clean


@plants(Kind.ATTACHMENT)
def test_has_a_volume_that_is_exported(world: World) -> None:
    volumes, server = world.lab.cloud.volumes, world.ids["old"]
    (old,) = volumes.for_server(server)
    volumes.connect(old.id, world.lab.hypervisor("host2").connector(), "/dev/vdb")
    volumes.complete(old.id)
    finding = world.only("attachment")
    assert about(finding)[:3] == (old.id, "host2", server)
    assert "but the server is on no host" in finding.detail
    new = volumes.create_attachment(old.volume, server, known=[old.id])
    with world.rows() as session:
        servers.volumes(session, server)[0].attachment_id = new
    volumes.delete_attachment(old.id)
    assert world.audit().clean


@plants(Kind.DISK)
def test_has_a_directory_on_a_host(world: World) -> None:
    path = world.make_directory("host2", world.ids["old"])
    finding = world.only("disk")
    assert about(finding)[:3] == (f"instances/{world.ids['old']}", "host2", world.ids["old"])
    assert finding.mend == f"rm -r {path}"


@plants(Kind.GUEST)
def test_has_a_guest_on_a_host(world: World) -> None:
    hypervisor, server = world.lab.hypervisor("host1"), world.ids["old"]
    world.define("host1", server, None)
    finding = world.only("guest")
    assert about(finding)[:3] == (server, "host1", server)
    assert finding.mend == f"virsh undefine {server}"
    hypervisor.undefine(server)
    assert world.audit().clean


@plants(Kind.IMAGE)
def test_lacks_its_image(world: World) -> None:
    (image,) = [each for each in world.lab.cloud.images.images() if each.name == "old-shelved"]
    path = world.lab.layout.images / image.id
    kept = path.with_name("kept")
    path.rename(kept)
    world.mends.callback(kept.rename, path)
    world.lab.cloud.images.delete(image.id)
    finding = world.only("image")
    assert about(finding)[:3] == (image.id, "", world.ids["old"])
    assert (
        finding.mend == f"droveway server show {world.ids['old']}, then bring the image back from a backup under its id"
    )


@plants(Kind.IMAGE)
def test_left_its_image_when_it_came_back(world: World) -> None:
    image = str(uuid.uuid4())
    properties = {"instance_uuid": world.ids["web"], "image_type": "snapshot"}
    world.lab.cloud.images.create(image, name="web-shelved", min_disk_gb=0, properties=properties)
    finding = world.only("image")
    assert about(finding) == (image, "", world.ids["web"], "")
    assert finding.mend == f"openstack image delete {image}"
    world.lab.cloud.images.delete(image)
    assert world.audit().clean


def test_is_left_alone_where_its_image_only_has_another_name(world: World) -> None:
    """What a user made of a server by its name alone is nobody's shelve."""
    world.lab.cloud.images.create(str(uuid.uuid4()), name="base-shelved", min_disk_gb=0, properties={})
    assert world.audit().clean


def test_names_a_host(world: World) -> None:
    with world.rows() as session:
        world.instance(session, "old").host = "host2"
    assert world.only("row").subject == "instances.host"
    world.assert_mended((Kind.ROW,))
    assert world.audit().clean
