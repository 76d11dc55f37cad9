"""`audit --heal` takes away what an ended move provably left, and leaves everything else as it was."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import multiprocessing
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage
from support.labs.small_lab import differences, picture

from droveway.audit.heal import mending
from droveway.clients.placement import Placement
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import books
from droveway.persistence.journal import orphans
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import servers
from droveway.workers.hypervisors import base

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}, host4: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}}
"""
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab whose server moved from host1 to host2 for good: a move that ended."""
    with stage(tmp_path_factory.mktemp("heal") / "lab", CLOUD) as made:
        made.cli("move", "create", "web", "--to-host", "host2", "--confirm", "auto", "--wait")
        yield made


@pytest.fixture(name="move")
def fixture_move(lab: Stage) -> str:
    """The move that ended; the books balance before the test, and whoever plants something takes it out again."""
    lab.assert_balanced()
    (done,) = [row for row in lab.json("move", "list") if row["state"] == "done"]
    return str(done["id"])


def hold(lab: Stage, consumer: str, host: str) -> None:
    """Let the consumer hold something on the host."""
    facts = lab.json("host", "show", host)
    owner = {"project_id": lab.lab.identity.project, "user_id": lab.lab.identity.user}
    lab.lab.cloud.placement.ensure_allocation(consumer, {facts["node"]: AMOUNTS}, **owner)


def seen(lab: Stage) -> dict[str, object]:
    """Every row and every file; when a file came or went in a host's own directory is no matter, as a lock's."""
    return {key: facts for key, facts in picture(lab.lab.layout).items() if key.count("/") != 1 or "." in key}


def records(lab: Stage, move: str) -> list[dict[str, Any]]:
    """What the move's history tells of heals."""
    return [step.result or {} for step in lab.history(move) if step.step == orphans.STEP]


def test_what_an_ended_move_holds_is_planned_then_released(lab: Stage, move: str) -> None:
    hold(lab, move, "host1")
    before = seen(lab)
    planned = json.loads(lab.cli("audit", "--heal", "-f", "json", code=3))
    assert [(row["kind"], row["subject"], row["heal"]) for row in planned] == [("allocation", move, "mend")]
    assert "nothing was changed: droveway audit --heal --yes" in lab.error
    assert differences(before, seen(lab)) == []
    lab.cli("audit", "--heal", "--yes")
    assert "1 finding before, 0 after" in lab.error
    assert lab.held(move) == {}
    assert (records(lab, move)[-1]["by"], records(lab, move)[-1]["outcome"]) == (getpass.getuser(), "done")
    lab.assert_balanced()


