"""After every single write of a lab's moves: is what ports are guaranteed held, whole and by the right consumers?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from support.labs import shares
from support.labs.sampler import Sampler
from support.labs.shares import Bound, Needed, Shares

_HELD: Final = """
    SELECT consumers.uuid, root.name, provider.name, resource_classes.name, allocations.used
      FROM allocations
      JOIN consumers ON consumers.uuid = allocations.consumer_id
      JOIN resource_providers provider ON provider.id = allocations.resource_provider_id
      JOIN resource_providers root ON root.id = provider.root_provider_id
      JOIN resource_classes ON resource_classes.id = allocations.resource_class_id
"""


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
            bound = shares.active(layout.services, layout.placement)
            held = shares.rows(layout.placement, _HELD)
            if bound == shares.active(layout.services, layout.placement):
                break
        wanted, owners = shares.needed(layout.services), self.owners()
        yield from _not_whole(held, wanted, owners)
        yield from filter(None, (shares.misnamed(each, wanted) for each in bound))
        yield from _lacking(bound, held, wanted, owners)


def _lacking(bound: list[Bound], held: list[Any], wanted: Needed, owners: dict[str, str]) -> Iterator[str]:
    """Find whose active ports need more than is held for them."""
    known: dict[str, Shares] = defaultdict(lambda: defaultdict(Counter))
    for consumer, _, provider, name, used in held:
        known[owners.get(consumer, consumer)][provider][name] += used
    needed: dict[str, dict[str, Shares]] = defaultdict(dict)
    for each in bound:
        needed[each.server][each.port] = wanted[each.server][each.host][each.port]
    for server, ports in needed.items():
        for provider, amounts in shares.together(ports).items():
            if lacking := amounts - known[server][provider]:
                yield f"the ports of server {server} that are active lack {dict(lacking)} of {provider}"


def _not_whole(held: list[Any], wanted: Needed, owners: dict[str, str]) -> Iterator[str]:
    """Find who holds a host, and below it not exactly what the server's ports need there."""
    holders: dict[tuple[str, str], Shares] = defaultdict(lambda: defaultdict(Counter))
    for consumer, host, provider, name, used in held:
        below = holders[consumer, host]
        if provider != host:
            below[provider][name] += used
    for (consumer, host), below in holders.items():
        needed = shares.together(wanted[owners.get(consumer, consumer)][host])
        if below != needed:
            yield f"consumer {consumer} holds {_told(below)} below {host}, and its ports need {_told(needed)}"


def _told(of: Shares) -> dict[str, dict[str, int]]:
    return {provider: dict(amounts) for provider, amounts in sorted(of.items())}
