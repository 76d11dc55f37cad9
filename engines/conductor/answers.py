"""Checks what workers answer to commands against the schemas of the wire: a host's word is a stranger's.

Checked right where an answer is read.  What no schema names is left out, so that a later release may say more.
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

NOT_ITS: Final = frozenset(
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
"""Codes that a conductor gives and no worker: a host that calls itself declared down would be waited for by nobody."""

FAULTS: Final = ("move", "destination")
"""Whose fault an error is, as `droveway.errors.fault_of` says it."""

_CODE: Final = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)


def checked(command: Command, result: Result) -> Result:
    """Return the answer with what its schema names, or with the error that it breaks it, for what it tells.

    An error is of the host that was asked, or of the one that it was to fetch disks from, whatever it says.
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
    """Return the answer that stands for one which nobody can use."""
    asked = command.action if command.direction == "execute" else f"the undo of {command.action}"
    error = StepError(sentence(command.host, asked, why), code=BAD_ANSWER, host=command.host)
    return Result(key=command.key, epoch=epoch, error=error.as_dict())


def sentence(host: str, asked: str, why: str) -> str:
    """Return what is told of an answer that nobody can use, in one line."""
    told = f"host {host} gave no valid answer to {asked} ({harmless(why)})"
    return f"{told}: restart its worker or upgrade it, and see its log (droveway worker show {host})"


def _wrong(error: Mapping[str, str]) -> str:
    """Why an error is none that a worker gives; empty when it is one."""
    code, fault = error["code"], error.get("fault", FAULTS[0])
    if _CODE.fullmatch(code) is None:
        return f"{code[:80]!r} is no error's code"
    if code in NOT_ITS:
        return f"it failed with {code}, which no worker says: {error['message']}"
    return "" if fault in FAULTS else f"it calls its failure the fault of {fault[:80]!r}"
