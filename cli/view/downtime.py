"""Shows for how long a move would keep its guest off, and how that was estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cliff.columns import FormattableColumn

from droveway.cli.view.columns import size, span

NOT_COUNTED: Final = "not counted: the guest's own boot, a try on another host, a wait for a host that is away"


class Downtime(FormattableColumn[Any]):
    """The estimate of a plan: the record for programs, lines of text for people."""

    def human_readable(self) -> str:
        """Return the estimate, what it is made of, and what it leaves out."""
        found = self._value
        return "\n".join([_off(found), _copying(found), _pause(found), NOT_COUNTED])


def _off(found: Mapping[str, Any]) -> str:
    if found["seconds"] is None:
        return "unknown"
    off = f"{'at most' if found['at_most'] else 'about'} {span(found['seconds'])}"
    return f"{off}, in which the server, which is stopped, cannot be started" if found["off_anyway"] else off


def _copying(found: Mapping[str, Any]) -> str:
    if not found["bytes"]:
        return str(found["bytes_reason"])
    how = _measured(found["rate_moves"], "between these hosts" if found["rate_between_hosts"] else "between any hosts")
    copied = f"{size(found['bytes'])} at {size(found['rate'])}/s"
    return f"{copied}, {how or 'the default of [conductor] plan_rate'}: {found['bytes_reason']}"


def _pause(found: Mapping[str, Any]) -> str:
    how = _measured(found["pause_moves"], "") or "the default of [conductor] plan_pause"
    return f"{span(found['pause'])} for the steps beside the copy, {how}"


def _measured(moves: int, where: str) -> str:
    """Return in how many moves it was measured; empty for none."""
    if not moves:
        return ""
    last = "the last move" if moves == 1 else f"the last {moves} moves"
    return f"as measured in {last} {where}".rstrip()
