"""What must hold before a shelve or an unshelve: what breaks each rule, and what breaks none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.rigs.checked_first import page, refusal

from droveway.persistence.nova.server_features import Features
from droveway.scheduler.facts import SHELVE, UNSHELVE, Facts


def broken(facts: Facts, **changed: Any) -> str | None:
    """The refusal of the facts with a change, of a server's column or of another fact."""
    columns = {name: changed.pop(name) for name in list(changed) if hasattr(facts.server, name)}
    server = dataclasses.replace(facts.server, **columns)
    return refusal(dataclasses.replace(facts, server=server, **changed))


def test_the_kind_is_the_one_that_was_asked_for() -> None:
    assert page.TO_BE_SHELVED.kind == SHELVE
    assert page.TO_BE_UNSHELVED.kind == UNSHELVE
    assert page.MIGRATION.kind == "migrate"


def test_a_shelve_and_an_unshelve_that_break_no_rule_are_accepted() -> None:
    assert refusal(page.TO_BE_SHELVED) is None
    assert refusal(page.TO_BE_UNSHELVED) is None
    assert broken(page.TO_BE_SHELVED, vm_state="stopped") is None
    assert broken(page.TO_BE_UNSHELVED, target=None) is None
    assert broken(page.TO_BE_UNSHELVED, target=None, to_cell="cell1") is None


@pytest.mark.parametrize(
    ("state", "status", "says"),
    [
        ("paused", "PAUSED", "openstack server unpause web"),
        ("suspended", "SUSPENDED", "openstack server resume web"),
        ("shelved", "SHELVED", "was shelved by Nova and is still on host host1"),
        ("shelved_offloaded", "SHELVED_OFFLOADED", "droveway server unshelve web"),
        ("rescued", "RESCUE", "is RESCUE (state rescued)"),
        ("resized", "VERIFY_RESIZE", "only one that is ACTIVE or SHUTOFF can be shelved"),
        ("error", "ERROR", "only one that is ACTIVE or SHUTOFF can be shelved"),
        ("building", "BUILD", "only one that is ACTIVE or SHUTOFF can be shelved"),
        (None, "UNKNOWN", "only one that is ACTIVE or SHUTOFF can be shelved"),
    ],
)
def test_a_server_in_another_state_is_not_shelved(state: str | None, status: str, says: str) -> None:
    """Above all none whose memory only the host holds (Nova loses it without a word)."""
    assert says in str(broken(page.TO_BE_SHELVED, vm_state=state, status=status))


def test_an_ephemeral_disk_is_only_given_up_by_name() -> None:
    assert "--discard-ephemeral" in str(broken(page.TO_BE_SHELVED, discards_ephemeral=False))
    none = dataclasses.replace(page.SMALL, ephemeral_gb=0)
    assert broken(page.TO_BE_SHELVED, discards_ephemeral=False, current=none) is None
    on_volume = broken(page.TO_BE_SHELVED, discards_ephemeral=False, boots_from_volume=True)
    assert "ephemeral disk of 1 GB" in str(on_volume)


@pytest.mark.parametrize("facts", [page.TO_BE_SHELVED, page.TO_BE_UNSHELVED], ids=[SHELVE, UNSHELVE])
def test_what_no_image_holds_is_refused_both_ways(facts: Facts) -> None:
    features = facts.features
    drive = dataclasses.replace(features, config_drive=True)
    assert "has a config drive" in str(broken(facts, features=drive))
    tpm = dataclasses.replace(features, image_properties={"hw_tpm_version": "2.0"})
    assert "a vTPM" in str(broken(facts, features=tpm))
    flavor = dataclasses.replace(facts.current, extra_specs={"hw:tpm_model": "tpm-crb"})
    assert "a vTPM" in str(broken(facts, current=flavor))
    assert "[glance]" in str(broken(facts, has_image_service=False))
    assert broken(facts, has_image_service=False, boots_from_volume=True, image_status=None) is None
    assert "1 share attached" in str(broken(facts, features=dataclasses.replace(features, shares=1)))


@pytest.mark.parametrize("facts", [page.TO_BE_SHELVED, page.TO_BE_UNSHELVED], ids=[SHELVE, UNSHELVE])
def test_nothing_else_may_be_done_to_the_server(facts: Facts) -> None:
    assert "without a task" in str(broken(facts, task_state="deleting"))
    assert "has move 9f3ac21e under way" in str(broken(facts, open_move="9f3ac21e"))


def test_a_shelve_needs_its_host() -> None:
    assert "is down" in str(broken(page.TO_BE_SHELVED, up=frozenset({"host2"})))
    assert "holds no allocation" in str(broken(page.TO_BE_SHELVED, holds_allocation=False))
    assert "never started" in str(broken(page.TO_BE_SHELVED, launched=False))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"vm_state": "shelved", "status": "SHELVED", "host": "host1"}, "openstack server unshelve web"),
        ({"host": "host1"}, "names host host1 all the same"),
        ({"vm_state": "active", "status": "ACTIVE", "host": "host1"}, "only one that is SHELVED_OFFLOADED"),
        ({"vm_state": "error", "status": "ERROR"}, "only one that is SHELVED_OFFLOADED"),
    ],
)
def test_only_what_is_offloaded_is_unshelved(columns: dict[str, str], says: str) -> None:
    assert says in str(broken(page.TO_BE_UNSHELVED, **columns))


def test_an_offloaded_server_holds_nothing_in_placement() -> None:
    assert "holds an allocation in Placement all the same" in str(broken(page.TO_BE_UNSHELVED, holds_anything=True))


@pytest.mark.parametrize(
    ("image", "status", "says"),
    [
        (None, None, "no shelved_image_id"),
        ("9a1c", None, "does not exist"),
        ("9a1c", "queued", "is queued and only one that is active"),
        ("9a1c", "deactivated", "openstack image show 9a1c"),
    ],
)
def test_the_image_has_to_be_whole(image: str | None, status: str | None, says: str) -> None:
    """Nova sets ERROR where it is missing; here the server is as it was."""
    said = broken(page.TO_BE_UNSHELVED, features=Features(shelved_image=image), image_status=status)
    assert says in str(said)


def test_a_server_on_a_volume_has_no_image() -> None:
    assert broken(page.TO_BE_UNSHELVED, features=Features(), image_status=None, boots_from_volume=True) is None


def test_another_cell_only_where_servers_may_leave_theirs() -> None:
    """Named by a host there, or by itself; one that is disabled takes none, and what is bound to its cell stays."""
    other = dataclasses.replace(page.HOST2, name="host9", cell="cell2")
    up = frozenset({"host9"})
    assert "a move stays in its cell" in str(broken(page.TO_BE_UNSHELVED, target=other, up=up))
    assert "leave --to-cell out" in str(broken(page.TO_BE_UNSHELVED, target=None, to_cell="cell2"))
    may = dataclasses.replace(page.TO_BE_UNSHELVED, may_leave_cell=True, up=up)
    assert broken(may, target=other) is None
    assert broken(may, target=None, to_cell="cell2") is None
    assert dataclasses.replace(may, target=other).kind == "cross_cell_unshelve"
    assert "is disabled and takes no new servers" in str(broken(may, target=other, cell_disabled=True))
    assert "it has shares" in str(broken(may, target=other, bound_to_cell="it has shares"))


def test_the_named_host_takes_servers() -> None:
    disabled = dataclasses.replace(page.HOST2, enabled=False)
    assert "host2 is disabled" in str(broken(page.TO_BE_UNSHELVED, target=disabled))
    assert "host2 is down" in str(broken(page.TO_BE_UNSHELVED, up=frozenset({"host1"})))
