"""Checks what workers answer to commands against the schemas of the wire: a host is not trusted.

An answer is checked where it is read.  Fields that no schema names are left out, so that a later release may add some.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from droveway.errors import StepError
from droveway.wire.commands import ACTIONS, Command, Nothing, Result
from droveway.wire.values import harmless

BAD_ANSWER: Final = "bad-answer"
"""The code of the StepError for an answer that breaks its schema."""

CONDUCTOR_CODES: Final = frozenset(
    {
        "bad-answer",
        "coordination-lost",
        "declared-down",
        "deleted",
        "evacuated",
        "fenced",
        "host-unreachable",
        "last-copy",
        "not-this-moves",
        "overdue",
        "parked",
        "quarantined",
        "record-lost",
        "runs-elsewhere",
    }
)
"""Error codes that only a conductor gives; an answer with one of them is refused.

A worker that answered declared-down, for instance, would keep conductors from waiting for its host.
"""

FAULTS: Final = ("move", "destination")
"""Whose fault an error may be, in the words of `droveway.errors.fault_of`."""

_CODE: Final = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)


def checked(command: Command, result: Result) -> Result:
    """Return the answer with the fields that its schema names; one that breaks the schema becomes a bad-answer error.

    An error names the host that was asked, or the host that disks were to be copied from.  Any other host that the
    worker names is replaced by the one that was asked.
    """
    if result.error is not None:
        if why := _wrong(result.error):
            return refused(command, result.epoch, why)
        source = command.details.get("source") if command.action == "copy_disks" else None
        host = result.error.get("host")
        return msgspec.structs.replace(
            result, value=None, error={**result.error, "host": host if host and host == source else command.host}
        )
    schema: type[msgspec.Struct] = Nothing
    if command.direction == "execute":
        if command.action not in ACTIONS:
            return refused(command, result.epoch, "nobody here knows what it answers")
        schema = ACTIONS[command.action].answer
    try:
        value = msgspec.to_builtins(msgspec.convert(result.value or {}, type=schema))
    except (msgspec.ValidationError, RecursionError) as error:
        return refused(command, result.epoch, str(error))
    return msgspec.structs.replace(result, value=value)


def refused(command: Command, epoch: int, why: str) -> Result:
    """Return a bad-answer error in the place of an answer that nobody can use."""
    asked = command.action if command.direction == "execute" else f"the undo of {command.action}"
    error = StepError(sentence(command.host, asked, why), code=BAD_ANSWER, host=command.host)
    return Result(key=command.key, epoch=epoch, error=error.as_dict())


def sentence(host: str, asked: str, why: str) -> str:
    """Return the message about an answer that nobody can use, in one line."""
    told = f"host {host} gave no valid answer to {asked} ({harmless(why)})"
    return f"{told}: restart its worker or upgrade it, and see its log (droveway worker show {host})"


def _wrong(error: Mapping[str, str]) -> str:
    """Say why no worker may give this error; empty when one may."""
    code, fault = error["code"], error.get("fault", FAULTS[0])
    if _CODE.fullmatch(code) is None:
        return f"{code[:80]!r} is no error's code"
    if code in CONDUCTOR_CODES:
        return f"it failed with {code}, which no worker says: {error['message']}"
    return "" if fault in FAULTS else f"it calls its failure the fault of {fault[:80]!r}"
