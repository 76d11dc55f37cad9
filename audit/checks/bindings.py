"""Compares port bindings with the hosts of servers: a port of a server at rest is bound to the server's host alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import PortView
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.clients.network import ACTIVE, COMPUTE_OWNER, NORMAL
from droveway.printable import SHORT

_CURL: Final = "curl -X {verb} -H x-auth-token:$TOKEN $NEUTRON/v2.0/ports/{port}/bindings/{host}"


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find ports of no server, unbound ports, and bindings that are missing, extra, INACTIVE or on a wrong host."""
    for port in snapshot.ports:
        standing = snapshot.standings.get(port.server)
        if standing is not None and not standing.is_being_deleted:
            yield from _described(port, standing)
        if standing is None:
            yield Finding(
                Kind.BINDING,
                port.id,
                f"the port {port.id} belongs to the server {port.server}, which does not exist",
                f"openstack port delete {port.id}",
                next(iter(sorted(port.bindings)), ""),
                port.server,
            )
        elif standing.phase is Phase.MOVING:
            yield from _moving(port, standing)
        elif standing.offloaded:
            for host in sorted(port.bindings):
                yield _left(port, standing, host, f"{standing.name} is shelved and on no host")
        elif standing.placed:
            yield from _at_rest(port, standing)


def _described(port: PortView, standing: Standing) -> Iterator[Finding]:
    """Find ports whose device_owner, profile or vnic type is not what a move should have left."""
    host = standing.host or ""
    move = standing.move if standing.phase is not Phase.REST else None
    if not port.owner.startswith(COMPUTE_OWNER):
        yield _wrong(port, standing, f"has the device_owner {port.owner or 'of nobody'}, not {_owner(standing)}")
    elif standing.placed and standing.phase is not Phase.MOVING and _zone(standing) not in ("", port.owner):
        yield _wrong(port, standing, f"has the device_owner {port.owner}, but {standing.name} is in {_zone(standing)}")
    if move is None:
        return
    if port.vnic_type != NORMAL:
        yield _finding(port, standing, host, f"is of vnic type {port.vnic_type}, and only {NORMAL} ports are moved")
    wanted = move.profiles.get(port.id)
    active = [each for each, status in port.bindings.items() if status == ACTIVE]
    if wanted is not None and active and _brought_along(port.profile) != _brought_along(wanted):
        text = f"has the binding profile {dict(port.profile)}, and had {dict(wanted)} before the move"
        yield _finding(port, standing, host, f"{text} of {standing.name}")


def _brought_along(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile without the providers of the port's resources, which differ from host to host."""
    return {name: value for name, value in profile.items() if name != "allocation"}


def _zone(standing: Standing) -> str:
    return f"{COMPUTE_OWNER}{standing.row.zone}" if standing.row is not None and standing.row.zone else ""


def _owner(standing: Standing) -> str:
    return _zone(standing) or f"{COMPUTE_OWNER}ZONE"


def _wrong(port: PortView, standing: Standing, text: str) -> Finding:
    return Finding(
        Kind.BINDING,
        port.id,
        f"the port {port.id} of {standing.name} {text}",
        f"openstack port set --device {standing.server} --device-owner {_owner(standing)} {port.id}",
        standing.host or "",
        standing.server,
        standing.move_id,
    )


def _at_rest(port: PortView, standing: Standing) -> Iterator[Finding]:
    host = str(standing.host)
    status = port.bindings.get(host)
    if status != ACTIVE:
        found = _finding(
            port,
            standing,
            host,
            f"should be bound to {host}, where {standing.name} lives, and is {_text(port.bindings)}",
        )
        # Where the port has an inactive binding on the host, setting the host alone fails in Neutron.
        yield found if status is None else dataclasses.replace(found, mend=_activation(port, host))
    for other in sorted(port.bindings.keys() - {host}):
        # Without the right binding this one is not left over: the port is bound to the wrong host.
        if status == ACTIVE:
            yield _left(port, standing, other, f"{standing.name} lives on {host}")


def _moving(port: PortView, standing: Standing) -> Iterator[Finding]:
    if standing.is_being_deleted:
        return
    active = sorted(host for host, status in port.bindings.items() if status == ACTIVE)
    if len(active) > 1 or (not active and not standing.shelving):
        yield _finding(
            port,
            standing,
            standing.host or "",
            f"should have one active binding at each point of the move of {standing.name}, and is "
            f"{_text(port.bindings)}",
        )
    for other in sorted(port.bindings.keys() - standing.hosts):
        yield _left(port, standing, other, f"the move of {standing.name} goes elsewhere")


def _activation(port: PortView, host: str) -> str:
    return f"{_CURL.format(verb='PUT', port=port.id, host=host)}/activate"


def _left(port: PortView, standing: Standing, host: str, why: str) -> Finding:
    return Finding(
        Kind.BINDING,
        port.id,
        f"the port {port.id} has a binding on {host} ({port.bindings[host]}), but {why}",
        _CURL.format(verb="DELETE", port=port.id, host=host),
        host,
        standing.server,
        standing.move_id,
    )


def _finding(port: PortView, standing: Standing, host: str, detail: str) -> Finding:
    # In the middle of a shelve or an unshelve the server may be on no host: its move then says which one comes next.
    set_host = f"openstack port set --host {standing.host} {port.id}"
    return Finding(
        Kind.BINDING,
        port.id,
        f"the port {port.id} {detail}",
        set_host if standing.host else f"droveway move show {standing.move_id[:SHORT]}",
        host,
        standing.server,
        standing.move_id,
    )


def _text(bindings: Mapping[str, str]) -> str:
    if not bindings:
        return "unbound"
    return "bound to " + " and ".join(f"{host} ({status})" for host, status in sorted(bindings.items()))
