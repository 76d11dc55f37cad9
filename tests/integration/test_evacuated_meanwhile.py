"""What Nova's evacuation wrote of a server's ports and volumes during its move stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.operations import Stage, stage

from droveway.engines import asking
from droveway.engines.submit import Wish, submit
from droveway.errors import StepError
from droveway.persistence.cell import Instance, Migration

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write("[conductor]\nhost_away = 1\nretry_for = 0\n")
        yield made


def evacuate(lab: Stage) -> None:
    """Nova rebuilds the server on host3: its rows, its port's binding, its volume's attachment."""
    server = lab.id_of("web")
    network, volumes = lab.lab.cloud.network, lab.lab.cloud.volumes
    for port in network.ports(server):
        network.ensure_binding(port.id, "host3", {})
        network.activate(port.id, "host3", device_owner="compute:nova")
        for host in port.bindings:
            if host != "host3":
                network.delete_binding(port.id, host)
    (volume,) = {each.volume for each in volumes.for_server(server)}
    known = volumes.attachments(volume)
    new = volumes.create_attachment(volume, server, known=tuple(each.id for each in known))
    for each in known:
        if each.host is not None:
            volumes.delete_attachment(each.id)
    volumes.connect(new, {"host": "host3"}, "/dev/vdb")
    volumes.complete(new)
    with lab.lab.cell_databases["cell1"].write() as session:
        session.add(
            Migration(
                uuid="4f6f1f2e-0000-4000-8000-000000000001",
                instance_uuid=server,
                migration_type="evacuation",
                status="done",
                source_compute="host1",
                dest_compute="host3",
                deleted=0,
            )
        )
        new_place = {"host": "host3", "node": "host3", "task_state": None, "vm_state": "active"}
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(**new_place))


def held(lab: Stage) -> Any:
    standing = lab.standing("web")
    return standing.bindings, standing.attachments


@pytest.mark.parametrize("step", ["move_volumes", "move_ports"])
@pytest.mark.parametrize("direction", ["execute", "revert"])
@pytest.mark.parametrize("flow", ["forward", "revert"])
def test_ports_and_volumes_are_left_to_the_evacuation(lab: Stage, flow: str, direction: str, step: str) -> None:
    move = submit(lab.lab, Wish(server="web", flavor=None, host="host2")).id
    if flow == "revert":
        with lab.running():
            asking.carry(lab.lab, move)
        asking.ask(lab.lab, move, asking.revert)
    fails = {"forward": "define_guest", "revert": "prepare_source_guest"}[flow] if direction == "revert" else ""
    seen: list[Any] = []

    def meet(_move: str, at: str, way: str, phase: str) -> None:
        if (at, way, phase) == (step, direction, "before") and not seen:
            evacuate(lab)
            seen.append(held(lab))
        if (at, way, phase) == (fails, "execute", "before"):
            raise StepError("it fails", code="test")

    before = lab.starts("web")
    with lab.running(meet):
        asking.carry(lab.lab, move)
    ended = asking.read_move(lab.lab, move)
    assert (ended.state, ended.error_code) == ("needs-operator", "evacuated")
    assert seen == [held(lab)]
    assert lab.starts("web") == before
