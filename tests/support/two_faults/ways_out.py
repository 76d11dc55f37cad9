"""Ending a move by nothing but the commands that the move itself names as its way out.

Some can be run as they are.  Others are a person's word for what no program can see: that a host is off, that nobody
can mend a thing.  Of these the sentence has to say first what the person has to make sure of, and here they are run
only where that is true, which is judged by files and rows or said by whoever made the world.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

from support.labs.operations import Stage
from support.two_faults import world

from droveway.cli import main

ENDED: Final = ("done", "reverted", "failed", "cancelled")

ROUNDS: Final = 8
"""So many times a move may name one more command."""

_COMMAND: Final = re.compile(r"""droveway ((?:"[^"]*"|[\w./:=-]+)(?: (?:"[^"]*"|[\w./:=-]+))*)""")
_WORD: Final = re.compile(r'"[^"]*"|[\w./:=-]+')
_LOOKS: Final = (
    *("explain", "audit", "doctor", "move show", "move history", "move list", "host show", "host list", "cell list"),
    *("server show", "server list", "flavor list", "debt list", "freeze list", "worker show"),
)
"""What only shows something is no way out."""
_NAMES: Final = {"db adopt": 0, "move settle": 2}
"""So many names follow the command at most; else one does.  The sentence may go on behind them."""


@dataclasses.dataclass(frozen=True)
class Way:
    """One command that a sentence names."""

    words: tuple[str, ...]
    before: str
    """What the sentence says before it."""

    @property
    def wants(self) -> str:
        """Whose word it is, as `SURE` has it; "" for a command that can be run as it is."""
        return next((kind for kind, (option, _, _) in SURE.items() if option <= set(self.words)), "")

    def is_told(self) -> bool:
        """Whether the sentence says what the person has to make sure of before."""
        return not self.wants or re.search(SURE[self.wants][1], self.before) is not None

    def __str__(self) -> str:
        return " ".join(self.words)


def _is_off(stage: Stage, way: Way) -> bool:
    """Its worker is not there, and no guest of any server runs on it."""
    host = way.words[2]
    stopped = stage.root / "stopped-workers.json"
    away = json.loads(stopped.read_text()) if stopped.exists() else []
    servers = [row["uuid"] for row in world.cell_rows(stage.root, "instances")]
    return host in away and not any(world.is_running(stage.root, host, server) for server in servers)


def _is_left_alone(stage: Stage, way: Way) -> bool:
    """No task stands in the rows of the server, and no request of its user is under way."""
    (move,) = [row for row in world.rows(stage.root / "journal.sqlite", "moves") if row["id"].startswith(way.words[2])]
    return world.the_row(stage.root, move["server"])["task_state"] in (None, "resize_reverting")


def _is_never(_stage: Stage, _way: Way) -> bool:
    """Only whoever made the world can say it."""
    return False


SURE: Final[dict[str, tuple[set[str], str, Callable[[Stage, Way], bool]]]] = {
    "a host is off": ({"--i-made-sure"}, r"\boff\b", _is_off),
    "nobody can mend it": ({"--as", "left"}, r"nobody can mend", _is_never),
    "nobody is at work": ({"--as", "done"}, r"nobody is at work", _is_left_alone),
    "it was put back from a copy": ({"--cell"}, r"put back from a copy", _is_never),
    "the kept copy is not needed": ({"purge-kept"}, r"before that", _is_never),
    "its debts are lost": ({"host", "forget"}, r"off for good", _is_off),
    "a database is the one that is wanted": ({"db", "adopt"}, r"newest copy", _is_never),
    "a person agrees": ({"--yes"}, r"does what is planned", _is_never),
}
"""What a person has to make sure of: by which words a command wants it, how the sentence says it, when it is true."""


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


def commands(text: str) -> list[Way]:
    """The commands in a sentence that do something, in their order."""
    found = [Way(_trimmed(match.group(1)), text[: match.start()]) for match in _COMMAND.finditer(text)]
    return [each for each in found if not str(each).startswith(_LOOKS)]


def _trimmed(text: str) -> tuple[str, ...]:
    """The command's own words: its noun and verb, its names, its options with their values."""
    words = [word.strip('"') for word in _WORD.findall(text)]
    kept, rest = words[:2], words[2:]
    if kept[0] == "lab":
        kept, rest = words[:3], words[3:]
    for _ in range(_NAMES.get(" ".join(kept), 1)):
        if rest and not rest[0].startswith("-"):
            kept.append(rest.pop(0))
    while rest and rest[0].startswith("--"):
        kept += rest[:2]
        rest = rest[2:]
    return tuple(kept)


def named(facts: dict[str, Any], choice: str = "") -> list[Way]:
    """What the move names: first what its error says, then its next command; ``choice`` where it offers several."""
    mends = commands(str(facts["error"] or "")) if facts["state"] == "needs-operator" else []
    offered = commands(str(facts["next"]))
    preferred = [each for each in offered if choice and each.words[1] == choice]
    found = {each.words: each for each in reversed([*mends, *(preferred or offered)[:1]])}
    return list(reversed(found.values()))


def finish(stage: Stage, move: str, *, choice: str = "", rounds: int = ROUNDS, true: Collection[str] = ()) -> str:
    """Run what the move names until it has ended; "" then, else a sentence about where it is stuck.

    ``choice`` is "confirm" or "revert", taken where the move offers both.  ``true``: which of `SURE` hold in this
    world beside those that can be seen in it.
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
            if not way.is_told():
                return f"droveway {way} wants a person's word, and nothing says of what he makes sure: {told}"
            if way.wants and not (way.wants in true or SURE[way.wants][2](stage, way)):
                answers.append(f"droveway {way} is not run, since it is not so that {way.wants}")
                continue
            said = say(stage, *way.words)
            if "Traceback" in said.error:
                return f"droveway {way} shows a traceback: {said.error.strip().splitlines()[-1]}"
            answers.append(f"droveway {way} ended with {said.code}: {(said.error or said.out).strip()}")
        told += "; " + "; ".join(answers)
    facts = shown(stage, move)
    return "" if facts["state"] in ENDED else f"stuck after {rounds} rounds: {told}"
