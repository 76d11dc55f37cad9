"""What workers tell of their hosts when they are asked, and what is taken of it: real workers, real records."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.rigs.worker_rig import MOVE, PORT, SERVER, VOLUME, Cloud, cloud

from droveway.clients import zookeeper
from droveway.clients.zookeeper import command_path, page_path, query_path, result_path, worker_path
from droveway.engines.conductor import host_channel
from droveway.engines.conductor.host_channel import HostChannel, HostContents
from droveway.errors import CoordinationLost, Refused
from droveway.wire import codec, commands, queries
from droveway.wire.values import MOST_BYTES
from droveway.workers import host_contents, stores
from droveway.workers import host_queries as answering
from droveway.workers.daemon import Worker
from droveway.workers.host_queries import HostQueries

SHORT = 0.5
"""Seconds for an answer that never comes."""
LONG = 20.0


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        yield made


@pytest.fixture(name="started")
def fixture_started(site: Cloud) -> Iterator[Callable[..., Worker]]:
    parts: list[Worker | HostQueries] = []

    def start(name: str = "alpha") -> Worker:
        worker = site.worker(name)
        worker.start()
        serving = HostQueries(name, worker.hypervisor, worker.coordination)
        serving.start()
        parts.extend((serving, worker))
        eventually(lambda: site.coordination.get(worker_path(name)))
        return worker

    yield start
    for part in parts:
        part.stop()
        if isinstance(part, Worker):
            part.coordination.close()


def told(site: Cloud, host: str = "alpha", **options: Any) -> HostContents:
    return HostChannel(site.coordination).query([host], **{"seconds": LONG, **options})[host]


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until it is so."""
    ends, wakeup = time.monotonic() + LONG, threading.Event()
    while not condition():
        assert time.monotonic() < ends
        wakeup.wait(0.005)


def left(site: Cloud, host: str = "alpha") -> list[str]:
    """What of queries stands in ZooKeeper."""
    return [*site.coordination.children(query_path(host)), *site.coordination.children(page_path(host))]


class Hostile:
    """A worker that registers and answers each query with what it is told to."""

    def __init__(self, site: Cloud, answer: Callable[[queries.Query], dict[str, bytes]], **facts: Any) -> None:
        self._coordination = site.coordination
        self._answer = answer
        known = [f"{name}@1" for name in (*commands.ACTIONS, *queries.QUERIES)]
        record = commands.Registration(
            host="alpha", version="1", hypervisor="sandbox", actions=known, address="unix:/x"
        )
        data = codec.encode(msgspec.structs.replace(record, **facts))
        assert site.coordination.create(worker_path("alpha"), data, ephemeral=True)
        self._stop = site.coordination.watch(query_path("alpha"), self._look)

    def _look(self) -> None:
        for name in self._coordination.children(query_path("alpha")):
            found = self._coordination.get(query_path("alpha", name))
            if found is not None:
                for number, data in self._answer(codec.decode_query(found[0], "alpha", name)).items():
                    self._coordination.create(page_path("alpha", f"{name}.{number}"), data)


def page(query: queries.Query, **facts: Any) -> queries.Page:
    held: list[queries.Held] = [] if query.question == "list_guests" else [queries.StoreRef(id="a", path="/a")]
    standing = queries.Page(id=query.id, host=query.host, reading="r", number=0, pages=1, held=held)
    return msgspec.structs.replace(standing, **facts)


def guest(server: str = SERVER) -> queries.Guest:
    return queries.Guest(server=server, name="web", running=True, defined=True, vcpus=1, memory_mb=1)


