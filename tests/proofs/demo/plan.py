"""What a demonstration does, decided by its seed: which server moves when and how, and where the kills are aimed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from proofs.kills import Standing

from droveway.lab.cloud import Cloud


@dataclass(frozen=True)
class Batch:
    """Servers that move at the same time."""

    servers: int
    kills: int
    """How many kills meet their moves on the way forward."""
    kills_at_end: int
    """How many meet their confirms and reverts."""


BATCHES: Final = (Batch(4, 2, 1), Batch(3, 2, 0), Batch(3, 1, 1), Batch(3, 1, 0))
"""Every server once, then some of them again."""

FEW: Final = 0.4
"""The part of moves that are no resize though they could be, of ends that are reverts, of kills between two steps."""

LATE: Final = 3
"""Steps after which a kill that was meant to fall between two falls anywhere."""

FORWARD: Final = (3, 20)
"""From which to which step of a move a kill is aimed; there are a few more, so that a late shot still hits."""

ENDING: Final = (2, 4)
"""The same for a confirm or revert."""

CROSSING: Final = (6, 28)
"""The same for a move into another cell, which has more steps."""

CROSSING_BACK: Final = (2, 15)
"""The same for its revert."""

SHELVING: Final = (2, 10)
"""The same for a shelve and an unshelve."""

LONGEST_DELAY: Final = 0.02
"""Seconds: a kill inside a step comes at most so long after the step began."""

_LARGER: Final = {
    "m1.tiny": "m1.small",
    "m1.small": "m1.medium",
    "m1.medium": "m1.large",
    "m1.scratch": "m1.scratch.large",
}

End = Literal["confirm", "revert"]


@dataclass(frozen=True)
class Aim:
    """Where a kill is to strike: a server's move, the direction and how many of its steps have begun by then."""

    server: str
    direction: Literal["execute", "revert"]
    passed: int
    between: bool
    delay: float
    """Seconds between the moment and the kill."""

    def fits(self, standing: Standing) -> bool:
        """Whether the moment has come; that between two steps is short, so a missed one is made up inside a later."""
        if (self.server, self.direction) != (standing.server, standing.direction) or standing.passed < self.passed:
            return False
        return not (self.between and standing.inside) or standing.passed >= self.passed + LATE


@dataclass(frozen=True)
class Fault:
    """A failure that is armed before a round, so that what its moves did is undone."""

    step: str
    of_destination: bool = False
    """The destination's fault lets the next alternate be tried; any other ends the move."""

    def words(self) -> list[str]:
        """The command that arms it."""
        words = ["lab", "fault", "arm", "--step", self.step, "--phase", "before", "--action", "fail"]
        return [*words, "--class", "destination"] if self.of_destination else words


@dataclass(frozen=True)
class Round:
    """Commands that are given at the same moment, and the kills that they meet."""

    title: str
    commands: tuple[tuple[str, ...], ...]
    aims: tuple[Aim, ...] = ()
    fault: Fault | None = None


