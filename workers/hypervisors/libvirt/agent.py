"""Asks a QEMU guest agent, through libvirt, whether it is there.

libvirt holds the agent's channel.  What comes out of the channel is written by the tenant.  So an answer counts only
when it is short, comes in time, and repeats the random number of the question, which nobody can guess.
"""

from __future__ import annotations

import math
import secrets
import time
from typing import Any, Final

import msgspec

from droveway.wire.values import harmless
from droveway.workers.hypervisors.libvirt.connection import library
from droveway.workers.hypervisors.libvirt.errors import Code, is_code, text_of

MOST_BYTES: Final = 1024
"""Most bytes of an answer; an honest one has a fiftieth of that."""


class Mute(Exception):
    """The agent did not answer; ``str()`` says why, in words that may be shown."""


class _Synced(msgspec.Struct, frozen=True):
    number: int = msgspec.field(name="return")


class _Pinged(msgspec.Struct, frozen=True):
    nothing: dict[str, None] = msgspec.field(name="return")


def ping(domain: Any, seconds: float) -> None:
    """Raise `Mute` unless the domain's agent answers within ``seconds``; libvirt may take longer than it is told."""
    deadline = time.monotonic() + seconds
    number = secrets.randbits(62)
    question = {"execute": "guest-sync", "arguments": {"id": number}}
    if _execute(domain, question, _Synced, deadline).number != number:
        raise Mute("it answers another question than it was asked")
    if _execute(domain, {"execute": "guest-ping"}, _Pinged, deadline).nothing:
        raise Mute("it answers guest-ping with more than nothing")


def _execute(domain: Any, question: dict[str, Any], kind: type[Any], deadline: float) -> Any:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Mute("it takes too long")
    try:
        told = _command(domain, msgspec.json.encode(question).decode(), math.ceil(left), 0)
    except library().libvirtError as error:
        why = harmless(text_of(error))
        # libvirt parses an answer before it passes it on.  For an answer that it cannot parse, or that is an error, it
        # only reports that it failed.
        said = f"{_no_answer(question)}: {why}" if is_code(error, Code.INTERNAL_ERROR) else why
        raise Mute(said) from None
    if len(told) > MOST_BYTES:
        raise Mute(f"it answers {question['execute']} with {len(told)} characters")
    try:
        return msgspec.json.decode(told, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Mute(_no_answer(question)) from None


def _no_answer(question: dict[str, Any]) -> str:
    return f"its answer to {question['execute']} is not valid"


def _command(domain: Any, text: str, seconds: int, flags: int) -> str:
    import libvirt_qemu

    return str(libvirt_qemu.qemuAgentCommand(domain, text, seconds, flags))
