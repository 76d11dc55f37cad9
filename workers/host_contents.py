"""Lists everything that a host holds, for an audit.

Nothing here changes the host, with one exception: `store` gives an instances directory an id if it has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from droveway.wire import queries
from droveway.wire.values import printable
from droveway.workers import stores
from droveway.workers.directories import MANIFEST, MARKER
from droveway.workers.hypervisors.base import Hypervisor, Mark

MOST_FILES: Final = 100
"""Most files in one record: a directory with more is reported in several records, each of which fits into a page."""

_OWNER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")


def guests(hypervisor: Hypervisor) -> Iterator[queries.Guest | queries.Connection | queries.Interface]:
    """Yield every guest, connected volume and plugged port of the host."""
    for guest in hypervisor.guests():
        yield queries.Guest(
            server=guest.server,
            name=printable(guest.name),
            running=guest.running,
            defined=bool(guest.definition),
            vcpus=guest.vcpus,
            memory_mb=guest.memory_mb,
            move=guest.mark.move if guest.mark is not None and _OWNER.fullmatch(guest.mark.move) else "",
        )
    for server, volume in hypervisor.connections():
        yield queries.Connection(server=server, volume=volume)
    for server, port in hypervisor.plugged():
        yield queries.Interface(server=server, port=port)


def entries(instances: Path) -> Iterator[queries.Entry]:
    """Yield the entries of the directory in the order of their names; an entry that disappears meanwhile is left out.

    Raises OSError for an entry that cannot be read.
    """
    with os.scandir(instances) as listing:
        found = sorted(listing, key=lambda entry: entry.name)
    for entry in found:
        if entry.name == stores.STORE:
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield queries.Entry(name=printable(entry.name), directory=False)
            continue
        try:
            files = sorted(path.name for path in Path(entry.path).iterdir())
        except FileNotFoundError:
            continue
        told = [printable(name) for name in files]
        move = next((_move_named_in(Path(entry.path, name)) for name in (MANIFEST, MARKER) if name in files), "")
        for start in range(0, max(1, len(told)), MOST_FILES):
            part = told[start : start + MOST_FILES]
            yield queries.Entry(name=printable(entry.name), directory=True, files=part, move=move)


def store(instances: Path) -> str:
    """Return the directory's random id, after writing one if it has none.

    Raises OSError, and Refused when the file of the id holds no id.
    """
    top = os.open(instances, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return stores.identify(top, instances)
    finally:
        os.close(top)


def _move_named_in(path: Path) -> str:
    try:
        move = msgspec.json.decode(path.read_bytes(), type=Mark).move
    except (FileNotFoundError, msgspec.DecodeError):
        # The file is gone since it was listed, or it is damaged.  Then the entry names no move, and the audit has only
        # the directory's name to go by.
        return ""
    return move if _OWNER.fullmatch(move) else ""
