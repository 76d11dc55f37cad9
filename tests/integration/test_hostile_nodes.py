"""What others put into ZooKeeper while daemons run: refused, told once, nothing changed, and nobody dies of it."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from support.daemons.daemons import Daemon, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import (
    assert_balanced,
    differences,
    file_flow,
    in_child,
    picture,
    read_move,
    small_cloud,
    until,
)
from support.servers.zookeeper_server import Server, running_server

from droveway.clients.zookeeper import BOARD, command_path, epoch_path, progress_path, result_path, worker_path
from droveway.engines.conductor.taskflow.board import Posting
from droveway.lab import build
from droveway.persistence.journal.states import State
from droveway.wire import codec
from droveway.wire.commands import Command, Result

DEEP: Final = 20_000

MALFORMED: Final = {
    "nothing": b"",
    "no-text": b"\xff\xfe\x00",
    "no-object": b"[1, 2]",
    "other-types": b'{"key": 1, "flow": [], "host": {}, "epoch": "x", "done": -1, "total": "y", "name": 7, "uuid": {}}',
    "deep": b'{"details": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "big": b'{"key": "' + b"x" * 1_000_000 + b'"}',
    "nul": b'{"key": "a\\u0000b", "name": "\\u0000", "uuid": "\\u0000", "details": {}}',
}


@pytest.fixture(scope="module", name="zookeeper")
def fixture_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[snapshot.Snapshot]:
    folder = tmp_path_factory.mktemp("hostile")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(rest: snapshot.Snapshot, zookeeper: Server, tmp_path: Path) -> Iterator[Installation]:
    lab = rest.restore()
    with installation(lab, tmp_path, zookeeper.hosts, None) as made:
        yield made
    lab.close()


def forged(site: Installation, standing: str, **changes: object) -> Command:
    """A command that nobody gave, of the claim that stands: to delete the server where it is now."""
    row = read_move(site.lab, standing)
    node = site.session.get(epoch_path(standing))
    assert node is not None
    command = Command(
        key=f"{uuid.uuid4()}.remove_guest.execute.1",
        host="host2",
        move=standing,
        server=row.server,
        epoch=int(node[0]),
        step="remove_guest",
        action="remove_guest",
        direction="execute",
        details={},
        deadline=60.0,
    )
    return msgspec.structs.replace(command, **changes)


def forgeries(site: Installation, move: str) -> dict[str, bytes]:
    """Commands of a true form, by their nodes' names."""
    stands = forged(site, move)
    unknown = str(uuid.uuid4())
    made = [
        forged(site, move, epoch=stands.epoch - 1),
        forged(site, move, epoch=stands.epoch + 1000),
        forged(site, move, epoch=2**63 - 1),
        forged(site, move, move=unknown, epoch=1),
        forged(site, move, key=f"{uuid.uuid4()}.remove_guest.revert.2", direction="revert", epoch=stands.epoch + 1),
    ]
    found = {command.key: codec.encode(command) for command in made}
    for name, wrong in {
        "xa.remove_guest.execute.1": stands,
        "xb.remove_guest.execute.1": msgspec.structs.replace(stands, key="xb.remove_guest.execute.1", host="host1"),
        "xc.remove_guest.execute.1": msgspec.structs.replace(stands, key="xc.remove_guest.execute.1", epoch=2**70),
        "xd.remove_guest.execute.1": msgspec.structs.replace(
            stands, key="xd.remove_guest.execute.1", server="../host1"
        ),
        "xe.remove_guest.execute.1": msgspec.structs.replace(stands, key="xe.remove_guest.execute.1", move="m\0"),
        "no-key": msgspec.structs.replace(stands, key="no-key"),
        f"xf.remove_guest.execute.{'9' * 5000}": stands,
    }.items():
        found[name] = codec.encode(wrong)
    return found


def replays(site: Installation, host: str) -> dict[str, bytes]:
    """Every command that the host has carried out, once more."""
    root = site.lab.layout.host(host)
    with contextlib.closing(sqlite3.connect(root / "worker.sqlite")) as journal:
        rows = journal.execute("SELECT key, move, server, step, action, direction, epoch FROM commands").fetchall()
    assert rows
    fields = ("key", "move", "server", "step", "action", "direction", "epoch")
    given = [dict(zip(fields, row, strict=True)) for row in rows]
    return {facts["key"]: codec.encode(Command(**facts, host=host, details={}, deadline=60.0)) for facts in given}


