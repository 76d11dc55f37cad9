"""After every single write of a lab's moves: is what its ports are guaranteed held, whole and by the right consumers?

A look reads the tables of Neutron and of Placement.  What a port needs of a host it works out of the policy's rules and
the host's bridges, as Neutron does, and not of what the service would answer.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS
from support.labs.sampler import Sampler, rows

Shares = dict[str, Counter[str]]
"""Provider's name → class → amount."""

_CLASSES: Final = {"egress": EGRESS, "ingress": INGRESS, "any": PACKETS}

_BINDINGS: Final = """
    SELECT ports.server, ports.id, port_bindings.host, port_bindings.profile
      FROM ports JOIN port_bindings ON port_bindings.port = ports.id
     WHERE port_bindings.status = 'ACTIVE' AND port_bindings.host != ''
     ORDER BY ports.id
"""
_RULES: Final = """
    SELECT ports.server, ports.id, networks.physical_network, qos_rules.kind, qos_rules.direction, qos_rules.amount
      FROM ports
      JOIN networks ON networks.id = ports.network_id
      JOIN port_policies ON port_policies.port = ports.id
      JOIN qos_rules ON qos_rules.policy = port_policies.policy
"""
_BRIDGES: Final = "SELECT host, physical_network, name FROM network_devices WHERE physical_network != ''"
_HELD: Final = """
    SELECT consumers.uuid, root.name, provider.name, resource_classes.name, allocations.used
      FROM allocations
      JOIN consumers ON consumers.uuid = allocations.consumer_id
      JOIN resource_providers provider ON provider.id = allocations.resource_provider_id
      JOIN resource_providers root ON root.id = provider.root_provider_id
      JOIN resource_classes ON resource_classes.id = allocations.resource_class_id
"""
_NAMES: Final = "SELECT uuid, name FROM resource_providers"


class GuaranteedSampler(Sampler):
    """Looks at the shares of the bridges too.

    Whoever holds a host for a server, be it the server or a move of it, holds below it all that the server's ports ask
    for there, and nothing else: so a bridge's usage is the sum of what ports hold.  An active binding names who gives
    it, and of those the server and its moves hold together no less than the ports that name them need.
    """

    def found_wrong(self) -> Iterator[str]:
        """Tell what does not hold now, one sentence each."""
        yield from super().found_wrong()
        layout = self.lab.layout
        while True:
            bound = rows(layout.services, _BINDINGS)
            held = rows(layout.placement, _HELD)
            if bound == rows(layout.services, _BINDINGS):
                break
        wanted = self._rules()
        owners = self.owners()
        yield from _not_whole(held, wanted, owners)
        yield from self._not_named(bound, held, wanted, owners)

    def _rules(self) -> dict[str, dict[str, dict[str, Shares]]]:
        """Server → host → port → what it needs there."""
        services = self.lab.layout.services
        bridges = {(host, network): name for host, network, name in rows(services, _BRIDGES)}
        needed: dict[str, dict[str, dict[str, Shares]]] = defaultdict(lambda: defaultdict(dict))
        for server, port, network, kind, direction, amount in rows(services, _RULES):
            for host, its_network in bridges:
                if its_network == network:
                    agent = f"{host}:{AGENT}"
                    provider = agent if kind == "packets" else f"{agent}:{bridges[host, network]}"
                    shares = needed[server][host].setdefault(port, defaultdict(Counter))
                    shares[provider][_CLASSES[direction]] += amount
        return needed

    def _not_named(
        self, bound: list[Any], held: list[Any], wanted: dict[str, dict[str, dict[str, Shares]]], owners: dict[str, str]
    ) -> Iterator[str]:
        """Find the active bindings that name others, or of whom too little is held."""
        names = dict(rows(self.lab.layout.placement, _NAMES))
        of_server: dict[str, Shares] = defaultdict(lambda: defaultdict(Counter))
        for consumer, _, provider, name, used in held:
            of_server[owners.get(consumer, consumer)][provider][name] += used
        needed: dict[str, Shares] = defaultdict(lambda: defaultdict(Counter))
        for server, port, host, profile in bound:
            shares = wanted[server][host].get(port, {})
            told = json.loads(profile).get("allocation") or {}
            named = sorted(names.get(each, each) for each in ([told] if isinstance(told, str) else told.values()))
            if named != sorted(shares):
                yield f"the port {port} is active on {host} and names {named}, and needs {sorted(shares)}"
            for provider, amounts in shares.items():
                needed[server][provider] += amounts
        for server, shares in needed.items():
            for provider, amounts in shares.items():
                if lacking := amounts - of_server[server][provider]:
                    yield f"the ports of server {server} that are active lack {dict(lacking)} of {provider}"


def _not_whole(
    held: list[Any], wanted: dict[str, dict[str, dict[str, Shares]]], owners: dict[str, str]
) -> Iterator[str]:
    """Find who holds a host, and below it not exactly what the server's ports need there."""
    holders: dict[tuple[str, str], Shares] = defaultdict(lambda: defaultdict(Counter))
    for consumer, host, provider, name, used in held:
        below = holders[consumer, host]
        if provider != host:
            below[provider][name] += used
    for (consumer, host), below in holders.items():
        needed: Shares = defaultdict(Counter)
        for shares in wanted[owners.get(consumer, consumer)][host].values():
            for provider, amounts in shares.items():
                needed[provider] += amounts
        if below != needed:
            yield f"consumer {consumer} holds {_told(below)} below {host}, and its ports need {_told(needed)}"


def _told(shares: Shares) -> dict[str, dict[str, int]]:
    return {provider: dict(amounts) for provider, amounts in sorted(shares.items())}
