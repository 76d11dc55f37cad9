"""What users write at a server while it has two copies: found by comparing digests three ways, and carried over.

Of each value the journal keeps a digest alone, since metadata may hold secrets.  Keys are ``KIND:NAME``.
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
"""Key → digest of its value; a key whose value a copy does not have is missing."""


@dataclasses.dataclass(frozen=True)
class Carried:
    """What a comparison of two copies found."""

    takes: tuple[str, ...]
    """Keys whose value the target has to take from the source."""
    stays: tuple[str, ...]
    """Keys whose value the target keeps although the source has another one."""
    clashes: tuple[str, ...]
    """Keys that changed in both copies, each of which is among the above: history names them."""
    known: dict[str, str]
    """The digests to keep once the target has what it takes; not before, or a kill would lose a change for good."""


def values(copy: Copy) -> dict[str, str]:
    """The digests of all that users may write at the server, as the copy has it."""
    return {
        f"{kind}:{name}": _digest(f"{kind}:{name}", found.value(row))
        for kind, found in KINDS.items()
        for name, row in found.rows(copy).items()
    }


def carry(source: Digests, target: Digests, known: Digests, *, target_is_mapped: bool) -> Carried:
    """Compare what two copies have with what both had, key by key.

    A value goes over when the source alone has changed it; when both have, that of the copy which the mapping names
    wins.  A digest is renewed only where both copies have the value in the end: one that went into one copy alone
    would on the way back count as the old value, which the other copy's then replaces.
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
    """What the target's copy has to become, by the rows of both, for these keys; in the order of the writes."""
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
    """Make the changes in a copy; repeated: the same.

    A value that is no longer what it was compared with is left alone: somebody wrote it meanwhile, and the next
    comparison finds that.  Volumes that come or change have no attachment: whoever shows the copy gives it.
    """
    # Rows that refer to the server's are added by nobody else until the end; a row that is there may still change.
    session.execute(sa.select(Instance.id).where(Instance.uuid == server).with_for_update())
    for change in changes:
        KINDS[change.kind].write(session, server, change)


def _digest(key: str, value: Any) -> str:
    text = json.dumps([key, value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
