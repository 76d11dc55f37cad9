"""What a soak does, decided by its seed: commands, the processes that give them, faults and kills."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Final

from proofs.soak.cloud import FLAVORS, HOSTS, KINDS, POPULATION
from proofs.soak.model import Model, Server
from proofs.soak.process import Operation

from droveway.flows import registry
from droveway.persistence.journal import kinds

CALM: Final = 0.2
"""The part of episodes in which one process gives all commands and nothing fails, so that their ends are known."""

MISSING: Final = 3
"""So many servers may be missing before more are built."""

_DONE: Final = frozenset({0})
_REFUSED: Final = frozenset({2})
_EITHER: Final = frozenset({0, 2})
"""Whether a host has room, and suits a server's group, is the product's to know."""

Foreseen = tuple[tuple[str, ...], frozenset[int]]
"""A command and how it may end."""

CELLS: Final = sorted({*HOSTS.values()})
_COPIES: Final = "copy_disks"
_OF_COPIES: Final = ("enospc", "corrupt")
_NO_RETURN: Final = frozenset(registry.latest(kind).no_return.step_name() for kind in registry.kinds())
_PHASES: Final = ("before", "during", "after", "stored")


@dataclasses.dataclass(frozen=True)
class Kill:
    """A SIGKILL of one of an episode's processes."""

    process: int
    operation: int
    """The number of the operation that the process has begun by then."""
    delay: float
    """Seconds between that and the kill."""


@dataclasses.dataclass(frozen=True)
class Episode:
    """What several processes do at a time, before the lab is brought to rest and its books are compared."""

    processes: tuple[tuple[Operation, ...], ...]
    holds: bool
    """Whether the first process runs the lab all along; else each command does while it needs it."""
    kills: tuple[Kill, ...] = ()

    @property
    def operations(self) -> list[Operation]:
        """All of them, by number."""
        return sorted((each for process in self.processes for each in process), key=lambda each: each.number)


