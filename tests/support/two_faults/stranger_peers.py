"""A hostile worker at either end of the transfer of disks: what it answers who fetches, and what it asks who serves.

Judged by the hosts' files, by the bytes that were sent, and by whether the honest end goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from support.rigs.worker_rig import MOVE, PROBE, SERVER, Cloud, cloud
from support.two_faults import stranger_words
from support.two_faults.stranger_lies import Lies

from droveway.errors import Fenced, Refused, StepError
from droveway.wire import codec, commands
from droveway.wire.values import MOST_BYTES
from droveway.workers import run
from droveway.workers.transfer import client as transfer
from droveway.workers.transfer import frames
from droveway.workers.transfer.client import RemoteSource

SECRET: Final = b"a neighbour's own bytes, which are nobody's business"
NEIGHBOUR: Final = "77777777-2ee8-4b0d-9e2c-6b2d60f6ad77"
SILENCE: Final = 5.0
"""Seconds for which an end waits for the other one."""

PATIENCE: Final = 180.0
"""Seconds within which an honest end is served, on however busy a machine."""

_LENGTHS: Final = struct.Struct("!II")
_MIB: Final = 1 << 20


def source(folder: Path, lies: Lies) -> str:
    """The disks' source answers the destination that fetches them: its undo leaves that host as it was."""
    with _quickly(), cloud(folder) as made, _liar(made, lies):
        made.make_server(root_mib=1, swap=False)
        made.run("alpha", "set_aside")
        made.hosts["beta"].directories.create(NEIGHBOUR)
        made.hosts["beta"].directories.path(NEIGHBOUR, "disk").write_bytes(SECRET)
        before = _files(made)
        address = made.hosts["alpha"].transfer_address
        details = commands.CopyDisks(variant="pull", source="alpha", address=address, probe=PROBE)
        try:
            made.run("beta", "copy_disks", details)
        except (StepError, Fenced) as error:
            if wrong := _misled(error):
                return wrong
        copied = _files(made)
        if strays := [name for name in _changed(before, copied) if f"beta/instances/{SERVER}" not in name]:
            return f"other files were changed: {strays}"
        made.run("beta", "copy_disks", details, direction="revert")
        return f"the undo left {left}" if (left := _changed(before, _files(made))) else ""


def asker(folder: Path, lies: Lies) -> str:
    """Who fetches asks the source: it gets no byte of a neighbour, and an honest one is served after it."""
    with cloud(folder) as made:
        made.make_server(root_mib=1, swap=False)
        alpha = made.hosts["alpha"]
        alpha.directories.create(NEIGHBOUR)
        (alpha.directories.path(NEIGHBOUR, "disk")).write_bytes(SECRET * 100)
        made.run("alpha", "set_aside")
        made.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
        made.serve("alpha")
        before = _files(made)
        got = _ask(alpha.transfer_address.removeprefix("unix:"), lies)
        if SECRET in got:
            return "a neighbour's bytes were sent"
        if changed := _changed(before, _files(made)):
            return f"files were changed: {changed}"
        hello = frames.Hello(peer="beta", server=SERVER, move=MOVE, epoch=1)
        honest = RemoteSource("alpha", alpha.transfer_address, hello, pause=time.sleep, patience=PATIENCE)
        with contextlib.closing(honest):
            names = [disk.name for disk in honest.offered().disks]
        return "" if names == ["disk"] else f"an honest host was offered {names}"


_OWN: Final = {
    "protocol", "checksum", "source-changed", "source-unreachable", "disk-format", "disk-full", "address", "fenced",
    "not-offered", "guest-runs", "certificate", "missing", "link", "damaged", "storage-away",
}  # fmt: skip
"""Codes by which a copy may fail; all others are a conductor's words, or this worker's own fault."""


