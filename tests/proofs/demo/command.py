"""The demonstration: a lab whose commands are killed in the middle, carried on, and audited at the end."""

from __future__ import annotations

import argparse
import importlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proofs import kills
from proofs.demo.guests import Failed, LibvirtGuests, SandboxGuests
from proofs.demo.plan import Aim, Planner, Round, count
from proofs.kills import Child, Run, Standing
from rich.console import Console
from rich.table import Table

from droveway.errors import DrovewayError
from droveway.lab import cloud
from droveway.lab.layout import Layout
from droveway.persistence.journal.states import ENDED, State
from droveway.printable import SHORT

LEAST_MOVES: Final = 20
LEAST_KILLS: Final = 15
LEAST_UNDOS: Final = 3
"""Fewer would show too little: more rounds are added until there are as many."""

MOST_EXTRA: Final = 10
"""Rounds that are added at most."""

LOOK: Final = 0.002
"""Seconds between two looks at the journal: a step takes ten times as long."""

IDLE: Final = 0.02
"""Seconds between two looks whether a command has ended, once the round's kills are done."""

ROUND_SECONDS: Final = 120.0
"""A round that takes longer hangs."""

_UNDONE: Final = 3
_INTERRUPTED: Final = 130

_WIDTH: Final = 150
"""Columns of a table where there is no terminal."""

WARM: Final = (
    "droveway.cli.commands.audit",
    "droveway.cli.commands.fault",
    "droveway.cli.commands.host",
    "droveway.cli.commands.lab",
    "droveway.cli.commands.request",
    "droveway.cli.commands.server",
    "droveway.cli.commands.shelve",
    "droveway.clients.embedded.cloud",
    "droveway.clients.embedded.placement",
    "droveway.conf.settings",
    "droveway.lab.books",
    "droveway.lab.build",
    "droveway.lab.operations",
    "alembic.command",
    "cliff.formatters.table",
    "oslo_db.sqlalchemy.enginefacade",
    "placement.deploy",
    "sqlalchemy.dialects.sqlite",
)
"""What every command would else import again in its own process."""


@dataclass(frozen=True)
class Kill:
    """One process that was killed, and where its moves stood."""

    command: str
    pid: int
    hits: tuple[Standing, ...]

    @property
    def in_undo(self) -> bool:
        """Whether a move was being undone."""
        return any(hit.direction == "revert" for hit in self.hits)


