"""Moves that stay on the server's own host: what they hold there, and when they may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.labs.operations import Stage, stage

CLOUD = """
options: {allow_resize_to_same_host: true}
cells:
  cell1:
    hosts:
      # Capacity 16, and no one allocation may take more than 8.
      host1: {vcpus: 8, allocation_ratio: {VCPU: 2.0}}
      host2: {vcpus: 4, same_host_cold_migrate: true}
flavors:
  one: {vcpus: 1, memory_mb: 512, root_gb: 1}
  more: {vcpus: 1, memory_mb: 768, root_gb: 1}
  two: {vcpus: 2, memory_mb: 512, root_gb: 1}
  five: {vcpus: 5, memory_mb: 512, root_gb: 1}
  six: {vcpus: 6, memory_mb: 768, root_gb: 2, swap_mb: 8}
  eight: {vcpus: 8, memory_mb: 512, root_gb: 2}
images: {base: {size_mb: 1}}
groups: {together: {policy: affinity}}
servers:
  web: {flavor: five, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  first: {flavor: one, host: host1, image: base, group: together}
  second: {flavor: one, host: host1, image: base, state: stopped, group: together}
  # With five or six, and with the group's two, this leaves room for six or five beside it, but not for eight.
  filler: {flavor: two, host: host1, image: base, state: stopped}
  stays: {flavor: one, host: host2, image: base, ports: [{}]}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("same-host") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(autouse=True)
def balanced(lab: Stage) -> Iterator[None]:
    yield
    lab.assert_balanced()


def amounts(vcpus: int, memory_mb: int, disk_gb: int) -> dict[str, int]:
    return {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": disk_gb}


FIVE, SIX = amounts(5, 512, 1), amounts(6, 768, 3)


def test_a_resize_on_one_host_holds_both_sizes_until_it_is_reverted_or_confirmed(lab: Stage) -> None:
    """R0-11, R3-10: 5 and 6 of 16 with at most 8 in one allocation, so old and new are two consumers."""
    before = lab.standing("web")
    for ending in ("revert", "confirm"):
        lab.cli("server", "resize", "web", "--flavor", "six")
        moved, move = lab.standing("web"), lab.move("web")
        assert (move.state, move.dest_host, move.storage) == ("verifying", "host1", "same-host")
        assert (moved.host, moved.flavor, moved.status) == ("host1", "six", "VERIFY_RESIZE")
        assert (moved.held, lab.held(move.id)) == ({"host1": SIX}, {"host1": FIVE})
        assert moved.directories == ["host1/ID", "host1/ID_resize"]
        assert moved.runs == moved.defined == moved.plugged == moved.connected == ["host1"]
        lab.assert_balanced()
        lab.cli("server", ending, "web")
        assert lab.held(move.id) == {}
        if ending == "revert":
            assert lab.standing("web") == before
    after = lab.standing("web")
    assert (after.flavor, after.status, after.held) == ("six", "ACTIVE", {"host1": SIX})
    assert after.directories == ["host1/ID"]
    assert (after.bindings, after.attachments) == (before.bindings, before.attachments)


def test_a_resize_whose_old_and_new_size_do_not_fit_together_says_so(lab: Stage) -> None:
    """R3-10: as in Nova, though the new size alone would fit; the sentence names the rule."""
    before = lab.standing("web")
    said = lab.refused("server", "resize", "web", "--flavor", "eight")
    assert "host1: a move on a server's own host holds the old and the new size there until it is confirmed" in said
    assert "both do not fit together" in said
    assert lab.standing("web") == before


def test_an_affinity_group_of_several_is_resized_on_its_host_and_not_migrated(lab: Stage) -> None:
    """R0-13: host2 has room, but the group is on host1."""
    for name in ("first", "second"):
        lab.cli("server", "resize", name, "--flavor", "more", "--confirm", "auto")
        moved = lab.standing(name)
        assert (moved.host, moved.flavor, lab.move(name).state) == ("host1", "more", "done")
    said = lab.refused("server", "migrate", "first")
    assert "host2: its affinity group is on host1 (ServerGroupAffinityFilter)" in said
    assert "host1: the server is on it" in said


def test_a_cold_migration_stays_on_its_host_only_where_the_driver_can(lab: Stage) -> None:
    """R0-12: host1 cannot, host2 declares that it can."""
    said = lab.refused("server", "migrate", "web", "--host", "host1")
    assert "its hypervisor cannot migrate a server to its own host" in said
    before = lab.standing("stays")
    lab.cli("server", "migrate", "stays", "--host", "host2")
    assert (lab.move("stays").dest_host, lab.held(lab.move("stays").id)) == ("host2", {"host2": amounts(1, 512, 1)})
    lab.cli("server", "confirm", "stays")
    assert lab.standing("stays") == before


def test_without_the_option_the_own_host_is_never_chosen(lab: Stage) -> None:
    """R0-11: a resize then needs another host, which is too small here."""
    files = lab.lab.layout.configuration
    allowed = files.read_text()
    files.write_text(allowed.replace("allow_resize_to_same_host = true", "allow_resize_to_same_host = false"))
    try:
        said = lab.refused("server", "resize", "web", "--flavor", "eight")
    finally:
        files.write_text(allowed)
    assert "host1: the server is on it (IgnoreHosts)" in said
