"""The soak: random histories on one lab, whose books are compared with an independent model's after every episode."""

from __future__ import annotations

import argparse
import importlib
import itertools
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from proofs import scratch
from proofs.demo.command import WARM
from proofs.kills import KILLED, Child, Run
from proofs.soak import cloud as soak_cloud
from proofs.soak import process as soak_process
from proofs.soak import rest as soak_rest
from proofs.soak import verdict as soak_verdict
from proofs.soak.model import Model, Server
from proofs.soak.plan import Episode, Planner
from proofs.soak.process import Line, Operation
from proofs.soak.rest import Facts
from support import made_once

from droveway.errors import DrovewayError, Refused
from droveway.lab import build, cloud, faults
from droveway.lab.layout import Layout

EPISODE_SECONDS: Final = 300.0
"""An episode, or its coming to rest, that takes longer hangs."""

STALLED_SECONDS: Final = 8.0
"""So long a step stands still at most."""

_LOOK: Final = 0.01
_MINUTE: Final = 60.0

_OPTIONS: Final = "\n[conductor]\nretry_for = 1.0\nhost_away = 2.0\n\n[confirm]\nhealthy_after = 0.3\n"
"""Of the lab: nothing waits for as long as it would where real hosts are slow."""

_WARM_TOO: Final = ("droveway.cli.view.watching", "droveway.engines.operations.submit", "placement.conf")


class Failed(DrovewayError):
    """The soak found something: {what}."""


