"""What is wrong with a lab at rest: where it is not as the model has it, or as its commands have said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from proofs.soak.model import Model, Server, differences, usages
from proofs.soak.process import Line, Operation
from proofs.soak.rest import EPHEMERAL, Facts

from droveway.printable import SHORT

_PROMISED: Final = {
    "confirm": "done",
    "revert": "reverted",
    "cancel": "cancelled",
    "shelve": "done",
    "unshelve": "done",
}
_BETWEEN_CELLS: Final = "cross_cell_"
_DELETE: Final = ("lab", "server", "delete")


def differing(model: Model, facts: Facts) -> list[str]:
    """All that is not as it must be, and what is not as the model has it."""
    held = model.allocations()
    books = (
        ("allocations", differences(held, facts.allocations)),
        ("usages", differences(usages(held), facts.usages)),
        ("servers", differences(_wanted(model), _seen(model, facts))),
    )
    return [*facts.wrong, *(f"{name} are not the model's: {'; '.join(each)}" for name, each in books if each)]


def unasked(given: Iterable[Operation], facts: Facts, before: Mapping[str, Server]) -> list[str]:
    """Moves that nobody asked for of the servers that there were."""
    wanted = {(each.words[1], each.words[2]) for each in given if each.words[0] == "server"}
    wanted |= {("delete", each.words[3]) for each in given if each.words[:3] == _DELETE}
    known = {server.before.move for server in before.values() if server.before is not None}
    return [
        f"nobody asked for {move.kind} of {before[move.server].name}, move {move.id}"
        for move in facts.moves
        if move.server in before
        and move.id not in known
        and (move.kind.removeprefix(_BETWEEN_CELLS), before[move.server].name) not in wanted
    ]


def broken(given: Sequence[Operation], lines: Mapping[int, Line], facts: Facts) -> list[str]:
    """Commands which said that their move had ended as they wanted it, and it had not; a held one may end later."""
    held = {each.words[2].removeprefix("@") for each in given if each.words[:2] == ("move", "pause")}
    done = [each for each in given if lines[each.number].code == 0 and each.words[-1].removeprefix("@") not in held]
    return list(_broken(done, lines, facts))


def _broken(done: Sequence[Operation], lines: Mapping[int, Line], facts: Facts) -> Iterator[str]:
    states = {move.id[:SHORT]: move.state for move in facts.moves}
    there = {server.name for server in facts.servers}
    for operation in done:
        words, said = operation.words, lines[operation.number].said
        if words[:3] == _DELETE and words[3] in there:
            yield f"operation {operation} ended with 0 and the server is still there"
        wanted = _PROMISED.get(words[1])
        if words[0] in ("move", "server") and wanted is not None:
            # Each of these begins with: move ID
            state = states.get(said.split()[1], wanted)
            if state != wanted:
                yield f"operation {operation} ended with 0 and its move is {state}: {said}"


def _wanted(model: Model) -> dict[str, str]:
    found = {}
    for server in model.servers.values():
        status = "VERIFY_RESIZE" if server.before else "ACTIVE" if server.active else "SHUTOFF"
        if not server.host:
            status = "SHELVED_OFFLOADED"
        found[server.name] = _sentence(server.host, server.flavor, status, [server.host] if server.active else [], [])
    return found


def _seen(model: Model, facts: Facts) -> dict[str, str]:
    found = {}
    for server in facts.servers:
        known = model.servers.get(server.id)
        # One that came with a larger flavor was never marked.
        may_lack = [] if known is not None and known.ephemeral else [EPHEMERAL]
        unmarked = [disk for disk in server.unmarked if disk not in may_lack]
        found[server.name or server.id] = _sentence(server.host, server.flavor, server.status, server.runs, unmarked)
    return found


def _sentence(host: str, flavor: str, status: str, runs: list[str], unmarked: list[str]) -> str:
    return f"{host} {flavor} {status}, runs on {runs}, without its mark are {unmarked}"
