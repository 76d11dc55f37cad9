"""Finds what users changed at a server while it had two copies, and writes it into the other copy.

Each value of the source and of the target is compared with the value that both had before.  Of that value the journal
keeps only a digest, since metadata may hold secrets.  The *source* is the copy from which changes are taken, the
*target* the one into which they are written.  A key is ``KIND:NAME``, with a kind of `written_values.KINDS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import Instance
from droveway.persistence.nova.copies import Copy
from droveway.persistence.nova.written_values import KINDS, Change

Digests = Mapping[str, str]
"""Key → digest of its value; a key is missing when the copy has no such value."""


@dataclasses.dataclass(frozen=True)
class Carried:
    """Holds the result of a comparison of two copies."""

    takes: tuple[str, ...]
    """Keys whose values the target takes from the source."""
    stays: tuple[str, ...]
    """Keys whose values the target keeps although the source has others."""
    clashes: tuple[str, ...]
    """Keys that changed in both copies, for the move's history; each of them is in ``takes`` or ``stays`` too."""
    known: dict[str, str]
    """The digests that the journal has to keep for the next comparison.

    The caller writes the values of ``takes`` into the target first, and stores these digests after that.  If the caller
    stored them first and the conductor died in between, no later comparison would find the changes.
    """


def values(copy: Copy) -> dict[str, str]:
    """Return the digests of all values of the copy that users can change."""
    return {
        f"{kind}:{name}": _digest(f"{kind}:{name}", found.value(row))
        for kind, found in KINDS.items()
        for name, row in found.rows(copy).items()
    }


def carry(source: Digests, target: Digests, known: Digests, *, target_is_mapped: bool) -> Carried:
    """Compare the values of two copies, key by key, with those that both had (``known``).

    The target takes a value that only the source has changed.  When both have changed it, the copy that the mapping
    names wins.

    A digest in ``known`` is replaced only when both copies will have the new value.  Otherwise a user's change could be
    lost when the server goes back.  An example: copy A has a user's new value, copy B still has the old value, and
    ``known`` has the new value.  When the server goes back, A is the source and B is the target.  The comparison sees
    that A's value is the known one and that B's value is not.  So it takes B's old value for a newer change, and B
    keeps the old value.
    """
    takes, stays, clashes, kept = [], [], [], dict(known)
    for key in sorted({*source, *target, *known}):
        theirs, ours, both = source.get(key), target.get(key), known.get(key)
        if theirs != ours:
            clash = both not in (theirs, ours)
            if clash:
                clashes.append(key)
            if theirs == both or (clash and target_is_mapped):
                stays.append(key)
                continue
            takes.append(key)
        if theirs is None:
            kept.pop(key, None)
        else:
            kept[key] = theirs
    return Carried(tuple(takes), tuple(stays), tuple(clashes), kept)


def changes(source: Copy, target: Copy, keys: Iterable[str]) -> list[Change]:
    """Return the changes of the target's copy for these keys, in the order in which they have to be written."""
    wanted = set(keys)
    found = []
    for kind, each in KINDS.items():
        new, old = each.rows(source), each.rows(target)
        found += [
            Change(kind, name, old.get(name), new.get(name))
            for name in sorted(new.keys() | old.keys())
            if f"{kind}:{name}" in wanted
        ]
    return found


def write(session: orm.Session, server: str, changes: Iterable[Change]) -> None:
    """Write the changes into a copy; a repeated call changes nothing.

    A value that has changed since the comparison is left alone: the next comparison finds that change.  Volumes that
    are added or replaced get no attachment here: the step that later shows this copy writes it.
    """
    # With the server's row locked, nobody else adds rows that refer to it.  Rows that are there may still change.
    session.execute(sa.select(Instance.id).where(Instance.uuid == server).with_for_update())
    for change in changes:
        KINDS[change.kind].write(session, server, change)


def _digest(key: str, value: Any) -> str:
    text = json.dumps([key, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
