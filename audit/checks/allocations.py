"""Compares Placement's allocations with the servers, their flavors and their moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from droveway.audit.checks.guaranteed import of_ports
from droveway.audit.findings import Finding, Kind
from droveway.audit.records import MoveRow
from droveway.audit.snapshot import Amounts, Phase, Snapshot, Standing
from droveway.persistence.journal.states import State
from droveway.persistence.nova.objects import MIB_PER_GIB
from droveway.printable import SHORT

_COMPARED: Final = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")
_OVERRIDE: Final = "resources:"
Held = Mapping[str, Amounts]
"""Maps each host to amounts of resource classes."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find orphaned, doubled, missing and wrong allocations, and hosts with more of a server than Placement knows."""
    yield from _orphans(snapshot)
    for standing in snapshot.standings.values():
        yield from _server(snapshot, standing)


def amounts_of(flavor: Mapping[str, Any], *, from_volume: bool) -> dict[str, int]:
    """Return the amounts for a server of this flavor (fields of Nova's Flavor object), without those that are 0."""
    swap = -(-int(flavor.get("swap") or 0) // MIB_PER_GIB)
    root = 0 if from_volume else flavor["root_gb"]
    specs = flavor.get("extra_specs") or {}
    processors = "PCPU" if specs.get("hw:cpu_policy") == "dedicated" else "VCPU"
    amounts = {
        processors: flavor["vcpus"],
        "MEMORY_MB": flavor["memory_mb"],
        "DISK_GB": root + flavor["ephemeral_gb"] + swap,
    }
    for key, value in specs.items():
        name = key.removeprefix(_OVERRIDE)
        if key.startswith(_OVERRIDE) and name in _COMPARED:
            amounts[name] = int(value)
    return {name: amount for name, amount in amounts.items() if amount}


def _orphans(snapshot: Snapshot) -> Iterator[Finding]:
    for consumer in sorted(snapshot.allocations):
        held = snapshot.held(consumer)
        move = snapshot.move_by_id.get(consumer)
        row = snapshot.migration_of.get(consumer)
        if not held or consumer in snapshot.standings or (move is not None and not move.ended):
            continue
        if move is not None or row is not None:
            server = move.server if move is not None else row.server if row is not None else ""
            what = (
                f"the move {consumer[:SHORT]} has ended"
                if move is not None
                else "no move under way owns this migration"
            )
            owner = "the migration"
        else:
            server, what, owner = "", "no live server and no move has this id", "a consumer"
        yield _finding(
            consumer,
            f"{owner} still holds {_text(held)}, but {what}",
            mend=_release(consumer),
            host=_one(held),
            server=server,
            move=consumer if move is not None else "",
        )


def _server(snapshot: Snapshot, standing: Standing) -> Iterator[Finding]:
    held = snapshot.held(standing.server)
    if standing.phase is not Phase.MOVING and not standing.is_being_deleted:
        # `guaranteed` compares the allocations for ports, provider by provider.
        held = {host: amounts for host, amounts in held.items() if not all(map(of_ports, amounts))}
    doubled = len(held) > 1
    if doubled:
        yield _finding(
            standing.server,
            f"the server {standing.name} holds {_text(held)}, and no consumer may hold two hosts",
            mend=_mend_of(standing),
            server=standing.server,
            move=standing.move_id,
        )
    if standing.phase is Phase.REST:
        if not doubled:
            yield from _compare(standing, standing.server, held, _at_rest(standing))
    else:
        yield from _in_a_move(snapshot, standing, held, doubled=doubled)


def _in_a_move(snapshot: Snapshot, standing: Standing, held: Held, *, doubled: bool) -> Iterator[Finding]:
    move = standing.move
    assert move is not None  # noqa: S101 - a server without one is at rest
    kept = {host: _comparable(amounts) for host, amounts in snapshot.held(move.id).items()}
    has = {host: _comparable(amounts) for host, amounts in held.items()}
    explained = list(_explained(standing, move))
    if explained:
        server, migration = min(explained, key=lambda pair: (has != pair[0]) + (kept != pair[1]))
        if not doubled:
            yield from _compare(standing, standing.server, held, server)
        yield from _compare(standing, move.id, kept, migration)
    if standing.phase is Phase.MOVING:
        yield from _not_covered(snapshot, standing, move)


def _at_rest(standing: Standing) -> Held:
    row = standing.row
    flavor = row.flavors.get("cur") if row is not None else None
    if row is None or not standing.placed or flavor is None:
        return {}
    return {str(row.host): amounts_of(flavor, from_volume=row.from_volume)}


def _explained(standing: Standing, move: MoveRow) -> Iterator[tuple[Held, Held]]:
    """Yield the allocations that server and migration may have now, as pairs; none when the flavors cannot be read."""
    row = standing.row
    if standing.is_being_deleted:
        yield {}, {}
    current = row.flavors.get("cur") if row is not None else None
    if row is None or current is None:
        return
    if standing.shelving:
        # A shelve and an unshelve have no consumer of their own: the server's allocation is deleted, or made anew.
        yield {}, {}
        yield from ((_on(host, current, from_volume=row.from_volume), {}) for host in sorted(standing.hosts))
        return
    # The move makes the allocations before it writes the old and the new flavor into the row. Its last step removes
    # both flavors from the row. When the row has no such flavor, the journal has it.
    old = row.flavors.get("old") or move.old_flavor or current
    new = row.flavors.get("new") or move.new_flavor
    destination = _on(move.dest_host, new, from_volume=row.from_volume)
    for host in filter(None, (move.source_host, move.return_host)):
        source = {host: amounts_of(old or {}, from_volume=row.from_volume)}
        if standing.phase is not Phase.VERIFYING and move.stage is not State.CONFIRMING:
            yield source, {}
        if destination:
            yield destination, source
    if destination and move.stage is State.CONFIRMING:
        yield destination, {}


def _on(host: str | None, flavor: Mapping[str, Any] | None, *, from_volume: bool) -> Held:
    return {host: amounts_of(flavor, from_volume=from_volume)} if host and flavor else {}


def _not_covered(snapshot: Snapshot, standing: Standing, move: MoveRow) -> Iterator[Finding]:
    """Find hosts that have something of the server without an allocation: another server may be sent there."""
    covered = {*snapshot.held(standing.server), *snapshot.held(move.id)}
    if move.return_host:
        # The source is dead. When it is back, it deletes its copy before it takes any server.
        covered.add(move.source_host)
    for host in sorted(_really_on(snapshot, standing.server) - covered):
        if standing.is_being_deleted:
            continue
        yield _finding(
            standing.server,
            f"{host} holds something of the server {standing.name}, but neither the server nor its move holds an "
            f"allocation there",
            mend=_mend_of(standing),
            host=host,
            server=standing.server,
            move=move.id,
            owable=True,
        )


def _really_on(snapshot: Snapshot, server: str) -> set[str]:
    """Return the hosts that have the server's guest, or a directory of it that no other host shares."""
    found = {view.host for view in snapshot.hosts if any(guest.server == server for guest in view.guests)}
    standing = snapshot.standings.get(server)
    if standing is not None and any(map(snapshot.unread, standing.hosts)):
        # A host that could not be read may share the directory of any other host.
        return found
    for store, entry in snapshot.entries():
        if len(store.hosts) == 1 and entry.name.startswith(server):
            found |= set(store.hosts)
    return found


def _compare(standing: Standing, consumer: str, held: Held, wanted: Held) -> Iterator[Finding]:
    found = {host: _comparable(amounts) for host, amounts in held.items()}
    if found == wanted:
        return
    whose = f"the server {standing.name}" if consumer == standing.server else f"the migration of {standing.name}"
    if not held:
        detail = f"{whose} holds no allocation and should hold {_text(wanted)}"
    elif not wanted:
        detail = f"{whose} holds {_text(held)} and should hold nothing"
    else:
        detail = f"{whose} holds {_text(held)} and should hold {_text(wanted)}"
    yield _finding(
        consumer,
        detail,
        mend=_release(consumer) if held and not wanted else _mend_of(standing),
        host=_one(held) or _one(wanted),
        server=standing.server,
        move=standing.move_id,
    )


def _comparable(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in _COMPARED}


def _text(held: Held) -> str:
    parts = [
        f"{', '.join(f'{name} {amount}' for name, amount in sorted(amounts.items()))} on {host}"
        for host, amounts in sorted(held.items())
    ]
    return " and ".join(parts)


def _one(hosts: Iterable[str]) -> str:
    """Return the host when there is just one, else an empty string."""
    found = list(hosts)
    return found[0] if len(found) == 1 else ""


def _release(consumer: str) -> str:
    return f"openstack resource provider allocation delete {consumer}"


def _mend_of(standing: Standing) -> str:
    if standing.move is not None and standing.phase is Phase.MOVING:
        return f"droveway move retry {standing.move.short}"
    if standing.move is not None and standing.phase is Phase.VERIFYING:
        # Nova's heal_allocations does not know the migration's consumer, which has the source's allocation for a
        # revert.
        return f"droveway move settle {standing.move.short} --cell placement --reason TEXT"
    return f"nova-manage placement heal_allocations --instance {standing.server} --force"


def _finding(
    subject: str, detail: str, *, mend: str, host: str = "", server: str = "", move: str = "", owable: bool = False
) -> Finding:
    return Finding(Kind.ALLOCATION, subject, detail, mend, host, server, move, owable=owable)