class Soak:
    """One lab, and what has happened to it."""

    def __init__(self, run: Run, folder: Path, say: Callable[[str], None]) -> None:
        """``run`` is the command line; the lab and all notes come into ``folder``."""
        self._run = run
        self.root = folder / "lab"
        self._folder = folder
        self._say = say
        self._children: list[Child] = []
        self._started = 0
        self._stalled: float | None = None
        self.model = Model(soak_cloud.FLAVORS)
        self.operations = 0
        self.kills = 0

    def build(self) -> None:
        """Make the lab, as yet without servers."""
        spec = cloud.parse_cloud(soak_cloud.text(), "the soak's cloud")

        def work(_words: list[str]) -> int:
            lab = build.create(self.root, spec)
            with lab.layout.configuration.open("a", encoding="utf-8") as file:
                file.write(_OPTIONS)
            lab.close()
            return 0

        self.apart(work)

    def carry_out(self, episode: Episode) -> None:
        """Let the processes run, meet their kills, and compare the lab at rest with the model."""
        lines = self._let_run(episode)
        given = [each for each in episode.operations if each.number in lines]
        self.operations += sum(each.counts for each in given)
        for operation in given:
            self._report(operation, lines[operation.number])
        before = dict(self.model.servers)
        facts = self._settle()
        _require_none(soak_verdict.unasked(given, facts, before))
        self._take_in(given, lines, facts, before)
        _require_none([*soak_verdict.differing(self.model, facts), *soak_verdict.broken(given, lines, facts)])

    def settled(self) -> Facts:
        """The lab at rest once more, compared."""
        facts = self._settle()
        self.model.tell(facts.moves)
        _require_none(soak_verdict.differing(self.model, facts))
        return facts

    def apart(self, work: Run) -> None:
        """Do the work in a process of its own; raises Failed unless it returns 0."""
        child = Child(work, [], self._folder / "apart.txt")
        self._children = [child]
        until = time.monotonic() + EPISODE_SECONDS
        while not child.has_ended():
            if time.monotonic() > until:
                raise Failed(f"coming to rest took more than {EPISODE_SECONDS:g} s")
            time.sleep(_LOOK)
        if child.ended:
            raise Failed(f"the lab did not come to rest ({child.ended}): {child.said()}")

    def abandon(self) -> None:
        """Kill what still runs."""
        for child in self._children:
            if not child.has_ended():
                child.kill()

    def destroy(self) -> None:
        """Stop the guests and remove the lab."""
        self.apart(lambda _words: build.destroy(self.root) * 0)

    def _let_run(self, episode: Episode) -> Mapping[int, Line]:
        """What the processes wrote down."""
        records = [self._folder / f"{self._started}.{number}.jsonl" for number in range(len(episode.processes))]
        self._started += 1

        def work(number: int) -> Run:
            holds = episode.holds and number == 0
            return lambda _words: soak_process.perform(
                self._run, self.root, episode.processes[number], records[number], holds=holds
            )

        self._children = [Child(work(number), [], record.with_suffix(".txt")) for number, record in enumerate(records)]
        self._await(episode, records)
        for child in self._children:
            if child.ended not in (0, KILLED):
                raise Failed(f"a process ended with {child.ended}: {child.said()}")
        lines = {number: line for record in records for number, line in soak_process.read(record).items()}
        for record in records:
            record.unlink(missing_ok=True)
            record.with_suffix(".txt").unlink()
        return lines

    def _await(self, episode: Episode, records: Sequence[Path]) -> None:
        began = time.monotonic()
        due: dict[int, float] = {}
        dead: set[int] = set()
        while len(dead) < len(self._children):
            now = time.monotonic()
            self._let_stalled_go(now)
            if now > began + EPISODE_SECONDS:
                raise Failed(f"an episode took more than {EPISODE_SECONDS:g} s")
            for kill in episode.kills:
                if kill.process not in due and kill.operation in soak_process.read(records[kill.process]):
                    due[kill.process] = now + kill.delay
            for number, child in enumerate(self._children):
                if number not in dead and now >= due.get(number, now + 1) and not child.has_ended():
                    child.kill()
                if number not in dead and child.has_ended():
                    dead.add(number)
                    self._mourn(episode, child)
            time.sleep(_LOOK)

    def _let_stalled_go(self, now: float) -> None:
        """End a stall that met another move than it was meant for, perhaps that of whoever was to end it."""
        files = Layout(self.root)
        if not soak_process.has_stalled(files):
            self._stalled = None
        elif self._stalled is None:
            self._stalled = now
        elif now > self._stalled + STALLED_SECONDS:
            faults.clear(files, None)

    def _mourn(self, episode: Episode, child: Child) -> None:
        if child.ended != KILLED:
            return
        if not episode.kills and not any("kill" in each.words for each in episode.operations):
            raise Failed("a process was killed and nobody meant to")
        self.kills += 1
        self._say("  a process was killed")
        # Whoever was to let a stalled step go on may be dead.
        faults.clear(Layout(self.root), None)

    def _settle(self) -> Facts:
        record = self._folder / "facts.json"
        known = {server.id: server.name for server in self.model.servers.values()}
        told = self.model.ended()
        self.apart(lambda _words: soak_rest.settle(self.root, record, known, told))
        return msgspec.json.decode(record.read_bytes(), type=Facts)

    def _report(self, operation: Operation, line: Line) -> None:
        became = "killed" if line.code is None else f"{line.code}"
        self._say(f"{operation}  {became}  {line.seconds:.1f} s  {' '.join(line.said.split())[:160]}")
        if line.code is None:
            return
        if line.code not in operation.codes:
            raise Failed(f"operation {operation} ended with {line.code}: {line.said}")
        if line.code == Refused.exit_code and not line.said.startswith("droveway: "):
            raise Failed(f"operation {operation} was refused without its sentence: {line.said}")

    def _take_in(
        self, given: Sequence[Operation], lines: Mapping[int, Line], facts: Facts, before: Mapping[str, Server]
    ) -> None:
        """Tell the model what was asked and how the moves ended."""
        seen = {server.id: server for server in facts.servers}
        named = {server.name: server for server in facts.servers}
        for operation in given:
            line, words = lines[operation.number], operation.words
            if words[:3] == ("lab", "server", "create") and line.code == 0:
                self._created(named[words[3]].id, words)
            if words[:2] == ("lab", "server") and words[2] in ("start", "stop") and line.code == 0:
                server = self.model.named(words[3])
                if server is not None:
                    server.active = words[2] == "start"
        asked = {each.words[3] for each in given if each.words[:3] == ("lab", "server", "delete")}
        for server in before.values():
            if server.id not in seen and server.name in asked:
                self.model.deleted(server.id)
        self.model.tell(facts.moves)
        failures = any("fail" in each.words for each in given)
        for name, sentence in facts.stuck:
            self._say(f"  {name} needed an operator: {sentence}")
            if not sentence or not failures:
                raise Failed(f"{name} needed an operator, and no fault accounts for it: {sentence or 'no reason'}")

    def _created(self, server: str, words: Sequence[str]) -> None:
        options = dict(itertools.pairwise(words))
        self.model.created(
            Server(
                id=server,
                name=words[3],
                host=options["--host"],
                flavor=options["--flavor"],
                from_volume="--boot-volume" in words,
                active="--stopped" not in words,
                ephemeral=bool(soak_cloud.FLAVORS[options["--flavor"]].ephemeral_gb),
            )
        )