class TestServices:
    def test_an_inactive_binding_on_a_host_of_an_ended_move(self, lab: Stage, move: str) -> None:
        """The one on a host where no move of the server ever went may be Nova's: it stays."""
        network = lab.lab.cloud.network
        (port,) = network.ports(lab.id_of("web"))
        for host in ("host1", "host3"):
            network.ensure_binding(port.id, host, {})
        plan = {row["host"]: row for row in json.loads(lab.cli("audit", "--heal", "-f", "json", code=3))}
        assert {host: row["heal"] for host, row in plan.items()} == {"host1": "mend", "host3": "leave"}
        assert "no ended move of web went from or to host3" in plan["host3"]["plan"]
        lab.cli("audit", "--heal", "--yes", code=3)
        assert network.ports(lab.id_of("web"))[0].bindings == {"host2": "ACTIVE", "host3": "INACTIVE"}
        assert records(lab, move)[-1]["outcome"] == "done"
        network.delete_binding(port.id, "host3")

    def test_an_attachment_that_only_the_history_of_an_ended_move_names(self, lab: Stage, move: str) -> None:
        volumes, server = lab.lab.cloud.volumes, lab.id_of("web")
        (kept,) = volumes.for_server(server)
        left = [volumes.create_attachment(kept.volume, server, known=[kept.id])]
        left.append(volumes.create_attachment(kept.volume, server, known=[kept.id, *left]))
        with lab.lab.journal.write() as session:
            (step,) = [row for row in session.scalars(of_step(move, orphans.RESERVES)) if row.result]
            step.result, result = {kept.volume: {"old": kept.id, "new": left[0]}}, step.result
        lab.cli("audit", "--heal", "--yes", code=3)
        assert {each.id for each in volumes.for_server(server)} == {kept.id, left[1]}
        volumes.delete_attachment(left[1])
        with lab.lab.journal.write() as session:
            session.get_one(MoveStep, step.seq).result = result

    def test_nothing_of_a_server_that_a_move_holds(self, lab: Stage, move: str) -> None:
        (port,) = lab.lab.cloud.network.ports(lab.id_of("web"))
        hold(lab, move, "host1")
        lab.cli("move", "create", "web", "--to-host", "host4", "--wait")
        lab.lab.cloud.network.ensure_binding(port.id, "host1", {})
        before = seen(lab)
        plan = json.loads(lab.cli("audit", "--heal", "--yes", "-f", "json", code=3))
        assert {row["kind"] for row in plan} == {"allocation", "binding"}
        assert all("holds web: droveway move show" in row["plan"] for row in plan), plan
        assert differences(before, seen(lab)) == []
        lab.cli("server", "revert", "web")
        lab.cli("audit", "--heal", "--yes")
        lab.assert_balanced()

    def test_nothing_while_something_else_is_under_way_with_the_server(self, lab: Stage, move: str) -> None:
        """Nova makes INACTIVE bindings too: for a live migration, on hosts where moves went before."""
        (port,) = lab.lab.cloud.network.ports(lab.id_of("web"))
        lab.lab.cloud.network.ensure_binding(port.id, "host1", {})
        set_task(lab, "migrating")
        (found,) = [
            row for row in json.loads(lab.cli("audit", "--heal", "-f", "json", code=3)) if row["kind"] == "binding"
        ]
        assert "something else is under way with web" in found["plan"]
        set_task(lab, None)
        planned = mending.plan(books.sources(lab.lab), frozenset())
        assert len(planned.able) == 1
        # It begins after the plan was made and looked at again.
        at = mending._carry_out

        def begins(*known: Any) -> str:
            set_task(lab, "migrating")
            return at(*known)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mending, "_carry_out", begins)
            ((_, outcome),) = mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset())
        assert "has changed meanwhile" in outcome
        assert records(lab, move)[-1]["outcome"] == outcome
        assert "host1" in lab.lab.cloud.network.ports(lab.id_of("web"))[0].bindings
        set_task(lab, None)
        lab.cli("audit", "--heal", "--yes")


