"""Arms faults in a lab: a step fails, stalls, is killed, meets a full disk, or a byte of its copy is flipped.

A probe is the function that a step calls at each place where a fault may fire.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from droveway.errors import DestinationFault, NotFound, Refused, StepError
from droveway.lab.layout import Layout
from droveway.workers.hypervisors import durable

Direction = Literal["execute", "revert"]
Phase = Literal["before", "during", "after", "stored"]
Action = Literal["fail", "stall", "kill", "enospc", "corrupt"]
Class = Literal["move", "destination"]
"""What an injected failure is blamed on: the move, or the destination."""

Process = Literal["conductor", "worker"]

STALL_POLL: Final = 0.05
"""Seconds between two checks whether a stalled step is released."""

_VERIFY: Final = "verify"
# The names of the effects that need no room on a disk. A conductor has no effects, so its name is empty.
_WRITES_NOTHING: Final = frozenset({"", "offer", "offered", "withdraw"})
_CHUNKS: Final = "-chunks"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One armed fault."""

    id: int
    step: str
    direction: Direction
    phase: Phase
    action: Action
    host: str | None = None
    count: int = 1
    """How often it will still fire. A stall that has fired stays, with 0, until it is cleared."""
    fault: Class = "move"
    """What the error of the action ``fail`` is blamed on.

    ``move`` raises StepError, after which the move is undone. ``destination`` raises DestinationFault, after which the
    conductor may try the next alternate. The other actions do not use it.
    """
    process: Process | None = None
    """The process in which it fires, conductor or worker; None for the one that comes to the place first."""

    def matches(self, step: str, direction: str, phase: str, host: str | None, process: Process = "conductor") -> bool:
        """Say whether it fires here; a fault without a host fires on every host and on the conductor."""
        here = (self.step, self.direction, self.phase) == (step, direction, phase)
        theirs = self.process in (None, process) and self.host in (None, host)
        return here and self.count > 0 and theirs


def arm(files: Layout, fault: Fault) -> Fault:
    """Arm the fault, under an id of its own, and return it; raises Refused for what can never fire."""
    if fault.action in ("enospc", "corrupt") and fault.phase != "during":
        raise Refused(f"a worker meets {fault.action} during an action: arm it with --phase during")
    if fault.process == "conductor" and fault.action in ("enospc", "corrupt"):
        raise Refused(f"only a worker meets {fault.action}: arm it with --process worker, or without")
    if fault.process == "worker" and fault.phase != "during":
        raise Refused("a worker meets a fault only during an action: arm it with --phase during")
    if fault.action == "fail" and fault.phase == "stored":
        raise Refused("a step whose result is stored can fail no more: arm the failure with --phase after")
    with _locked(files) as present:
        new = msgspec.structs.replace(fault, id=max((each.id for each in present), default=0) + 1)
        _write(files, [*present, new])
    return new


def armed(files: Layout) -> list[Fault]:
    """Return every fault, including the stalls that have fired."""
    try:
        return msgspec.json.decode(files.faults.read_bytes(), type=list[Fault])
    except FileNotFoundError:
        return []


def clear(files: Layout, number: int | None) -> int:
    """Disarm one fault, or all faults, and return how many were disarmed; steps that a fault stalls go on."""
    with _locked(files) as present:
        kept = [] if number is None else [fault for fault in present if fault.id != number]
        if number is not None and len(kept) == len(present):
            raise NotFound(f"fault {number} is not armed: droveway lab fault list shows the faults")
        _write(files, kept)
    return len(present) - len(kept)


def probe(
    files: Layout,
    step: str,
    direction: str,
    phase: str,
    *,
    host: str | None,
    detail: str = "",
    process: Process = "conductor",
) -> None:
    """Let a fault fire that is armed for this place; its count is lowered durably before."""
    if not any(fault.matches(step, direction, phase, host, process) for fault in armed(files)):
        return
    fault = _take(files, (step, direction, phase, host, process), detail)
    if fault is not None:
        _fire(files, fault, host)


def conductor_probe(files: Layout, host_of: Callable[[str, str], str | None]) -> Callable[[str, str, str, str], None]:
    """Return a conductor's probe; ``host_of`` returns the host of a move's step, None for a step without a host."""

    def fire(move: str, step: str, direction: str, phase: str) -> None:
        if armed(files):
            probe(files, step, direction, phase, host=host_of(move, step))

    return fire


def worker_probe(files: Layout, host: str) -> Callable[[str, Direction, str, str], None]:
    """Return the probe of a host's worker; ``detail`` is the name of the effect that comes next."""

    def fire(step: str, direction: Direction, phase: str, detail: str) -> None:
        probe(files, step, direction, phase, host=host, detail=detail, process="worker")

    return fire


def _take(files: Layout, place: tuple[str, str, str, str | None, Process], detail: str) -> Fault | None:
    with _locked(files) as present:
        for fault in present:
            if not fault.matches(*place) or not _is_its_moment(fault, detail):
                continue
            fired = msgspec.structs.replace(fault, count=fault.count - 1)
            stays = fired.count > 0 or fired.action == "stall"
            _write(files, [fired if each.id == fault.id else each for each in present if each is not fault or stays])
            return fired
    return None


def _is_its_moment(fault: Fault, detail: str) -> bool:
    """Say whether the fault fires at this effect.

    A byte is flipped right before the copy is checked, and a full disk is met at an effect that writes.
    """
    if fault.action == "corrupt":
        return detail == _VERIFY
    return detail not in _WRITES_NOTHING if fault.action == "enospc" else True


def _fire(files: Layout, fault: Fault, host: str | None) -> None:
    where = f"fault {fault.id} ({fault.phase} {fault.direction} of {fault.step})"
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            kind = DestinationFault if fault.fault == "destination" else StepError
            raise kind(f"{where} was armed: droveway lab fault list", code="fault", host=host or "")
        case "enospc":
            raise OSError(errno.ENOSPC, f"{where} was armed")
        case "corrupt":
            _flip_a_byte(files.host(host or "") / "instances")
        case "stall":
            while any(each.id == fault.id for each in armed(files)):
                time.sleep(STALL_POLL)


def _flip_a_byte(instances: Path) -> None:
    """Flip a byte in the copy that is being made: that is the disk beside the newest chunk log."""
    logs = sorted(instances.glob(f"*/*{_CHUNKS}"), key=lambda path: path.stat().st_mtime_ns)
    if not logs:
        return
    with logs[-1].with_name(logs[-1].name.removesuffix(_CHUNKS)).open("r+b") as disk:
        byte = disk.read(1)
        disk.seek(0)
        disk.write(bytes([byte[0] ^ 1]))
        disk.flush()
        os.fsync(disk.fileno())


@contextlib.contextmanager
def _locked(files: Layout) -> Iterator[list[Fault]]:
    with files.faults.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield armed(files)


def _write(files: Layout, faults: list[Fault]) -> None:
    durable.replace(files.faults, msgspec.json.encode(faults))