def _require_none(found: Sequence[str]) -> None:
    if found:
        raise Failed("; ".join(found))


def warm() -> None:
    """Import what every process would else import again."""
    for name in (*WARM, *_WARM_TOO):
        importlib.import_module(name)


def make_folder() -> Path:
    """A directory for a soak's lab, in memory when there is room."""
    return Path(tempfile.mkdtemp(prefix="droveway-soak-", dir=scratch.place()))


def main(run: Run, argv: Sequence[str]) -> int:
    """Run a soak with this command line; 0 when it ends well, and then the lab is gone."""
    wanted = _parse(argv)
    made_once.share()
    warm()
    folder = make_folder()
    _print(f"seed {wanted.seed}: tools/soak --seed {wanted.seed} {_length(wanted)} plans the same")
    soak = Soak(run, folder, _print if wanted.verbose else lambda _text: None)
    try:
        soak.build()
        _soak(soak, Planner(wanted.seed), wanted)
        soak.destroy()
        shutil.rmtree(folder)
    except DrovewayError as error:
        _print(f"soak: failed after {soak.operations} operations: {error}\nthe lab is kept: {soak.root}")
        _print(f"again:  tools/soak --seed {wanted.seed} --operations {soak.operations} --verbose")
        return 1
    finally:
        soak.abandon()
    _print(
        f"soak: {soak.operations} operations, {soak.kills} kills, {len(soak.model.ended())} moves ended, "
        "audit clean, allocations equal"
    )
    return 0


def _soak(soak: Soak, planner: Planner, wanted: argparse.Namespace) -> None:
    until = time.monotonic() + (wanted.minutes or 0) * _MINUTE
    told = time.monotonic()
    while soak.operations < wanted.operations if wanted.minutes is None else time.monotonic() < until:
        soak.carry_out(planner.episode(soak.model))
        if time.monotonic() - told > _MINUTE:
            told = time.monotonic()
            _print(f"{soak.operations} operations, {soak.kills} kills, {len(soak.model.ended())} moves ended")
    soak.settled()


def _length(wanted: argparse.Namespace) -> str:
    return f"--minutes {wanted.minutes:g}" if wanted.minutes is not None else f"--operations {wanted.operations}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/soak", description="Random moves, failures and kills in a lab, and its books compared with a model."
    )
    parser.add_argument("--seed", metavar="N", type=int, default=secrets.randbelow(1_000_000))
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", metavar="N", type=float, help="go on for so long")
    length.add_argument("--operations", metavar="N", type=int, default=1000, help="at least so many (default 1000)")
    parser.add_argument("--verbose", action="store_true", help="a line for each operation")
    return parser.parse_args(argv)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
