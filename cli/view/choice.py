"""Shows from a move's history its destination, its alternates, and for each other host why it was turned down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cliff.columns import FormattableColumn

from droveway.cli.view.columns import Facts

if TYPE_CHECKING:
    from droveway.persistence.journal.move_views import View

CHOOSE: Final = "choose_destinations"
"""The step whose result is the choice."""

_MOST_NAMED: Final = 8
"""How many hosts are named to people at most."""


class Choice(FormattableColumn[Any]):
    """The result of the choice: unchanged for programs, one line for each host for people."""

    def human_readable(self) -> str:
        """Return the hosts to be tried in order, then those that were turned down."""
        return "\n".join([order(self._value), *named(rejected(self._value))])


def outcome(step: View, result: Any) -> FormattableColumn[Any]:
    """Return a step's result as it is shown."""
    return Choice(result) if step.step == CHOOSE and "chosen" in (result or {}) else Facts(result)


def order(choice: Mapping[str, Any]) -> str:
    """Return the destination and its alternates, in order."""
    ranked = [*choice["chosen"], *choice.get("later", ())]
    several = len({each.get("cell") for each in ranked}) > 1
    return ", then ".join(f"{each['cell']}/{each['host']}" if several else each["host"] for each in ranked)


def rejected(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the hosts that were turned down at the choice, as records of `left_out`."""
    told = [{"host": host, "attempt": None, **why} for host, why in choice["rejected"].items()]
    more = choice.get("more", {}).items()
    return told + [
        {"host": None, "attempt": None, "filter": name, "reason": f"{count} more hosts", "count": count}
        for name, count in more
    ]


def left_out(steps: Iterable[View]) -> list[dict[str, Any]]:
    """Return each host that the move did not stay on: ``host``, ``attempt``, ``filter``, ``reason``.

    A host that was never tried has None as its attempt, and the name of the filter that turned it down. A host that was
    tried and failed by its own fault has the number of the attempt, and the error's code in the place of a filter.
    Hosts that the journal only counts have one record for each filter, without a host and with their ``count``.
    """
    found: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    flow = ""
    for step in steps:
        if step.step == CHOOSE and "chosen" in (step.result or {}):
            flow, chosen = step.flow, step.result["chosen"]
            # A flow that begins with a later alternate than the first goes on with an earlier choice.
            if step.result.get("first", 1) == 1:
                found = rejected(step.result)
        elif step.flow == flow and step.direction == "execute" and (step.error or {}).get("fault") == "destination":
            found.append(
                {
                    "host": chosen[step.attempt - 1]["host"],
                    "attempt": step.attempt,
                    "filter": step.error["code"],
                    "reason": step.error["message"],
                }
            )
    return found


def named(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each host, those that were tried above the others; at most `_MOST_NAMED` hosts are named."""
    ordered = sorted((each for each in hosts if each["host"] is not None), key=lambda each: each["attempt"] is None)
    lines = [
        f"not {each['host']}: {each['reason']} ({each['filter']})"
        if each["attempt"] is None
        else f"{each['host']} failed: {each['reason']}"
        for each in ordered
    ]
    more = len(lines[_MOST_NAMED:]) + sum(each.get("count", 0) for each in hosts)
    return [*lines[:_MOST_NAMED], f"and {more} more"] if more else lines
