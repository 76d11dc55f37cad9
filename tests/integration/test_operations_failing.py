"""Moves that fail, are cancelled, held or overdue: the server is as it was, or where the next alternate is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, faults_cleared, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import faults
from droveway.persistence.journal import requests
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import InstanceFault

CLOUD = """
options: {max_attempts: 2}
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}, host4: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}], state: stopped}
  db: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}]}
"""
LARGE = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 2}
SMALL = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("failing") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers on host1: whatever a test moved is brought back."""
    with faults_cleared(built):
        yield built
    built.bring_back()
    assert {row["host"] for row in built.json("server", "list")} == {"host1"}
    built.assert_balanced()


def tries(lab: Stage, move: str) -> list[tuple[str, str]]:
    """The alternates that were tried, and whether each one's claim was taken back."""
    return list(dict.fromkeys((str(row.attempt), row.direction) for row in lab.history(move) if row.step == "claim"))


def shown_faults(lab: Stage, move: str) -> list[tuple[str, int, str | None]]:
    """What Nova's users are shown of the move's failures: what failed, the code and the message."""
    with lab.lab.cell_databases["cell1"].read() as session:
        rows = session.scalars(
            sa.select(InstanceFault).where(InstanceFault.details.contains(move)).order_by(InstanceFault.id)
        )
        return [(str(row.details).partition(": ")[0].replace(move, "ID"), row.code, row.message) for row in rows]


@pytest.mark.parametrize(
    "step", ["claim", "check_destination", "reserve_ports", "copy_disks", "connect_destination", "define_guest"]
)
def test_the_next_alternate_is_tried_after_the_destinations_fault(lab: Stage, step: str) -> None:
    """R0-20: the history shows the undo, then the second host; the server is only ever on one of them."""
    before = lab.standing("web")
    plan = lab.json("move", "plan", "web", "--flavor", "large")
    # A step of the conductor's own runs on no host: there the first try is meant.
    where = {} if step in ("claim", "reserve_ports") else {"host": plan["destination"]}
    lab.arm(step, "fail", fault="destination", **where)
    lab.cli("server", "resize", "web", "--flavor", "large")
    move = lab.move("web")
    assert (move.dest_host, move.attempt) == (plan["alternates"][0], 2)
    assert lab.standing("web") == before.verifying(plan["alternates"][0], "large", LARGE)
    assert lab.held(move.id) == {"host1": SMALL}
    assert tries(lab, move.id) == [("1", "execute"), ("1", "revert"), ("2", "execute")]
    lab.assert_balanced()


@pytest.mark.parametrize("name", ["web", "idle", "db"])
def test_no_more_hosts_are_tried_than_max_attempts(lab: Stage, name: str) -> None:
    """R0-21, R3-09: two tries of three bad hosts, failed, and the server as it was: running if it ran."""
    before, starts = lab.standing(name), lab.starts(name)
    lab.arm("define_guest", "fail", fault="destination", count=99)
    lab.cli("server", "resize", name, "--flavor", "large", code=3)
    move = lab.move(name)
    assert (move.state, move.attempt, move.error_code) == ("failed", 2, "fault")
    assert tries(lab, move.id) == [("1", "execute"), ("1", "revert"), ("2", "execute"), ("2", "revert")]
    assert lab.standing(name) == before
    assert before.status == ("SHUTOFF" if name == "idle" else "ACTIVE")
    # Started again after each try, and a stopped one not at all (R1-22).
    assert lab.starts(name) == (starts if name == "idle" else [*starts, "host1", "host1"])
    assert shown_faults(lab, move.id) == [
        (f"resize of move ID, attempt {attempt}, step define_guest", 500, move.error) for attempt in (1, 2)
    ]
    assert lab.held(move.id) == {}
    lab.assert_balanced()


def test_a_named_host_has_no_alternate(lab: Stage) -> None:
    """R0-14: the named host, or none."""
    before = lab.standing("web")
    lab.arm("define_guest", "fail", fault="destination", count=99)
    lab.cli("server", "migrate", "web", "--host", "host3", code=3)
    move = lab.move("web")
    assert (move.state, move.attempt, move.dest_host) == ("failed", 1, "host3")
    assert tries(lab, move.id) == [("1", "execute"), ("1", "revert")]
    assert lab.standing("web") == before


