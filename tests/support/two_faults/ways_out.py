"""Ending a move by nothing but the commands that the move itself names as its way out."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from typing import Any, Final

from support.operations import Stage

from droveway.cli import main

ENDED: Final = ("done", "reverted", "failed", "cancelled")

ROUNDS: Final = 8
"""So many times a move may name one more command."""

_COMMAND: Final = re.compile(r"droveway ((?:[\w./:=-]+ ?)+)")
_LOOKS: Final = ("explain", "audit", "doctor", "move show", "move history", "move list", "host show", "debt list")
"""What only shows something is no way out."""


@dataclasses.dataclass(frozen=True)
class Said:
    """What a command ended with and printed."""

    code: int
    out: str
    error: str


def say(stage: Stage, *words: str) -> Said:
    """Run a command in the lab, whatever it ends with."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main.main(["--lab", str(stage.root), *words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Said(code, out.getvalue(), error.getvalue())


def shown(stage: Stage, move: str) -> dict[str, Any]:
    """What `droveway move show` tells of the move."""
    said = say(stage, "move", "show", move, "-f", "json")
    assert said.code == 0, said
    return dict(json.loads(said.out))


def commands(text: str) -> list[str]:
    """The commands in a sentence that do something, in their order."""
    found = [match.group(1).strip() for match in _COMMAND.finditer(text)]
    return [each for each in found if not each.startswith(_LOOKS)]


def named(facts: dict[str, Any], choice: str = "") -> list[str]:
    """What the move names: first what its error says, then its next command; ``choice`` where it offers several."""
    mends = commands(str(facts["error"] or "")) if facts["state"] == "needs-operator" else []
    offered = commands(str(facts["next"]))
    preferred = [each for each in offered if choice and each.split()[1] == choice]
    return list(dict.fromkeys([*mends, *(preferred or offered)[:1]]))


def finish(stage: Stage, move: str, *, choice: str = "", rounds: int = ROUNDS) -> str:
    """Run what the move names until it has ended; "" then, else a sentence about where it is stuck.

    ``choice`` is "confirm" or "revert", taken where the move offers both.
    """
    told = ""
    for _ in range(rounds):
        facts = shown(stage, move)
        if facts["state"] in ENDED:
            return ""
        ways = named(facts, choice)
        told = f"the move is {facts['state']} ({facts['error']}), and names: {facts['next']}"
        if not ways:
            return f"stuck without a command: {told}"
        answers = []
        for way in ways:
            said = say(stage, *way.split())
            if "Traceback" in said.error:
                return f"droveway {way} shows a traceback: {said.error.strip().splitlines()[-1]}"
            answers.append(f"droveway {way} ended with {said.code}: {(said.error or said.out).strip()}")
        told += "; " + "; ".join(answers)
    facts = shown(stage, move)
    return "" if facts["state"] in ENDED else f"stuck after {rounds} rounds: {told}"
