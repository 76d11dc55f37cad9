"""A lab's log tells the whole story of each move, found by the move's id, and nothing of others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, faults_cleared, stage
from support.labs.small_lab import until

from droveway.lab import runner
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
images: {base: {size_mb: 1}}
servers: {}
"""
SERVER = "{flavor: small, host: host1, image: base, ports: [{}]}"
PASSWORD = "planted-in-a-url"
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LINE = re.compile(r"\S+ \S+ (?P<level>[A-Z]+) (?P<logger>\S+) \[(?P<ids>[^]]*)\] (?P<message>.*)")
THERE = [
    "record_before",
    "accept",
    "record_migration",
    "choose_destinations",
    "alternates",
    "claim",
    "record_destination",
    "check_destination",
    "find_storage",
    "reserve_ports",
    "reserve_volumes",
    "mark_migrating",
    "stop_guest",
    "release_source",
    "set_aside",
    "copy_disks",
    "fit_disks",
    "move_volumes",
    "move_ports",
    "connect_destination",
    "define_guest",
    "switch_records",
    "start_guest",
    "save_request_spec",
    "finish_records",
]
FAILED = 3
"""The exit code of a command whose move failed."""
WITHOUT_UNDO = {"record_before", "choose_destinations", "alternates", "find_storage", "fit_disks"}


@pytest.fixture(name="lab", scope="module")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stories") / "lab", CLOUD) as made:
        with (made.root / "droveway.conf").open("a") as file:
            file.write(f"\n[database]\nconnection = mysql+pymysql://nova:{PASSWORD}@db/nova\n")
            file.write("[conductor]\nretry_for = 0\nhost_away = 0.3\n")
        made.lab.close()
        made.lab = Lab.open(made.root)
        yield made


def lines(root: Path) -> list[re.Match[str]]:
    """Every line of the log, each of which says whose it is."""
    text = (root / "droveway.log").read_text()
    assert PASSWORD not in text
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(found), text
    return [line for line in found if line]


def story(lab: Stage, move: str) -> list[str]:
    """Return the level and the message of each line with the move's id, without ids and durations."""
    told = []
    server = lab.id_of(name_of(lab, move))
    for line in lines(lab.root):
        if move not in line[0]:
            assert move[:8] not in line[0], "a line of the move without its id"
            continue
        request, *ids = line["ids"].split()
        assert ids == [move, server], line[0]
        assert re.fullmatch(f"req-{UUID}", request), line[0]
        assert not re.search(r"\b(SELECT|UPDATE|INSERT)\b", line[0]), line[0]
        message = re.sub(rf"^Move {move[:8]}(-\S+ \(req-{UUID}\))?:? ", "", line["message"])
        message = re.sub(r" after [0-9.]+ s", "", message).replace(server, "ID").replace(move[:8], "MOVE")
        message = re.sub(r"epoch \d+", "epoch N", message)
        told.append(f"{line['level']} {message}")
    return told


def name_of(lab: Stage, move: str) -> str:
    return str(lab.json("move", "show", move)["server_name"])


def conductors(told: list[str]) -> list[str]:
    """What the conductor told, without what hosts did for it."""
    return [line for line in told if not re.search(r" on host host\d is (taken up|done)$", line)]


def done(step: str) -> str:
    """Return the line of a step that is done, without where and on which attempt."""
    return f"INFO step {step} is done"


def short(line: str) -> str:
    return re.sub(r"( on host host\d)?( \(attempt \d\))?$", "", line)


def test_a_move_is_told_by_one_line_for_each_step(lab: Stage) -> None:
    lab.create_server("other", SERVER)
    lab.create_server("web", SERVER)
    lab.cli("server", "migrate", "other", "--host", "host3")
    lab.cli("server", "migrate", "web", "--host", "host2")
    told = story(lab, lab.move("web").id)
    mine = conductors(told)
    assert mine[0] == "INFO migrate of server ID (web) from host host1 runs here under epoch N"
    assert mine[-1] == "INFO migrate has ended, and the move's state is verifying"
    wanted = [done(step) for step in THERE]
    wanted[THERE.index("alternates")] = "INFO its destination is host host2 of cell cell1"
    assert [short(line) for line in mine[1:-1]] == wanted
    assert "INFO step copy_disks is done on host host2 (attempt 1)" in mine
    assert "INFO step stop_guest is done on host host1 (attempt 1)" in mine
    hosts = [line for line in told if line not in mine]
    assert hosts.count("INFO copy_disks on host host2 is taken up") == 1
    assert hosts.count("INFO copy_disks on host host2 is done") == 1
    taken_up = [line.removesuffix(" is taken up") for line in hosts if line.endswith("up")]
    assert taken_up == [line.removesuffix(" is done") for line in hosts if line.endswith("done")]


def test_a_failed_step_is_told_with_its_undo(lab: Stage) -> None:
    lab.create_server("api", SERVER)
    with faults_cleared(lab) as arm:
        arm("define_guest", "fail")
        lab.cli("server", "migrate", "api", "--host", "host2", code=FAILED)
    mine = [short(line) for line in conductors(story(lab, lab.move("api").id))]
    failed = mine.index(next(line for line in mine if " failed on host" in line))
    assert mine[failed].startswith("INFO step define_guest failed on host host2: fault: fault ")
    until = THERE.index("define_guest")
    undone = [step for step in reversed(THERE[: until + 1]) if step not in WITHOUT_UNDO]
    assert mine[failed + 1 : -1] == [f"INFO the undo of step {step} is done" for step in undone]
    assert mine[-1].startswith("WARNING migrate has ended, and the move's state is failed: fault: fault ")


