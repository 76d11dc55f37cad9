"""Confirm policies in a lab, with real guests; R2-10: no move waits for a person for ever."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.labs.small_lab import until
from support.rigs import database_clock
from support.rigs.plain_keeper import PlainKeeper

from droveway.clients.zookeeper import Coordination, connect_embedded, embedded_store, worker_path
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper import health
from droveway.engines.keeper import keeper as keeping
from droveway.engines.keeper.keeper import Keeper
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.lab import faults
from droveway.persistence.database import database_time
from droveway.persistence.journal import moves
from droveway.persistence.journal.policies import note_wait
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.persistence.nova.cell import Instance
from droveway.workers.hypervisors import guests_log

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  db: {flavor: small, host: host1, image: base, state: stopped}
"""
CELLS = CLOUD.replace(", host2: {}}}}", "}}, cell2: {hosts: {host2: {}}}}").replace(
    "\ncells", "\noptions: {cross_cell: true}\ncells"
)
BOTH = pytest.mark.parametrize("made", [CLOUD, CELLS], ids=["one cell", "cells"], indirect=True)
A_DAY = dt.timedelta(days=1)
NEVER = 3600.0


@pytest.fixture(scope="module", name="made")
def fixture_made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("policies") / "lab", getattr(request, "param", CLOUD)) as made:
        made.lab.conf.set_override("shutdown_timeout", 1.0, "worker")
        made.lab.conf.set_override("probe_timeout", 0.5, "confirm")
        yield made
        # An override is the whole process's: the group that it is of is.
        made.lab.conf.clear_override("shutdown_timeout", "worker")
        made.lab.conf.clear_override("probe_timeout", "confirm")


@pytest.fixture(name="lab")
def fixture_lab(made: Stage) -> Iterator[Stage]:
    yield made
    faults.clear(made.lab.layout, None)
    with made.lab.journal.read() as session:
        assert moves.open_moves(session) == []
    made.assert_balanced()


