"""What a hostile worker with a valid certificate writes into ZooKeeper of itself, its progress, answers and results.

Judged by what the product did not compute: the row of an honest host beside it, what is kept for operators, and
whether those who read it go on.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from support.rigs.valid_answers import VALID
from support.two_faults.stranger_lies import HOST, Lies

from droveway.clients.zookeeper import (
    Coordination,
    connect_embedded,
    embedded_store,
    progress_path,
    result_path,
    worker_path,
)
from droveway.doctor import workers as doctor
from droveway.engines.conductor import answers, incarnation
from droveway.engines.conductor.host_channel import HostChannel
from droveway.engines.keeper.daemon_registry import DaemonRegistry
from droveway.errors import Refused, step_error
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import daemons
from droveway.persistence.journal.tables import Counter, JournalBase
from droveway.persistence.restored import EPOCH
from droveway.wire import codec, commands, queries
from droveway.wire.values import harmless

HONEST: Final = "host1"
NOW: Final = 9
"""The epoch of the journal."""
KEY: Final = "f.copy_disks.execute.3"

MOST_TEXT: Final = 2000
MOST_SHOWN: Final = 4 * MOST_TEXT + 3
"""Characters of a text each of which is told by its code."""

_OBEYED: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@contextlib.contextmanager
def site(folder: Path) -> Iterator[tuple[Coordination, Database]]:
    """A ZooKeeper and a journal at the epoch `NOW`, with an honest host beside the hostile one."""
    session, journal = connect_embedded(embedded_store()), Database(sqlite_url(folder / "journal.sqlite"))
    try:
        JournalBase.metadata.create_all(journal.engine)
        with journal.write() as rows:
            rows.merge(Counter(name=EPOCH, value=NOW))
        incarnation.begin(session, journal)
        honest = {"hypervisor": "sandbox", "actions": ["a@1"], "address": "x", "epoch": NOW}
        session.create(worker_path(HONEST), msgspec.json.encode({"host": HONEST, "version": "1", **honest}))
        yield session, journal
    finally:
        session.close()
        journal.close()


def registration(folder: Path, lies: Lies) -> str:
    """What the stranger says of itself: no row but its own changes, and every conductor goes on."""
    said = lies.written(
        lambda: lies.bent(
            {
                "host": HOST, "version": "1", "hypervisor": "sandbox", "actions": ["a@1"], "address": "tcp:x:1",
                "epoch": NOW, "step": 7, "pid": 1, "boot": "b", "same_host_cold_migrate": False,
            },
            host=lambda: lies.choice((HONEST, lies.word())),
            version=lies.word, hypervisor=lies.word, address=lies.word, boot=lies.word,
            actions=lambda: [lies.word() for _ in range(lies.choice((1, 300)))],
            epoch=lies.number, step=lies.number, pid=lies.number,
        )
    )  # fmt: skip
    with site(folder) as (session, journal):
        DaemonRegistry(session, journal, name="c", version="1").round()
        before = rows_of(journal)
        session.create(worker_path(HOST), said)
        incarnation.begin(session, journal)
        DaemonRegistry(session, journal, name="c", version="1").round()
        after = rows_of(journal)
        if after.get(HONEST) != before[HONEST]:
            return f"the row of {HONEST} is {after.get(HONEST)} and was {before[HONEST]}"
        if others := set(after) - {HONEST, HOST}:
            return f"there are rows of {others}"
        if incarnation.given(session, journal) != (NOW, NOW):
            return f"the journal stands at {incarnation.given(session, journal)}"
        finding = doctor._registered(HOST, said, incarnation.given(session, journal)[0])
        return obeyed([finding.detail, *(str(each) for row in after.values() for each in row)])


def rows_of(journal: Database) -> dict[str, tuple[object, ...]]:
    """What the journal keeps of each worker."""
    with journal.read() as rows:
        return {
            row.name: (row.pid, row.version, tuple(row.knows), row.address, row.gone_at)
            for row, _ in daemons.listing(rows, daemons.WORKER)
        }


def progress(_: Path, lies: Lies) -> str:
    """How far the stranger says it is: what is believed has room in the columns."""
    said = lies.written(
        lambda: lies.bent(
            {"key": KEY, "done": 1, "total": 2, "kept": 0, "seconds": 0.5},
            key=lies.word, done=lies.number, total=lies.number, kept=lies.number, seconds=lies.plain,
        )
    )  # fmt: skip
    session = connect_embedded(embedded_store())
    try:
        session.create(progress_path(HOST, KEY), said)
        told = HostChannel(session).progress(HOST, KEY)
    finally:
        session.close()
    if told is None:
        return ""
    # As it stands there, whatever type the field is declared to have.
    kept = msgspec.to_builtins(told)
    counts = [kept[name] for name in ("done", "total", "kept")]
    if not all(isinstance(each, int) and 0 <= each < 2**63 for each in counts):
        return f"{counts} are kept"
    return "" if 0 <= kept["seconds"] <= 1e9 else f"{kept['seconds']} seconds are kept"


_HELD: Final[dict[str, dict[str, Any]]] = {
    "guest": {
        "server": "s", "name": "n", "running": True, "defined": True, "vcpus": 1, "memory_mb": 1, "move": "m",
    },
    "connection": {"server": "s", "volume": "v"},
    "interface": {"server": "s", "port": "p"},
    "store": {"id": "i", "path": "/p"},
    "entry": {"name": "n", "directory": True, "files": ["f"], "move": "m"},
    "digest": {"name": "n", "disk": "disk", "digest": "0" * 64, "read": 1, "size": 1},
}  # fmt: skip
_ANSWERS: Final = {
    "list_guests": {"guest", "connection", "interface"},
    "list_directories": {"store", "entry"},
    "digest_disks": {"digest"},
}


def page(_: Path, lies: Lies) -> str:
    """A page of its answer to a question: what is taken answers that question, in words that no terminal obeys."""
    question = lies.choice(sorted(_ANSWERS))

    def held() -> dict[str, Any]:
        kind = lies.choice(sorted(_HELD))
        words = dict.fromkeys(("server", "name", "move", "volume", "port", "id", "path", "disk", "digest"), lies.word)
        numbers = dict.fromkeys(("vcpus", "memory_mb", "read", "size"), lies.number)
        record = lies.bent(_HELD[kind], files=lambda: [lies.word()], **words, **numbers)
        return {"type": kind if lies.random() < 0.95 else lies.word(), **record}

    def told() -> dict[str, Any]:
        honest = {"id": "q", "host": HOST, "reading": "r", "number": 0, "pages": 1, "held": [], "error": ""}
        if lies.random() < 0.6:
            return honest | {"held": [held() for _ in range(lies.randrange(1, 4))]}
        lists = {"held": lambda: [held() for _ in range(3)]}
        numbers = {"number": lies.number, "pages": lies.number}
        words = dict.fromkeys(("id", "host", "reading", "error"), lies.word)
        return lies.bent(honest, **lists, **numbers, **words)

    asked = queries.Query(id="q", host=HOST, question=question, seconds=1.0)
    try:
        found = codec.decode_page(lies.written(told), asked, 0)
    except Refused as error:
        return obeyed(harmless(str(error)))
    if (found.id, found.host, found.number) != ("q", HOST, 0):
        return f"page {found.number} of {found.id!r} by {found.host!r} is taken"
    taken = msgspec.to_builtins(found)
    if other := {each["type"] for each in taken["held"]} - _ANSWERS[question]:
        return f"{other} is an answer to {question}"
    return obeyed(taken)


def result(_: Path, lies: Lies) -> str:
    """The result of its command: it is that of this command and claim, and its error may be stored and shown."""
    error = {"code": "disk-full", "message": "m", "host": HOST, "fault": "destination"}

    def told() -> dict[str, Any]:
        honest = {"key": KEY, "epoch": NOW, "value": {"disks": []}, "error": None}
        if lies.random() < 0.5:
            return honest | {"error": lies.bent(error, **dict.fromkeys(error, lies.word))}
        return lies.bent(honest, key=lies.word, epoch=lies.number, value=lies.tree)

    session = connect_embedded(embedded_store())
    try:
        session.create(result_path(HOST, KEY), lies.written(told))
        asked = commands.Command(
            key=KEY, host=HOST, move="m", server="s", epoch=NOW, step="s", action="connect", direction="execute",
            details={}, deadline=1.0,
        )  # fmt: skip
        found = HostChannel(session)._read_result(asked, lambda: None)
        left = session.get(result_path(HOST, KEY))
    finally:
        session.close()
    if found is None:
        return "" if left is None else "what was refused stands where the worker would answer again"
    if found.key != KEY or not 0 <= found.epoch <= NOW:
        return f"the result of {found.key!r} in epoch {found.epoch} is taken"
    if found.error is None:
        # As it stands there, whatever type the field is declared to have.
        value = msgspec.to_builtins(found)["value"]
        return "" if value is None or isinstance(value, dict) else f"the value {value!r} is taken"
    stored = step_error(found.error).as_dict()
    if other := {type(text).__name__ for text in stored.values()} - {"str"}:
        return f"{other} is stored of an error, which is text"
    return obeyed(stored)


_COUNTS: Final = ("starts", "size", "allocated", "sent", "bytes", "free_bytes", "virtual_size")
_CONDUCTORS: Final = ("declared-down", "host-unreachable", "fenced", "deleted", "evacuated", "parked", "overdue")
"""What a conductor says of a host, and acts on."""


def answer(_: Path, lies: Lies) -> str:
    """The value or the error in a result: it has what its action answers, and no conductor's words."""
    action = lies.choice(sorted(VALID))
    asked = commands.Command(
        key=KEY, host=HOST, move="m", server="s", epoch=NOW, step="s", action=action,
        direction=lies.choice(("execute", "execute", "execute", "revert")), details={"source": HONEST}, deadline=1.0,
    )  # fmt: skip
    error = {"code": "disk-full", "message": "m", "host": HOST, "fault": "destination"}

    def code() -> str:
        return lies.choice((lies.word(), *_CONDUCTORS))

    told = {"key": KEY, "epoch": NOW, "value": lies.planted(VALID[action])}
    if lies.random() < 0.3:
        told = {
            "key": KEY,
            "epoch": NOW,
            "error": lies.bent(error, code=code, host=lies.word),
        }
    try:
        found = answers.checked(asked, codec.decode_answer(json.dumps(told).encode(), KEY))
    except Refused:
        return ""
    if found.error is not None:
        if found.error["code"] in _CONDUCTORS:
            return f"the worker says {found.error['code']} of its host"
        peers = (HOST, HONEST) if action == "copy_disks" else (HOST,)
        return obeyed(found.error) if found.error["host"] in peers else f"{found.error['host'][:80]!r} is blamed"
    value = dict(found.value or {})
    if more := set(value) - set(VALID[action]):
        return f"{action} answers {more}"
    # The one text of many lines: it is compared and checked by whoever defines it, and shown nowhere.
    value.pop("definition", None)
    wrong = [number for name, number in _numbers(value) if name in _COUNTS and not 0 <= number < 2**63]
    return f"{wrong} is counted" if wrong else obeyed(value)


def _numbers(found: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(found, int | float):
        yield name, found
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from _numbers(value, key)
    elif isinstance(found, list):
        for value in found:
            yield from _numbers(value, name)


def obeyed(found: Any) -> str:
    """The first text in it that a terminal would obey, or that is longer than one line of a table may be."""
    for text in _texts(found):
        if _OBEYED.search(text):
            return f"a terminal would obey {text[:80]!r}"
        if len(text) > MOST_SHOWN:
            return f"a text of {len(text)} characters is kept"
    return ""


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(found, list):
        for value in found:
            yield from _texts(value)