class Demo:
    """One run of the demonstration."""

    def __init__(self, run: Run, hypervisor: str, root: Path, outputs: Path, console: Console) -> None:
        """``run`` is the command line, ``root`` becomes the lab, ``outputs`` takes what the commands print."""
        self._run = run
        self._cloud = cloud.demo_file(hypervisor)
        self.spec = cloud.read_cloud(self._cloud)
        self._files = Layout(root)
        guests = LibvirtGuests if hypervisor == "libvirt" else SandboxGuests
        self._guests: LibvirtGuests | SandboxGuests = guests(self.spec, self._files)
        self._outputs = outputs
        self._console = console
        self._children: list[Child] = []
        self._started = 0
        self.kills: list[Kill] = []

    def build(self) -> None:
        """Make the lab."""
        self._heading("A lab")
        self.show("lab", "create", str(self._files.root), "--cloud", str(self._cloud))
        self._let_servers_leave_their_cells()
        self.show("server", "list")
        self._guests.begin(self)

    def _let_servers_leave_their_cells(self) -> None:
        written = self._files.configuration.read_text(encoding="utf-8")
        allowed = written.replace("\nallowed = false\n", "\nallowed = true\n", 1)
        if allowed == written:
            raise Failed(f"{self._files.configuration} has no [cross_cell] allowed = false")
        self._files.configuration.write_text(allowed, encoding="utf-8")
        self.say(f"servers may leave their cells: [cross_cell] allowed = true in {self._files.configuration}")

    def carry_out(self, each: Round) -> None:
        """Give the round's commands, kill and resume until all its moves rest."""
        self._heading(each.title)
        if each.fault:
            self.show(*each.fault.words())
        self._children = [self._start(*words) for words in each.commands]
        codes = {0, _UNDONE} if each.fault else {0}
        aims = list(each.aims)
        resumed = False
        until = time.monotonic() + ROUND_SECONDS
        while self._children or self._unfinished():
            if time.monotonic() > until:
                raise Failed(f"a round took more than {ROUND_SECONDS:g} s: look at {self._files.root}")
            if not self._children:
                if resumed:
                    raise Failed(f"move resume left {', '.join(self._unfinished())} unfinished")
                self._children = [self._start("move", "resume")]
                resumed = True
            if self._take_aim(aims):
                resumed = False
            self._children = [child for child in self._children if not self._is_over(child, codes)]
            time.sleep(LOOK if aims else IDLE)
        for aim in aims:
            self.say(f"  (no kill: {aim.server} was past the place that was chosen)")
        if each.fault:
            self.show("lab", "fault", "clear")
        self._guests.after(self, {command[2] for command in each.commands})

    def show(self, *words: str) -> None:
        """Give one command and print what it says; raises Failed when it does not succeed."""
        child = self._start(*words)
        self._children = [child]
        child.wait()
        self._is_over(child, {0})
        self._children = []

    def apart(self, work: Run, *words: str) -> None:
        """Do the work in a process of its own and print what it says; raises Failed unless it returns 0."""
        self._started += 1
        child = Child(work, words, self._outputs / f"{self._started}.txt")
        code = child.wait()
        if said := child.said():
            self.say(_indented(said))
        if code:
            raise Failed("the guests are not as they must be")

    def conclude(self) -> None:
        """Print what became of everything; raises Failed unless every move ended and no two guests ran at once."""
        self._heading("What became of it")
        self.show("move", "list")
        self.show("server", "list")
        self.show("host", "list")
        self.say("")
        self._console.print(self._table())
        left = [f"{server} ({state})" for server, state, _ in self.moves().values() if State(state) not in ENDED]
        if left:
            raise Failed(f"moves have not ended: {', '.join(left)}")
        self._guests.conclude(self)

    def audit(self) -> None:
        """The verdict, by a process that shares nothing with this one; raises Failed unless the books balance."""
        command = [str(Path(sys.executable).with_name("droveway")), "--lab", str(self._files.root), "audit"]
        self.say(f"\n$ droveway audit  (a process of its own: {command[0]})")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.say(_indented(f"{done.stdout}{done.stderr}".strip()))
        if done.returncode:
            raise Failed(f"the audit ended with {done.returncode}")

    def abandon(self) -> None:
        """Kill what still runs."""
        for child in self._children:
            if not child.has_ended():
                child.kill()

    def is_built(self) -> bool:
        """Whether there is a lab, wholly made or not."""
        return self._files.identity.exists()

    def destroy(self) -> None:
        """Stop the lab's guests and remove it and the directory that was made for it."""
        child = self._start("lab", "destroy", str(self._files.root))
        child.wait()
        self._is_over(child, {0})
        self._files.root.parent.rmdir()

    def moves(self) -> dict[str, tuple[str, str, str | None]]:
        """By id: the server's name, the state and the error of every move."""
        return kills.states(self._files.journal)

    def _start(self, *words: str) -> Child:
        self._started += 1
        self.say(f"$ droveway {' '.join(words)}")
        lab = ["--lab", str(self._files.root)]
        return Child(self._run, [*lab, *words], self._outputs / f"{self._started}.txt")

    def _is_over(self, child: Child, codes: set[int]) -> bool:
        """Whether the command has ended; prints what it said, raises Failed when it ended in another way."""
        if not child.has_ended():
            return False
        if child.ended == kills.KILLED and any(kill.pid == child.pid for kill in self.kills):
            return True
        if said := child.said():
            self.say(_indented(said))
        if child.ended not in codes:
            raise Failed(f"droveway {' '.join(child.words[2:])} ended with {child.ended}{self._reasons()}")
        return True

    def _reasons(self) -> str:
        """What the moves that failed say, for the last line: of a long output that may be all that is kept."""
        failed = self.moves().values() if self.is_built() else ()
        return "".join(f"; {server} is {state}: {error}" for server, state, error in failed if error)

    def _unfinished(self) -> list[str]:
        """The servers whose moves go on by themselves; raises Failed for a move that needs an operator."""
        going = []
        for move, (server, state, error) in self.moves().items():
            if state == State.NEEDS_OPERATOR:
                raise Failed(f"move {move[:SHORT]} of {server} needs an operator: {error}")
            if state != State.VERIFYING and State(state) not in ENDED:
                going.append(server)
        return going

    def _take_aim(self, aims: list[Aim]) -> bool:
        """Kill the process at whose move an aim is taken, when its moment has come; whether that was so."""
        by_pid = {child.pid: child for child in self._children}
        for standing in kills.look(self._files.journal) if aims else []:
            aim = next((aim for aim in aims if aim.fits(standing)), None)
            if aim is None or standing.pid not in by_pid:
                continue
            time.sleep(aim.delay)
            if self._shoot(by_pid[standing.pid], aim):
                aims.remove(aim)
                return True
        return False

    def _shoot(self, child: Child, aim: Aim) -> bool:
        """Kill the child if it holds the aimed move inside a step or between two; whether it did."""
        if child.has_ended() or not child.halt():
            return False
        hits = tuple(hit for hit in kills.look(self._files.journal) if hit.pid == child.pid)
        if not any((hit.server, hit.direction) == (aim.server, aim.direction) for hit in hits):
            child.let_go()
            return False
        if not child.kill():
            return False
        self.kills.append(Kill(" ".join(child.words[2:]), child.pid, hits))
        for hit in hits:
            self.say(f"  KILL {len(self.kills)}: process {child.pid}, {hit.flow} of {hit.server} {hit.place()}")
        return True

    def _table(self) -> Table:
        table = Table(title=f"{len(self.kills)} kills", box=None, title_justify="left", header_style="")
        for heading in ("kill", "process", "command", "move", "server", "flow", "hit", "became"):
            table.add_column(heading, overflow="fold")
        moves = self.moves()
        for number, kill in enumerate(self.kills, 1):
            process = (str(number), str(kill.pid), kill.command)
            for hit in kill.hits:
                became = moves[hit.move][1]
                table.add_row(*process, hit.move[:SHORT], hit.server, hit.flow, hit.place(), became)
                process = ("", "", "")
        return table

    def _heading(self, text: str) -> None:
        self.say(f"\n== {text}")

    def say(self, text: str) -> None:
        """Print a line or several."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def warm(hypervisor: str) -> None:
    """Import what the commands of a lab of this hypervisor need, and nothing that another one alone needs."""
    for name in (*WARM, f"droveway.workers.hypervisors.{hypervisor}.hypervisor"):
        importlib.import_module(name)


def main(run: Run, argv: Sequence[str]) -> int:
    """Run the demonstration with this command line; 0 when it ends well, and then the lab is gone unless it is kept."""
    began = time.monotonic()
    wanted = _parse(argv)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    warm(wanted.hypervisor)
    root = (wanted.keep or _new_root()).absolute()
    with tempfile.TemporaryDirectory() as outputs:
        demo = Demo(run, wanted.hypervisor, root, Path(outputs), console)
        try:
            _perform(demo, Planner(wanted.seed, demo.spec), wanted.seed)
            moves = len(demo.moves())
            if wanted.keep is None:
                demo.destroy()
        except DrovewayError as error:
            if demo.is_built():
                demo.say(f"\nthe lab is kept: look at it with  droveway --lab {root} ...")
            demo.say(f"demo: failed with seed {wanted.seed}: {error}")
            return 1
        except KeyboardInterrupt:
            demo.abandon()
            if wanted.keep is None and demo.is_built():
                demo.destroy()
            return _INTERRUPTED
        finally:
            demo.abandon()
    demo.say(f"\ntook {time.monotonic() - began:.0f} s after the installation")
    demo.say(f"demo: ok: {moves} moves, {len(demo.kills)} kills survived, audit clean")
    return 0


def _perform(demo: Demo, planner: Planner, seed: int) -> None:
    rounds = list(planner.rounds())
    planned = count(rounds)
    demo.say(
        f"seed {seed}: {planned['moves']} moves, {planned['kills']} kills, {planned['undos']} of them during an undo "
        f"(tools/demo --seed {seed} plans the same)"
    )
    demo.build()
    for each in rounds:
        demo.carry_out(each)
    for _ in range(MOST_EXTRA):
        if _shown_enough(demo):
            break
        demo.carry_out(planner.undone_move())
    if not _shown_enough(demo):
        raise Failed(
            f"after {MOST_EXTRA} more rounds there are still not {LEAST_MOVES} moves and {LEAST_KILLS} kills, "
            f"{LEAST_UNDOS} of them during an undo"
        )
    demo.conclude()
    demo.audit()


def _shown_enough(demo: Demo) -> bool:
    undos = sum(kill.in_undo for kill in demo.kills)
    return len(demo.moves()) >= LEAST_MOVES and len(demo.kills) >= LEAST_KILLS and undos >= LEAST_UNDOS


def _new_root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="droveway-demo-"))
    # The user of root's libvirt daemons has to pass.
    folder.chmod(0o711)
    return folder / "lab"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/demo", description="Moves servers about in a lab, killing and resuming the commands that do it."
    )
    parser.add_argument("--seed", metavar="N", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--keep", metavar="DIR", type=Path, help="build the lab in DIR and leave it there")
    parser.add_argument("--hypervisor", choices=("sandbox", "libvirt"), default="sandbox")
    return parser.parse_args(argv)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
