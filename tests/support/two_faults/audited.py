"""What the audit says at the end of a point, where ports are guaranteed something and it compares that."""

from __future__ import annotations

import json

from support.labs import shares
from support.labs.operations import Stage
from support.two_faults import ways_out


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
    found = "; ".join(f"the audit finds: {each['detail']}" for each in json.loads(said.out or "[]"))
    return found or ("" if said.code == 0 else f"the audit ended with {said.code}: {said.error}")


def _is_guaranteed(lab: Stage) -> bool:
    return bool(shares.needed(lab.lab.layout.services))
