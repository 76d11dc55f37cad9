"""Asking the workers what their hosts hold: under no move and no claim, and nothing is changed by it.

An inquiry is a node ``/hosts/HOST/inquiries/ID`` that ends with the session of who asks; the pages of its answer are
nodes ``/hosts/HOST/answers/ID.NUMBER``.  Whatever a host says counts for that host alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from droveway.clients.zookeeper import (
    HOSTS,
    Coordination,
    command_path,
    inquiry_path,
    page_path,
    progress_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor import eligibility, registrations
from droveway.errors import CoordinationLost, Refused
from droveway.wire import codec, commands, queries

SECONDS: Final = 30.0
"""So long a worker that is up may take to answer."""

LOOK_EVERY: Final = 0.5
"""Seconds between two looks for answers though nothing woke it."""

AT_ONCE: Final = 64
"""So many hosts are asked at a time."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a host holds, all questions together; when ``why`` says something, nobody knows."""

    held: tuple[queries.Held, ...] = ()
    why: str = ""


class Unanswered(Exception):
    """The worker says why there is no answer."""


def ask(
    coordination: Coordination, hosts: Iterable[str], *, pinned: int | None = None, seconds: float = SECONDS
) -> dict[str, Answer]:
    """The answer of every host to every question there is; raises `droveway.errors.CoordinationLost`.

    ``pinned``: the level that operators allow to be spoken to workers, None for this release's own; ``seconds``: how
    long is waited for workers that are up.
    """
    workers = registrations.workers(coordination)
    answers: dict[str, Answer] = {}
    able = []
    for host in sorted(hosts):
        if why := _unable(workers.get(host), pinned):
            answers[host] = Answer(why=why)
        else:
            able.append(host)
    for start in range(0, len(able), AT_ONCE):
        answers |= _ask_some(coordination, able[start : start + AT_ONCE], seconds)
    return answers


def standing(coordination: Coordination) -> list[tuple[str, str, str]]:
    """Host, folder and name of every command, result and progress node; raises `droveway.errors.CoordinationLost`."""
    return [
        (host, folder, key)
        for host in coordination.children(HOSTS)
        for folder, path in (("commands", command_path), ("results", result_path), ("progress", progress_path))
        for key in coordination.children(path(host))
    ]


def _unable(worker: commands.Registration | None, pinned: int | None) -> str:
    """Why the worker cannot be asked; empty when it can."""
    if worker is None:
        return "no worker of it is up"
    known = eligibility.Known(worker.version, worker.actions)
    return next(
        (why for question in queries.INQUIRIES if (why := eligibility.unsupported(known, question, pinned))), ""
    )


def _ask_some(coordination: Coordination, hosts: Sequence[str], seconds: float) -> dict[str, Answer]:
    wakeup = threading.Event()
    ends = time.monotonic() + seconds
    waiting = {
        host: [
            queries.Inquiry(id=str(uuid.uuid4()), host=host, question=question, seconds=seconds)
            for question in queries.INQUIRIES
        ]
        for host in hosts
    }
    asked = [inquiry for inquiries in waiting.values() for inquiry in inquiries]
    answers: dict[str, Answer] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(_forget, coordination, asked)
        for host in hosts:
            # An installation that was upgraded a moment ago may have none of them yet.
            for folder in (page_path(host), inquiry_path(host)):
                coordination.ensure(folder)
            stack.callback(coordination.watch(page_path(host), wakeup.set))
        for inquiry in asked:
            coordination.create(inquiry_path(inquiry.host, inquiry.id), codec.encode(inquiry), ephemeral=True)
        while waiting:
            for host in list(waiting):
                answer = _answer(coordination, host, waiting[host])
                if answer is None and time.monotonic() >= ends:
                    answer = Answer(why=f"its worker is up and did not answer within {seconds:.0f} s")
                if answer is not None:
                    answers[host] = answer
                    del waiting[host]
            if waiting:
                wakeup.wait(min(LOOK_EVERY, max(0.01, ends - time.monotonic())))
                wakeup.clear()
    return answers


def _answer(coordination: Coordination, host: str, inquiries: Sequence[queries.Inquiry]) -> Answer | None:
    """The host's answer to all of them; None while it may yet come."""
    found: list[queries.Held] = []
    try:
        for inquiry in inquiries:
            held = _held(coordination, inquiry)
            if held is None:
                gone = coordination.get(worker_path(host)) is None
                return Answer(why="its worker went away before it answered") if gone else None
            found += held
    except Refused as error:
        return Answer(why=f"what its worker answered is refused: {error}")
    except Unanswered as error:
        return Answer(why=str(error))
    return Answer(tuple(found))


def _held(coordination: Coordination, inquiry: queries.Inquiry) -> list[queries.Held] | None:
    """What the whole answer says; None while a page is missing, or one is of another reading than the rest."""
    first = _page(coordination, inquiry, 0)
    if first is None:
        return None
    if first.error:
        raise Unanswered(first.error)
    held = list(first.held)
    for number in range(1, first.pages):
        page = _page(coordination, inquiry, number)
        if page is None or (page.reading, page.pages) != (first.reading, first.pages):
            return None
        held += page.held
    return held


def _page(coordination: Coordination, inquiry: queries.Inquiry, number: int) -> queries.Page | None:
    node = coordination.get(page_path(inquiry.host, f"{inquiry.id}.{number}"))
    return None if node is None else codec.decode_page(node[0], inquiry, number)


def _forget(coordination: Coordination, asked: Iterable[queries.Inquiry]) -> None:
    """Take the inquiries back and their answers away; a worker removes what it answers after that."""
    # Else they go with the session, and their answers with the worker's next look.
    with contextlib.suppress(CoordinationLost):
        for inquiry in asked:
            coordination.delete(inquiry_path(inquiry.host, inquiry.id))
            for name in coordination.children(page_path(inquiry.host)):
                if name.startswith(f"{inquiry.id}."):
                    coordination.delete(page_path(inquiry.host, name))
