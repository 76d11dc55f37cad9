"""A hostile worker with a valid certificate, and a hostile disk: what is not theirs is safe; and the judge of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.two_faults import command, strangers
from support.two_faults.stranger_lies import Lies

from droveway.clients.zookeeper import result_path
from droveway.engines.conductor import answers
from droveway.engines.conductor.host_channel import HostChannel
from droveway.engines.keeper.daemon_registry import DaemonRegistry
from droveway.persistence.journal.tables import Daemon
from droveway.wire import codec, commands, queries
from droveway.workers.actions import copies
from droveway.workers.hypervisors import headers, qcow2
from droveway.workers.hypervisors.libvirt import xml as libvirt_xml
from droveway.workers.transfer import client as transfer
from droveway.workers.transfer.sources import LocalSource

SEED = 18
EACH = 32
"""Lies in the sample, of each place where one may be told."""


def surface(name: str) -> list[str]:
    return [point for point in strangers.points() if point.startswith(f"{name}:")]


@pytest.mark.parametrize("name", strangers.SURFACES)
def test_a_stranger_has_power_over_nothing_but_its_own(
    tmp_path: Path, record_property: Callable[[str, object], None], name: str
) -> None:
    chosen = command.sample(surface(name), EACH, SEED)
    verdicts = list(strangers.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (strangers.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert [each.point for each in verdicts] == chosen
    assert bad == []


def test_there_are_enough_lies_and_each_is_another_and_always_the_same() -> None:
    points = strangers.points()
    assert len(points) == len(set(points)) >= 640
    assert EACH * len(strangers.SURFACES) >= 200
    lies = {point: Lies(point).randbytes(9) for point in points}
    assert len(set(lies.values())) == len(points)
    assert Lies("registration:000").tree() == Lies("registration:000").tree()


def changing_another(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, rounds = DaemonRegistry.round, itertools.count(2)

    def round_and_more(registry: DaemonRegistry) -> None:
        whole(registry)
        with registry._journal.write() as rows:
            rows.execute(sa.update(Daemon).where(Daemon.name == "host1").values(version=str(next(rounds))))

    monkeypatch.setattr(DaemonRegistry, "round", round_and_more)


def believing_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        done, total, kept, seconds = 1, 2**63, 0, 0.0

    monkeypatch.setattr(HostChannel, "progress", lambda *_: Told())


def taking_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    every = (queries.Guest, queries.Connection, queries.Interface, queries.StoreRef, queries.Entry, queries.Digest)
    monkeypatch.setattr(codec, "QUERIES", dict.fromkeys(queries.QUERIES, queries.Schema(every, since=1)))


def storing_any_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "harmless", str)


def leaving_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HostChannel._read_result

    def read(channel: HostChannel, command: commands.Command, look: Callable[[], None]) -> commands.Result | None:
        found = whole(channel, command, look)
        if found is None:
            channel._coordination.create(result_path(command.host, command.key), b"as it was")
        return found

    monkeypatch.setattr(HostChannel, "_read_result", read)


def answering_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "checked", lambda _, result: result)


def speaking_for_conductors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CONDUCTOR_CODES", frozenset())


def following_a_disk_to_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "require_self_contained", lambda *_: None)


def opening_any_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "require_format", lambda *_: None)


def following_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qcow2.os, "O_NOFOLLOW", 0)


def defining_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libvirt_xml.Domain, "taken_over", classmethod(lambda kind, text: kind(text)))


def believing_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object, error: dict[str, str]) -> Exception:
        return transfer.StepError(error["message"], code=error["code"], host=error.get("host", ""))

    monkeypatch.setattr(transfer.RemoteSource, "_refused", refused)


def leaving_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "discard_copy", lambda *_, **__: None)


def serving_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(host: copies.Host, hello: copies.frames.Hello) -> LocalSource:
        name = f"{hello.server}_resize"
        return LocalSource(host.name, host.directories, name, host.directories.manifest(name))

    def file(source: LocalSource, disk: str) -> int:
        return copies.os.open(source.where / disk, copies.os.O_RDONLY)

    monkeypatch.setattr(copies, "admit", admit)
    monkeypatch.setattr(LocalSource, "file", file)


BROKEN = {
    changing_another: "registration",
    believing_any_number: "progress",
    taking_any_answer: "page",
    storing_any_words: "result",
    leaving_what_was_refused: "result",
    answering_anything: "answer",
    speaking_for_conductors: "answer",
    following_a_disk_to_its_data: "header",
    opening_any_format: "header",
    following_links: "header",
    defining_anything: "definition",
    believing_a_peer: "source",
    leaving_copies: "source",
    serving_anything: "asker",
}


@pytest.mark.parametrize("breaks", BROKEN, ids=lambda breaks: breaks.__name__)
def test_what_is_broken_by_hand_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: Callable[[pytest.MonkeyPatch], None]
) -> None:
    breaks(monkeypatch)
    with contextlib.closing(strangers.run(tmp_path, surface(BROKEN[breaks]))) as verdicts:
        assert next(verdict.trouble for verdict in verdicts if verdict.trouble)
