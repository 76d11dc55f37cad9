"""Real QEMU guests that are shelved and unshelved: what they say themselves is the proof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs import guest_check
from support.labs.operations import Stage, stage

CLOUD = """
hypervisor: libvirt
cells:
  cell1: {hosts: {host1: {}, host2: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 32, root_gb: 1}
images: {base: {size_mb: 16}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  db: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
"""


@pytest.fixture(scope="module", name="lab")
def fixture_lab(libvirt_folder: Path) -> Iterator[Stage]:
    with stage(libvirt_folder / "lab", CLOUD) as made:
        for server in ("web", "db"):
            guest_check.stamp(made.lab, server)
        yield made


@pytest.mark.parametrize("server", ["web", "db"])
def test_a_guest_that_was_shelved_is_the_same_guest_elsewhere(lab: Stage, server: str) -> None:
    """R1-08: its content was written before, and it boots from it on another host."""
    boots = guest_check.report(lab.lab, server).status.boots
    lab.cli("server", "shelve", server)
    assert lab.standing(server).defined == []
    lab.cli("server", "unshelve", server, "--host", "host2")
    told = guest_check.report(lab.lab, server)
    assert (told.host, told.status.mark, told.status.boots) == ("host2", server, boots + 1)
    assert told.checksum == guest_check.expected_checksum(told.server.id)
    lab.assert_balanced()


def test_commands_that_are_killed_while_disks_cross_are_gone_on_with(lab: Stage) -> None:
    for command, step in (("shelve", "upload_disks"), ("unshelve", "copy_disks")):
        lab.arm(step, "kill", phase="during")
        lab.killed("server", command, "web")
        lab.cli("move", "resume", lab.move("web").id)
        assert lab.move("web").state == "done"
        lab.assert_balanced()
    told = guest_check.report(lab.lab, "web")
    assert (told.status.mark, told.checksum) == ("web", guest_check.expected_checksum(told.server.id))
