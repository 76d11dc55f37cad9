"""Makes the tables of what is checked before a move, a confirm or a revert begins, from the rules themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from droveway.clients.network import PortRecord
from droveway.persistence.nova import namesakes
from droveway.persistence.nova.catalog import Flavor, Host, Server
from droveway.persistence.nova.quotas import CORES, RAM, QuotaUsage
from droveway.persistence.nova.server_features import Features
from droveway.scheduler.facts import EndFacts, Facts
from droveway.scheduler.preconditions import (
    CONFIRM,
    CROSS_CELL_MIGRATE,
    CROSS_CELL_RESIZE,
    END_NOT_HERE,
    END_RULES,
    MIGRATE,
    NOT_HERE,
    RESIZE,
    REVERT,
    RULES,
    SHELVE,
    UNSHELVE,
    Rule,
)

HEADER: Final = ("Nova's", "Of", "What is checked", "What is said, for instance")
WIDTHS: Final = "8 10 32 50"

Rows = list[tuple[str, str, str, str]]

BEFORE_A_MOVE: Final = (
    "In this order; the first rule that is broken is the answer: one sentence that names the thing, the rule and the "
    "mend. The command ends with 2 and nothing was changed. The numbers are those of the checks that Nova's API makes "
    "of a resize or a cold migration, in Nova's order; a row without a number is what Nova leaves to a later step, or "
    "what this version does not handle yet. ``droveway move plan`` asks the same."
)
BEFORE_AN_END: Final = (
    "Of a confirm or a revert, whether somebody asks for it or a policy does. A person is refused; a policy waits, "
    "says for what in ``waits_for``, and goes on once that is mended. The confirm before a delete waits for the "
    "source's worker alone: whoever deletes a server asked for its disks to go."
)
BEFORE_A_SHELVE: Final = (
    "Of a shelve or an unshelve, in this order. A shelve keeps what one image of the root disk holds, and nothing else "
    "that lies on the host: what such an image cannot hold is refused, or has to be given up by name. Where a shelved "
    "server goes is decided as for a migration, within the zone that its owner asked for."
)
WHILE_VERIFYING: Final = (
    "While a move waits for its confirm or revert, another resize or migration of the server is refused by the first "
    "rule above, and so are its start and stop; its delete is accepted, and confirms the move first."
)

SMALL: Final = Flavor(
    name="small", id="f-small", vcpus=1, memory_mb=512, root_gb=2, ephemeral_gb=1, swap_mb=0, disabled=False,
    extra_specs={},
)  # fmt: skip
LARGE: Final = dataclasses.replace(SMALL, name="large", id="f-large", vcpus=4, memory_mb=2048, root_gb=4)
HOST1: Final = Host(
    name="host1", cell="cell1", enabled=True, disabled_reason=None, forced_down=False, zone="az1", node="n-1",
    vcpus=10, vcpus_used=1, memory_mb=8192, memory_mb_used=512, disk_gb=100, disk_gb_used=3, servers=1,
    hypervisor="QEMU",
)  # fmt: skip
HOST2: Final = dataclasses.replace(HOST1, name="host2", node="n-2")
WEB: Final = Server(
    id="5b0f2f0e-0000-4000-8000-000000000001", name="web", status="ACTIVE", vm_state="active", task_state=None,
    power_state="RUNNING", host="host1", flavor="small", cell="cell1", project="p-1", user="u-1",
    availability_zone="az1", locked=False, launched=True, boots_from_volume=False, root_gb=2, ephemeral_gb=1,
    flavor_id=1, image="i-1", created=None,
)  # fmt: skip
PORT: Final = PortRecord(
    id="7c1d", mac="fa:16:3e:00:00:01", host="host1", bindings={"host1": "ACTIVE"}, profile={},
    device_owner="compute:az1", server=WEB.id,
)  # fmt: skip
OFFLOADED: Final = dataclasses.replace(
    WEB, status="SHELVED_OFFLOADED", vm_state="shelved_offloaded", power_state="SHUTDOWN", host=None,
    availability_zone=None,
)  # fmt: skip
RESIZED: Final = dataclasses.replace(WEB, status="VERIFY_RESIZE", vm_state="resized", host="host2", flavor="large")


def quota_usage(resource: str, used: int, limit: int, owner: str = "project p-1") -> QuotaUsage:
    """Return the usage of a resource by a project or a user."""
    return QuotaUsage(owner, resource, used, limit)


ROOM: Final = (quota_usage(CORES, 1, 20), quota_usage(RAM, 512, 51200), quota_usage(CORES, 1, 20, "user u-1"))

MIGRATION: Final = Facts(
    server=WEB, current=SMALL, source=HOST1, target=HOST2, up=frozenset({"host1", "host2"}), ports=(PORT,)
)
"""A migration to a named host that no rule forbids."""
RESIZE_TO_LARGE: Final = dataclasses.replace(MIGRATION, target=None, new=LARGE, quota_usages=ROOM)
"""A resize that no rule forbids."""
TO_BE_SHELVED: Final = dataclasses.replace(MIGRATION, asked=SHELVE, target=None, discards_ephemeral=True)
"""A shelve that no rule forbids."""
TO_BE_UNSHELVED: Final = dataclasses.replace(
    MIGRATION, asked=UNSHELVE, server=OFFLOADED, source=None, holds_allocation=False, holds_anything=False,
    features=Features(shelved_image="9a1c"), image_status="active",
)  # fmt: skip
"""An unshelve on a named host that no rule forbids."""
END: Final = EndFacts(
    move="9f3ac21e", server=RESIZED, migration="finished", deleting=False, source="host1", destination=RESIZED.host,
    source_up=True, old=SMALL, current=LARGE, quota_usages=ROOM,
)  # fmt: skip
"""A move that may be confirmed or reverted."""


def _migration(**broken: Any) -> Facts:
    return dataclasses.replace(MIGRATION, **broken)


def _resize(**broken: Any) -> Facts:
    return dataclasses.replace(RESIZE_TO_LARGE, **broken)


def _server(**broken: Any) -> Facts:
    return _migration(server=dataclasses.replace(WEB, **broken))


def _port(**broken: Any) -> Facts:
    return _migration(ports=(dataclasses.replace(PORT, **broken),))


def _new(**broken: Any) -> Facts:
    return _resize(new=dataclasses.replace(LARGE, **broken))


def _shelve(**broken: Any) -> Facts:
    return dataclasses.replace(TO_BE_SHELVED, **broken)


def _unshelve(**broken: Any) -> Facts:
    return dataclasses.replace(TO_BE_UNSHELVED, **broken)


EXAMPLES: Final[Mapping[str, Facts]] = {
    "no_open_move": _migration(open_move="9f3ac21e"),
    "no_shares": _migration(features=Features(shares=1)),
    "no_accelerated_port": _port(vnic_type="accelerator-direct"),
    "no_accelerator": _migration(current=dataclasses.replace(SMALL, extra_specs={"accel:device_profile": "fpga"})),
    "only_normal_ports": _port(vnic_type="direct"),
    "binds_ports_twice": _migration(binds_twice=False),
    "tells_what_ports_ask": _port(profile={"allocation": {"4d87": "1968"}}, tells_request=False),
    "no_bound_devices": _migration(features=Features(numa=True)),
    "in_a_movable_state": _server(status="ERROR", vm_state="error"),
    "without_a_task": _server(status="REBOOT", task_state="rebooting"),
    "was_launched": _server(launched=False),
    "is_on_a_host": _server(host=None),
    "hosts_are_of_one_cell": _migration(namesakes=namesakes.several([("cell1", "host2"), ("cell2", "host2")])),
    "source_is_up": _migration(up=frozenset({"host2"})),
    "target_is_another_host": _migration(target=HOST1),
    "target_is_in_its_cell": _migration(target=dataclasses.replace(HOST2, name="host9", cell="cell2")),
    "target_cell_takes_servers": _migration(target=None, to_cell="cell2", may_leave_cell=True, cell_disabled=True),
    "target_cell_answers": _migration(
        target=None, to_cell="cell2", may_leave_cell=True, cells_away=frozenset({"cell2"})
    ),
    "crosses_whole": _migration(
        target=None,
        to_cell="cell2",
        may_leave_cell=True,
        bound_to_cell="server web has a share, which exists only in its own cell: it cannot cross to another one",
    ),
    "target_cell_has_no_copy": _migration(
        target=None,
        to_cell="cell2",
        may_leave_cell=True,
        other_cells={"cell2": "it has rows of server 5b0f2f0e already, hidden: droveway audit says what they are"},
    ),
    "target_takes_servers": _migration(target=dataclasses.replace(HOST2, enabled=False)),
    "may_be_used": _resize(may_use=False),
    "asks_for_no_accelerator": _new(extra_specs={"accel:device_profile": "fpga"}),
    "keeps_a_root_disk": _new(root_gb=0),
    "is_enabled": _new(disabled=True),
    "is_another_one": _resize(new=SMALL),
    "shrinks_no_disk": _new(root_gb=1),
    "keeps_the_quotas": _resize(quota_usages=(quota_usage(CORES, 18, 20), *ROOM)),
    "has_the_images_memory": _resize(features=Features(min_ram_mb=4096)),
    "has_the_images_disk": _resize(features=Features(min_disk_gb=8)),
    "agrees_with_the_image": _resize(
        new=dataclasses.replace(LARGE, extra_specs={"hw:virtio_packed_ring": "false"}),
        features=Features(image_properties={"hw_virtio_packed_ring": "true"}),
    ),
    "binds_no_devices": _new(extra_specs={"hw:cpu_policy": "dedicated"}),
    "holds_its_allocation": _migration(holds_allocation=False),
    "can_be_shelved": _shelve(server=dataclasses.replace(WEB, status="PAUSED", vm_state="paused")),
    "gives_up_its_ephemeral_disk": _shelve(discards_ephemeral=False),
    "has_no_config_drive": _shelve(features=Features(config_drive=True)),
    "image_can_be_kept": _shelve(has_image_service=False),
    "is_offloaded": _unshelve(server=WEB),
    "its_image_is_whole": _unshelve(image_status=None),
    "holds_nothing": _unshelve(holds_anything=True),
}
"""Maps each rule to a move that breaks this rule alone."""
END_EXAMPLES: Final[Mapping[str, EndFacts]] = {
    "waits_to_be_ended": dataclasses.replace(
        END, server=dataclasses.replace(RESIZED, status="ERROR", vm_state="error")
    ),
    "has_a_finished_migration": dataclasses.replace(END, migration="error"),
    "source_can_clean_up": dataclasses.replace(END, source_up=False),
    "destination_shows_its_copy": dataclasses.replace(END, destination_up=False, destination_gone=True),
    "source_can_take_back": dataclasses.replace(
        END, source_up=False, source_gone=True, elsewhere="no other host of cell cell1 is up"
    ),
    "destination_can_be_asked": dataclasses.replace(END, destination_up=False),
    "revert_keeps_the_quotas": dataclasses.replace(
        END, old=LARGE, current=SMALL, quota_usages=(quota_usage(RAM, 51000, 51200), *ROOM)
    ),
}


def move_rows() -> Rows:
    """Return the rules of a resize or a migration and Nova's checks without a rule, sorted by Nova's numbers."""
    cells = (CROSS_CELL_RESIZE, CROSS_CELL_MIGRATE)
    kinds = {
        (RESIZE, MIGRATE, *cells): "both",
        (RESIZE, CROSS_CELL_RESIZE): RESIZE,
        (MIGRATE, CROSS_CELL_MIGRATE): MIGRATE,
        cells: "both, into another cell",
    }
    return _rows(_of(RULES, (RESIZE, MIGRATE, *cells)), NOT_HERE, kinds, EXAMPLES)


def shelve_rows() -> Rows:
    """Return the rules of a shelve or an unshelve, without Nova's numbers, which are those of a resize."""
    kinds = {(SHELVE, UNSHELVE): "both", (SHELVE,): SHELVE, (UNSHELVE,): UNSHELVE}
    rules = [dataclasses.replace(rule, numbers=()) for rule in _of(RULES, (SHELVE, UNSHELVE))]
    return _rows(rules, {}, kinds, EXAMPLES)


