"""Hosts that die and do not come back: what they owe is shown, and written off once somebody made sure."""

from __future__ import annotations

import fcntl
import getpass
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.audit.heal import healing, mending
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import books, stopped
from droveway.persistence.journal.debts import WRITTEN_OFF
from droveway.persistence.journal.tables import Debt

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {shared: nfs1}, host3: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}]}}
"""
SURE = "power is off, ticket 4711"


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab in which the first destination died over its copy, and the other one shares its storage."""
    with stage(tmp_path_factory.mktemp("dead") / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nhost_away = 0.2\n")
        move = submit(made.lab, MoveSpec(server="web", flavor=None, host=None)).id
        died: list[str] = []

        def die(_move: str, step: str, direction: str, phase: str) -> None:
            if (step, direction, phase) == ("define_guest", "execute", "before") and not died:
                died.append(str(made.move("web").dest_host))
                workers.stop(died[0])
                stopped.stop(made.lab.layout, died[0])

        with made.running(die) as workers:
            move_requests.carry(made.lab, move)
        yield made


@pytest.fixture(name="dead")
def fixture_dead(lab: Stage) -> Iterator[str]:
    """The name of the host that died; afterwards nobody has said anything about it."""
    host = lab.json("debt", "list", "--all")[0]["host"]
    yield host
    lab.cli("host", "enable", host)
    stopped.stop(lab.lab.layout, host)
    remember(lab)


def remember(lab: Stage) -> None:
    """Let every debt stand again."""
    with lab.lab.journal.write() as session:
        for debt in session.scalars(sa.select(Debt)):
            debt.settled_at = None
            debt.details = {key: value for key, value in debt.details.items() if key != WRITTEN_OFF}


def able(lab: Stage) -> list[healing.Mend]:
    """What a heal would do."""
    return mending.plan(books.sources(lab.lab), lab.lab.away()).able


def test_no_alternate_takes_what_a_dead_host_copied_before(lab: Stage) -> None:
    """The server ran on its source meanwhile: what it wrote then is there."""
    told = lab.lab.hypervisor(str(lab.server("web").host)).probe_guest(lab.id_of("web"))
    assert told["boots"] == len(lab.starts("web")) == 3


def test_what_a_dead_host_owes_is_shown_wherever_one_looks(lab: Stage, dead: str) -> None:
    """The audit's mend is a command that there is; the move and its history say what is missing."""
    debts = lab.json("debt", "list", "--all")
    assert {(row["host"], row["server_name"]) for row in debts} == {(dead, "web")}
    steps = [row["step"] for row in debts]
    assert {"copy_disks", "check_destination"} <= set(steps)
    (noted,) = [each for each in books.balance(lab.lab).noted if each.subject == f"debt {debts[0]['id']}"]
    shown = lab.json(*noted.mend.split()[1:])
    assert (shown["host"], shown["step"], shown["state"]) == (dead, steps[0], "owed")
    assert f"droveway host forget {dead}" in shown["next"]
    move = lab.move("web").id
    assert [row["step"] for row in lab.json("move", "show", move)["debts"]] == steps
    assert f"debt      {debts[0]['id']}: {dead}, the undo of {steps[0]}, " in lab.cli("move", "show", move)
    results = {row["step"]: row["result"] for row in lab.json("move", "history", move) if row["direction"] == "revert"}
    assert {step: results[step]["debt"] for step in steps} == {row["step"]: row["id"] for row in debts}
    assert lab.json("debt", "list", "--all", "--move", move[:8], "--host", dead) == debts
    assert lab.json("debt", "list", "--all", "--host", "host1") == []


def test_nothing_is_written_off_while_the_host_may_be_up(lab: Stage, dead: str) -> None:
    assert f'droveway host down {dead} --i-made-sure "how' in lab.refused("host", "forget", dead)
    stopped.start(lab.lab.layout, dead)
    assert f"droveway lab worker stop {dead} first" in lab.refused("host", "forget", dead)
    assert f"droveway lab worker stop {dead} first" in lab.refused("host", "down", dead, "--i-made-sure", SURE)
    stopped.stop(lab.lab.layout, dead)
    with lab.lab.layout.lock.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another command runs this lab" in lab.refused("host", "down", dead, "--i-made-sure", SURE)
    assert lab.json("host", "show", dead)["disabled_reason"] is None
    assert "host nowhere is unknown" in lab.refused("host", "forget", "nowhere")


def test_a_host_that_is_off_takes_no_servers_until_it_is_enabled(lab: Stage, dead: str) -> None:
    lab.cli("host", "down", dead, "--i-made-sure", SURE)
    shown = lab.json("host", "show", dead)
    assert (shown["state"], shown["status"], shown["disabled_reason"]) == ("down", "disabled", SURE)
    stopped.start(lab.lab.layout, dead)
    assert lab.json("host", "show", dead)["state"] == "down"
    lab.cli("host", "enable", dead)
    shown = lab.json("host", "show", dead)
    assert (shown["state"], shown["status"], shown["disabled_reason"]) == ("up", "enabled", None)


def test_what_a_host_owes_lies_there_until_it_is_back_and_nothing_else_goes_with_it(lab: Stage, dead: str) -> None:
    """Written off, it explains what is found while the host is off.  The other host's copy is nobody's debt.

    Nothing is undone after all while the worker is away, nor while a move holds the server.
    """
    lab.cli("host", "down", dead, "--i-made-sure", SURE)
    debts = lab.json("debt", "list")
    said = lab.cli("host", "forget", dead).splitlines()
    assert said[0] == f"host {dead}: {len(debts)} debts written off"
    assert [line.split()[1] for line in said[1:]] == [str(row["id"]) for row in debts]
    assert lab.json("debt", "list") == []
    assert {row["state"] for row in lab.json("debt", "list", "--all")} == {"written-off"}
    assert lab.json("debt", "show", str(debts[0]["id"]))["written_off_by"] == getpass.getuser()
    assert lab.cli("host", "forget", dead) == f"host {dead}: 0 debts written off\n"
    lab.assert_balanced()
    assert not [each for each in books.balance(lab.lab).noted if each.subject.startswith("debt")]
    lab.cli("host", "enable", dead)
    left = books.balance(lab.lab).findings
    assert {finding.host for finding in left} == {dead}
    assert able(lab) == []
    lab.cli("lab", "worker", "start", dead)
    assert able(lab) == []
    lab.cli("server", "confirm", "web")
    assert [mend.debt for mend in able(lab)] == [row["id"] for row in debts]
    lab.cli("audit", "--heal", "--yes")
    assert {row["state"] for row in lab.json("debt", "list", "--all")} == {"settled"}
    lab.assert_balanced()
    assert lab.directory(str(lab.server("web").host), "web").is_dir()


def test_a_debt_that_nobody_made_is_unknown(lab: Stage) -> None:
    assert "debt 999 is unknown: droveway debt list --all" in lab.refused("debt", "show", "999")
