"""The adapter, claims and whole flows over a real ZooKeeper with kazoo."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.rigs.engine_rig import REMOTE, Crash, FakeWorker, Host, Rig, until
from support.rigs.plain_keeper import PlainKeeper
from support.servers.zookeeper_server import Server, running_server

from droveway.clients import zookeeper
from droveway.clients.zookeeper import Coordination, command_path, epoch_path, result_path, worker_path
from droveway.engines.conductor import fencing
from droveway.errors import CoordinationLost, Fenced

SESSION = 2.0
"""Seconds that a session lasts without its client."""


@pytest.fixture(scope="module", name="server")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(name="connect")
def fixture_connect(server: Server) -> Iterator[Callable[[], Coordination]]:
    opened: list[Coordination] = []

    def connect() -> Coordination:
        opened.append(zookeeper.connect(server.hosts, timeout=SESSION))
        return opened[-1]

    yield connect
    opened[0:0] = [zookeeper.connect(server.hosts, timeout=SESSION)]
    opened[0].delete(zookeeper.ROOT)
    for session in opened:
        session.close()


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path, connect: Callable[[], Coordination]) -> Iterator[Rig]:
    rig = Rig(tmp_path, connect)
    yield rig
    rig.journal.close()


def expire(session: Coordination) -> None:
    """Let the server forget the session, as it does when the client was away for too long."""
    twin = KazooClient(
        hosts=",".join(f"{host}:{port}" for host, port in session.client.hosts), client_id=session.client.client_id
    )
    twin.start(timeout=20)
    twin.stop()
    twin.close()


def test_the_adapter_keeps_its_contract(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    assert one.create("/droveway/a/b", b"1")
    assert not two.create("/droveway/a/b", b"2")
    assert one.get("/droveway/a/b", sync=True) == (b"1", 0)
    assert two.put("/droveway/a/b", b"2", version=0)
    assert not two.put("/droveway/a/b", b"3", version=0)
    assert two.children("/droveway/a") == ["b"]
    with pytest.raises(Fenced):
        one.create_guarded("/droveway/jobs/x", b"", guard="/droveway/a/b", version=0)
    assert one.children("/droveway/jobs") == []
    with pytest.raises(Fenced):
        one.create_guarded("/droveway/jobs/x", b"", guard="/droveway/missing", version=0)
    assert one.create_guarded("/droveway/jobs/x", b"", guard="/droveway/a/b", version=1)
    assert not one.create_guarded("/droveway/jobs/x", b"", guard="/droveway/a/b", version=1)
    assert one.delete("/droveway/a")
    assert not one.delete("/droveway/a")


class Wakeup(threading.Event):
    """What a watch sets."""

    def came(self) -> bool:
        """Wait until it was set, and clear it."""
        heard = self.wait(60)
        self.clear()
        return heard


def test_a_watch_rings_for_all_changes(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    wakeup = Wakeup()
    one.watch("/droveway/w/n", wakeup.set)
    two.create("/droveway/w/n", b"1")
    assert wakeup.came()
    for _ in range(3):
        two.put("/droveway/w/n", b"2")
        assert wakeup.came()
    two.create("/droveway/w/n/child", b"")
    assert wakeup.came()
    two.delete("/droveway/w/n")
    assert wakeup.came()


def test_the_watch_of_a_leaf_tells_whether_it_is_there(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    wakeup = Wakeup()
    watch = one.watch_leaf("/droveway/w/n")
    with watch.telling(wakeup.set):
        assert not watch.look()
        two.create("/droveway/w/n", b"1")
        assert wakeup.came()
        assert watch.look()
        two.delete("/droveway/w/n")
        assert wakeup.came()
        assert not watch.look()
        assert watch.known is False
        expire(one)
        until(lambda: watch.known is None)
        until(one.live)
        assert not watch.look()
        two.create("/droveway/w/n", b"1")
        assert wakeup.came()
        assert watch.look()


def test_a_listing_outlives_its_node_and_its_session(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    wakeup = Wakeup()
    listing = one.listing("/droveway/w", wakeup.set)

    def become(wanted: list[str]) -> None:
        while listing.names() != wanted:
            assert wakeup.came()

    assert listing.names() == []
    two.create("/droveway/w/b", b"")
    become(["b"])
    two.create("/droveway/w/a", b"")
    become(["a", "b"])
    two.delete("/droveway/w")
    become([])
    two.create("/droveway/w/c", b"")
    become(["c"])
    wakeup.clear()
    expire(one)
    assert wakeup.came()
    until(one.live)
    two.create("/droveway/w/d", b"")
    become(["c", "d"])
    listing.stop()


def test_nodes_go_together_or_each_by_itself(connect: Callable[[], Coordination]) -> None:
    one = connect()
    paths = [f"/droveway/w/{name}" for name in ("a", "b", "c")]
    for path in paths:
        one.create(path, b"")
    one.delete_together(paths)
    assert one.children("/droveway/w") == []
    one.create(paths[0], b"")
    one.create(f"{paths[2]}/below", b"")
    one.delete_together(paths)
    assert one.children("/droveway/w") == []


def test_what_is_read_behind_a_sync_is_not_older_than_it(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    for number in range(20):
        data = str(number).encode()
        assert two.create("/droveway/n", data) or two.put("/droveway/n", data)
        assert one.get_each(["/droveway/n", "/droveway/none"], sync=True) == [(data, number), None]


def test_an_expired_session_loses_its_nodes_and_its_watches_go_on(connect: Callable[[], Coordination]) -> None:
    one, two = connect(), connect()
    lost, wakeup = threading.Event(), threading.Event()
    one.client.add_listener(lambda state: state == "LOST" and lost.set())
    one.create(worker_path("h1"), b"x", ephemeral=True)
    before = one.session
    assert two.owner(worker_path("h1")) == before
    one.watch("/droveway/w", wakeup.set)
    expire(one)
    assert lost.wait(60)
    until(one.live)
    assert one.session not in (None, before)
    assert two.get(worker_path("h1"), sync=True) is None
    assert wakeup.wait(60)
    wakeup.clear()
    two.create("/droveway/w", b"")
    assert wakeup.wait(60)


def test_nobody_at_the_address_is_one_sentence() -> None:
    with pytest.raises(CoordinationLost, match="no ZooKeeper answers at 127"):
        zookeeper.connect("127.0.0.1:1", timeout=SESSION)


def test_a_move_runs_from_its_row_to_its_rest(rig: Rig) -> None:
    conductor = rig.conductor()
    conductor.start()
    keeper = PlainKeeper(
        rig.session(), rig.journal, conductor.board, lambda _kind: pytest.fail("nothing to confirm"), every=0.05
    )
    keeper.start()
    ids = [rig.submit(server=f"s{number}") for number in range(3)]
    for move in ids:
        until(lambda move=move: rig.move(move).state == "verifying")
    until(lambda: conductor.board.posted() == {})
    keeper.stop()
    conductor.stop()
    assert rig.cells.fences == {}


def test_a_conductor_whose_session_expired_in_a_step_writes_nothing_more(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    asleep, wake = threading.Event(), threading.Event()

    def pause(_ctx: object) -> None:
        del rig.world.hooks["x copy"]
        asleep.set()
        assert wake.wait(180)

    rig.world.hooks["x copy"] = pause
    first, second = rig.host(), rig.host()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.extend(first.turn()))
    thread.start()
    assert asleep.wait(60)
    job = second.jobs()[0]
    expire(first.coordination)
    until(lambda: second.board.lock_owner(job) is None)
    second.turn()
    assert rig.move(move).state == "verifying"
    before = (list(rig.world.log), set(rig.world.held), [row.ended_at for row in rig.history(move)])
    wake.set()
    thread.join(180)
    assert outcome == [False]
    assert (rig.world.log, rig.world.held, [row.ended_at for row in rig.history(move)]) == before


def test_a_command_is_adopted_and_runs_once(rig: Rig) -> None:
    worker = FakeWorker(rig.session(), "h1", lambda _command: {"n": 1})
    move = rig.submit(REMOTE)
    rig.post(move)
    session = rig.session()

    def crash(_move: str, step: str, _direction: str, phase: str) -> None:
        if (step, phase) == ("on_host", "during"):
            until(lambda: session.children(result_path("h1")))
            raise Crash

    rig.probe = crash
    first = rig.host()
    with pytest.raises(Crash):
        first.turn()
    first.die()
    rig.probe = None
    second = rig.host()
    until(lambda: second.board.lock_owner(second.jobs()[0]) is None)
    second.turn()
    worker.stop()
    assert rig.move(move).state == "verifying"
    assert len(worker.seen) == 1
    assert session.children(command_path("h1")) == session.children(result_path("h1")) == []


def test_the_epochs_mirror_only_rises(rig: Rig) -> None:
    session = rig.session()
    low = fencing.mirror(session, "m", 4)
    assert fencing.mirror(session, "m", 9) > low
    with pytest.raises(Fenced):
        fencing.mirror(session, "m", 4)
    fencing.write_tombstone(session, "m", 9)
    assert session.get(epoch_path("m")) is not None
    with pytest.raises(Fenced):
        fencing.mirror(session, "m", 10)


def test_a_frozen_zookeeper_delays_the_end_of_a_job_and_loses_nothing(rig: Rig, server: Server) -> None:
    move = rig.submit()
    conductor = rig.conductor()
    conductor.start()
    rig.world.hooks["x finish"] = lambda _ctx: server.freeze()
    rig.post(move)
    until(lambda: rig.move(move).state == "verifying")  # the journal needs no ZooKeeper
    until(lambda: not rig._open[-1].live())
    server.thaw()
    until(lambda: conductor.board.connected and conductor.board.posted() == {}, seconds=180)
    conductor.stop()
    assert rig.world.log.count("x finish") == 1


def test_a_restarted_zookeeper_goes_on_with_what_was_there(rig: Rig, server: Server) -> None:
    conductor = rig.conductor()
    conductor.start()
    session = rig.session()
    keeper = PlainKeeper(
        session, rig.journal, conductor.board, lambda _kind: pytest.fail("nothing to confirm"), every=0.05
    )
    keeper.start()
    move = rig.submit()

    def restart(_ctx: object) -> None:
        del rig.world.hooks["x claim"]
        server.kill()
        server.start()

    rig.world.hooks["x claim"] = restart
    until(lambda: rig.move(move).state == "verifying", seconds=180)
    later = rig.submit(server="later")
    until(lambda: rig.move(later).state == "verifying", seconds=180)
    keeper.stop()
    conductor.stop()
    assert rig.world.log.count("x start_guest") == 2


def suspended(rig: Rig, server: Server, host: Host, step: str) -> None:
    """Freeze ZooKeeper in this step, and let it end once the conductor knows that its session is suspended."""

    def freeze(_ctx: object) -> None:
        del rig.world.hooks[f"x {step}"]
        server.freeze()
        until(lambda: not host.coordination.live())

    rig.world.hooks[f"x {step}"] = freeze


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    return "waits at step choose_destinations: ZooKeeper does not answer" in caplog.text


def test_no_step_begins_while_the_session_is_suspended(
    rig: Rig, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the journal would let it; the move goes on when ZooKeeper answers again, and no step runs twice."""
    caplog.set_level("INFO")
    move = rig.submit()
    rig.post(move)
    host = rig.host()
    suspended(rig, server, host, "prepare")
    thread = threading.Thread(target=host.turn)
    thread.start()
    try:
        until(lambda: waits(caplog))
        assert rig.world.log == ["x prepare"]
    finally:
        server.thaw()
    thread.join(180)
    if rig.move(move).state != "verifying":  # it answered too late: the session had ended, which is as good an end
        assert rig.world.log == ["x prepare"]
        until(lambda: host.board.lock_owner(host.jobs()[0]) is None)
        host.turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.log.count("x prepare") == rig.world.log.count("x choose_destinations") == 1


