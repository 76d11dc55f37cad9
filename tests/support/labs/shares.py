"""What ports are guaranteed of each host's bridges, worked out of Neutron's rules and devices as they are stored.

Nothing here asks a service, or the product.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

AGENT: Final = "Open vSwitch agent"

Shares = dict[str, Counter[str]]
"""Provider's name → class → amount."""
Needed = dict[str, dict[str, dict[str, Shares]]]
"""Server → host → port → what it needs there."""

_CLASSES: Final = {
    "egress": "NET_BW_EGR_KILOBIT_PER_SEC",
    "ingress": "NET_BW_IGR_KILOBIT_PER_SEC",
    "any": "NET_PACKET_RATE_KILOPACKET_PER_SEC",
}
_RULES: Final = """
    SELECT ports.server, ports.id, networks.physical_network, qos_rules.kind, qos_rules.direction, qos_rules.amount
      FROM ports
      JOIN networks ON networks.id = ports.network_id
      JOIN port_policies ON port_policies.port = ports.id
      JOIN qos_rules ON qos_rules.policy = port_policies.policy
"""
_BRIDGES: Final = "SELECT host, physical_network, name FROM network_devices WHERE physical_network != ''"
_ACTIVE: Final = """
    SELECT ports.server, ports.id, port_bindings.host, port_bindings.profile
      FROM ports JOIN port_bindings ON port_bindings.port = ports.id
     WHERE port_bindings.status = 'ACTIVE' AND port_bindings.host != ''
     ORDER BY ports.id
"""
_NAMES: Final = "SELECT uuid, name FROM resource_providers"
_ROOTS: Final = """
    SELECT provider.name, root.name
      FROM resource_providers provider JOIN resource_providers root ON root.id = provider.root_provider_id
"""


class Bound(NamedTuple):
    """A port's active binding."""

    server: str
    port: str
    host: str
    names: list[str]
    """The providers that it names, in order."""


def needed(services: Path) -> Needed:
    """Return what each port needs of each host that has a bridge for it."""
    bridges = [tuple(row) for row in rows(services, _BRIDGES)]
    found: Needed = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(Counter))))
    for server, port, network, kind, direction, amount in rows(services, _RULES):
        for host, its_network, bridge in bridges:
            if its_network == network:
                agent = f"{host}:{AGENT}"
                provider = agent if kind == "packets" else f"{agent}:{bridge}"
                found[server][host][port][provider][_CLASSES[direction]] += amount
    return found


def together(ports: dict[str, Shares]) -> Shares:
    """Return what several ports need in all."""
    found: Shares = defaultdict(Counter)
    for shares in ports.values():
        for provider, amounts in shares.items():
            found[provider] += amounts
    return dict(found)


def active(services: Path, placement: Path) -> list[Bound]:
    """Return every active binding."""
    names = dict(rows(placement, _NAMES))
    found = []
    for server, port, host, profile in rows(services, _ACTIVE):
        told = json.loads(profile).get("allocation") or {}
        given = [told] if isinstance(told, str) else list(told.values())
        found.append(Bound(server, port, host, sorted(names.get(each, each) for each in given)))
    return found


def misnamed(bound: Bound, wanted: Needed) -> str:
    """Say that a binding names others than those of which its port needs something, or ""."""
    names = sorted(wanted[bound.server][bound.host][bound.port])
    if bound.names == names:
        return ""
    return f"the port {bound.port} is active on {bound.host} and names {bound.names}, and needs {names}"


def roots(placement: Path) -> dict[str, str]:
    """Return of each provider's name the name of the host above it."""
    return dict(rows(placement, _ROOTS))


def rows(database: Path, query: str) -> list[Any]:
    """Return what a query finds in a database, which it cannot change."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(query).fetchall()
