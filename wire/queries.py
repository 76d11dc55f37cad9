"""Holds queries, which ask a worker about everything that its host holds, and the pages of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from droveway.wire.values import ACTION_VERSION, Name, Number, Owner, Seconds, Text

MOST_PAGES: Final = 64
"""Most pages of the answer to one query."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a worker about everything that its host holds; its node is ``/hosts/HOST/inquiries/ID``.

    A query belongs to no move and changes nothing, so the worker checks no epoch for it.  ZooKeeper removes its node
    when the session of the process that asked ends.
    """

    id: Name
    host: str
    question: Name
    seconds: Seconds
    """How long somebody waits for the answer, from when the worker finds the query."""
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
    """The move whose mark the guest carries; empty when it carries none."""


class Connection(msgspec.Struct, frozen=True, kw_only=True, tag="connection"):
    """A volume that is connected on the host."""

    server: Name
    volume: Name


class Interface(msgspec.Struct, frozen=True, kw_only=True, tag="interface"):
    """A port that is plugged on the host."""

    server: Name
    port: Name


class StoreRef(msgspec.Struct, frozen=True, kw_only=True, tag="store"):
    """The instances directory of the host; hosts that report the same ``id`` share it."""

    id: Name
    path: Text


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="entry"):
    """One entry of the instances directory.  A directory with many files comes in several entries of the same name."""

    name: Text
    directory: bool
    files: list[Text] = []
    """The names of everything that lies in the directory."""
    move: Owner = ""
    """The move that the marker or the manifest in the directory names; empty when there is neither."""


class Digest(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """The digest of the content of a disk that is set aside or kept; sizes in bytes."""

    name: Text
    """The name of the disk's directory in the instances directory."""
    disk: Text
    digest: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    """The digest that `copy_disks` also computes; empty while the worker has not read the whole disk yet."""
    read: Number
    size: Number


Held = Guest | Connection | Interface | StoreRef | Entry | Digest


class Schema(NamedTuple):
    """The answer of one query, and the level that added it; a function in ``workers/host_queries.py`` answers it."""

    answer: tuple[type[msgspec.Struct], ...]
    """The types of the records in `Page.held` of its answer."""
    since: int
    """The level at which the query was added: see `droveway.wire.levels`."""


QUERIES: Final[Mapping[str, Schema]] = {
    "list_guests": Schema((Guest, Connection, Interface), since=3),
    "list_directories": Schema((StoreRef, Entry), since=3),
    "digest_disks": Schema((Digest,), since=4),
}
"""Every query by its name."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the answer to a query, or the error why there is no answer; its node's name is ``<id>.<number>``."""

    id: Name
    host: str
    reading: Name
    """A new random id each time that the worker reads its host: pages of two readings do not form one answer."""
    number: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PAGES)]
    pages: Annotated[int, msgspec.Meta(ge=1, le=MOST_PAGES)]
    held: list[Held] = []
    error: Text = ""