def test_a_worker_tells_all_that_its_host_holds(site: Cloud, started: Callable[..., Worker]) -> None:
    instances = site.hosts["alpha"].hypervisor.instances
    (instances / f"{SERVER}_resize").mkdir()
    (instances / f"{SERVER}_resize" / "droveway-manifest.json").write_text(f'{{"move": "{MOVE}", "epoch": 1}}')
    (instances / "odd\x1b[2J\udcff").write_bytes(b"")
    (instances / "link").symlink_to(instances / SERVER)
    started()
    answer = told(site)
    assert answer.why == ""
    by_kind = {kind: [each for each in answer.held if isinstance(each, kind)] for kind in queries.Held.__args__}
    assert by_kind[queries.Guest] == [
        queries.Guest(server=SERVER, name="web", running=False, defined=True, vcpus=1, memory_mb=64)
    ]
    assert by_kind[queries.Connection] == [queries.Connection(server=SERVER, volume=VOLUME.volume)]
    assert by_kind[queries.Interface] == [queries.Interface(server=SERVER, port=PORT.port)]
    (store,) = by_kind[queries.StoreRef]
    assert store == queries.StoreRef(id=host_contents.store(instances), path=str(instances))
    entries = {each.name: each for each in by_kind[queries.Entry]}
    assert {"disk", "disk.swap"} <= set(entries[SERVER].files)
    assert entries[f"{SERVER}_resize"] == queries.Entry(
        name=f"{SERVER}_resize", directory=True, files=["droveway-manifest.json"], move=MOVE
    )
    assert entries["odd\\x1b[2J\\udcff"] == queries.Entry(name="odd\\x1b[2J\\udcff", directory=False)
    assert entries["link"] == queries.Entry(name="link", directory=False)
    assert stores.STORE not in entries
    assert left(site) == []


def test_a_large_answer_comes_in_pages_of_which_none_is_missing(site: Cloud, started: Callable[..., Worker]) -> None:
    """Thousands of directories, and one with more files than one record has."""
    instances = site.hosts["alpha"].hypervisor.instances
    names = {f"{number:05}-{'x' * 200}" for number in range(3000)}
    for name in names:
        (instances / name).touch()
    (instances / "many").mkdir()
    files = {str(number) + "\x01" * 240 for number in range(2 * host_contents.MOST_FILES + 1)}
    for name in files:
        (instances / "many" / name).touch()
    started()
    answer = told(site)
    assert answer.why == ""
    entries = [each for each in answer.held if isinstance(each, queries.Entry)]
    assert names <= {entry.name for entry in entries}
    many = [entry.files for entry in entries if entry.name == "many"]
    assert [len(part) for part in many] == [100, 100, 1]
    assert {name for part in many for name in part} == {name.replace("\x01", "\\x01") for name in files}
    parts = list(answering.split(answer.held))
    assert len(parts) > 2
    assert [each for part in parts for each in part] == list(answer.held)


