"""What each host has to show before a person's word lets a copy or a guest count as gone, question by question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.rigs.answering_hosts import AnsweringHosts
from support.rigs.valid_answers import VALID
from support.rows.moving_rows import (
    CELL,
    DESTINATION,
    FLAVOR,
    FLOW,
    MIB,
    MOVE,
    NOW,
    SERVER,
    SOURCE,
    Moving,
    disk,
    guest,
    record,
)

from droveway.engines.operations import proofs
from droveway.errors import Refused, StepError
from droveway.flows import registry
from droveway.persistence.journal.tables import Claim, MoveFlow
from droveway.persistence.nova import copy_removal
from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.cell_hosts import Service
from droveway.wire.commands import GuestState

LARGE: Final = {**FLAVOR, "nova_object.data": {**FLAVOR["nova_object.data"], "vcpus": 3, "memory_mb": 768}}
WHOLE: Final = guest(disk("disk", 5 * MIB))
EMPTY: Final = guest()
RUNS: Final = guest(disk("disk", 5 * MIB), running=True)
RUNS_BARE: Final = guest(running=True)
ASIDE: Final = guest(set_aside=True)


class Asked:
    """One move at rest, and the hosts that are asked about it."""

    def __init__(self, folder: Path) -> None:
        self.moving = Moving(folder)
        self.hosts = AnsweringHosts()
        self.source, self.destination = WHOLE, EMPTY
        for host in (SOURCE, DESTINATION):
            for action in ("check_copy", "check_set_aside"):
                self.hosts.say(host, action, VALID[action])
        with self.moving.journal.write() as session:
            session.add(Claim(move_id=MOVE, epoch=7, owner="c", claimed_at=NOW, released_at=NOW))

    def close(self) -> None:
        self.moving.close()
        self.hosts.close()

    def declare_down(self, host: str) -> None:
        self.hosts.stop(host)
        with self.moving.cell.write() as session:
            session.add(Service(host=host, binary="nova-compute", report_count=0, forced_down=True, deleted=0))

    def checks(self, kind: str, step: str, direction: str, *, before: Any = None) -> proofs.HostChecks:
        flow = MoveFlow(uuid=FLOW, move_id=MOVE, kind=kind, version=1, digest="d", created_at=NOW)
        known = record(new_flavor=LARGE) if before is None else before
        rests = proofs.Resting(self.moving.row, flow, step, direction, 41, known)
        site: Any = SimpleNamespace(
            journal=self.moving.journal, api=None, cells=self.moving.cells, cell_databases={CELL: self.moving.cell}
        )
        return proofs.HostChecks(site, self.hosts, rests)  # type: ignore[arg-type]

    def prove(self, kind: str, step: str, direction: str) -> list[tuple[str, str]]:
        """Ask what the step asks; the hosts that were asked, and for what."""
        self.hosts.say(SOURCE, "describe_guest", self.source)
        self.hosts.say(DESTINATION, "describe_guest", self.destination)
        who = self.checks(kind, step, direction)
        proof = proofs.of(who.rests)
        assert proof is not None
        proof(who)
        return [(each.host, each.action) for each in self.hosts.asked]


@pytest.fixture(name="asked")
def fixture_asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path)
    yield made
    made.close()


CONFIRM = ("confirm", "discard_source", "execute")
REVERT = ("revert", "discard_destination", "execute")
BETWEEN_CONFIRM = ("cross_cell_confirm", "discard_source", "execute")
BETWEEN_REVERT = ("cross_cell_revert", "discard_destination", "execute")
UNDO = ("migrate", "copy_disks", "revert")
REMOVAL = ("delete", "remove_guest", "execute")

SHOWN: Final = [
    (CONFIRM, EMPTY, WHOLE, [(DESTINATION, "check_copy"), (SOURCE, "describe_guest")]),
    (REVERT, WHOLE, EMPTY, [(SOURCE, "describe_guest"), (DESTINATION, "describe_guest")]),
    (UNDO, ASIDE, WHOLE, [(SOURCE, "check_set_aside"), (DESTINATION, "describe_guest")]),
    (("migrate", "stop_guest", "execute"), WHOLE, RUNS, [(SOURCE, "describe_guest")]),
    (("resize", "define_guest", "revert"), RUNS, WHOLE, [(DESTINATION, "describe_guest")]),
    (("resize", "start_guest", "revert"), RUNS, WHOLE, [(DESTINATION, "describe_guest")]),
    (("revert", "stop_guest", "execute"), RUNS, WHOLE, [(DESTINATION, "describe_guest")]),
    (("revert", "start_guest", "revert"), WHOLE, RUNS, [(SOURCE, "describe_guest")]),
    (BETWEEN_CONFIRM, EMPTY, WHOLE, [(DESTINATION, "check_copy"), (SOURCE, "describe_guest")]),
    (BETWEEN_REVERT, WHOLE, EMPTY, [(SOURCE, "describe_guest"), (DESTINATION, "describe_guest")]),
    (("cross_cell_revert", "stop_guest", "execute"), RUNS, WHOLE, [(DESTINATION, "describe_guest")]),
    (("cross_cell_revert", "start_guest", "revert"), WHOLE, RUNS, [(SOURCE, "describe_guest")]),
]


@pytest.mark.parametrize(("at", "source", "destination", "questions"), SHOWN)
def test_what_the_hosts_show_lets_it_count_as_done(
    asked: Asked, at: tuple[str, str, str], source: GuestState, destination: GuestState, questions: list[Any]
) -> None:
    asked.source, asked.destination = source, destination
    assert asked.prove(*at) == questions


@pytest.mark.parametrize("at", [REMOVAL, ("delete", "stop_guest", "execute")])
def test_a_deletion_asks_both_hosts(asked: Asked, at: tuple[str, str, str]) -> None:
    asked.source = asked.destination = EMPTY
    assert set(asked.prove(*at)) == {(SOURCE, "describe_guest"), (DESTINATION, "describe_guest")}


HELD: Final = [
    (CONFIRM, ASIDE, WHOLE, "host1 still holds what was set aside"),
    (REVERT, EMPTY, EMPTY, "host1 does not show the server's disks whole"),
    (REVERT, guest(disk("disk", 5 * MIB - 1)), EMPTY, "host1 does not show the server's disks whole"),
    (REVERT, WHOLE, RUNS_BARE, "the guest runs on host host2"),
    (REVERT, WHOLE, WHOLE, "host2 holds disks of the server"),
    (UNDO, ASIDE, RUNS, "the guest runs on host host2"),
    (("migrate", "stop_guest", "execute"), RUNS, EMPTY, "the guest runs on host host1"),
    (("resize", "define_guest", "revert"), WHOLE, RUNS, "the guest runs on host host2"),
    (("resize", "start_guest", "revert"), WHOLE, RUNS, "the guest runs on host host2"),
    (("revert", "stop_guest", "execute"), WHOLE, RUNS, "the guest runs on host host2"),
    (("revert", "start_guest", "revert"), RUNS, WHOLE, "the guest runs on host host1"),
    (("delete", "stop_guest", "execute"), RUNS, EMPTY, "the guest runs on host host1"),
    (("delete", "stop_guest", "execute"), EMPTY, RUNS, "the guest runs on host host2"),
    (BETWEEN_CONFIRM, ASIDE, WHOLE, "host1 still holds what was set aside"),
    (BETWEEN_REVERT, EMPTY, EMPTY, "host1 does not show the server's disks whole"),
    (BETWEEN_REVERT, WHOLE, RUNS_BARE, "the guest runs on host host2"),
    (("cross_cell_revert", "stop_guest", "execute"), WHOLE, RUNS, "the guest runs on host host2"),
    (("cross_cell_revert", "start_guest", "revert"), RUNS, WHOLE, "the guest runs on host host1"),
    (REMOVAL, WHOLE, EMPTY, "host1 holds disks of the server"),
    (REMOVAL, EMPTY, WHOLE, "host2 holds disks of the server"),
    (REMOVAL, EMPTY, RUNS_BARE, "the guest runs on host host2"),
]


@pytest.mark.parametrize(("at", "source", "destination", "why"), HELD)
def test_what_a_host_still_has_is_not_gone(
    asked: Asked, at: tuple[str, str, str], source: GuestState, destination: GuestState, why: str
) -> None:
    asked.source, asked.destination = source, destination
    with pytest.raises(Refused) as caught:
        asked.prove(*at)
    assert str(caught.value) == (
        f"{'host ' if why.startswith('host') else ''}{why}, so step {at[1]} of move {MOVE[:8]} does not count as done: "
        f"mend that, then droveway move retry {MOVE[:8]}"
    )


@pytest.mark.parametrize(
    ("at", "host", "action"), [(CONFIRM, DESTINATION, "check_copy"), (UNDO, SOURCE, "check_set_aside")]
)
def test_a_copy_that_is_not_whole_frees_no_other(
    asked: Asked, at: tuple[str, str, str], host: str, action: str
) -> None:
    asked.source = EMPTY
    asked.hosts.fail(host, action, "missing", "disk is gone")
    with pytest.raises(Refused, match=rf"{host} does not show its copy whole \(disk is gone\)"):
        asked.prove(*at)
    asked.declare_down(host)
    with pytest.raises(Refused, match=f"{host} is declared down and cannot show its copy"):
        asked.prove(*at)


def test_the_copy_is_asked_for_with_the_flavor_that_it_has(asked: Asked) -> None:
    asked.source, asked.destination = EMPTY, WHOLE
    asked.prove(*CONFIRM)
    assert asked.hosts.asked[0].details == {"vcpus": 3, "memory_mb": 768}


@pytest.mark.parametrize(
    ("at", "host", "state"),
    [
        (CONFIRM, SOURCE, ASIDE),
        (REVERT, DESTINATION, WHOLE),
        (UNDO, DESTINATION, RUNS),
        (REMOVAL, SOURCE, WHOLE),
        (("migrate", "stop_guest", "execute"), SOURCE, RUNS),
    ],
)
def test_a_host_that_a_person_declared_down_is_taken_at_the_persons_word(
    asked: Asked, at: tuple[str, str, str], host: str, state: GuestState
) -> None:
    """What it may hold needs no showing; that it is away alone proves nothing."""
    asked.source, asked.destination = (state, EMPTY) if host == SOURCE else (WHOLE, state)
    asked.hosts.stop(host)
    with pytest.raises(Refused, match=f"the worker of host {host} is away .* droveway host down {host} --i-made-sure"):
        asked.prove(*at)
    asked.declare_down(host)
    asked.prove(*at)


def test_a_source_that_is_declared_down_shows_no_disks(asked: Asked) -> None:
    asked.declare_down(SOURCE)
    with pytest.raises(Refused, match="host1 does not show the server's disks whole"):
        asked.prove(*REVERT)


@pytest.mark.parametrize("how", ["its row is gone", "its delete was asked for"])
@pytest.mark.parametrize("at", [CONFIRM, REVERT, UNDO])
def test_a_deleted_server_has_no_copy_to_keep(asked: Asked, at: tuple[str, str, str], how: str) -> None:
    """What is left over of it has to be gone all the same."""
    if how == "its row is gone":
        with asked.moving.cell.write() as session:
            session.execute(sa.update(Instance).where(Instance.uuid == SERVER).values(deleted=1))
    else:
        asked.moving.row.delete_requested = True
    asked.source = asked.destination = EMPTY
    for host, action in ((DESTINATION, "check_copy"), (SOURCE, "check_set_aside")):
        asked.hosts.fail(host, action, "missing", "disk is gone")
    asked.prove(*at)
    left = {CONFIRM: (ASIDE, EMPTY), REVERT: (EMPTY, WHOLE), UNDO: (EMPTY, RUNS)}
    asked.source, asked.destination = left[at]
    with pytest.raises(Refused):
        asked.prove(*at)


@pytest.mark.parametrize("storage", ["shared", "same-host"])
def test_in_a_directory_that_both_share_the_disks_are_the_servers_own(asked: Asked, storage: str) -> None:
    asked.destination = WHOLE
    with pytest.raises(Refused, match="host2 holds disks"):
        asked.prove(*REVERT)
    asked.moving.row.storage = storage
    asked.prove(*REVERT)
    asked.destination = RUNS
    with pytest.raises(Refused, match="the guest runs on host host2"):
        asked.prove(*REVERT)


def test_a_move_without_a_destination_asks_its_source_alone(asked: Asked) -> None:
    asked.moving.row.dest_host = None
    asked.source = EMPTY
    assert asked.prove(*REMOVAL) == [(SOURCE, "describe_guest")]


def test_each_question_is_new_goes_under_the_last_claim_and_leaves_nothing(asked: Asked) -> None:
    asked.source = EMPTY
    asked.prove(*REMOVAL)
    asked.prove(*REMOVAL)
    keys = [each.key for each in asked.hosts.asked]
    assert len(set(keys)) == 4
    assert all(key.startswith(f"{FLOW}.remove_guest.execute.41.proof-") for key in keys)
    assert {(each.epoch, each.move, each.server) for each in asked.hosts.asked} == {(7, MOVE, SERVER)}
    assert asked.hosts.left() == []


def test_an_undo_is_asked_about_in_words_that_change_nothing(asked: Asked) -> None:
    """Carried out as an undo, the same action would be one."""
    asked.prove(*UNDO)
    assert {(each.direction, each.step) for each in asked.hosts.asked} == {("execute", "copy_disks")}


def test_a_host_that_says_nothing_proves_nothing(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "SECONDS", 0.05)
    asked.hosts.mute.add(DESTINATION)
    with pytest.raises(Refused, match="host host2 did not answer"):
        asked.prove(*REVERT)
    assert asked.hosts.left() == []


def test_a_host_that_fails_to_look_proves_nothing(asked: Asked) -> None:
    asked.hosts.fail(SOURCE, "describe_guest", "failed", "libvirt is away")
    with pytest.raises(StepError, match="libvirt is away") as caught:
        asked.checks(*UNDO).state(SOURCE)
    assert (caught.value.error_code, caught.value.host) == ("failed", SOURCE)


def test_a_move_that_recorded_nothing_is_told_so(asked: Asked) -> None:
    asked.moving.row.before = None
    who = asked.checks(*REVERT)
    bare = proofs.HostChecks(
        who._site, who._channel._coordination, proofs.Resting(**{**vars(who.rests), "record": None})
    )
    with pytest.raises(Refused, match="nobody recorded how the server was before"):
        _ = bare.record


@pytest.mark.parametrize(
    ("kind", "step", "direction"),
    [
        ("cross_cell_confirm", "remove_source_records", "execute"),
        ("cross_cell_unshelve", "remove_source_records", "execute"),
        ("cross_cell_revert", "remove_target_records", "execute"),
        ("cross_cell_revert_elsewhere", "remove_target_records", "execute"),
        ("cross_cell_migrate", "copy_records", "revert"),
        ("cross_cell_unshelve", "copy_records", "revert"),
    ],
)
def test_rows_that_a_cell_still_has_are_not_gone(asked: Asked, kind: str, step: str, direction: str) -> None:
    asked.moving.row.dest_cell = CELL
    with pytest.raises(Refused, match=f"cell {CELL} has rows of the server"):
        asked.prove(kind, step, direction)
    with asked.moving.cell.write() as session:
        copy_removal.remove(session, SERVER, at_most=99)
    assert asked.prove(kind, step, direction) == []


def test_what_takes_nothing_of_a_host_for_gone_asks_nobody(asked: Asked) -> None:
    for kind, step, direction in [
        ("migrate", "move_ports", "execute"),
        ("confirm", "discard_source", "revert"),
        ("migrate", "copy_disks", "execute"),
        ("confirm", "stop_guest", "execute"),
    ]:
        assert proofs.of(asked.checks(kind, step, direction).rests) is None


def test_every_step_that_has_to_be_proved_is_one_of_its_graph() -> None:
    for kind, step, _ in proofs.PROOFS:
        assert step in registry.latest(kind).names(), (kind, step)
