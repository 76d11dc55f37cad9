"""`move settle --cell cinder`: a Cinder that was put back gets back what the move's last step left there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.beside_nova import Nova
from support.labs.operations import Stage, stage
from support.two_faults import copies

CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, volumes: [{size_gb: 1}]}
"""
TABLES = ("volumes", "attachments")
SETTLE = ("--cell", "cinder", "--reason", "last night's copy was put back")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\n")
        yield made


class Copy:
    """Cinder's database as it is now, to be put back."""

    def __init__(self, lab: Stage) -> None:
        self._services = lab.lab.layout.services
        self._kept = lab.root.parent / "services.sqlite"
        copies.copy_database(self._services, self._kept)

    def put_back(self) -> None:
        """Let Cinder be of that time."""
        copies.restore_tables(self._kept, self._services, TABLES)


def exported(lab: Stage) -> list[tuple[str, str | None]]:
    """Return the server's attachments, each with its host."""
    return [(each.id, each.host) for each in lab.lab.cloud.volumes.for_server(lab.id_of("web"))]


def named(lab: Stage) -> str | None:
    """Return the attachment that the server's row names."""
    ((attachment, _),) = Nova(lab, "web").volumes().values()
    return attachment


def test_a_volume_of_a_move_that_waits_is_attached_to_its_destination_again(lab: Stage) -> None:
    lab.cli("lab", "server", "stop", "web")
    copy = Copy(lab)
    lab.cli("server", "migrate", "web", "--host", "host2")
    lost, move = named(lab), lab.move("web").id
    copy.put_back()
    assert [host for _, host in exported(lab)] == ["host1"]
    lines = lab.cli("move", "settle", move, *SETTLE).splitlines()
    ((attachment, host),) = exported(lab)
    assert (host, named(lab)) == ("host2", attachment)
    assert lines[-1] == f"block_device_mapping.attachment_id: {lost} -> {attachment}"
    assert [line.endswith("deleted") for line in lines] == [True, False]
    assert lab.cli("move", "settle", move, *SETTLE) == "nothing differs from what the move left there\n"
    lab.cli("server", "revert", "web")
    lab.assert_balanced()


def test_a_shelved_servers_volume_is_reserved_again(lab: Stage) -> None:
    """The audit names the command."""
    copy = Copy(lab)
    lab.cli("server", "shelve", "web")
    move = lab.move("web").id
    copy.put_back()
    found = lab.cli("audit", "-f", "value", "-c", "mend", code=3).splitlines()
    assert f"droveway move settle {move[:8]} --cell cinder --reason TEXT" in found
    lab.cli("move", "settle", move, *SETTLE)
    assert exported(lab) == [(named(lab), None)]
    lab.assert_balanced()
    lab.cli("server", "unshelve", "web")
    lab.assert_balanced()


def test_no_volume_is_attached_anew_under_a_guest_that_runs(lab: Stage) -> None:
    copy = Copy(lab)
    lab.cli("server", "migrate", "web", "--host", "host2")
    copy.put_back()
    before = exported(lab), named(lab)
    said = lab.refused("move", "settle", lab.move("web").id, *SETTLE)
    assert "the guest of server web runs" in said
    assert (exported(lab), named(lab)) == before


def test_a_host_that_does_not_answer_gets_no_volume(lab: Stage) -> None:
    lab.cli("lab", "server", "stop", "web")
    copy = Copy(lab)
    lab.cli("server", "migrate", "web", "--host", "host2")
    copy.put_back()
    lab.cli("lab", "worker", "stop", "host2")
    before = exported(lab), named(lab)
    said = lab.refused("move", "settle", lab.move("web").id, *SETTLE)
    assert "the worker of host host2 is away" in said
    assert (exported(lab), named(lab)) == before