@contextlib.contextmanager
def running(lab: Stage, healthy_after: float, at_end: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The lab runs; ``at_end`` is called in the conductor right before a move begins to wait."""

    def probe(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("finish_records", "before"):
            at_end()

    lab.lab.conf.set_override("healthy_after", healthy_after, "confirm")
    try:
        with lab.running(probe):
            yield
    finally:
        lab.lab.conf.clear_override("healthy_after", "confirm")


def migrate(lab: Stage, name: str = "web", **wish: Any) -> str:
    return submit(lab.lab, MoveSpec(server=name, **{"policy": "healthy", "confirm_seconds": 7200, **wish})).id


def read(lab: Stage, move: str) -> Move:
    with lab.lab.journal.read() as session:
        return moves.get(session, move)


def await_state(lab: Stage, move: str, state: str) -> Move:
    until(lambda: read(lab, move).state == state, f"move {move} to be {state}")
    return read(lab, move)


def await_answer(lab: Stage, move: str, word: str) -> None:
    until(lambda: word in (read(lab, move).health_reason or ""), f"an answer with {word}")


def ran_for(lab: Stage, move: str) -> int:
    """For how long the guest has run, by the last answer; seconds."""
    told = re.search(r"for (\d+) s", read(lab, move).health_reason or "")
    return int(told[1]) if told else -1


def let_pass(lab: Stage, move: str) -> dt.datetime:
    """Set the move's deadline back by a day, by the database's clock."""
    with lab.lab.journal.write() as session:
        deadline: dt.datetime = database_time(session) - A_DAY
        moves.get(session, move, lock=True).deadline = deadline
    return deadline


def waits_for_health(lab: Stage) -> str | None:
    with lab.lab.journal.read() as session:
        waiting = sa.select(Move.id).where(Move.policy == "healthy", Move.state == "verifying")
        return session.scalar(waiting)


def flows(lab: Stage, move: str) -> list[tuple[str, str | None]]:
    """Kind, whether between cells or not, and outcome of each."""
    with lab.lab.journal.read() as session:
        rows = session.scalars(sa.select(MoveFlow).where(MoveFlow.move_id == move).order_by(MoveFlow.created_at))
        return [(row.kind.removeprefix("cross_cell_"), row.outcome) for row in rows]


def pid(lab: Stage, name: str = "web") -> int:
    server = lab.id_of(name)
    return next(run.pid for run in guests_log.under_way(lab.lab.layout.guests_log) if run.server == server)


def questions(lab: Stage, host: str) -> int:
    with contextlib.closing(sqlite3.connect(lab.lab.layout.host(host) / "worker.sqlite")) as journal:
        found: int = journal.execute("SELECT count(*) FROM commands WHERE action = 'check_guest'").fetchone()[0]
        return found


CONFIRMED = [("migrate", "done"), ("confirm", "done")]
REVERTED = [("migrate", "done"), ("revert", "done")]


@BOTH
@pytest.mark.parametrize("name", ["web", "db"])
def test_a_healthy_guest_is_confirmed_with_no_person(lab: Stage, name: str) -> None:
    """R1-27, R2-10: also a stopped server, which has no guest to wait for."""
    with running(lab, 1.0):
        lab.cli("server", "migrate", name, "--confirm", "healthy", "--deadline", "5m")
    move = lab.move(name)
    assert flows(lab, move.id) == CONFIRMED
    shown = lab.json("move", "show", move.id)
    assert (shown["state"], shown["policy"], shown["health"]) == ("done", "healthy", "passed")
    assert ("answers" if name == "web" else "stopped") in shown["health_reason"]
    # Nothing of a question outlives its answer.
    assert questions(lab, str(move.dest_host)) == 0


@BOTH
def test_auto_confirms_at_once(lab: Stage) -> None:
    """R1-27, R2-10: with no person, and without asking anybody."""
    with running(lab, NEVER):
        lab.cli("server", "migrate", "web", "--confirm", "auto")
    assert flows(lab, lab.move("web").id) == CONFIRMED
    assert lab.move("web").health is None


@BOTH
def test_a_guest_that_dies_is_reverted_at_the_deadline_and_no_sooner(lab: Stage) -> None:
    before = lab.standing("web")
    with running(lab, NEVER):
        move = migrate(lab)
        await_state(lab, move, "verifying")
        os.kill(pid(lab), signal.SIGKILL)
        await_answer(lab, move, "does not run")
        assert flows(lab, move) == [("migrate", "done")]
        let_pass(lab, move)
        ended = await_state(lab, move, "reverted")
    assert flows(lab, move) == REVERTED
    assert (ended.health, ended.health_reason) == ("failing", "the guest does not run")
    assert lab.standing("web") == before


@BOTH
@pytest.mark.parametrize("policy", ["deadline", "healthy", "manual"])
def test_after_a_revert_that_was_undone_a_person_decides(lab: Stage, policy: str) -> None:
    """The guest is healthy and the deadline gone; yet nothing confirms, and every command says that it is not well."""
    with running(lab, NEVER):
        move = migrate(lab, policy=policy, **({"confirm_seconds": None} if policy == "manual" else {}))
        await_state(lab, move, "verifying")
    lab.arm("release_destination", "fail")
    said = lab.cli("move", "revert", move, code=3)
    assert "ask again: droveway move confirm" in said
    assert "and the source's disks are deleted" not in said
    faults.clear(lab.lab.layout, None)
    with running(lab, 0.0):
        assert lab.cli("move", "resume") == "no move can go on by itself\n"
    assert lab.cli("move", "wait", move, code=3) == said
    (stuck,) = lab.json("move", "list", "--stuck")
    manual = "its confirm or revert was undone (fault)"
    assert stuck["why"] == (
        manual if policy == "manual" else "its revert was undone (fault), and it waits for a person"
    )
    shown = lab.json("move", "show", move)
    assert (shown["state"], shown["deadline"], shown["error_code"]) == ("verifying", None, "fault")
    assert flows(lab, move) == [("migrate", "done"), ("revert", "undone")]
    if policy == "deadline":
        # Who lets the server wait again has not asked for a confirm.
        with lab.lab.cell_databases[lab.server("web").cell].write() as session:
            session.execute(sa.update(Instance).where(Instance.uuid == lab.id_of("web")).values(vm_state="error"))
        lab.cli("move", "settle", move, "finish_records", "--as", "done", "--reason", "it was reset by mistake")
        assert (read(lab, move).deadline, read(lab, move).error) == (None, None)
        (stuck,) = lab.json("move", "list", "--stuck")
        assert stuck["why"] == "its revert was undone, and it waits for a person"
    assert "  reverted\n" in lab.cli("move", "revert", move)


def test_a_restart_is_a_break_and_its_guest_has_to_run_anew(lab: Stage) -> None:
    with running(lab, NEVER):
        move = migrate(lab)
        host = str(await_state(lab, move, "verifying").dest_host)
        until(lambda: ran_for(lab, move) > 1, "a guest that has run for a while")
        hypervisor, server = lab.lab.hypervisor(host), lab.id_of("web")
        hypervisor.stop(server, grace=5, fence=lambda: None)
        with lab.lab.journal.read() as session:
            off = database_time(session)
        since = time.monotonic()
        hypervisor.start(server, lambda: None)

        def runs_anew() -> bool:
            asked = read(lab, move).health_asked
            # It had run for longer than a second before that.
            return asked is not None and asked > off and 0 <= ran_for(lab, move) <= time.monotonic() - since

        until(runs_anew, "a guest that runs anew")
        let_pass(lab, move)
        ended = await_state(lab, move, "reverted")
    assert f"of {NEVER:g} s" in str(ended.health_reason)
    assert flows(lab, move) == REVERTED


def test_a_guest_that_never_answers_is_reverted(lab: Stage) -> None:
    with running(lab, 0.0, lambda: os.kill(pid(lab), signal.SIGSTOP)):
        move = migrate(lab)
        await_answer(lab, move, "fails its probe")
        let_pass(lab, move)
        ended = await_state(lab, move, "reverted")
    assert "does not answer" in str(ended.health_reason)
    assert flows(lab, move) == REVERTED


def test_a_probe_that_fails_reverts_by_the_command_that_asked(lab: Stage) -> None:
    """The command that began the move ends with 3: its policy undid it."""
    lab.arm("check_health", "fail", phase="during", count=10000)
    with running(lab, 1.0):
        said = lab.cli("server", "migrate", "web", "--confirm", "healthy", "--deadline", "3s", code=3)
    assert flows(lab, lab.move("web").id) == REVERTED
    assert "was armed" in said


def test_a_question_that_never_ends_keeps_nobody_waiting(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 1.0)
    lab.arm("check_health", "stall", phase="during")
    with running(lab, 0.0):
        move = migrate(lab)
        await_state(lab, move, "verifying")
        let_pass(lab, move)
        ended = await_state(lab, move, "reverted")
        faults.clear(lab.lab.layout, None)
    assert "did not say within 1.5 s" in str(ended.health_reason)
    assert flows(lab, move) == REVERTED


@contextlib.contextmanager
def keepers(lab: Stage) -> Iterator[list[Keeper]]:
    """Two keepers, and workers and conductors that do nothing: what a kill right after a decision leaves."""
    store = embedded_store()
    sessions: list[Coordination] = [connect_embedded(store) for _ in range(2)]
    for host in lab.lab.identity.hosts:
        sessions[0].create(worker_path(host), b"", ephemeral=True)
    yield [PlainKeeper(each, lab.lab.journal, MoveBoard(each), registry.reference) for each in sessions]
    for each in sessions:
        each.close()


@BOTH
def test_a_deadline_late_by_a_day_is_acted_on_once_by_two_keepers_and_survives_a_kill(lab: Stage) -> None:
    lab.cli("server", "migrate", "web")
    move = lab.move("web").id
    let_pass(lab, move)
    with keepers(lab) as pair:
        barrier = threading.Barrier(2)

        def rounds(keeper: Keeper) -> None:
            barrier.wait()
            for _ in range(3):
                keeper.round()

        threads = [threading.Thread(target=rounds, args=(each,)) for each in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert flows(lab, move) == [("migrate", "done"), ("confirm", None)]
    # ZooKeeper is gone with the process that decided; the journal is enough to go on.
    assert read(lab, move).state == "confirming"
    lab.cli("move", "resume")
    assert flows(lab, move) == CONFIRMED


def test_a_decision_over_another_deadline_is_dropped(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else acted meanwhile, and the move has come back to wait for a new deadline."""
    lab.cli("server", "migrate", "web")
    move = lab.move("web").id
    past = let_pass(lab, move)
    read_snapshot = keeping.read_snapshot

    def slow(*arguments: Any) -> Any:
        snapshot = read_snapshot(*arguments)
        with lab.lab.journal.write() as session:
            moves.get(session, move, lock=True).deadline = past + 2 * A_DAY
        return snapshot

    monkeypatch.setattr(keeping, "read_snapshot", slow)
    with keepers(lab) as (keeper, _):
        decided = keeper.round()
    monkeypatch.undo()
    assert [action.kind for action in decided if isinstance(action, keeping.EndWait)] == ["confirm"]
    assert (read(lab, move).state, flows(lab, move)) == ("verifying", [("migrate", "done")])
    lab.cli("server", "confirm", "web")


def test_a_killed_command_is_taken_up_by_the_next_one(lab: Stage) -> None:
    configuration = lab.lab.layout.configuration
    configuration.write_text(configuration.read_text() + "[confirm]\nhealthy_after = 4\n")
    command = [sys.executable, "-m", "droveway.cli.main", "--lab", str(lab.root), "server", "migrate", "web"]
    process = subprocess.Popen([*command, "--confirm", "healthy"], stdout=subprocess.DEVNULL)
    move = until(lambda: waits_for_health(lab), "a move that waits")
    process.kill()
    process.wait()
    assert flows(lab, move) == [("migrate", "done")]
    lab.cli("move", "resume")
    assert flows(lab, move) == CONFIRMED


@pytest.mark.parametrize(
    ("policy", "away"), [("healthy", "destination"), ("healthy", "source"), ("deadline", "source")]
)
def test_a_host_that_is_away_is_waited_for_visibly(lab: Stage, policy: str, away: str) -> None:
    """R2-10: neither confirmed nor reverted blindly, not even a day after the deadline; reason and mend are shown."""
    lab.cli("server", "migrate", "web")
    move = lab.move("web").id
    let_pass(lab, move)
    with lab.lab.journal.write() as session:
        moves.get(session, move, lock=True).policy = policy
    host = str(getattr(read(lab, move), "dest_host" if away == "destination" else "source_host"))
    lab.cli("lab", "worker", "stop", host)
    lab.cli("move", "resume")
    shown = lab.json("move", "show", move)
    assert (shown["state"], flows(lab, move)) == ("verifying", [("migrate", "done")])
    assert f"the worker of host {host} is away" in shown["waits_for"]
    lab.cli("lab", "worker", "start", host)
    lab.cli("move", "resume")
    assert read(lab, move).state in ("done", "reverted")
    assert len(flows(lab, move)) == 2


@pytest.mark.parametrize(
    ("planted", "mended", "said"),
    [
        ("vm_state='error'", "vm_state='resized'", "is ERROR (state error)"),
        ("vm_state='active'", "vm_state='resized'", "state active"),
        ("task_state='powering-off'", "task_state=NULL", "task powering-off"),
        ("task_state='deleting'", "task_state=NULL", "task deleting"),
    ],
)
def test_a_policy_acts_only_where_a_person_may(lab: Stage, planted: str, mended: str, said: str) -> None:
    """D1: the confirm at the deadline waits, says for what, files nothing, and is done once that is mended."""
    lab.cli("server", "migrate", "web")
    move = lab.move("web").id
    kept = lab.lab.layout.host(str(read(lab, move).source_host)) / "instances" / f"{lab.id_of('web')}_resize"
    change(lab, planted)
    let_pass(lab, move)
    refused = lab.refused("server", "confirm", "web")
    for _ in range(2):
        lab.cli("move", "resume")
        shown = lab.json("move", "show", move)
        assert (shown["state"], flows(lab, move)) == ("verifying", [("migrate", "done")])
        assert said in shown["waits_for"]
        assert shown["waits_for"] in refused
        assert kept.is_dir()
    change(lab, mended)
    lab.cli("move", "resume")
    assert flows(lab, move) == CONFIRMED


def test_a_keeper_asks_again_after_a_while_and_writes_once(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is mended meanwhile is found by the keeper that runs, without a command."""
    lab.cli("server", "migrate", "web")
    move = lab.move("web").id
    change(lab, "vm_state='error'")
    let_pass(lab, move)
    written: list[str | None] = []

    def note(session: Any, moved: str, why: str | None) -> bool:
        written.append(why)
        return note_wait(session, moved, why)

    monkeypatch.setattr(keeping, "note_wait", note)
    monkeypatch.setattr(keeping, "RETRY_AFTER", 0.1)
    with lab.running():
        until(lambda: read(lab, move).waits_for, "a reason")
        assert flows(lab, move) == [("migrate", "done")]
        change(lab, "vm_state='resized'")
        await_state(lab, move, "done")
    assert len(written) == 1
    assert flows(lab, move) == CONFIRMED


def test_a_server_in_error_that_is_deleted_goes_whatever_a_confirm_asks(lab: Stage) -> None:
    """Whoever deletes a server asked for its disks to go; nothing waits for a state that no one will mend."""
    lab.cli("lab", "server", "create", "gone", "--flavor", "small", "--host", "host1", "--image", "base")
    lab.cli("server", "migrate", "gone")
    change(lab, "vm_state='error'", "gone")
    lab.cli("lab", "server", "delete", "gone")
    assert {each["name"] for each in lab.json("server", "list", "-c", "name")} == {"db", "web"}


def test_manual_waits_for_a_person_whatever_the_time(lab: Stage) -> None:
    lab.cli("server", "migrate", "web", "--confirm", "manual")
    move = lab.move("web")
    assert (move.policy, move.deadline) == ("manual", None)
    assert "it waits for that as long as it takes" in lab.json("move", "show", move.id)["next"]
    # As a conductor of an older release would write it.
    let_pass(lab, move.id)
    lab.cli("move", "resume")
    assert flows(lab, move.id) == [("migrate", "done")]
    lab.cli("server", "revert", "web")
    assert "has no deadline" in lab.refused("server", "migrate", "web", "--confirm", "manual", "--deadline", "1h")


def test_a_jump_of_the_clock_confirms_nothing(lab: Stage) -> None:
    """The database's clock is set a day ahead while a keeper leads: the source's disks stay until time has passed."""
    lab.cli("server", "migrate", "web", "--deadline", "2h")
    move = lab.move("web").id
    with database_clock.settable(lab.lab.journal) as set_ahead, keepers(lab) as (keeper, new):
        keeper.round()
        set_ahead(A_DAY)
        assert settled(keeper.round()) == settled(keeper.round()) == []
        assert flows(lab, move) == [("migrate", "done")]
        # The clock as it is now is all that a keeper has to go by that starts after the jump.
        assert settled(new.round()) == [(move, "confirm")]
    lab.cli("move", "resume")
    assert flows(lab, move) == CONFIRMED


def settled(actions: list[keeping.Action]) -> list[tuple[str, str]]:
    return [(action.move, action.kind) for action in actions if isinstance(action, keeping.EndWait)]


def test_the_line_after_a_move_tells_when_it_is_confirmed(lab: Stage) -> None:
    """U2: who goes home on Friday knows what is gone on Monday."""
    said = lab.cli("server", "migrate", "web", "--deadline", "2h")
    deadline = read(lab, lab.move("web").id).deadline
    assert deadline is not None
    assert f"without either it is confirmed at {deadline:%Y-%m-%d %H:%M:%S}Z, and the source's disks are" in said
    lab.cli("server", "revert", "web")


def change(lab: Stage, column: str, server: str = "web") -> None:
    with sqlite3.connect(lab.lab.layout.cell("cell1")) as cell:
        cell.execute(f"UPDATE instances SET {column} WHERE uuid = '{lab.id_of(server)}'")


def test_a_deadline_that_no_guest_can_meet_is_refused(lab: Stage) -> None:
    said = lab.refused("server", "migrate", "web", "--confirm", "healthy", "--deadline", "2s")
    assert "healthy_after" in said
    assert "give a longer --deadline" in said
