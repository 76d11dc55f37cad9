"""What a worker is asked about all that its host holds: queries, and the pages of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from droveway.wire.values import ACTION_VERSION, Name, Number, Owner, Seconds, Text

MOST_PAGES: Final = 64
"""Of the answer to one query."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a worker about all that its host holds; its node's name is ``id``.

    It stands under no move and changes nothing, so it needs no fence.  Its node goes with the session of who asks.
    """

    id: Name
    host: str
    question: Name
    seconds: Seconds
    """So long anybody waits for the answer, from when the worker finds the question."""
    version: int = ACTION_VERSION


class Guest(msgspec.Struct, frozen=True, kw_only=True, tag="guest"):
    """A guest that is defined or runs on the host; memory in MiB."""

    server: Name
    name: Text
    running: bool
    defined: bool
    vcpus: Number
    memory_mb: Number
    move: Owner = ""
    """The move that it is marked with; empty when it has no mark."""


class Connection(msgspec.Struct, frozen=True, kw_only=True, tag="connection"):
    """A volume that is connected on the host."""

    server: Name
    volume: Name


class Interface(msgspec.Struct, frozen=True, kw_only=True, tag="interface"):
    """A port that is plugged on the host."""

    server: Name
    port: Name


class StoreRef(msgspec.Struct, frozen=True, kw_only=True, tag="store"):
    """The instances directory; hosts that name the same ``id`` share it."""

    id: Name
    path: Text


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="entry"):
    """What lies right below the instances directory; one with many files comes in several of the same name."""

    name: Text
    directory: bool
    files: list[Text] = []
    """What lies in it, whatever it is."""
    move: Owner = ""
    """The move that its marker or manifest names; empty when it has none."""


class Digest(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """What a disk holds that was set aside or is kept; sizes in bytes."""

    name: Text
    """Of its directory, right below the instances directory."""
    disk: Text
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    """As `copy_disks` made it of the disk; empty when it was not read to its end yet."""
    read: Number
    size: Number


Held = Guest | Connection | Interface | StoreRef | Entry | Digest


class Schema(NamedTuple):
    """How a query is spoken; what answers it is a function in ``workers/host_queries.py``."""

    answer: tuple[type[msgspec.Struct], ...]
    """What the pages of its answer may hold."""
    since: int
    """The level that it came with: see `droveway.wire.levels`."""


QUERIES: Final[Mapping[str, Schema]] = {
    "list_guests": Schema((Guest, Connection, Interface), since=3),
    "list_directories": Schema((StoreRef, Entry), since=3),
    "digest_disks": Schema((Digest,), since=4),
}
"""Every query by its name."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the answer to a query, or why there is none; its node's name is ``<id>.<number>``."""

    id: Name
    host: str
    reading: Name
    """New for each time that the worker looked: pages of two readings make no answer."""
    number: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PAGES)]
    pages: Annotated[int, msgspec.Meta(ge=1, le=MOST_PAGES)]
    held: list[Held] = []
    error: Text = ""
