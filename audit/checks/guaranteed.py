"""Compare what ports ask of Placement with whom their bindings name, and with what their server holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from droveway.audit.findings import Finding, Kind
from droveway.audit.records import PortView
from droveway.audit.snapshot import Amounts, Phase, Snapshot, Standing

_BANDWIDTH: Final = "NET_BW_"
_NETWORK: Final = "NET_"
"""Begins the resource classes that only ports ask for."""

Held = Mapping[str, Amounts]
"""Provider → amounts."""


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find ports that name nobody or a provider that their server holds nothing of, and sums that do not agree."""
    ports: dict[str, list[PortView]] = {}
    for port in snapshot.ports:
        if port.asks:
            ports.setdefault(port.server, []).append(port)
    for standing in snapshot.standings.values():
        if standing.phase is Phase.MOVING or standing.going:
            continue
        its = ports.get(standing.server, []) if standing.placed else []
        held = _of_ports(snapshot.allocations.get(standing.server, {}))
        wrong = [finding for port in its for finding in _names(port, standing, held)]
        # A port that names the wrong provider is told of once, and not again by the sums.
        yield from wrong or _sums(snapshot, standing, its, held)


def _names(port: PortView, standing: Standing, held: Held) -> Iterator[Finding]:
    named = _named(port)
    for group, amounts in sorted(port.asks.items()):
        provider = named.get(group)
        if provider is None:
            detail = f"asks for {_text(amounts)}, and its binding names nobody who gives it"
        elif not held.get(provider):
            detail = (
                f"asks for {_text(amounts)}, and its binding names the provider {provider}, of which the server "
                f"{standing.name} holds nothing"
            )
        else:
            continue
        yield Finding(
            Kind.BINDING,
            port.id,
            f"the port {port.id} {detail}",
            _mend(standing),
            standing.host or "",
            standing.server,
            standing.move_id,
        )


def _named(port: PortView) -> Mapping[str, str]:
    """Read group → provider from the profile of the active binding; a single provider gives the bandwidth."""
    told = port.profile.get("allocation")
    if isinstance(told, str):
        return {
            group: told
            for group, amounts in port.asks.items()
            if len(port.asks) == 1 or any(name.startswith(_BANDWIDTH) for name in amounts)
        }
    return told or {}


def _sums(snapshot: Snapshot, standing: Standing, ports: list[PortView], held: Held) -> Iterator[Finding]:
    wanted: dict[str, Counter[str]] = {}
    for port in ports:
        named = _named(port)
        for group, amounts in port.asks.items():
            wanted.setdefault(named[group], Counter()).update(amounts)
    for provider in sorted(held.keys() | wanted.keys()):
        has, should = dict(held.get(provider, {})), dict(wanted.get(provider, {}))
        if has != should:
            yield Finding(
                Kind.ALLOCATION,
                standing.server,
                f"the server {standing.name} holds {_text(has) or 'nothing'} of the provider {provider}, and its ports "
                f"ask for {_text(should) or 'nothing'} of it",
                _mend(standing),
                snapshot.host_of(provider) or "",
                standing.server,
                standing.move_id,
            )


def _of_ports(held: Held) -> Held:
    found = {
        provider: {name: amount for name, amount in amounts.items() if name.startswith(_NETWORK)}
        for provider, amounts in held.items()
    }
    return {provider: amounts for provider, amounts in found.items() if amounts}


def _text(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))


def _mend(standing: Standing) -> str:
    if standing.move is not None and standing.phase is Phase.VERIFYING:
        # Nova's own healing knows nothing of the migration's consumer, which holds the source for a revert.
        return f"droveway move settle {standing.move.short} --cell placement --reason TEXT"
    return f"nova-manage placement heal_allocations --instance {standing.server} --force"