class Planner:
    """Makes episodes for the servers that there are; the same seed and servers make the same ones."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._episode = 0
        self._number = 0
        self._named = 0
        self._disabled: set[str] = set()
        self._random = random.Random(seed)

    def episode(self, model: Model) -> Episode:
        """The next one; one that has begun with few servers builds some."""
        self._episode += 1
        # Of its own, so that it does not depend on how the processes of the last one met.
        self._random = random.Random(f"{self._seed}/{self._episode}")
        if len(model.servers) < POPULATION - MISSING or self._chance(CALM):
            return Episode((tuple(self._calm(model)),), holds=self._chance(0.5))
        return self._wild(model)

    def _calm(self, model: Model) -> Iterator[Operation]:
        """Commands on one server each, whose ends follow from what the model knows."""
        for _ in range(max(0, POPULATION - len(model.servers))):
            self._named += 1
            kind = dataclasses.replace(self._random.choice(KINDS), host=self._random.choice(list(HOSTS)))
            yield self._operation(kind.words(f"s{self._named}"), codes=_EITHER)
        for server in self._some(model, 6):
            yield self._foreseen(server)
        yield from self._hosts()

    def _foreseen(self, server: Server) -> Operation:
        if not server.host:
            known = self._of_shelved(server.name)
        else:
            known = self._of_resting(server) if server.before is None else self._of_waiting(server.name)
        words, codes = self._random.choice(known)
        return self._operation(words, codes=codes)

    def _of_waiting(self, name: str) -> list[Foreseen]:
        """Commands on a server whose move waits for confirm or revert."""
        return [
            (("server", "confirm", name), _DONE),
            (("server", "revert", name), _DONE),
            (("lab", "server", "delete", name), _DONE),
            (("server", "migrate", name), _REFUSED),
            (("move", "cancel", f"@{name}"), _REFUSED),
            (("move", "pause", f"@{name}"), _REFUSED),
            (("lab", "server", "stop", name), _REFUSED),
        ]

    def _of_shelved(self, name: str) -> list[Foreseen]:
        """Commands on a server that is on no host."""
        return [
            (("server", "shelve", name), _REFUSED),
            (("server", "migrate", name), _REFUSED),
            (("lab", "server", "stop", name), _REFUSED),
            *[(self._unshelve(name), _EITHER)] * 4,
        ]

    def _of_resting(self, server: Server) -> list[Foreseen]:
        """Commands on a server without a move under way."""
        name = server.name
        forward = (self._forward(server), _EITHER)
        return [
            (("server", "resize", name, "--flavor", server.flavor), _REFUSED),
            (("server", "migrate", name, "--host", "nowhere"), _REFUSED),
            (("server", "confirm", name), _REFUSED),
            (("move", "cancel", f"@{name}"), _REFUSED),
            (("lab", "server", "stop" if server.active else "start", name), _DONE),
            # An image of the root disk cannot hold an ephemeral one.
            (("server", "shelve", name), _REFUSED if FLAVORS[server.flavor].ephemeral_gb else _DONE),
            *[forward] * 4,
        ]

    def _wild(self, model: Model) -> Episode:
        """Some processes whose commands meet, with faults and kills."""
        count = self._random.choice((1, 2, 2, 3, 3))
        processes: list[list[Operation]] = [[] for _ in range(count)]
        servers = self._some(model, self._random.randint(5, 8))
        asked = {server.name: self._next(server) for server in servers}
        met = servers[0] if count > 1 and self._chance(0.5) else None
        if met is not None:
            processes[0].append(self._stall(_kind(met, asked[met.name])))
            processes[1].append(self._operation(self._upset(met, asked[met.name]), meets_stall=True))
        elif self._chance(0.8):
            chosen = self._random.choice(servers)
            processes[0] += self._faults(_kind(chosen, asked[chosen.name]))
        for number, server in enumerate(servers):
            process = processes[number % count]
            process.append(self._operation(asked[server.name], delay=self._random.choice((0.0, 0.0, 0.1, 0.3))))
            if server is not met and self._chance(0.4):
                upset = self._operation(
                    self._upset(server, asked[server.name]), delay=self._random.uniform(0, 0.5), follows=server.name
                )
                other = processes[(number + 1) % count]
                # Faults are armed first, and who meets a stall comes first: it lets the others go on.
                other.insert(sum(not each.counts or each.meets_stall for each in other), upset)
        processes[-1] += self._hosts()
        episode = Episode(tuple(map(tuple, processes)), holds=self._chance(0.5))
        return dataclasses.replace(episode, kills=tuple(self._kills(episode)))

    def _kills(self, episode: Episode) -> Iterator[Kill]:
        for number, process in enumerate(episode.processes):
            if process and self._chance(0.5):
                hit = self._random.choice(process)
                yield Kill(number, hit.number, self._random.uniform(0, 0.8))

    def _next(self, server: Server) -> tuple[str, ...]:
        """What one asks of a server at rest."""
        if server.before is None:
            return ("lab", "server", "delete", server.name) if self._chance(0.08) else self._onward(server)
        asked = self._random.choice(("confirm", "confirm", "revert", "revert", "delete"))
        return (*(("lab",) if asked == "delete" else ()), "server", asked, server.name)

    def _upset(self, server: Server, asked: tuple[str, ...]) -> tuple[str, ...]:
        """What one asks of a server of which something else was just asked."""
        name, latest = server.name, f"@{server.name}"
        words = [
            ("move", "pause", latest),
            ("move", "pause", latest),
            ("move", "resume", latest),
            ("move", "resume"),
            ("move", "retry", latest),
            ("lab", "server", "delete", name),
            ("server", "confirm", name),
            ("server", "revert", name),
            self._onward(server),
        ]
        if kinds.of(_kind(server, asked)).cancellable:
            words += [("move", "cancel", latest)] * 5
        return self._random.choice(words)

    def _onward(self, server: Server) -> tuple[str, ...]:
        if not server.host:
            return self._unshelve(server.name)
        return ("server", "shelve", server.name) if self._chance(0.15) else self._forward(server)

    def _unshelve(self, name: str) -> tuple[str, ...]:
        to_cell = ("--to-cell", self._random.choice(CELLS)) if self._chance(0.5) else ()
        return ("server", "unshelve", name, *to_cell)

    def _forward(self, server: Server) -> tuple[str, ...]:
        policy = self._random.choice(
            ((), (), (), ("--confirm", "auto"), ("--confirm", "healthy", "--deadline", "2min"))
        )
        if self._chance(0.3):
            policy = (*policy, "--to-cell", self._random.choice(CELLS))
        larger = [name for name, size in FLAVORS.items() if self._grows(server.flavor, name)]
        if larger and self._chance(0.5):
            return ("server", "resize", server.name, "--flavor", self._random.choice(larger), *policy)
        if self._chance(0.6):
            return ("server", "migrate", server.name, *policy)
        near = [host for host, cell in HOSTS.items() if cell == HOSTS.get(server.host) and host != server.host]
        host = self._random.choice(list(HOSTS) if self._chance(0.1) else near)
        return ("server", "migrate", server.name, "--host", host, *policy)

    def _grows(self, old: str, new: str) -> bool:
        """Whether no disk gets smaller; now and then such a flavor is asked for all the same."""
        if old == new:
            return False
        shrinks = FLAVORS[new].root_gb < FLAVORS[old].root_gb or FLAVORS[new].ephemeral_gb < FLAVORS[old].ephemeral_gb
        return not shrinks or self._chance(0.3)

    def _hosts(self) -> Iterator[Operation]:
        """Now and then a host takes no more servers, or takes some again."""
        if self._disabled and self._chance(0.5):
            host = self._random.choice(sorted(self._disabled))
            self._disabled.discard(host)
            yield self._operation(("host", "enable", host), codes=_DONE)
        elif self._chance(0.2):
            host = self._random.choice(list(HOSTS))
            self._disabled.add(host)
            yield self._operation(("host", "disable", host, "--reason", "soak"), codes=_DONE)

    def _stall(self, kind: str) -> Operation:
        """A step of such a flow stands still."""
        return self._fault("stall", "execute", self._random.choice(registry.latest(kind).names()))

    def _faults(self, kind: str) -> Iterator[Operation]:
        """One thing that goes wrong in such a flow; in an undo, with the failure that brings it about."""
        graph = registry.latest(kind)
        names = graph.names()
        if _COPIES in names and self._chance(0.2):
            yield self._fault(self._random.choice(_OF_COPIES), "execute", _COPIES)
        elif self._chance(0.5):
            yield self._fault(self._random.choice(("fail", "fail", "kill")), "execute", self._random.choice(names))
        else:
            last = names.index(graph.no_return.step_name())
            failing = self._random.randint(0, last)
            undone = names[self._random.randint(0, failing)]
            yield self._fault("fail", "execute", names[failing])
            yield self._fault(self._random.choice(("fail", "kill")), "revert", undone)

    def _fault(self, action: str, direction: str, step: str) -> Operation:
        # What is stored can fail no more.
        phases = ("during",) if action in _OF_COPIES else _PHASES[:-1] if action == "fail" else _PHASES
        phase = self._random.choice(phases)
        words = ["lab", "fault", "arm", "--step", step, "--direction", direction, "--phase", phase, "--action", action]
        if action == "fail":
            # Past the start of a guest nobody says of the destination that it failed: that would prove no guest ran.
            proves = phase == "before" or step not in _NO_RETURN
            words += ["--class", self._random.choice(("move", "destination") if proves else ("move",))]
            # A failure that stays: beyond the point of no return, and in an undo, it takes an operator.
            words += ["--count", self._random.choice(("1", "1", "2", "99"))]
        return dataclasses.replace(self._operation(tuple(words), codes=_DONE), counts=False)

    def _chance(self, part: float) -> bool:
        return self._random.random() < part

    def _some(self, model: Model, most: int) -> list[Server]:
        every = sorted(model.servers.values(), key=lambda server: server.name)
        return self._random.sample(every, min(most, len(every)))

    def _operation(
        self,
        words: tuple[str, ...],
        *,
        codes: frozenset[int] = frozenset({0, 2, 3, 4}),
        delay: float = 0.0,
        meets_stall: bool = False,
        follows: str = "",
    ) -> Operation:
        self._number += 1
        return Operation(self._number, words, delay, meets_stall, follows, codes)


def _kind(server: Server, words: tuple[str, ...]) -> str:
    """The kind of flow that the command on the server asks for, as far as it is known before."""
    if "delete" in words:
        return "delete"
    here = HOSTS.get(server.host)
    cells = {HOSTS[server.before.host] if server.before else here, here}
    if "--to-cell" in words and here:
        cells.add(words[words.index("--to-cell") + 1])
    return f"cross_cell_{words[1]}" if len(cells) > 1 else words[1]
