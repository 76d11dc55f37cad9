"""What a source answers who fetches its disks is a stranger's word, and so is what stands under a disk's name."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from droveway.errors import DestinationFault, Fenced, StepError
from droveway.wire import codec, commands
from droveway.wire.values import LONGEST_ERROR, MOST_BYTES
from droveway.workers import run
from droveway.workers.hypervisors import qcow2
from droveway.workers.transfer import client as transfer
from droveway.workers.transfer import extents, frames
from droveway.workers.transfer.client import RemoteSource

HELLO = frames.Hello(peer="beta", server="s", move="m", epoch=1)

Answering = Callable[..., RemoteSource]


@pytest.fixture(name="answering")
def fixture_answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """A source that welcomes, and then says these things."""
    ends: list[socket.socket] = []

    def make(*said: frames.Frame, pause: Callable[[float], None] = lambda _: None) -> RemoteSource:
        here, there = socket.socketpair()
        ends.extend((here, there))
        there.settimeout(30)
        monkeypatch.setattr(transfer.endpoints, "connect", lambda *_: here)
        for frame in (frames.Welcome(disks=[]), *said):
            frames.FrameSocket(there).send(frame)
        return RemoteSource("alpha", "unix:x", HELLO, pause=pause, patience=0.0)

    yield make
    for end in ends:
        end.close()


def refused(source: RemoteSource) -> StepError:
    with pytest.raises(StepError) as told:
        source.disk_map("disk")
    return told.value


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": "guest-runs", "message": "it runs", "host": "host9"}, "guest-runs", "it runs"),
        ({"code": "declared-down", "message": "it is off"}, "protocol", "it is off"),
        ({"code": "restored", "message": "it is old"}, "protocol", "it is old"),
        ({"code": "disk-full", "message": "no room", "fault": "destination"}, "protocol", "no room"),
        ({"message": "m"}, "protocol", "m"),
        ({"code": "missing"}, "missing", "host alpha refuses and does not say why"),
        ({}, "protocol", "host alpha refuses and does not say why"),
    ],
)
def test_a_refusal_is_about_its_own_host_and_no_conductors_word(
    answering: Answering, error: dict[str, str], code: str, message: str
) -> None:
    told = refused(answering(frames.Refusal(error=error)))
    assert (told.error_code, told.message, told.host) == (code, message, "alpha")
    assert not isinstance(told, DestinationFault), "no alternate is tried for what the source says"


@pytest.mark.parametrize("message", ["\0", "\x1b[2J\nall is well", "x" * 60_000])
def test_a_conductor_can_read_what_is_answered_with_it(answering: Answering, message: str) -> None:
    """Else it takes the answer for none, asks again, and holds the honest host for the one that does not answer."""
    told = refused(answering(frames.Refusal(error={"code": "missing", "message": message})))
    answer = codec.decode_result(codec.encode(commands.Result(key="k", epoch=1, error=told.as_dict())))
    assert answer.error is not None
    assert answer.error["message"].isprintable()
    assert len(answer.error["message"]) <= LONGEST_ERROR


def test_a_source_that_knows_of_a_newer_claim_is_believed(answering: Answering) -> None:
    with pytest.raises(Fenced, match="it is over"):
        answering(frames.Refusal(error={"code": "fenced", "message": "it is over"})).disk_map("disk")


@pytest.mark.parametrize(
    ("said", "waited"), [(0.5, 0.5), (-1.0, 0.0), (1e308, transfer.LONGEST_PAUSE), (1e6, transfer.LONGEST_PAUSE)]
)
def test_who_is_put_off_asks_again_within_a_minute(answering: Answering, said: float, waited: float) -> None:
    paused: list[float] = []
    source = answering(frames.LaterFrame(seconds=said), frames.ChunkFrame(checksum="c"), pause=paused.append)
    assert source.read("disk", 0, 0, extents.memory())[1] == "c"
    assert paused == [waited]
    assert transfer.LONGEST_PAUSE <= 60


def test_no_word_makes_an_answer_that_no_conductor_takes() -> None:
    """A disk's name that a source tells may be in any sentence of the destination's."""
    error = StepError("x" * 2 * MOST_BYTES, code="protocol", host="\0")
    answer = codec.decode_result(codec.encode(commands.Result(key="k", epoch=1, error=run.readable(error))))
    assert answer.error is not None
    assert answer.error["message"] == "x" * (LONGEST_ERROR - 3) + "..."
    assert answer.error["host"] == "\\x00"


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


def listening(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFSOCK)


@pytest.mark.parametrize("make", [link, listening, os.mkfifo, Path.mkdir])
def test_what_is_no_plain_file_is_told_as_that(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "disk")
    with pytest.raises(StepError, match=r"disk is no plain file$") as told:
        qcow2.info(tmp_path / "disk", "raw")
    assert told.value.error_code == "link"
