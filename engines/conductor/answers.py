"""What workers answer to commands, with a schema per action and direction: a host's word is a stranger's.

Checked right where an answer is read.  What no schema names is left out, so that a later release may say more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from droveway.errors import StepError
from droveway.wire.commands import Command, DiskInfo, GuestHealth, GuestState, Ready, Result
from droveway.wire.values import MOST_DISKS, Connector, Name, Number, Owner, Text, harmless, require_plain

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


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the value of an answer holds."""


class Nothing(_Answer, frozen=True, kw_only=True):
    """Done."""


class Checked(_Answer, frozen=True, kw_only=True):
    """Of `check_destination`."""

    connector: Connector
    free_bytes: Number

    def __post_init__(self) -> None:
        require_plain(self.connector)


class Storage(_Answer, frozen=True, kw_only=True):
    """Of `find_storage`."""

    shared: bool


class Stopped(_Answer, frozen=True, kw_only=True):
    """Of `stop_guest`: whether the guest ran before."""

    ran: bool


class _Disk(_Answer, frozen=True, kw_only=True):
    name: Name
    format: Text
    size: Number
    allocated: Number
    checksum: Text = ""
    backing: Text = ""
    backing_format: Text = ""


class AsideDisk(_Disk, frozen=True, kw_only=True):
    """A disk as it was when it was set aside; sizes in bytes."""

    mtime_ns: int
    inode: Annotated[int, msgspec.Meta(ge=0)]


class CopiedDisk(_Disk, frozen=True, kw_only=True):
    """A disk that was copied; sizes in bytes."""

    sent: Number
    source_checksum: Text


AsideDisks = Annotated[list[AsideDisk], msgspec.Meta(max_length=MOST_DISKS)]
CopiedDisks = Annotated[list[CopiedDisk], msgspec.Meta(max_length=MOST_DISKS)]
Disks = Annotated[list[DiskInfo], msgspec.Meta(max_length=MOST_DISKS)]


class SetAside(_Answer, frozen=True, kw_only=True):
    """Of `set_aside`."""

    disks: AsideDisks


class Kept(_Answer, frozen=True, kw_only=True):
    """Of `check_set_aside`."""

    disks: AsideDisks
    connector: Connector

    def __post_init__(self) -> None:
        require_plain(self.connector)


class Offered(_Answer, frozen=True, kw_only=True):
    """Of `offer_disks`."""

    address: Text


class Copied(_Answer, frozen=True, kw_only=True):
    """Of `copy_disks`; ``bytes`` is what crossed the wire."""

    variant: Text
    disks: CopiedDisks
    bases: CopiedDisks
    bytes: Number


class Fitted(_Answer, frozen=True, kw_only=True):
    """Of `fit_disks`."""

    disks: Disks


class Defined(_Answer, frozen=True, kw_only=True):
    """Of `define_guest` and `prepare_source_guest`: how often the guest was started on the host before."""

    starts: Number


class Started(_Answer, frozen=True, kw_only=True):
    """Of `start_guest`."""

    started: bool
    running: bool
    starts: Number


class Whole(_Answer, frozen=True, kw_only=True):
    """Of `check_copy`."""

    running: bool
    starts: Number
    disks: Disks


class Discarded(_Answer, frozen=True, kw_only=True):
    """Of `discard_source` and `rename_copy`: the name of what is kept; empty for nothing."""

    kept: Owner


EXECUTE: Final[Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {
        "describe_guest": GuestState,
        "check_destination": Checked,
        "find_storage": Storage,
        "stop_guest": Stopped,
        "disconnect": Nothing,
        "connect": Nothing,
        "set_aside": SetAside,
        "offer_disks": Offered,
        "copy_disks": Copied,
        "fit_disks": Fitted,
        "define_guest": Defined,
        "prepare_start": Ready,
        "start_guest": Started,
        "check_copy": Whole,
        "check_set_aside": Kept,
        "check_guest": GuestHealth,
        "check_health": GuestHealth,
        "discard_source": Discarded,
        "keep_copy": Nothing,
        "purge_kept": Nothing,
        "restore_disks": Nothing,
        "prepare_source_guest": Defined,
        "discard_destination": Nothing,
        "rename_copy": Discarded,
        "remove_guest": Nothing,
    }
)
"""Each action with what the value of its answer holds; an undo answers `Nothing`."""


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
    schema = EXECUTE.get(command.action) if command.direction == "execute" else Nothing
    if schema is None:
        return refused(command, result.epoch, "nobody here knows what it answers")
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
