"""The ZooKeeper adapter over the embedded client; the same contract runs over a real server in tests/integration."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from droveway.clients import zookeeper
from droveway.errors import CoordinationLost, Fenced

_PATHS = st.lists(st.sampled_from(["a", "ab", "b"]), max_size=4).map(lambda names: "/" + "/".join(names))


@pytest.fixture(name="store")
def fixture_store() -> object:
    return zookeeper.embedded_store()


@pytest.fixture(name="session")
def fixture_session(store: object) -> Iterator[zookeeper.Coordination]:
    session = zookeeper.connect_embedded(store)
    yield session
    session.close()


@pytest.fixture(name="other")
def fixture_other(store: object) -> Iterator[zookeeper.Coordination]:
    other = zookeeper.connect_embedded(store)
    yield other
    other.close()


def test_create_is_once_and_makes_parents(session: zookeeper.Coordination, other: zookeeper.Coordination) -> None:
    assert session.create("/a/b/c", b"1")
    assert not other.create("/a/b/c", b"2")
    assert other.get("/a/b/c", sync=True) == (b"1", 0)
    assert other.children("/a/b") == ["c"]
    assert other.children("/nothing") == []
    assert other.get("/nothing") is None


def test_put_compares_versions(session: zookeeper.Coordination) -> None:
    session.create("/n", b"1")
    assert session.put("/n", b"2", version=0)
    assert not session.put("/n", b"3", version=0)
    assert session.get("/n") == (b"2", 1)
    assert not session.put("/missing", b"")


def test_guarded_create_makes_nothing_under_another_version(session: zookeeper.Coordination) -> None:
    session.create("/epoch", b"1")
    session.put("/epoch", b"2")
    with pytest.raises(Fenced):
        session.create_guarded("/jobs/x", b"", guard="/epoch", version=0)
    assert session.children("/jobs") == []
    with pytest.raises(Fenced):
        session.create_guarded("/jobs/x", b"", guard="/missing", version=0)
    assert session.children("/jobs") == []
    assert session.create_guarded("/jobs/x", b"1", guard="/epoch", version=1)
    assert not session.create_guarded("/jobs/x", b"2", guard="/epoch", version=1)
    assert session.get("/jobs/x") == (b"1", 0)


def test_delete_takes_all_below(session: zookeeper.Coordination) -> None:
    session.create("/a/b/c", b"")
    assert session.delete("/a")
    assert not session.delete("/a")
    assert session.get("/a/b/c") is None


def test_a_watch_rings_for_creation_data_children_and_end(
    session: zookeeper.Coordination, other: zookeeper.Coordination
) -> None:
    wakeup = threading.Event()

    def rang() -> bool:
        heard = wakeup.wait(5)
        wakeup.clear()
        return heard

    stop = session.watch("/w/n", wakeup.set)
    other.create("/w/n", b"1")
    assert rang()
    for _ in range(3):
        other.put("/w/n", b"2")
        assert rang()
    other.create("/w/n/child", b"")
    assert rang()
    other.delete("/w/n")
    assert rang()
    other.create("/w/n", b"again")
    assert rang()
    stop()
    session.client.flush()
    wakeup.clear()
    other.put("/w/n", b"3")
    session.client.flush()
    assert not wakeup.is_set()


def test_watches_do_not_multiply(session: zookeeper.Coordination, other: zookeeper.Coordination) -> None:
    calls: list[int] = []
    session.watch("/w", lambda: calls.append(1))
    other.create("/w", b"")
    for number in range(20):
        other.create(f"/w/{number}", b"")
        session.client.flush()
    assert len(calls) <= 22


def test_ephemeral_nodes_end_with_their_session(session: zookeeper.Coordination, store: object) -> None:
    other = zookeeper.connect_embedded(store)
    other.create(zookeeper.worker_path("h1"), b"x", ephemeral=True)
    assert session.owner(zookeeper.worker_path("h1")) == other.session
    wakeup = threading.Event()
    session.watch(zookeeper.worker_path("h1"), wakeup.set)
    other.close()
    assert wakeup.wait(5)
    assert session.owner(zookeeper.worker_path("h1")) is None
    assert session.live()
    assert not other.live()


def test_a_closed_session_says_so(store: object) -> None:
    session = zookeeper.connect_embedded(store)
    session.close()
    with pytest.raises(CoordinationLost):
        session.get("/x")


def test_an_expired_session_is_not_live(store: object) -> None:
    session = zookeeper.connect_embedded(store)
    assert session.live()
    session.client.expired = True
    assert not session.live()
    with pytest.raises(CoordinationLost):
        session.create("/x", b"")
    session.client.expired = False
    session.close()


def test_paths() -> None:
    assert zookeeper.command_path("h", "k") == "/droveway/hosts/h/commands/k"
    assert zookeeper.command_path("h") == "/droveway/hosts/h/commands"
    assert zookeeper.result_path("h", "k") == "/droveway/hosts/h/results/k"
    assert zookeeper.progress_path("h", "k") == "/droveway/hosts/h/progress/k"
    assert zookeeper.epoch_path("m") == "/droveway/moves/m/epoch"


@given(st.lists(st.tuples(_PATHS, st.booleans())), _PATHS, st.booleans())
def test_relatives_are_the_ones_that_zake_itself_finds(
    changes: list[tuple[str, bool]], asked: str, only_direct: bool
) -> None:
    store: Any = zookeeper.embedded_store()
    session = zookeeper.connect_embedded(store)
    for path, made in changes:
        if made:
            session.create(path, b"")
        elif path != "/":
            session.delete(path)
    session.close()
    zake = type(store).__base__
    assert store.get_children(asked, only_direct=only_direct) == zake.get_children(store, asked, only_direct)
    assert store.get_parents(asked) == zake.get_parents(store, asked)


def test_a_transaction_that_fails_leaves_the_nodes_and_their_folders_as_they_were(
    session: zookeeper.Coordination, store: Any
) -> None:
    def change() -> None:
        with store.transaction():
            store.pop("/a/b")
            store["/a/c"] = store["/a"]
            raise LookupError

    session.create("/a/b", b"1")
    with pytest.raises(LookupError):
        change()
    assert session.children("/a") == ["b"]
    assert session.get("/a/b") == (b"1", 0)


def test_the_end_of_a_session_takes_its_nodes_out_of_their_folders(store: Any, session: zookeeper.Coordination) -> None:
    other = zookeeper.connect_embedded(store)
    other.create("/a/mine", b"", ephemeral=True)
    other.close()
    assert session.children("/a") == []
    assert session.delete("/a")


class Asked:
    """What was asked of a client: each method that is listed, with its path."""

    def __init__(self, session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.calls: list[tuple[str, str]] = []
        for name in names:
            monkeypatch.setattr(session.client, name, self._counted(name, getattr(session.client, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str, *args: Any, **named: Any) -> Any:
            self.calls.append((name, path))
            return method(path, *args, **named)

        return call


def test_nodes_are_read_in_their_order_behind_one_sync(
    session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.create("/a", b"1")
    session.create("/c", b"3")
    asked = Asked(session, monkeypatch, "sync", "get")
    assert session.get_each(["/a", "/b", "/c"], sync=True) == [(b"1", 0), None, (b"3", 0)]
    assert asked.calls == [("sync", "/a"), ("get", "/a"), ("get", "/b"), ("get", "/c")]


def test_nodes_are_listed_together(session: zookeeper.Coordination) -> None:
    for path in ("/a/y", "/a/x", "/c/z"):
        session.create(path, b"")
    assert session.children_of_each(["/c", "/none", "/a"]) == [["z"], [], ["x", "y"]]
    assert session.children_of_each([]) == []


def test_nodes_are_deleted_together(session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        session.create(f"/d/{name}", b"")
    asked = Asked(session, monkeypatch, "delete")
    session.delete_together(["/d/a", "/d/b", "/d/c"])
    assert session.children("/d") == []
    assert asked.calls == []
    session.delete_together([])


def test_of_nodes_that_cannot_go_together_each_goes_by_itself(
    session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.create("/d/a", b"")
    session.create("/d/b/below", b"")
    asked = Asked(session, monkeypatch, "delete")
    session.delete_together(["/d/a", "/d/missing", "/d/b"])
    assert session.children("/d") == []
    assert [path for _name, path in asked.calls] == ["/d/a", "/d/missing", "/d/b", "/d/b"]


def test_more_nodes_than_one_request_should_have_go_in_some(
    session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "_AT_ONCE", 2)
    for name in range(5):
        session.create(f"/d/{name}", b"")
    session.delete_together([f"/d/{name}" for name in range(5)])
    assert session.children("/d") == []


def test_a_leaf_is_asked_for_once_until_its_watch_tells(
    session: zookeeper.Coordination, other: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, wakeup = session.watch_leaf("/w/n"), threading.Event()
    asked = Asked(session, monkeypatch, "exists")
    assert watch.known is None
    with watch.telling(wakeup.set):
        assert not watch.look()
        assert not watch.look()
        assert len(asked.calls) == 1
        other.create("/w/n", b"1")
        assert wakeup.wait(5)
        assert watch.known is None
        assert watch.look()
        assert len(asked.calls) == 2
        wakeup.clear()
        other.delete("/w/n")
        assert wakeup.wait(5)
    assert not watch.look()
    wakeup.clear()
    other.create("/w/n", b"2")
    session.client.flush()
    assert not wakeup.is_set()
    assert watch.look()


def test_an_event_between_the_question_and_its_answer_is_not_forgotten(
    session: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = session.watch_leaf("/w/n")
    exists = session.client.exists

    def slow(path: str, watch: Any = None) -> Any:
        found = exists(path, watch=watch)
        session.create("/w/n", b"")
        session.client.flush()
        return found

    monkeypatch.setattr(session.client, "exists", slow)
    assert not watch.look()
    monkeypatch.undo()
    assert watch.look()


def test_one_watch_serves_all_who_wait_for_the_same_node(session: zookeeper.Coordination) -> None:
    assert session.shared_watch("/w/n") is session.shared_watch("/w/n")
    assert session.shared_watch("/w/n") is not session.shared_watch("/w/m")


def test_a_listing_is_asked_for_once_until_its_watch_tells(
    session: zookeeper.Coordination, other: zookeeper.Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakeup = threading.Event()
    listing = session.listing("/w", wakeup.set)
    asked = Asked(session, monkeypatch, "get_children")

    def heard() -> list[str]:
        assert wakeup.wait(5)
        wakeup.clear()
        return listing.names()

    assert listing.names() == []
    other.create("/w", b"")
    assert heard() == []
    other.create("/w/b", b"")
    assert heard() == ["b"]
    other.create("/w/a", b"")
    assert heard() == ["a", "b"]
    before = len(asked.calls)
    assert listing.names() == ["a", "b"]
    assert len(asked.calls) == before
    assert listing.names(fresh=True) == ["a", "b"]
    assert len(asked.calls) == before + 1
    other.delete("/w")
    assert heard() == []
    other.create("/w/c", b"")
    assert heard() in ([], ["c"])
    assert listing.names(fresh=True) == ["c"]
    listing.stop()
    session.client.flush()
    wakeup.clear()
    other.create("/w/d", b"")
    session.client.flush()
    assert not wakeup.is_set()


def test_a_handler_waits_for_the_sockets_that_kazoo_names() -> None:
    handler = zookeeper._Handler()
    one, two = socket.socketpair()
    with one, two:
        assert handler.select([one], [], [], 0.01) == ([], [], [])
        assert handler.select([one], [two], [], None) == ([], [two], [])
        two.send(b"x")
        assert handler.select([two, one], [], [], 5.0) == ([one], [], [])
        assert handler.select([one], [one], [], 0) == ([one], [one], [])
        two.close()
        one.recv(1)
        assert handler.select([one], [], [], 5.0) == ([one], [], []), "an end is read as such"
    with pytest.raises(ValueError, match="file descriptor"):
        handler.select([one], [], [], 0)


@pytest.mark.parametrize("ended_at", ["set", "exists", "delete"])
def test_the_clock_is_read_though_the_node_of_a_killed_process_goes_meanwhile(
    session: zookeeper.Coordination, store: object, monkeypatch: pytest.MonkeyPatch, ended_at: str
) -> None:
    killed = zookeeper.connect_embedded(store)
    assert killed.create("/progress/clock", b"", ephemeral=True)
    whole = getattr(session.client, ended_at)

    def call(path: str, *args: Any, **named: Any) -> Any:
        if path == "/progress/clock":
            killed.client.stop()
        return whole(path, *args, **named)

    monkeypatch.setattr(session.client, ended_at, call)
    assert session.clock("/progress") is not None
    assert session.children("/progress") == []