class TestHosts:
    def test_the_worker_removes_what_an_ended_move_left(self, lab: Stage, move: str) -> None:
        """A copy, an unfinished one, a storage probe and a definition, all of the same move on the same host."""
        copy, server = lab.directory("host1", "web"), lab.id_of("web")
        copy.mkdir()
        (copy / "disk").write_bytes(b"stale")
        (copy / "droveway.json").write_text(json.dumps(mark_of(move, server)))
        lab.directory("host1", "web", f".part-{move}-host1").mkdir()
        copy.with_name(f".droveway-probe-{move}-1").touch()
        define(lab, "host1", base.Mark(move=move, epoch=1))
        lab.cli("audit", "--heal", "--yes")
        assert "4 findings before, 0 after" in lab.error
        assert list(copy.parent.glob("*web*")) + list(copy.parent.glob(f"*{server}*")) == []
        assert lab.lab.hypervisor("host1").guest(server) is None
        assert {row["action"] for row in debts(lab)} >= {"copy_disks", "check_destination", "define_guest"}
        assert {row["state"] for row in debts(lab)} == {"settled"}
        assert lab.directory("host2", "web").is_dir()

    def test_whatever_is_not_proved_stays_as_it_is(self, lab: Stage, move: str) -> None:
        """Byte by byte: what a person has to look at, and what belongs to nobody that the journal knows."""
        network, volumes = lab.lab.cloud.network, lab.lab.cloud.volumes
        server, nobody = lab.id_of("web"), str(uuid.uuid4())
        (port,), (kept,) = network.ports(server), volumes.for_server(server)
        with contextlib.ExitStack() as mends:
            hold(lab, nobody, "host3")
            mends.callback(lab.lab.cloud.placement.release, nobody)
            network.ensure_binding(port.id, "host3", {})
            mends.callback(network.delete_binding, port.id, "host3")
            mends.callback(volumes.delete_attachment, volumes.create_attachment(kept.volume, server, known=[kept.id]))
            image = str(uuid.uuid4())
            lab.lab.cloud.images.create(image, name="x", min_disk_gb=0, properties={"droveway_move": move})
            mends.callback(lab.lab.cloud.images.delete, image)
            aside = lab.directory("host1", "web", "_resize")
            for path, mark in (
                (aside, {"droveway-manifest.json": move}),
                (lab.directory("host3", "web"), {}),
                (lab.directory("host3", "web", "_del"), {}),
                (aside.with_name(nobody), {"droveway.json": move}),
                (aside.with_name(f"{server}.part-{nobody}-host1"), {}),
            ):
                path.mkdir()
                mends.callback(remove, path)
                (path / "disk").write_bytes(b"data")
                for name, whose in mark.items():
                    (path / name).write_text(json.dumps({"move": whose, "epoch": 1}))
            define(lab, "host3", None)
            mends.callback(lab.lab.hypervisor("host3").undefine, server)
            before = seen(lab)
            plan = json.loads(lab.cli("audit", "--heal", "--yes", "-f", "json", code=3))
            assert len(plan) == 10
            assert {row["heal"] for row in plan} == {"leave"}
            assert all("to mend it yourself: " in row["plan"] for row in plan)
            assert differences(before, seen(lab)) == []

    def test_the_last_copy_is_never_taken_away(self, lab: Stage, move: str) -> None:
        """The marked copy is what is left of the server's disk: where it lives, it is gone."""
        home, copy = lab.directory("host2", "web"), lab.directory("host1", "web")
        copy.mkdir()
        (copy / "droveway.json").write_text(json.dumps(mark_of(move, lab.id_of("web"))))
        (copy / "disk").write_bytes(b"last")
        (home / "disk").rename(home / "lost")
        before = seen(lab)
        plan = json.loads(lab.cli("audit", "--heal", "--yes", "-f", "json", code=3))
        assert {row["heal"] for row in plan} == {"leave"}
        assert "these may be the last" in " ".join(row["plan"] for row in plan)
        assert differences(before, seen(lab)) == []
        (home / "lost").rename(home / "disk")
        lab.cli("audit", "--heal", "--yes")
        assert not copy.exists()
        assert move in {row["move"] for row in debts(lab)}