def _misled(error: StepError | Fenced) -> str:
    """What is wrong with the error that the destination's worker would answer its conductor with."""
    if isinstance(error, Fenced):
        return ""
    answer = codec.encode(commands.Result(key="k", epoch=1, error=run.readable(error)))
    try:
        answered = codec.decode_result(answer).error
    except Refused as why:
        return f"no conductor takes the destination's answer: {why}"
    if error.error_code not in _OWN:
        return f"the destination answers with {error.error_code[:40]!r}: {error.message[:80]!r}"
    if error.host not in ("", "alpha", "beta"):
        return f"host {error.host[:40]!r} is blamed"
    return stranger_words.obeyed(answered)


@contextlib.contextmanager
def _quickly() -> Iterator[None]:
    """A source that breaks off is not asked again for long, and one that puts this end off is soon."""
    known: Any = RemoteSource.__init__.__kwdefaults__
    patience, pause = known["patience"], transfer.LONGEST_PAUSE
    known["patience"] = 0.2
    # A constant, which only this transfer shortens.
    setattr(transfer, "LONGEST_PAUSE", 0.05)  # noqa: B010
    try:
        yield
    finally:
        known["patience"] = patience
        setattr(transfer, "LONGEST_PAUSE", pause)  # noqa: B010


@contextlib.contextmanager
def _liar(made: Cloud, lies: Lies) -> Iterator[None]:
    """A source that answers at alpha's address, one peer after another, until the block ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(made.hosts["alpha"].transfer_address.removeprefix("unix:"))
    listener.listen()
    listener.settimeout(0.1)
    over = threading.Event()
    about = lies.choice(("welcome", "map", "chunk"))

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.settimeout(SILENCE)
                    _answer(made, peer, about, lies)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        listener.close()


def _answer(made: Cloud, peer: socket.socket, about: str, lies: Lies) -> None:
    """Answer honestly but ``about`` one thing, on and on."""
    disk = made.hosts["alpha"].directories.path(f"{SERVER}_resize", "disk")
    for _ in range(8):
        answer, data = _honest(disk, _received(peer))
        if answer["type"] != about or lies.random() < 0.1:
            _send(peer, json.dumps(answer).encode(), data)
            continue
        turn = lies.random()
        if turn < 0.15:
            answer = {"type": "refusal", "error": _refusal(lies)}
        elif turn < 0.3:
            later = lies.choice((0, -1, 1e308, lies.plain()))
            kinds = ("later",) if answer["type"] == "chunk" else ("later", "hello", "map", "chunk", lies.word())
            answer = {"type": lies.choice(kinds), "seconds": later}
        elif turn < 0.9:
            answer = {"type": answer["type"], **_bent(answer, lies)}
        said = json.dumps(answer).encode() if turn < 0.95 else lies.randbytes(40)
        _send(peer, said, data if lies.random() < 0.7 else lies.randbytes(lies.choice((0, 1, 4096))))


def _refusal(lies: Lies) -> dict[str, Any]:
    return lies.bent(
        {"code": "protocol", "message": "m", "host": "alpha", "fault": "destination"},
        code=lambda: lies.choice(("fenced", "coordination", "declared-down", "unreachable", lies.word())),
        message=lies.word, host=lies.word, fault=lies.word,
    )  # fmt: skip


def _honest(disk: Path, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    facts = disk.stat()
    if asked["type"] == "hello":
        known = {"name": "disk", "format": "raw", "size": facts.st_size, "allocated": facts.st_blocks * 512}
        return {"type": "welcome", "disks": [known | {"mtime_ns": facts.st_mtime_ns, "inode": facts.st_ino}]}, b""
    if asked["type"] == "map?":
        identity = {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns, "inode": facts.st_ino, "ctime_ns": 0}
        return {"type": "map", "map": {"identity": identity, "extents": [[0, facts.st_size]]}}, b""
    with disk.open("rb") as file:
        file.seek(asked["offset"])
        data = file.read(asked["length"])
    return {"type": "chunk", "checksum": hashlib.sha256(data).hexdigest()}, data


def _bent(answer: dict[str, Any], lies: Lies) -> dict[str, Any]:
    fields = {name: value for name, value in answer.items() if name != "type"}

    def disk() -> dict[str, Any]:
        words = dict.fromkeys(("name", "format", "checksum", "backing", "backing_format"), lies.word)
        return lies.bent(
            fields["disks"][0] | {"backing": "", "backing_format": ""}, size=lies.number, **words | {"name": name}
        )

    def name() -> str:
        return lies.choice((lies.word(), "x" * 2 * MOST_BYTES, f"../{NEIGHBOUR}/disk", "disk.swap", "disk.eph0"))

    def extents() -> list[list[int]]:
        return [[lies.choice((0, -1, 4096, lies.number())), lies.choice((4096, 0, lies.number()))] for _ in range(3)]

    def where() -> dict[str, Any]:
        if lies.random() < 0.5:
            return {**fields["map"], "extents": extents()}
        numbers = dict.fromkeys(("size", "mtime_ns", "inode", "ctime_ns"), lies.number)
        return {**fields["map"], "identity": lies.bent(fields["map"]["identity"], **numbers)}

    return lies.bent(
        fields,
        disks=lambda: [disk() for _ in range(lies.randrange(1, 4))],
        map=where,
        checksum=lambda: lies.choice((lies.word(), "0" * 64)),
    )


def _ask(path: str, lies: Lies) -> bytes:
    """Ask as nobody should; all that was sent back."""
    got = b""
    hello = {"type": "hello", "peer": "beta", "server": SERVER, "move": MOVE, "epoch": 1}
    names = ("disk", f"../{NEIGHBOUR}/disk", f"{NEIGHBOUR}/disk", "droveway.json", "base-x", lies.word())
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(SILENCE)
        peer.connect(path)
        others = {"server": lambda: lies.choice((NEIGHBOUR, f"../{NEIGHBOUR}", lies.word()))}
        first = hello if lies.random() < 0.6 else lies.bent(
            hello, peer=lies.word, move=lies.word, epoch=lies.number, **others
        )  # fmt: skip
        asked = [first] + [
            lies.choice((
                {"type": "map?", "disk": lies.choice(names)},
                {"type": "chunk?", "disk": lies.choice(names), "offset": lies.choice((0, 4096, lies.number())),
                 "length": lies.choice((4096, 5 * _MIB, lies.number()))},
                {"type": lies.choice(("welcome", "map", "later", "refusal", "hello"))},
                lies.tree(),
            ))
            for _ in range(lies.randrange(4))
        ]  # fmt: skip
        with contextlib.suppress(OSError):
            for each in asked:
                _send(peer, json.dumps(each).encode(), lies.choice((b"", b"", b"x" * 100)))
                got += _frame(peer)
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
            while more := peer.recv(_MIB):
                got += more
    return got


def _send(peer: socket.socket, said: bytes, data: bytes) -> None:
    peer.sendall(_LENGTHS.pack(len(said), len(data)) + said + data)


def _frame(peer: socket.socket) -> bytes:
    lengths = _exactly(peer, _LENGTHS.size)
    return _exactly(peer, sum(_LENGTHS.unpack(lengths)))


def _received(peer: socket.socket) -> dict[str, Any]:
    header, data = _LENGTHS.unpack(_exactly(peer, _LENGTHS.size))
    found: dict[str, Any] = msgspec.json.decode(_exactly(peer, header + data)[:header])
    return found


def _exactly(peer: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = peer.recv(count - len(got))
        if not more:
            raise ConnectionError("it hung up")
        got += more
    return got


def _files(made: Cloud) -> dict[str, str]:
    """Every file and directory of both hosts but what they note of their own work, with what it holds."""
    found = {}
    for path in sorted((made.folder / "hosts").rglob("*")):
        name = str(path.relative_to(made.folder / "hosts"))
        if "actions.sqlite" in name or path.name in (PROBE, ".droveway-store"):
            continue
        held = str(path.readlink()) if path.is_symlink() else ""
        held = held or (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory")
        found[name] = held
    return found


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
