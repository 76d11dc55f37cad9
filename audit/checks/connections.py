"""Compares the connected volumes and plugged interfaces of hosts with the servers that are on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import HostView
from droveway.audit.snapshot import Phase, Snapshot, Standing


class _Sort(NamedTuple):
    kind: Kind
    noun: str
    done: str


_VOLUME: Final = _Sort(Kind.CONNECTION, "volume", "connected")
_PORT: Final = _Sort(Kind.INTERFACE, "interface of port", "plugged")


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find connections and interfaces that are left over, and those that a running guest lacks."""
    volumes = {
        standing.server: frozenset(device.volume for device in standing.row.volumes)
        for standing in snapshot.standings.values()
        if standing.row is not None
    }
    ports: dict[str, frozenset[str]] = {}
    for port in snapshot.ports:
        ports[port.server] = ports.get(port.server, frozenset()) | {port.id}
    for view in snapshot.hosts:
        yield from _compare(snapshot, view, _VOLUME, view.connections, volumes)
        yield from _compare(snapshot, view, _PORT, view.plugged, ports)


def _compare(
    snapshot: Snapshot,
    view: HostView,
    sort: _Sort,
    present: frozenset[tuple[str, str]],
    wanted: Mapping[str, frozenset[str]],
) -> Iterator[Finding]:
    for server, name in sorted(present):
        why = _objection(snapshot.standings.get(server), view.host, name, wanted.get(server, frozenset()))
        if why:
            detail = f"the {sort.noun} {name} is {sort.done} on {view.host} for {server}, but {why}"
            yield _finding(snapshot, view, sort, server, name, detail)
    for guest in view.guests:
        standing = snapshot.standings.get(guest.server)
        if standing is None or standing.phase is Phase.MOVING or not guest.running or standing.host != view.host:
            continue
        for name in sorted(wanted.get(guest.server, frozenset())):
            if (guest.server, name) not in present:
                detail = f"the {sort.noun} {name} is not {sort.done} on {view.host}, where {standing.name} runs"
                yield _finding(snapshot, view, sort, guest.server, name, detail)


def _objection(standing: Standing | None, host: str, name: str, wanted: frozenset[str]) -> str:
    if standing is None:
        return "the server does not exist"
    if standing.phase is Phase.MOVING:
        return "" if host in standing.hosts else "no move of the server goes there"
    if standing.host != host:
        return f"{standing.name} lives on {standing.host or 'no host'}"
    return "" if name in wanted else f"it does not belong to {standing.name}"


def _finding(snapshot: Snapshot, view: HostView, sort: _Sort, server: str, name: str, detail: str) -> Finding:
    standing = snapshot.standings.get(server)
    reboot = f"openstack server reboot --hard {server}"
    by_hand = f"droveway host show {view.host}, then take the {sort.noun} {name} off that host by hand"
    return Finding(
        sort.kind,
        name,
        detail,
        by_hand if standing is not None and standing.offloaded else reboot,
        view.host,
        server,
        standing.move_id if standing is not None else "",
        owable=True,
    )