def test_a_conductor_that_was_fenced_while_its_session_was_suspended_begins_no_step(
    rig: Rig, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    move = rig.submit()
    rig.post(move)
    host = rig.host()
    suspended(rig, server, host, "prepare")
    outcome: list[bool] = []
    claimed = host.jobs()[0]
    host.board.claim(claimed, "first")
    thread = threading.Thread(target=lambda: outcome.append(host.conductor._dispatch_job(claimed)))
    thread.start()
    try:
        until(lambda: waits(caplog))
        fencing.claim(rig.journal, move, "second")
        thread.join(180)
        assert outcome == [False]
    finally:
        server.thaw()
    assert rig.world.log == ["x prepare"]
    assert "was lost" in caplog.text


def test_a_conductor_whose_session_has_ended_begins_no_step(rig: Rig) -> None:
    """Though nobody else has the move yet: its claim went with the session."""
    move = rig.submit()
    rig.post(move)
    first = rig.host()

    def end(_ctx: object) -> None:
        del rig.world.hooks["x prepare"]
        before = first.coordination.session
        expire(first.coordination)
        until(lambda: first.coordination.session not in (None, before))

    rig.world.hooks["x prepare"] = end
    assert first.turn() == [False]
    assert rig.world.log == ["x prepare"]
    assert rig.host().turn() == [True]
    assert rig.move(move).state == "verifying"
    assert rig.world.log.count("x prepare") == 1