def test_the_next_alternate_is_told(lab: Stage) -> None:
    lab.create_server("cache", SERVER)
    with faults_cleared(lab) as arm:
        arm("connect_destination", "fail", fault="destination")
        lab.cli("server", "migrate", "cache")
    mine = conductors(story(lab, lab.move("cache").id))
    chosen = [line for line in mine if "of cell cell1" in line]
    assert [re.sub(r"host\d", "HOST", line) for line in chosen] == [
        "INFO its destination is host HOST of cell cell1 (attempt 1)",
        "INFO the next alternate is host HOST of cell cell1 (attempt 2)",
    ]
    assert "INFO step claim is done (attempt 2)" in mine


def test_a_parked_move_is_told_with_the_command_that_helps(lab: Stage) -> None:
    lab.create_server("mail", SERVER)
    with faults_cleared(lab) as arm:
        arm("finish_records", "fail", count=1000)
        lab.cli("server", "migrate", "mail", code=4)
        move = lab.move("mail").id
        parked = conductors(story(lab, move))[-1]
        assert re.fullmatch(
            r"ERROR needs an operator at step finish_records: fault: fault \d+ \(before execute of finish_records\) "
            r"was armed: .*; mend what the reason names, then: droveway move retry MOVE \(droveway explain fault\)",
            parked,
        )
    lab.cli("move", "retry", move)
    assert lab.move("mail").state == State.VERIFYING
    mine = conductors(story(lab, move))
    assert [short(line) for line in mine[-2:]] == [
        done("finish_records"),
        "INFO migrate has ended, and the move's state is verifying",
    ]
    assert [line for line in mine if line.startswith("ERROR")] == [parked]


def test_a_host_that_is_away_is_told_once_with_what_it_owes_and_pays(lab: Stage) -> None:
    lab.create_server("proxy", SERVER)

    def lose(_move: str, step: str, direction: str, phase: str) -> None:
        if (step, direction, phase) == ("fit_disks", "execute", "before"):
            workers.stop("host2")

    with runner.logging_to(lab.lab), lab.running(lose) as workers:
        lab.cli("server", "migrate", "proxy", "--host", "host2", code=FAILED)
        move = lab.move("proxy").id
        owing = [line for line in conductors(story(lab, move)) if " owes " in line]
        assert owing[0] == "WARNING host host2 owes the undo of step copy_disks, and pays it once it is back"
        assert len(owing) == len(set(owing))
        log = conductors(story(lab, move))
        assert "INFO the undo of step copy_disks is not done, but owed on host host2 (attempt 1)" in log
        assert not [line for line in log if line.startswith("INFO the undo of step copy_disks is done")]
        workers.start("host2")
        until(lambda: not lab.json("debt", "list"), "the payment")
    mine = conductors(story(lab, move))
    away = "WARNING waits for the worker of host host2, which is away, in step fit_disks"
    assert mine.count(away) == 1
    failed = mine[mine.index(away) + 1]
    assert failed.startswith(
        "INFO step fit_disks failed on host host2: host-unreachable: the worker of host host2 is away"
    )
    paid = [line for line in mine if "has paid" in line]
    owed = [line.removeprefix("WARNING host host2 owes ").partition(",")[0] for line in owing]
    assert paid == [f"INFO host host2 has paid what it owed: {each}" for each in owed]


def test_a_revert_that_was_undone_is_a_warning(lab: Stage) -> None:
    lab.create_server("undone", SERVER)
    lab.cli("server", "migrate", "undone", "--host", "host2")
    lab.arm("release_destination", "fail")
    with faults_cleared(lab):
        lab.cli("server", "revert", "undone", code=3)
    mine = conductors(story(lab, lab.move("undone").id))
    assert mine[-1].startswith("WARNING revert has ended, and the move's state is verifying: fault: fault ")


def test_a_policys_confirm_is_told(lab: Stage) -> None:
    lab.create_server("store", SERVER)
    lab.cli("server", "migrate", "store", "--host", "host2", "--confirm", "auto")
    mine = conductors(story(lab, lab.move("store").id))
    ended = mine.index("INFO migrate has ended, and the move's state is verifying")
    assert mine[ended + 1 : ended + 3] == [
        "INFO its confirm is asked for, since its policy is auto",
        "INFO confirm of server ID (store) from host host1 runs here under epoch N",
    ]
    assert mine[-1] == "INFO confirm has ended, and the move's state is done"


def test_an_ended_session_of_a_lab_is_no_lost_zookeeper(lab: Stage) -> None:
    lab.create_server("quiet", SERVER)
    lab.cli("server", "migrate", "quiet", "--host", "host2")
    assert story(lab, lab.move("quiet").id)
    assert [line[0] for line in lines(lab.root) if "zookeeper" in line[0].lower()] == []