def test_too_much_is_told_as_such_and_never_cut(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    # msgspec reads the bounds of a type when it is first used, and keeps them for all tests that follow.
    msgspec.json.Decoder(queries.Page)
    monkeypatch.setattr(answering, "ROOM", 1)
    monkeypatch.setattr(queries, "MOST_PAGES", 2)
    started()
    assert told(site) == HostContents(why="the host holds too much for one answer: 3 pages, and 2 are accepted")


def test_what_a_host_cannot_read_is_said(site: Cloud, started: Callable[..., Worker]) -> None:
    instances = site.hosts["alpha"].hypervisor.instances
    (instances / stores.STORE).write_text("no id\n")
    started()
    assert "holds no id of the directory" in told(site).why
    (instances / stores.STORE).unlink()
    assert told(site).why == ""


def test_hosts_of_one_directory_name_one_store_however_many_write_it_at_once(tmp_path: Path) -> None:
    """Whole and once: nobody reads half an id, and nothing beside it is left."""
    found: list[str] = []
    gate = threading.Barrier(8)

    def read() -> None:
        gate.wait()
        found.append(host_contents.store(tmp_path))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(tmp_path) == [stores.STORE]  # noqa: PTH208
    assert (tmp_path / stores.STORE).stat().st_mode & 0o777 == 0o644


def test_a_host_without_a_worker_or_with_an_old_one_is_not_asked(site: Cloud) -> None:
    assert told(site).why == "no worker of it is up"
    old = [f"{name}@1" for name in commands.ACTIONS]
    Hostile(site, lambda _: pytest.fail("it was asked"), version="0.9", actions=old)
    assert told(site).why == "its worker (0.9) does not know list_guests@1: upgrade it first"
    assert left(site) == []


def test_nothing_is_asked_that_the_pin_forbids(site: Cloud, started: Callable[..., Worker]) -> None:
    started()
    assert "list_guests came with protocol level 3" in told(site, pinned=2).why
    assert "digest_disks came with protocol level 4" in told(site, pinned=3).why
    assert told(site, pinned=4).why == ""


def test_a_worker_that_is_mute_or_goes_away_is_waited_for_no_longer_than_that(site: Cloud) -> None:
    Hostile(site, lambda _: {})
    assert told(site, seconds=SHORT).why == "its worker is up and did not answer within 0 s"
    site.coordination.delete(worker_path("alpha"))
    assert left(site) == []

    def leave(_: queries.Query) -> dict[str, bytes]:
        site.coordination.delete(worker_path("alpha"))
        return {}

    Hostile(site, leave)
    assert told(site).why == "its worker went away before it answered"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda asked: b"{", "no valid page"),
        (lambda asked: b"x" * (MOST_BYTES + 1), "bytes, more than a page may have"),
        (lambda asked: codec.encode(page(asked, host="beta")), "by host beta"),
        (lambda asked: codec.encode(page(asked, id="other")), "page 0 of other"),
        (lambda asked: codec.encode(page(asked, number=1)), "page 1 of"),
        (lambda asked: codec.encode(page(asked, pages=queries.MOST_PAGES + 1)), "no valid page"),
        (lambda asked: codec.encode(page(asked, pages=0)), "no valid page"),
        (lambda asked: codec.encode(page(asked, held=[guest("../x")])), "no valid page"),
        (lambda asked: codec.encode(page(asked, held=[guest("a\n")])), "no valid page"),
        (lambda asked: codec.encode(page(asked, error="a\x1b[2J")), "no valid page"),
        (lambda asked: codec.encode(page(asked, held=[queries.Entry(name="a\nb", directory=True)])), "no valid page"),
        (lambda asked: codec.encode(page(asked, held=[queries.StoreRef(id="a", path="/a\x9b2J")])), "no valid page"),
        (
            lambda asked: codec.encode(page(asked, held=[queries.Entry(name="a", directory=True)])),
            "a entry, which is no answer to list_guests",
        ),
    ],
    ids=[
        "malformed", "large", "another-host", "another-question", "another-number", "pages", "no-page", "server",
        "line", "terminal", "name", "path", "kind",
    ],
)  # fmt: skip
def test_what_a_hostile_worker_answers_is_refused(
    site: Cloud, wrong: Callable[[queries.Query], bytes], why: str
) -> None:
    Hostile(site, lambda asked: {"0": wrong(asked)})
    answer = told(site)
    assert answer.held == ()
    assert answer.why.startswith("what its worker answered is refused: ")
    assert why in answer.why
    assert left(site) == []


def test_pages_of_two_readings_make_no_answer(site: Cloud) -> None:
    """A worker that died in the middle of its answer: what the next one says begins anew."""
    Hostile(
        site,
        lambda asked: {
            "0": codec.encode(page(asked, pages=2)),
            "1": codec.encode(page(asked, reading="later", number=1, pages=2)),
        },
    )
    assert "did not answer" in told(site, seconds=SHORT).why


