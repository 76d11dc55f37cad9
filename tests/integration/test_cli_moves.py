from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from droveway.cli import main
from droveway.lab import books, build, cloud
from droveway.lab.session import Lab

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 1}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  db: {flavor: small, host: host1, volumes: [{size_gb: 1, boot: true}], state: stopped}
"""
SECONDS = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    yield path
    lab = Lab.open(path)
    assert books.balance(lab).findings == ()
    lab.close()
    build.destroy(path)


class Cli:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        ended = main.main(["--lab", str(self.root), *words])
        out, self.error = self._capsys.readouterr()
        assert ended == code, (out, self.error)
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-f", "json"))

    def server(self, name: str) -> tuple[str, str, str]:
        shown = self.json("server", "show", name)
        return shown["status"], shown["host"], shown["flavor"]

    def last_move(self) -> dict[str, Any]:
        moves: list[dict[str, Any]] = self.json("move", "list")
        shown: dict[str, Any] = self.json("move", "show", moves[0]["id"])
        return shown

    def spawn(self, *words: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "droveway.cli.main", "--lab", str(self.root), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )


@pytest.fixture
def cli(root: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(root, capsys)


def until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it took too long"


def test_a_plan_says_what_then_runs(cli: Cli) -> None:
    """R2-06: the storage variant is found, shown by the plan and recorded with the move."""
    plan = cli.json("move", "plan", "web", "--flavor", "large")
    assert {"server", "destination", "alternates", "checks", "storage", "bytes", "steps"} <= set(plan)
    assert (plan["server"], plan["storage"], plan["bytes"] > 0) == ("web", "copy", True)
    assert cli.json("move", "list") == []
    cli("move", "create", "web", "--from-plan", plan["id"], "--reason", "more memory")
    move = cli.last_move()
    assert (move["destination"], move["storage"], move["reason"]) == (plan["destination"], "copy", "more memory")
    history = cli.json("move", "history", move["id"][:8])
    assert list(history[0]) == [
        *("seq", "flow", "step", "direction", "attempt", "host", "started", "ended", "took", "result", "error")
    ]
    assert [row["step"] for row in history if not 0 <= row["took"] < SECONDS] == []
    ran = [row["step"] for row in history if row["step"] != "alternates"]
    assert ran == [step["step"] for step in plan["steps"]]
    assert cli.server("web") == ("VERIFY_RESIZE", plan["destination"], "large")
    assert "has move" in (cli("move", "create", "web", code=2) or cli.error)
    cli("server", "revert", "web")
    assert cli.server("web") == ("ACTIVE", "host1", "small")
    cli("lab", "server", "create", "more", "--flavor", "small", "--host", plan["destination"], "--image", "base")
    cli("host", "disable", plan["destination"])
    cli("move", "create", "web", "--from-plan", plan["id"], code=2)
    assert "no longer holds" in cli.error


def test_a_stopped_server_moves_by_itself_under_the_policy_auto(cli: Cli) -> None:
    cli("move", "create", "db", "--to-host", "host3", "--confirm", "auto")
    assert cli.last_move()["state"] == "done"
    assert cli.server("db") == ("SHUTOFF", "host3", "small")


def test_a_deadline_that_has_passed_is_acted_on_by_the_next_writing_command(cli: Cli) -> None:
    cli("server", "migrate", "db", "--host", "host2", "--deadline", "1s")
    waiting = cli.last_move()
    assert waiting["state"] in ("verifying", "done")
    until(lambda: cli("move", "resume") is not None and cli.last_move()["state"] == "done")
    assert cli.server("db") == ("SHUTOFF", "host2", "small")


def test_a_failure_is_undone_and_ends_with_3(cli: Cli) -> None:
    cli("lab", "fault", "arm", "--step", "copy_disks", "--phase", "before", "--action", "fail")
    cli("server", "migrate", "web", code=3)
    move = cli.last_move()
    assert (move["state"], move["error_code"]) == ("failed", "fault")
    assert cli.server("web") == ("ACTIVE", "host1", "small")
    assert cli.json("lab", "fault", "list") == []


def test_a_fault_of_the_destination_leads_to_the_next_one(cli: Cli) -> None:
    cli(
        "lab",
        "fault",
        "arm",
        "--step",
        "start_guest",
        "--phase",
        "before",
        "--action",
        "fail",
        "--class",
        "destination",
    )
    cli("server", "migrate", "web")
    history = cli.json("move", "history", cli.last_move()["id"])
    assert {row["attempt"] for row in history if row["step"] == "start_guest"} == {1, 2}


def test_a_full_disk_and_a_flipped_byte_on_one_host_lead_to_the_next(cli: Cli) -> None:
    for action in ("enospc", "corrupt"):
        plan = cli.json("move", "plan", "web")
        host = plan["destination"]
        words = ("--step", "copy_disks", "--phase", "during", "--action", action, "--host", host)
        cli("lab", "fault", "arm", *words)
        cli("server", "migrate", "web")
        assert cli.last_move()["destination"] == plan["alternates"][0]
        cli("server", "revert", "web")


def test_a_killed_command_is_resumed(cli: Cli) -> None:
    cli("lab", "fault", "arm", "--step", "copy_disks", "--phase", "after", "--action", "kill")
    killed = cli.spawn("server", "migrate", "web")
    assert killed.wait(SECONDS) == -signal.SIGKILL
    assert cli.last_move()["state"] == "running"
    cli("move", "resume")
    assert cli.server("web")[0] == "VERIFY_RESIZE"
    cli("server", "confirm", "web")
    assert cli.last_move()["state"] == "done"


def test_a_stalled_move_is_paused_resumed_and_cancelled_by_other_commands(cli: Cli) -> None:
    cli("lab", "fault", "arm", "--step", "find_storage", "--phase", "before", "--action", "stall")
    holder = cli.spawn("server", "migrate", "web")
    until(lambda: (cli.json("move", "list") or [{}])[0].get("step") == "find_storage")
    move = cli.last_move()["id"]
    cli("move", "wait", move, "--timeout", "0.1", code=124)
    assert cli.error == f"move {move[:8]} goes on after 0.1 s: droveway move show {move[:8]}\n"
    cli("move", "pause", move)
    cli("lab", "fault", "clear")
    assert holder.wait(SECONDS) == 0
    assert (cli.last_move()["hold"], cli.last_move()["state"]) == (True, "running")
    cli("lab", "fault", "arm", "--step", "reserve_ports", "--phase", "before", "--action", "stall")
    second = cli.spawn("move", "resume", move)
    until(lambda: (cli.last_move()["step"], cli.last_move()["hold"]) == ("reserve_ports", False))
    third = cli.spawn("move", "cancel", move)
    until(lambda: third.poll() is not None or _is_cancelled(cli.root, move))
    cli("lab", "fault", "clear")
    outputs = [command.communicate(timeout=SECONDS) for command in (third, second)]
    assert (third.returncode, second.returncode) == (0, 3), outputs
    assert cli.last_move()["state"] == "cancelled"
    assert cli.server("web") == ("ACTIVE", "host1", "small")


def test_of_two_commands_on_one_server_one_wins_and_two_servers_move_at_once(cli: Cli) -> None:
    commands = [cli.spawn("server", "migrate", name) for name in ("web", "web", "db")]
    outputs = [command.communicate(timeout=SECONDS) for command in commands]
    codes = [command.returncode for command in commands]
    assert (sorted(codes[:2]), codes[2]) == ([0, 2], 0), outputs
    assert "one move at a time" in outputs[codes.index(2)][1]
    assert {row["server_name"]: row["state"] for row in cli.json("move", "list")} == {
        "web": "verifying",
        "db": "verifying",
    }


def test_a_server_is_deleted_at_rest_and_while_it_waits_for_its_confirm(cli: Cli) -> None:
    """R0-24: what waits is confirmed first; nothing is left of either."""
    cli("server", "migrate", "web")
    cli("lab", "worker", "stop", "host1")
    cli("lab", "server", "delete", "web", code=4)
    assert "host1" in cli.error
    cli("lab", "worker", "start", "host1")
    cli("lab", "server", "delete", "web")
    cli("lab", "server", "delete", "db")
    assert cli.json("server", "list") == []
    # What tells one storage from another stays.
    assert {path.name for path in cli.root.glob("hosts/*/instances/*")} <= {".droveway-store"}


def test_the_moves_of_a_server_are_listed_page_by_page_and_stay_when_it_is_deleted(cli: Cli) -> None:
    for _ in range(2):
        cli("server", "migrate", "web")
        cli("server", "revert", "web")
    cli("server", "migrate", "db", "--host", "host2")
    of_db, *of_web = (row["id"] for row in cli.json("move", "list"))
    assert [row["id"] for row in cli.json("move", "list", "--limit", "1")] == [of_db]
    assert cli.error == f"1 of 3 moves: --all shows every one, --marker {of_db[:8]} the older ones\n"
    assert [row["id"] for row in cli.json("move", "list", "--limit", "2", "--marker", of_db[:8])] == of_web
    assert cli.error == ""
    assert len(cli.json("move", "list", "--limit", "3")) == len(cli.json("move", "list", "--all")) == 3
    assert cli.error == ""
    assert [row["id"] for row in cli.json("move", "list", "--host", "host1", "--state", "reverted")] == of_web
    assert of_db in [row["id"] for row in cli.json("move", "list", "--host", "host2", "--cell", "cell1")]
    assert cli.json("move", "list", "--before", "1h") == cli.json("move", "list", "--stuck") == []
    cli("lab", "server", "delete", "web")
    deletion, *before = cli.json("move", "list", "--server", "web", "--since", "1h")
    assert (deletion["kind"], [row["id"] for row in before]) == ("delete", of_web)


def test_several_moves_are_waited_for_and_the_worst_of_them_is_the_exit_code(cli: Cli) -> None:
    cli("server", "migrate", "db", "--host", "host2")
    resting = cli.last_move()["id"]
    cli("lab", "fault", "arm", "--step", "copy_disks", "--phase", "before", "--action", "fail")
    cli("server", "migrate", "web", code=3)
    failed = cli.last_move()["id"]
    assert cli("move", "wait", resting, resting[:8]).count("verifying") == 1
    said = cli("move", "wait", failed, resting[:8], code=3)
    assert [line.split()[1] for line in said.splitlines() if line.startswith("move")] == [failed[:8], resting[:8]]
    assert cli("move", "wait", resting, "none", "--timeout", "0", code=2) == ""
    assert "no move's id begins with none" in cli.error
    cli("lab", "fault", "arm", "--step", "copy_disks", "--phase", "before", "--action", "kill")
    killed = cli.spawn("server", "migrate", "web")
    assert killed.wait(SECONDS) == -signal.SIGKILL
    running = cli.last_move()["id"]
    said = cli("move", "wait", running, failed, "--timeout", "0.1", code=124)
    assert failed[:8] in said
    assert running[:8] not in said
    assert cli.error.startswith(f"move {running[:8]} goes on after 0.1 s")
    cli("move", "resume")


def test_a_confirm_is_refused_while_the_source_is_down(cli: Cli) -> None:
    cli("server", "migrate", "db")
    cli("lab", "worker", "stop", "host1")
    cli("server", "confirm", "db", code=2)
    assert "start its worker" in cli.error
    assert cli.last_move()["state"] == "verifying"
    cli("lab", "worker", "start", "host1")
    cli("server", "confirm", "db")


def _is_cancelled(root: Path, move: str) -> bool:
    from droveway.persistence.journal import moves

    lab = Lab.open(root)
    try:
        with lab.journal.read() as session:
            return moves.get(session, move).cancel_requested
    finally:
        lab.close()