def _of(rules: Iterable[Rule[Any]], kinds: Sequence[str]) -> list[Rule[Any]]:
    """Return the rules that hold for any of these kinds, limited to these kinds."""
    held = [(rule, tuple(kind for kind in rule.kinds if kind in kinds)) for rule in rules]
    return [dataclasses.replace(rule, kinds=each) for rule, each in held if each]


def end_rows() -> Rows:
    """Return the rules of a confirm or a revert."""
    kinds = {(CONFIRM, REVERT): "both", (CONFIRM,): CONFIRM, (REVERT,): REVERT}
    return _rows(END_RULES, END_NOT_HERE, kinds, END_EXAMPLES)


def _rows(
    rules: Sequence[Rule[Any]],
    missing: Mapping[int, tuple[str, str]],
    kinds: Mapping[tuple[str, ...], str],
    examples: Mapping[str, Any],
) -> Rows:
    rows: Rows = []
    left = sorted(missing)
    for rule in rules:
        while left and rule.numbers and left[0] < min(rule.numbers):
            rows.append(_missing(left[0], missing[left.pop(0)]))
        said = str(rule.check(examples[rule.name]))
        rows.append((", ".join(map(str, rule.numbers)), kinds[rule.kinds], rule.says, f"*{said}*"))
    return rows + [_missing(number, missing[number]) for number in left]


def _missing(number: int, why: Iterable[str]) -> tuple[str, str, str, str]:
    check, reason = why
    return str(number), "no rule", check, reason