class Planner:
    """Makes rounds; the same seed makes the same ones."""

    def __init__(self, seed: int, cloud: Cloud) -> None:
        self._random = random.Random(seed)
        self._flavors = {name: server.flavor for name, server in cloud.servers.items()}
        largest = max(cloud.cells.values(), key=lambda cell: len(cell.hosts))
        # In a cell of many hosts there are alternates for every server that no zone confines.
        self._free = [name for name, each in cloud.servers.items() if each.host in largest.hosts and each.az is None]
        self._cells = {host: name for name, cell in cloud.cells.items() for host in cell.hosts}
        # A shelve takes no ephemeral disk along, and an unshelve starts a server that was off.
        self._crossing = {
            name: str(self._cells[str(each.host)])
            for name, each in cloud.servers.items()
            if each.az is None and each.state == "active" and not cloud.flavors[each.flavor].ephemeral_gb
        }

    def rounds(self) -> Iterator[Round]:
        """The whole demonstration; each server is at rest, without a move, when the last has been carried out."""
        order = self._shuffled(list(self._flavors))
        servers = iter([*order, *self._shuffled(order)])
        drills = iter((self._undone(), self._next_alternate(), self._undone_revert(), self._into_another_cell()))
        for batch in BATCHES:
            yield from self._batch(batch, [next(servers) for _ in range(batch.servers)])
            yield from next(drills, ())

    def undone_move(self) -> Round:
        """A move that fails on its last steps and is undone, killed twice on the way back."""
        server = self._any()
        command, _larger = self._move(server)
        aims = (self._aim(server, (2, 5), "revert"), self._aim(server, (8, 12), "revert"))
        step = self._random.choice(("define_guest", "switch_records"))
        return Round(f"a move fails at {step}: all is undone", (command,), aims, Fault(step))

    def _batch(self, batch: Batch, servers: list[str]) -> Iterator[Round]:
        moves = {server: self._move(server) for server in servers}
        commands = tuple(command for command, _flavor in moves.values())
        yield Round(f"{len(servers)} commands at once", commands, self._aims(servers, batch.kills, FORWARD))
        ends = {server: self._end() for server in servers}
        commands = tuple(("server", end, server) for server, end in ends.items())
        yield Round("their ends", commands, self._aims(servers, batch.kills_at_end, ENDING))
        for server, end in ends.items():
            if end == "confirm":
                self._flavors[server] = moves[server][1]

    def _undone(self) -> Iterator[Round]:
        # A generator like the others: what it asks for depends on the flavors of then.
        yield self.undone_move()

    def _next_alternate(self) -> Iterator[Round]:
        """A destination that fails late: the move goes on to another one."""
        server = self._random.choice(self._free)
        fault = Fault(self._random.choice(("copy_disks", "define_guest")), of_destination=True)
        aim = self._aim(server, (3, 7), "revert")
        title = f"a destination fails at {fault.step}: the next one is tried"
        yield Round(title, (("server", "migrate", server),), (aim,), fault)
        yield Round("its end", (("server", "confirm", server),))

    def _undone_revert(self) -> Iterator[Round]:
        """A revert that fails and is itself undone; then it is asked for again."""
        server = self._any()
        yield Round("one move", (("server", "migrate", server),))
        aim = self._aim(server, (2, 6), "revert")
        command = ("server", "revert", server)
        yield Round("its revert fails and is undone", (command,), (aim,), Fault("switch_records"))
        yield Round("it is reverted again", (command,))

    def _into_another_cell(self) -> Iterator[Round]:
        """A server goes into another cell and back, goes there again and stays, and comes home by a shelve."""
        server = self._random.choice(list(self._crossing))
        home = self._crossing[server]
        there = self._random.choice(sorted({*self._cells.values()} - {home}))
        moves = ("server", "migrate", server, "--to-cell", there)
        yield Round(f"a move into {there}", (moves,), (self._aim(server, CROSSING),))
        yield Round(f"back into {home}", (("server", "revert", server),), (self._aim(server, CROSSING_BACK),))
        yield Round(f"into {there} once more", (moves,), (self._aim(server, CROSSING),))
        yield Round("it stays there", (("server", "confirm", server),))
        yield Round("it is shelved", (("server", "shelve", server),), (self._aim(server, SHELVING),))
        unshelve = ("server", "unshelve", server, "--to-cell", home)
        yield Round(f"and unshelved in {home}", (unshelve,), (self._aim(server, SHELVING),))

    def _move(self, server: str) -> tuple[tuple[str, ...], str]:
        """The command that moves the server, and its flavor once that is confirmed."""
        flavor = self._flavors[server]
        larger = _LARGER.get(flavor)
        if larger is None or self._random.random() < FEW:
            return ("server", "migrate", server), flavor
        return ("server", "resize", server, "--flavor", larger), larger

    def _end(self) -> End:
        return "revert" if self._random.random() < FEW else "confirm"

    def _aims(self, servers: list[str], number: int, steps: tuple[int, int]) -> tuple[Aim, ...]:
        return tuple(self._aim(self._random.choice(servers), steps) for _ in range(number))

    def _aim(self, server: str, steps: tuple[int, int], direction: Literal["execute", "revert"] = "execute") -> Aim:
        between = self._random.random() < FEW
        delay = 0.0 if between else self._random.uniform(0, LONGEST_DELAY)
        return Aim(server, direction, self._random.randint(*steps), between, delay)

    def _any(self) -> str:
        return self._random.choice(list(self._flavors))

    def _shuffled(self, names: list[str]) -> list[str]:
        return self._random.sample(names, len(names))


def count(rounds: list[Round]) -> Mapping[str, int]:
    """How many moves, kills and kills during an undo the rounds are to bring."""
    aims = [aim for each in rounds for aim in each.aims]
    return {
        "moves": sum(
            command[1] in ("resize", "migrate", "shelve", "unshelve") for each in rounds for command in each.commands
        ),
        "kills": len(aims),
        "undos": sum(aim.direction == "revert" for aim in aims),
    }