class TestMeanwhile:
    def test_a_move_that_is_asked_for_waits_until_the_mend_is_made(self, lab: Stage, move: str) -> None:
        known = lab.json("move", "list")
        asked = threading.Thread(target=lambda: submit(lab.lab, MoveSpec(server="web", flavor=None, host=None)))
        with orphans.hold(lab.lab.journal, move):
            asked.start()
            # Long enough for one that does not wait.
            asked.join(1.0)
            assert asked.is_alive()
            assert lab.json("move", "list") == known
        asked.join()
        began = lab.move("web").id
        assert began not in {row["id"] for row in known}
        with pytest.raises(orphans.Held, match="a move of web is under way"), orphans.hold(lab.lab.journal, move):
            pytest.fail("it holds a server that a move has")
        lab.cli("move", "cancel", began)

    def test_one_that_is_asked_for_after_the_plan_keeps_its_server(self, lab: Stage, move: str) -> None:
        hold(lab, move, "host1")
        planned = mending.plan(books.sources(lab.lab), frozenset())
        assert len(planned.able) == 1
        begins = submit(lab.lab, MoveSpec(server="web", flavor=None, host=None)).id
        ((_, outcome),) = mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset())
        assert outcome.startswith("left alone")
        assert set(lab.held(move)) == {"host1"}
        lab.cli("move", "cancel", begins)
        lab.cli("audit", "--heal", "--yes")

    def test_who_takes_too_long_to_look_again_does_nothing(
        self, lab: Stage, move: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold(lab, move, "host1")
        monkeypatch.setattr(orphans, "HOLDS_FOR", 0.0)
        lab.cli("audit", "--heal", "--yes", code=3)
        assert set(lab.held(move)) == {"host1"}
        assert "took longer than" in records(lab, move)[-1]["outcome"]
        monkeypatch.undo()
        lab.cli("audit", "--heal", "--yes")

    @pytest.mark.parametrize("after", [False, True])
    def test_killed_in_its_middle_it_is_run_again(self, lab: Stage, move: str, *, after: bool) -> None:
        hold(lab, move, "host1")
        count = len(records(lab, move))
        release = Placement.release

        def die(placement: Placement, consumer: str) -> None:
            if after:
                release(placement, consumer)
            os.kill(os.getpid(), signal.SIGKILL)

        lab.lab.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Placement, "release", die)
            child = multiprocessing.get_context("fork").Process(target=heal_all, args=(lab,))
            child.start()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        assert [row["outcome"] for row in records(lab, move)[count:]] == ["begun"]
        assert set(lab.held(move)) == (set() if after else {"host1"})
        with lab.lab.journal.read() as session:
            assert session.get_one(Move, move).active_server is None
        lab.cli("audit", "--heal", "--yes")
        lab.assert_balanced()

    def test_two_at_once_do_no_harm(self, lab: Stage, move: str) -> None:
        hold(lab, move, "host1")
        lab.directory("host1", "web", f".part-{move}-host1").mkdir()
        lab.lab.close()
        both = [multiprocessing.get_context("fork").Process(target=heal_all, args=(lab,)) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        assert [each.exitcode for each in both] == [0, 0]
        lab.cli("move", "resume")
        lab.cli("audit", "--heal", "--yes")
        lab.assert_balanced()
        assert not lab.directory("host1", "web", f".part-{move}-host1").exists()


def test_on_a_terminal_one_is_asked_and_told_what_goes(lab: Stage, move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(lab, move, "host1")
    for answer, code in (("no", 3), ("", 3), ("yes", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer + "\n"))
        said = lab.cli("audit", "--heal", code=code)
        assert "mend: release what the ended move" in said
        assert f"Droveway can mend 1 of 1 finding. It will remove for good: {move}." in lab.error
    assert lab.held(move) == {}
    assert "--yes agrees to what --heal plans" in lab.refused("audit", "--yes")


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def heal_all(lab: Stage) -> None:
    """Heal in a process of its own, whose end is its outcome."""
    planned = mending.plan(books.sources(lab.lab), frozenset())
    list(mending.heal(books.sources(lab.lab), planned, who="ana", away=frozenset()))
    lab.lab.close()


def of_step(move: str, step: str) -> sa.Select[MoveStep]:
    return sa.select(MoveStep).where(MoveStep.move_id == move, MoveStep.step == step)


def debts(lab: Stage) -> list[dict[str, Any]]:
    return [lab.json("debt", "show", str(row["id"])) for row in lab.json("debt", "list", "--all")]


def mark_of(move: str, server: str) -> dict[str, Any]:
    """What a copy bears until the confirm of its move."""
    return {"move": move, "epoch": 1, "server": server, "host": "host1"}


def define(lab: Stage, host: str, mark: base.Mark | None) -> None:
    """Define the server's guest on a host, off."""
    hypervisor, server = lab.lab.hypervisor(host), lab.id_of("web")
    definition = hypervisor.create_definition(
        server=server, name="web", vcpus=1, memory_mb=256, disks=[], boot_volume=False
    )
    hypervisor.define(server, definition, vcpus=1, memory_mb=256, disks=[], volumes=[], ports=[], mark=mark)


def set_task(lab: Stage, task: str | None) -> None:
    with lab.lab.cells.database("cell1").write() as session:
        servers.find(session, lab.id_of("web")).task_state = task


def remove(path: Path) -> None:
    shutil.rmtree(path)
