"""Where a move could have gone, told from its history: the destination, its alternates, and why each other host not."""

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
"""So many hosts are named to people."""


class Choice(FormattableColumn[Any]):
    """The result of the choice: as it is for programs, a line a host for people."""

    def human_readable(self) -> str:
        """The hosts to be tried in order, then those left out."""
        return "\n".join([order(self._value), *named(rejected(self._value))])


def outcome(step: View, result: Any) -> FormattableColumn[Any]:
    """How a step's result is shown."""
    return Choice(result) if step.step == CHOOSE and "chosen" in (result or {}) else Facts(result)


def order(choice: Mapping[str, Any]) -> str:
    """The destination and its alternates."""
    ranked = [*choice["chosen"], *choice.get("later", ())]
    several = len({each.get("cell") for each in ranked}) > 1
    return ", then ".join(f"{each['cell']}/{each['host']}" if several else each["host"] for each in ranked)


def rejected(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The hosts that fell out when the choice was made, as records of `left_out`."""
    return [{"host": host, "attempt": None, **why} for host, why in choice["rejected"].items()]


def left_out(steps: Iterable[View]) -> list[dict[str, Any]]:
    """Each host that the move did not stay on: ``host``, ``attempt``, ``filter``, ``reason``.

    One that was never tried has no attempt and the name of the filter; one that was tried and failed through its own
    fault has the code of the error as its filter.
    """
    found: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    flow = ""
    for step in steps:
        if step.step == CHOOSE and "chosen" in (step.result or {}):
            flow, chosen = step.flow, step.result["chosen"]
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
    """A line a host, those that were tried first; of very many only some."""
    ordered = sorted(hosts, key=lambda each: each["attempt"] is None)
    lines = [
        f"not {each['host']}: {each['reason']} ({each['filter']})"
        if each["attempt"] is None
        else f"{each['host']} failed: {each['reason']}"
        for each in ordered
    ]
    more = len(lines) - _MOST_NAMED
    return [*lines[:_MOST_NAMED], f"and {more} more"] if more > 0 else lines