@pytest.mark.parametrize("action", ["enospc", "corrupt"])
def test_a_copy_that_fails_everywhere_is_undone(lab: Stage, action: str) -> None:
    """A full disk, or a copy whose checksum differs: exit 3 with the reason, and the server as it was."""
    before = lab.standing("web")
    lab.arm("copy_disks", action, phase="during", count=99)
    said = lab.cli("server", "migrate", "web", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("failed", {"enospc": "disk-full", "corrupt": "checksum"}[action])
    assert str(move.error) in said
    assert move.attempt == 2
    assert lab.standing("web") == before
    lab.assert_balanced()


@pytest.mark.parametrize("step", ["choose_destinations", "stop_guest", "move_volumes", "switch_records"])
def test_a_failed_move_leaves_the_server_as_it_was(lab: Stage, step: str) -> None:
    """R3-09, R1-31: running, not in ERROR, its allocation back, and free for the next move."""
    before = lab.standing("web")
    lab.arm(step, "fail")
    said = lab.cli("server", "resize", "web", "--flavor", "large", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("failed", "fault")
    assert "failed" in said
    tried = "" if step == "choose_destinations" else ", attempt 1"
    assert shown_faults(lab, move.id) == [(f"resize of move ID{tried}, step {step}", 500, move.error)]
    assert lab.standing("web") == before
    assert lab.held(move.id) == {}
    lab.assert_balanced()
    lab.cli("server", "resize", "web", "--flavor", "large")
    assert lab.standing("web").status == "VERIFY_RESIZE"


@pytest.mark.parametrize("step", ["restore_disks", "start_guest"])
def test_a_failed_revert_waits_for_confirm_or_revert_again(lab: Stage, step: str) -> None:
    """R0-23: back at rest on the destination with the reason kept, and both verbs still work."""
    before = lab.standing("web")
    lab.cli("server", "resize", "web", "--flavor", "large")
    moved = lab.standing("web")
    lab.arm(step, "fail", fault="destination")
    lab.cli("server", "revert", "web", code=3)
    assert (lab.move("web").state, lab.move("web").error_code) == ("verifying", "fault")
    shown = [(f"revert of move ID, attempt 1, step {step}", 500, lab.move("web").error)]
    assert shown_faults(lab, lab.move("web").id) == shown
    assert lab.standing("web") == moved
    lab.assert_balanced()
    lab.cli("server", "revert", "web")
    assert lab.standing("web") == before


def file(lab: Stage, name: str, **wish: str) -> str:
    """Ask for a move and carry nothing on."""
    return submit(lab.lab, MoveSpec(server=name, **wish)).id  # type: ignore[arg-type]


def at(lab: Stage, move: str, step: str) -> None:
    """Wait until the move is inside the step."""

    def there() -> bool:
        return bool([row for row in lab.history(move) if row.step == step and row.ended_at is None])

    until(there, f"{step} of move {move}")


def ask(lab: Stage, move: str, request: Callable[..., None]) -> None:
    """Write what is asked of a move and carry nothing on."""
    with lab.lab.journal.write() as session:
        request(session, session.get_one(Move, move))


@pytest.mark.parametrize("name", ["web", "idle"])
@pytest.mark.parametrize("step", ["find_storage", "copy_disks", "define_guest"])
def test_a_move_is_cancelled_in_its_middle(lab: Stage, step: str, name: str) -> None:
    """A cancel undoes all; a server that ran runs again, one that was stopped was never started (R1-22)."""
    before, starts = lab.standing(name), lab.starts(name)
    lab.arm(step, "stall")
    move = file(lab, name, flavor="large")
    with lab.running():
        at(lab, move, step)
        ask(lab, move, move_requests.cancel)
        faults.clear(lab.lab.layout, None)
        ended = move_requests.carry(lab.lab, move)
    assert (ended.state, ended.error_code) == ("cancelled", "cancelled")
    assert lab.standing(name) == before
    was_stopped = name == "web" and step != "find_storage"
    assert lab.starts(name) == ([*starts, "host1"] if was_stopped else starts)
    assert lab.held(move) == {}
    assert shown_faults(lab, move) == []


def test_a_queued_move_is_cancelled_at_once(lab: Stage) -> None:
    """Nothing of it ever began."""
    before = lab.standing("web")
    move = file(lab, "web")
    assert "cancelled" in lab.cli("move", "cancel", move[:8])
    assert (lab.move("web").state, lab.history(move)) == ("cancelled", [])
    assert lab.standing("web") == before
    lab.cli("move", "resume")
    assert (lab.move("web").state, lab.history(move)) == ("cancelled", [])


def test_what_cannot_be_cancelled_is_refused(lab: Stage) -> None:
    """Past the point of no return, at rest and after the end: one sentence that says what can be done."""
    lab.arm("save_request_spec", "stall")
    move = file(lab, "web", flavor="large")
    with lab.running():
        at(lab, move, "save_request_spec")
        assert "past its point of no return" in lab.refused("move", "cancel", move)
        faults.clear(lab.lab.layout, None)
        move_requests.carry(lab.lab, move)
        assert "is verifying" in lab.refused("move", "cancel", move)
        lab.cli("server", "revert", "web")
        assert "is reverted" in lab.refused("move", "cancel", move)
    assert lab.move("web").state == "reverted"


@pytest.mark.parametrize("step", ["reserve_ports", "copy_disks", "switch_records"])
def test_a_held_move_rests_at_the_next_boundary_until_it_is_resumed(lab: Stage, step: str) -> None:
    """No other command carries a held move on; `move resume` with its id does."""
    before = lab.standing("web")
    lab.arm(step, "stall")
    move = file(lab, "web", flavor="large")
    with lab.running():
        at(lab, move, step)
        assert "is held" in lab.cli("move", "pause", move)
        faults.clear(lab.lab.layout, None)
        held = until(lambda: move_requests.carry(lab.lab, move), "the hold")
    assert (held.state, held.hold) == ("running", True)
    done = len(lab.history(move))
    lab.cli("move", "resume")
    lab.cli("server", "migrate", "db")
    assert len(lab.history(move)) <= done + 1
    assert f"droveway move resume {move[:8]}" in lab.json("move", "show", move)["next"]
    lab.cli("move", "resume", move)
    assert lab.standing("web") == before.verifying(str(lab.move("web").dest_host), "large", LARGE)


def test_a_held_move_is_told_as_it_rested_though_it_is_resumed_at_once(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that found its move held ends with that, whatever another one does to it a moment later."""
    can_go_on = move_requests.can_go_on
    move = file(lab, "web")
    ask(lab, move, requests.pause)

    def look_then_resume(row: Move, now: Any) -> bool:
        answer = can_go_on(row, now)
        ask(lab, move, requests.resume)
        return answer

    monkeypatch.setattr(move_requests, "can_go_on", look_then_resume)
    assert move_requests.carry(lab.lab, move).hold
    assert not lab.move("web").hold
    monkeypatch.undo()
    lab.cli("move", "resume")
    assert lab.move("web").state == "verifying"


def test_a_queued_move_is_held_before_it_begins(lab: Stage) -> None:
    """Then cancelled: nothing was ever done."""
    move = file(lab, "web")
    lab.cli("move", "pause", move)
    lab.cli("server", "migrate", "db")
    assert (lab.move("web").state, lab.history(move)) == ("queued", [])
    lab.cli("move", "resume", move)
    assert lab.move("web").state == "verifying"


def test_a_passed_deadline_is_acted_on_by_the_next_writing_command(lab: Stage) -> None:
    """R2-10: under the policy deadline no move waits for a person longer than until its deadline."""
    lab.cli("server", "migrate", "db", "--deadline", "1h")
    move = lab.move("db")
    assert move.deadline is not None
    left = (move.deadline - move.updated_at).total_seconds()
    assert 3590 < left <= 3601
    lab.cli("move", "resume")
    assert lab.move("db").state == "verifying"
    with lab.lab.journal.write() as session:
        session.get_one(Move, move.id).deadline = move.updated_at - dt.timedelta(seconds=1)
    lab.cli("server", "migrate", "web")
    assert (lab.move("db").state, lab.move("web").state) == ("done", "verifying")
    lab.assert_balanced()
    lab.cli("server", "migrate", "db", "--host", "host1", "--confirm", "auto")
    assert lab.move("db").state == "done"


def test_the_words_of_requests_are_all_refused_for_a_move_that_ended(lab: Stage) -> None:
    """Confirm, revert, pause, resume and retry of an ended move: one sentence each, nothing changed."""
    move = file(lab, "idle")
    ask(lab, move, lambda session, row: requests.cancel(session, row, frozenset()))
    for verb in ("confirm", "revert", "pause", "resume", "retry", "cancel"):
        assert "is cancelled" in lab.refused("move", verb, move)
    assert lab.move("idle").state == "cancelled"