def test_what_others_put_there_changes_nothing(site: Installation) -> None:
    """Forged, replayed, oversized and malformed, in every place that daemons read, while a move waits."""
    workers = site.workers()
    move = file_flow(site.lab, "resize")
    # Where its job belongs: it is removed, and the flow offered.
    assert site.session.create(f"{BOARD}/{read_move(site.lab, move).flow_uuid}", MALFORMED["no-object"])
    conductor = site.conductor()
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    old = replays(site, "host2")
    before = picture(site.lab.layout)
    commands = {**forgeries(site, move), **{f"{name}.s.execute.1": data for name, data in MALFORMED.items()}}
    for name, data in {**commands, **old}.items():
        assert site.session.create(command_path("host2", name), data)
    host = workers["host2"]
    # Before answers lie there too: a command that has one is not looked at.
    until(lambda: all(told(host, name) for name in commands), "that the commands are refused")
    job = Posting(
        flow=str(uuid.uuid4()),
        move=move,
        kind="confirm",
        version=1,
        digest="none",
        urgent=True,
        filed="2026-01-01T00:00:00",
    )
    jobs = {**MALFORMED, "not-its-name": msgspec.json.encode({"uuid": job.flow, "name": "confirm", "details": job})}
    for name, data in jobs.items():
        assert site.session.create(f"{BOARD}/{name}", data)
    for name, data in MALFORMED.items():
        for key in (f"{name}.s.execute.1", f"health-{name}", f"health-{move}.check_health.execute.{name}"):
            site.session.create(result_path("host2", key), data)
        site.session.create(progress_path("host2", f"{name}.s.execute.1"), data)
        site.session.create(worker_path(f"ghost-{name}"), data, ephemeral=True)
    until(lambda: site.session.children(BOARD) == [], "that the jobs are gone")
    until(lambda: all(site.session.get(result_path("host2", key)) for key in old), "the answers to what is replayed")
    assert differences(before, picture(site.lab.layout)) == []
    move_on(site, move, [conductor, *workers.values()])
    for name in commands:
        assert len(told(host, name)) == len(set(told(host, name))), "it was met at each look and is told once"
    said = conductor.log.read_text()
    assert [name for name in MALFORMED if said.count(f"registration of host ghost-{name} is refused") != 1] == []
    # Whoever looks first: the conductor refuses a job, the keeper takes a flow off the board that nobody knows.
    withdrawn = {name for name in jobs if f"Flow {name} was taken off the board" in said}
    met = {name: said.count(f"The job at {BOARD}/{name} is refused") for name in jobs}
    assert [name for name, times in met.items() if times != 1 and not (times == 0 and name in withdrawn)] == []


def test_daemons_start_and_a_journal_is_adopted_beside_registrations_that_none_can_read(site: Installation) -> None:
    for name, data in MALFORMED.items():
        assert site.session.create(worker_path(f"ghost-{name}"), data, ephemeral=True)
    daemons = list(site.workers().values())
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    assert site.done("db", "adopt").startswith("adopted; 1 unfinished move parked\n")
    said = conductor.log.read_text()
    assert [name for name in MALFORMED if said.count(f"registration of host ghost-{name} is refused") != 1] == []
    for daemon in (conductor, *daemons):
        assert daemon.process.poll() is None, daemon.text()


def told(host: Daemon, name: str) -> list[str]:
    """Why the worker did not carry the command out, as often as it said so."""
    said = host.log.read_text().splitlines()
    openings = (f"The command {name[:200]} of host2 is refused: ", f"] {name} ended without an answer: ")
    return [line.partition(opening)[2] for line in said for opening in openings if opening in line]


def move_on(site: Installation, move: str, daemons: list[Daemon]) -> None:
    """The move that waits is reverted and another one goes through, with all that lies there."""
    for kind, state in (("revert", State.REVERTED), ("resize", State.VERIFYING), ("confirm", State.DONE)):
        filed = file_flow(site.lab, kind)
        assert move == filed or kind != "revert"
        assert site.await_rest(filed) == state, daemons[0].text()
    assert_balanced(site.lab)
    for daemon in daemons:
        assert daemon.process.poll() is None, daemon.text()
        assert "Traceback" not in daemon.log.read_text(), daemon.text()


def test_what_a_host_answers_wrongly_is_refused_until_it_answers_rightly(site: Installation) -> None:
    """The results, the progress and the registration of a step's own command, while the step waits for it."""
    # A session that outlives its stop: a host that is away is not chosen.
    host = site.worker("host2", OS_ZOOKEEPER__SESSION_TIMEOUT="60")
    workers = {"host1": site.worker("host1"), "host2": host}
    conductor = site.conductor()
    host.process.send_signal(signal.SIGSTOP)
    move = file_flow(site.lab, "resize")
    key = until(lambda: site.session.children(command_path("host2")), "a command for the host")[0]
    node = site.session.get(command_path("host2", key))
    assert node is not None
    epoch = codec.decode_command(node[0]).epoch
    answers = {
        **MALFORMED,
        "another's": codec.encode(Result(key="f.s.execute.1", epoch=epoch)),
        "newer": codec.encode(Result(key=key, epoch=epoch + 1)),
        "no-error": codec.encode(Result(key=key, epoch=epoch, error={"message": "no code"})),
    }
    path = result_path("host2", key)
    for name, data in answers.items():
        assert site.session.create(path, data)
        until(lambda: site.session.get(path) is None, f"that {name} is removed")
        site.session.create(progress_path("host2", key), data)
        site.session.put(progress_path("host2", key), data)
    site.session.put(worker_path("host2"), MALFORMED["deep"])
    host.process.send_signal(signal.SIGCONT)
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    assert conductor.log.read_text().count(f"The result of {key} on host host2 is refused") == len(answers)
    move_on(site, move, [conductor, *workers.values()])