def test_what_an_earlier_worker_was_about_to_answer_is_answered_anew(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an answer is removed by the worker that starts, which answers what still stands."""
    asked = queries.Query(id="i1", host="alpha", question="list_guests", seconds=LONG)
    site.coordination.create(query_path("alpha", "i1"), codec.encode(asked))
    site.coordination.create(page_path("alpha", "i1.0"), codec.encode(page(asked, pages=2)))
    site.coordination.create(page_path("alpha", "gone.0"), b"")
    started()
    monkeypatch.setattr(host_channel, "POLL_EVERY", 0.01)
    assert told(site).why == ""
    node = site.coordination.get(page_path("alpha", "i1.0"))
    assert node is not None
    found = codec.decode_page(node[0], asked, 0)
    assert (found.pages, [type(held) for held in found.held][:1]) == (1, [queries.Guest])
    assert site.coordination.children(page_path("alpha")) == ["i1.0"]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        codec.encode(queries.Query(id="i2", host="beta", question="list_guests", seconds=1)),
        codec.encode(queries.Query(id="other", host="alpha", question="list_guests", seconds=1)),
    ],
    ids=["malformed", "another-host", "another-name"],
)
def test_an_inquiry_that_is_none_is_refused_and_others_are_answered(
    site: Cloud, started: Callable[..., Worker], data: bytes
) -> None:
    site.coordination.create(query_path("alpha", "i2"), data)
    started()
    assert told(site).why == ""
    assert left(site) == ["i2"]
    with pytest.raises(Refused):
        codec.decode_query(data, "alpha", "i2")


def test_a_question_of_a_later_release_is_answered_with_a_refusal(site: Cloud, started: Callable[..., Worker]) -> None:
    asked = queries.Query(id="i3", host="alpha", question="list_moons", seconds=LONG)
    site.coordination.create(query_path("alpha", "i3"), codec.encode(asked))
    started()
    assert told(site).why == ""
    node = site.coordination.get(page_path("alpha", "i3.0"))
    assert node is not None
    assert msgspec.json.decode(node[0], type=queries.Page).error == (
        "this worker does not know the query list_moons@1: upgrade it first"
    )


def test_an_inquiry_ends_with_the_session_of_who_asked(site: Cloud) -> None:
    """Nobody is left to take it back when the command that asked was killed."""
    Hostile(site, lambda _: {})
    session = zookeeper.connect_embedded(site.store)
    ended: list[str] = []

    def wait() -> None:
        try:
            HostChannel(session).query(["alpha"], seconds=LONG)
        except CoordinationLost as error:
            ended.append(str(error))

    asking = threading.Thread(target=wait)
    asking.start()
    eventually(lambda: len(left(site)) == len(queries.QUERIES))
    session.close()
    eventually(lambda: left(site) == [])
    asking.join()
    assert ended != []


def hanging(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the hypervisor be read without end: set once it is read, and what lets the reading go on."""
    reads, goes_on = threading.Event(), threading.Event()

    def hang(_: Any) -> Iterator[queries.Held]:
        reads.set()
        assert goes_on.wait(LONG)
        yield guest()

    monkeypatch.setitem(answering.QUESTIONS, "list_guests", hang)
    return reads, goes_on


@pytest.mark.parametrize("why", ["taken back", "late"])
def test_what_nobody_waits_for_any_more_is_not_answered(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A directory that hung while it was read: the query was taken back, or its time is over."""
    reads, goes_on = hanging(monkeypatch)
    worker, made = started(), list[str]()
    create = worker.coordination.create
    monkeypatch.setattr(
        worker.coordination, "create", lambda path, *data, **how: made.append(path) or create(path, *data, **how)
    )
    asked = queries.Query(id="i4", host="alpha", question="list_guests", seconds=0.0 if why == "late" else LONG)
    site.coordination.create(query_path("alpha", "i4"), codec.encode(asked))
    assert reads.wait(LONG)
    if why == "taken back":
        site.coordination.delete(query_path("alpha", "i4"))
    goes_on.set()
    # It takes the next one when it is done with this one.
    assert told(site).why == ""
    assert page_path("alpha", "i4.0") not in made
    assert len(made) >= len(queries.QUERIES)


def test_commands_go_on_while_an_answer_hangs(
    site: Cloud, started: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on = hanging(monkeypatch)
    started()
    try:
        assert "did not answer" in told(site, seconds=SHORT).why
        assert reads.is_set()
        command = site.command("alpha", "describe_guest")
        site.coordination.create(command_path("alpha", command.key), codec.encode(command))
        eventually(lambda: site.coordination.get(result_path("alpha", command.key)))
    finally:
        goes_on.set()
