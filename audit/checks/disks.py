"""Compares what lies below the hosts' instances directories with the disks that servers and moves should have there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import DebtRow, Directory, Store
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.persistence.journal.states import State
from droveway.printable import SHORT
from droveway.wire.values import SWAP, UUID

SET_ASIDE: Final = "_resize"

_OF_SERVER: Final = re.compile(rf"({UUID})((?:_|\.).*)?")
_UNFINISHED: Final = re.compile(r".+\.part|\..+\.new")
"""The names of files that are written beside the file that they will replace."""
_TEMPORARY: Final = re.compile(rf"\.(?:part|gone)-({UUID})(?:-.*)?")
_KEPT: Final = re.compile(rf"_keep-({UUID})")
"""The names of directories with a source's disks that are kept for a time after the confirm."""
_PROBE: Final = re.compile(rf"\.*droveway-probe-({UUID}).*")
_EPHEMERAL: Final = frozenset({"disk.eph0", "disk.local"})


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find directories and probes that nothing explains, and disks of servers that are not where they should be."""
    for store, entry in snapshot.entries():
        if probe := _PROBE.fullmatch(entry.name):
            yield from _probe(snapshot, store, entry, probe[1])
        elif of_server := _OF_SERVER.fullmatch(entry.name):
            why = _objection(snapshot, store, entry, of_server[1], of_server[2] or "")
            if why:
                yield _left(snapshot, store, entry, of_server[1], why)
            else:
                yield from _unfinished(snapshot, store, entry, of_server[1])
    for standing in snapshot.standings.values():
        yield from missing(snapshot, standing)


def _probe(snapshot: Snapshot, store: Store, entry: Directory, move_id: str) -> Iterator[Finding]:
    move = snapshot.move_by_id.get(move_id)
    standing = snapshot.standings.get(move.server) if move is not None else None
    if standing is None or standing.move_id != move_id or standing.phase is not Phase.MOVING:
        yield Finding(
            Kind.DISK,
            f"instances/{entry.name}",
            f"the storage probe instances/{entry.name} was left by the move {move_id[:SHORT]}",
            f"rm {_path(store, entry.name)}",
            ",".join(store.hosts),
            move.server if move is not None else "",
            move_id,
            owable=True,
        )


def _objection(snapshot: Snapshot, store: Store, entry: Directory, server: str, suffix: str) -> str:
    """Return why the entry should not be there; empty when it may."""
    if kept := _KEPT.fullmatch(suffix):
        return _objection_to_kept(snapshot, store, server, kept[1])
    temporary = _TEMPORARY.fullmatch(suffix)
    # A worker that deletes kept disks gives their directory such a name first.
    if temporary and _keeping(snapshot, store, temporary[1]) is not None:
        return ""
    standing = snapshot.standings.get(server)
    if standing is None:
        return f"there is no server {server}"
    if standing.phase is Phase.MOVING:
        return _objection_while_moving(snapshot, standing, store, entry, suffix)
    if not suffix:
        return (
            "" if snapshot.may_use(standing.host, store) else f"{standing.name} lives on {standing.host or 'no host'}"
        )
    if standing.phase is Phase.VERIFYING and suffix == SET_ASIDE:
        return _objection_to_set_aside(snapshot, standing, store, entry)
    return f"no move of {standing.name} uses it now"


def _objection_to_kept(snapshot: Snapshot, store: Store, server: str, move_id: str) -> str:
    """Return why kept disks should not be there; empty when they may.

    A deleted server may have such a copy too, until the date to which it is kept.
    """
    move = snapshot.move_by_id.get(move_id)
    if move is None or move.server != server:
        return "no move keeps it"
    if move.stage is State.CONFIRMING:
        return ""
    owed = _keeping(snapshot, store, move_id)
    if owed is None:
        return f"the move {move.short} keeps it no more"
    return f"the time for which the move {move.short} kept it is over" if owed.overdue else ""


def _keeping(snapshot: Snapshot, store: Store, move_id: str) -> DebtRow | None:
    """Return the debt that says until when the host keeps the disks; None when the host is not to keep them.

    A debt that was written off counts while its host is declared down.
    """
    for debt in snapshot.debts:
        if debt.kept and debt.move == move_id and snapshot.may_use(debt.host, store):
            return debt if not debt.written_off or debt.host in snapshot.down else None
    return None


def _objection_while_moving(snapshot: Snapshot, standing: Standing, store: Store, entry: Directory, suffix: str) -> str:
    if not any(snapshot.may_use(host, store) for host in standing.hosts):
        return f"no move of {standing.name} goes to this host"
    temporary = _TEMPORARY.fullmatch(suffix)
    whose = temporary[1] if temporary else entry.move if suffix == SET_ASIDE else ""
    return f"it belongs to the move {whose[:SHORT]}, which has ended" if whose and whose != standing.move_id else ""


def _objection_to_set_aside(snapshot: Snapshot, standing: Standing, store: Store, entry: Directory) -> str:
    move = standing.move
    if move is None or not snapshot.may_use(move.source_host, store):
        return f"the move of {standing.name} has another source"
    return f"it was set aside by another move, {entry.move[:SHORT]}" if entry.move not in ("", move.id) else ""


def _left(snapshot: Snapshot, store: Store, entry: Directory, server: str, why: str) -> Finding:
    temporary = _TEMPORARY.search(entry.name)
    move_id = temporary[1] if temporary else entry.move
    standing = snapshot.standings.get(server)
    by = f"; it was left by the move {move_id[:SHORT]}" if move_id else ""
    return Finding(
        Kind.DISK,
        f"instances/{entry.name}",
        f"instances/{entry.name} should not be there: {why}{by}",
        _removal(snapshot, store, entry, standing),
        ",".join(store.hosts),
        server,
        move_id or (standing.move_id if standing is not None else ""),
        owable=True,
    )


def _removal(snapshot: Snapshot, store: Store, entry: Directory, standing: Standing | None) -> str:
    """Return the command that removes the entry.

    When the entry's data may be nowhere else, the command only shows the server. The entry may look left over only
    because the server's rows are wrong.
    """
    kept = _KEPT.search(entry.name)
    owed = _keeping(snapshot, store, kept[1]) if kept else None
    if owed is not None:
        return f"droveway debt show {owed.id}"
    if standing is not None:
        needed = entry.name == standing.server + SET_ASIDE and standing.phase is Phase.VERIFYING
        if needed or any(True for _ in missing(snapshot, standing)):
            return f"droveway server show {standing.server}, then put its disks where it lives and remove the rest"
        if standing.offloaded and not snapshot.has_image(standing):
            return f"droveway server show {standing.server}, then make its image of what is here, and remove that"
    return f"rm -r {_path(store, entry.name)}"


def _unfinished(snapshot: Snapshot, store: Store, entry: Directory, server: str) -> Iterator[Finding]:
    """Find files that a broken off write has left in a directory that a server should have."""
    standing = snapshot.standings.get(server)
    if standing is None or standing.phase is Phase.MOVING:
        return
    for name in sorted(entry.files):
        if _UNFINISHED.fullmatch(name):
            yield Finding(
                Kind.DISK,
                f"instances/{entry.name}/{name}",
                f"the unfinished file {name} was left among the disks of {standing.name}, and no move is under way",
                f"rm {_path(store, entry.name, name)}",
                ",".join(store.hosts),
                server,
                standing.move_id or entry.move,
                owable=True,
            )


def missing(snapshot: Snapshot, standing: Standing) -> Iterator[Finding]:
    """Find disks of the server that should be on a host and are not there."""
    row = standing.row
    if row is None or not standing.placed or standing.is_being_deleted:
        return
    if standing.phase is Phase.MOVING:
        yield from _nowhere(snapshot, standing)
        return
    yield from _lacking(snapshot, standing, str(row.host), "", row.flavors.get("cur"))
    if standing.phase is Phase.VERIFYING and standing.move is not None:
        yield from _lacking(snapshot, standing, standing.move.source_host, SET_ASIDE, row.flavors.get("old"))


def _lacking(
    snapshot: Snapshot, standing: Standing, host: str, suffix: str, flavor: Mapping[str, Any] | None
) -> Iterator[Finding]:
    if host not in snapshot.seen_hosts or flavor is None or standing.row is None:
        return
    files = _files(snapshot, host, standing.server + suffix)
    wanted = [] if standing.row.from_volume else [frozenset({"disk"})]
    wanted += [_EPHEMERAL] if flavor["ephemeral_gb"] else []
    wanted += [frozenset({SWAP})] if flavor.get("swap") else []
    lacking = [names for names in wanted if not names & files]
    if lacking:
        aside = _files(snapshot, host, standing.server + SET_ASIDE)
        where = f"instances/{standing.server}{suffix}"
        use = "needed for a revert" if suffix else f"in use by {standing.name}"
        yield Finding(
            Kind.DISK,
            where,
            f"{', '.join(min(names) for names in lacking)} in {where}, {use}, is not on {host}",
            f"droveway server show {standing.server}, then restore the disk from a backup",
            host,
            standing.server,
            standing.move_id,
            # A host that owes the undo of `set_aside` brings back the disks that were set aside, and no others.
            owable=not suffix and all(names & aside for names in lacking),
        )


def _nowhere(snapshot: Snapshot, standing: Standing) -> Iterator[Finding]:
    """Find a root disk that none of the move's hosts has under any name, in the middle of a move."""
    if standing.row is None or standing.row.from_volume or not standing.hosts <= snapshot.seen_hosts:
        return
    if standing.shelving and snapshot.has_image(standing):
        return
    names = (standing.server, standing.server + SET_ASIDE)
    if not any("disk" in _files(snapshot, host, name) for host in standing.hosts for name in names):
        yield Finding(
            Kind.DISK,
            f"instances/{standing.server}",
            f"the root disk of {standing.name} is on no host of its move ({', '.join(sorted(standing.hosts))})",
            f"droveway move show {standing.move_id[:SHORT]}, then restore the disk from a backup",
            standing.host or "",
            standing.server,
            standing.move_id,
        )


def _files(snapshot: Snapshot, host: str, name: str) -> frozenset[str]:
    store = snapshot.store_of(host)
    # What another host sees in a shared directory does not prove that this host sees it.
    entries = store.own.get(host, store.entries) if store is not None else ()
    return next((entry.files for entry in entries if entry.name == name), frozenset())


def _path(store: Store, *names: str) -> str:
    """Return the path quoted for a shell: whoever made the entry could give it any name."""
    return shlex.quote("/".join((store.path, *names)))
