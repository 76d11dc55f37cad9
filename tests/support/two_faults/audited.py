"""What the audit says at the end of a point, where ports are guaranteed something and it compares that."""

from __future__ import annotations

import json
from typing import Final

from support.labs import shares
from support.labs.operations import Stage
from support.two_faults import ways_out

_FOUND: Final = 3
"""What the audit ends with where it finds something."""
_COUNTED: Final = "usage"
"""The kind of what it finds in compute_nodes."""


def heal(lab: Stage) -> str:
    """Let the audit put right what ports are guaranteed, where one asks for anything; "" or how that failed."""
    if not _is_guaranteed(lab):
        return ""
    said = ways_out.say(lab, "audit", "--heal", "--yes")
    return "" if said.code == 0 else f"droveway audit --heal --yes ended with {said.code}: {said.error or said.out}"


def trouble(lab: Stage) -> str:
    """Say what the audit finds where a port asks for anything, or ""."""
    if not _is_guaranteed(lab):
        return ""
    said = ways_out.say(lab, "audit", "-f", "json")
    if said.code not in (0, _FOUND):
        return f"the audit ended with {said.code}: {said.error}"
    # A nova-compute counts anew by itself what its host has, also after a delete that came late.
    told = [each["detail"] for each in json.loads(said.out or "[]") if each["kind"] != _COUNTED]
    return "; ".join(f"the audit finds: {each}" for each in told)


def _is_guaranteed(lab: Stage) -> bool:
    return bool(shares.needed(lab.lab.layout.services))
