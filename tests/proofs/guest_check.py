"""What the guests of a libvirt lab say of themselves: the proof that a moved server is the same one.

Every server is branded once: its guest writes a mark and data that follow from the server's uuid into its boot disk,
which counts its boots too.  From then on a guest is believed by what it finds there itself.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from support.rows import journal_moves

from droveway.errors import DrovewayError, StepError
from droveway.lab.boot_guests import BootGuests
from droveway.lab.console import MARK_BYTES, Console, Status
from droveway.lab.session import Lab
from droveway.persistence.journal import moves
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova import catalog

FIRST_SECTOR: Final = 4096
SECTORS: Final = 256
"""Where the data lie, in sectors of 512 bytes: behind the guest's program."""

IMAGE: Final = "image service"
"""Where the root disk of a shelved server lies."""

_FILLED: Final = re.compile(rb"SMV1 (ok)\r\n")
_SUM: Final = re.compile(rb"SMV1 sum ([0-9a-f]{8})\r\n")
_WORDS: Final = 128
_GOLDEN: Final = 0x9E3779B1
_MASK: Final = 0xFFFFFFFF
_SECTORS_PER_GIB: Final = 1 << 21


@dataclass(frozen=True)
class GuestReport:
    """What the running guest of a server says, and where it says it."""

    server: catalog.Server
    host: str
    status: Status
    checksum: str


def stamp(lab: Lab, name: str) -> None:
    """Let the server's running guest write its mark and its data; raises DrovewayError when it does not run."""
    server = catalog.find_server(lab.api, lab.cell_databases, name)
    console = _console(lab, server)
    console.mark(server.name[:MARK_BYTES])
    console._talk(f"fill {FIRST_SECTOR} {SECTORS} {seed(server.id)}", _FILLED)


def report(lab: Lab, name: str) -> GuestReport:
    """What the server's guest says; raises DrovewayError unless it runs exactly once, and where its rows say."""
    server = catalog.find_server(lab.api, lab.cell_databases, name)
    console = _console(lab, server)
    status = console.status()
    checksum = console._talk(f"sum {FIRST_SECTOR} {SECTORS}", _SUM)[1].decode("ascii")
    return GuestReport(server, str(server.host), status, checksum)


def examine(lab: Lab, started: Collection[str] = ()) -> Iterator[GuestReport]:
    """Ask every running guest; raises DrovewayError for the first that is not what its server is to be.

    It is the one that was branded, runs once, has its flavor's processors, memory and disk, and was booted as often as
    its moves tell; the servers named in ``started`` were started once more by hand.
    """
    for server in catalog.servers(lab.api, lab.cell_databases):
        if server.power_state != "RUNNING":
            if running := hosts_of(lab, server.id):
                raise DrovewayError(f"server {server.name} is off, and its guest runs on {', '.join(running)}")
            continue
        told = report(lab, server.name)
        flavor = catalog.find_flavor(lab.api, server.flavor)
        status = told.status
        wanted: dict[str, tuple[object, object]] = {
            "uuid": (server.id.replace("-", ""), status.uuid),
            "mark": (server.name[:MARK_BYTES], status.mark),
            "checksum": (expected_checksum(server.id), told.checksum),
            "vCPUs": (flavor.vcpus, status.vcpus),
            "MiB of memory": (flavor.memory_mb, status.memory_mb),
            "boots": (_expected_boots(lab, server) + (server.name in started), status.boots),
        }
        if not server.boots_from_volume:
            wanted["sectors"] = (flavor.root_gb * _SECTORS_PER_GIB, status.disk_sectors)
        for what, (expected, found) in wanted.items():
            if expected != found:
                raise DrovewayError(f"the guest of {server.name} on {told.host}: {what} is {found}, not {expected}")
        yield told


def hosts_of(lab: Lab, server: str) -> list[str]:
    """The hosts on which a guest of the server runs."""
    guests = {host: lab.hypervisor(host).guest(server) for host in sorted(lab.identity.hosts)}
    return [host for host, guest in guests.items() if guest is not None and guest.running]


def seed(server: str) -> int:
    """What the server's data follow from."""
    return zlib.crc32(server.encode("ascii")) & 0x7FFFFFFF


@functools.cache
def expected_checksum(server: str) -> str:
    """What the guest's own sum of its data has to be, reckoned as the boot guest does it."""
    start, key, total = FIRST_SECTOR * _WORDS, seed(server), 0
    for word in range(start, start + SECTORS * _WORDS):
        total = ((total << 5) | (total >> 27)) & _MASK
        total = ((total ^ ((word * _GOLDEN) & _MASK) ^ key) * _GOLDEN) & _MASK
    return f"{total:08x}"


def _console(lab: Lab, server: catalog.Server) -> Console:
    running = hosts_of(lab, server.id)
    if running != [server.host]:
        where = " and ".join(running) or "nowhere"
        raise StepError(f"server {server.name} lives on {server.host}, and its guest runs on {where}", host=where)
    hypervisor = lab.hypervisor(running[0])
    if not isinstance(hypervisor, BootGuests):
        raise StepError(f"host {running[0]} has no guests with a serial line: the lab's hypervisor is no libvirt")
    return hypervisor.console(server.id)


def _expected_boots(lab: Lab, server: catalog.Server) -> int:
    """How often the server's disk was booted by what its moves tell; each copy of a disk counts for itself."""

    def disk(host: str | None) -> str | None:
        return None if server.boots_from_volume else host

    boots: defaultdict[str | None, int] = defaultdict(lambda: 1)
    with lab.journal.read() as session:
        for move in journal_moves.listing(session, server=server.id):
            steps = moves.history(session, move.id)
            for step in _done(steps):
                if (step.step, step.direction) == ("upload_disks", "execute"):
                    boots[None if server.boots_from_volume else IMAGE] = boots[disk(step.host)]
                elif (step.step, step.direction) == ("copy_disks", "execute") and not move.source_host:
                    boots[disk(step.host)] = boots[None if server.boots_from_volume else IMAGE]
                elif (step.step, step.direction) == ("copy_disks", "execute"):
                    boots[disk(step.host)] = boots[disk(move.source_host)]
                elif _starts(step, steps):
                    boots[disk(step.host)] += 1
    return boots[disk(server.host)]


def _done(steps: list[MoveStep]) -> Iterator[MoveStep]:
    return (step for step in steps if step.ended_at is not None and step.error is None)


def _starts(step: MoveStep, steps: list[MoveStep]) -> bool:
    """Whether the step started the guest: to move it, or because it had been stopped in vain."""
    if step.step == "start_guest" and step.direction == "execute":
        return bool(step.result and step.result["started"])
    if step.step != "stop_guest" or step.direction != "revert":
        return False
    return any(
        (each.flow_uuid, each.step, each.direction, each.attempt)
        == (step.flow_uuid, "stop_guest", "execute", step.attempt)
        and bool(each.result and each.result["ran"])
        for each in steps
    )
