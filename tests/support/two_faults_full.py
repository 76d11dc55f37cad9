"""All points of two faults, shard after shard, in several processes: what `tools/matrix --two --full` runs.

A shard all of whose points held leaves a verdict in the repository.  It counts for as long as the code is the same, so
that runs add up.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final

from proofs import scratch
from support import two_faults_shards as shards
from support.two_faults import command
from support.two_faults.command import Kind
from support.two_faults.world import Verdict
from support.two_faults_shards import Code, Shard

SHARDS: Final = "shards: {} run, {} kept from earlier, {} due"

LONGEST: Final = 7200.0
"""Seconds after which a shard counts as hung: so long even a machine that has much else to do takes for none."""

_FORK: Final = multiprocessing.get_context("fork")


def main(arguments: Sequence[str] | None = None, *, root: Path = shards.ROOT) -> int:
    """Run what is due of the kinds that are named; 0 when every point that was run held, or is known to."""
    # What the lab logs of sessions that end with each command is no verdict.
    logging.getLogger().addHandler(logging.NullHandler())
    known = command.kinds()
    options = _parse(known, sys.argv[1:] if arguments is None else arguments)
    end = None if options.minutes is None else time.monotonic() + options.minutes * 60
    run = Run(root, known, options.jobs, end)
    for name in options.kind or known:
        run.add(name, options.shards)
    return run.all()


class Run:
    """The shards of one command, and what became of each."""

    def __init__(self, root: Path, kinds: Mapping[str, Kind], jobs: int, end: float | None) -> None:
        self._root = root
        self._kinds = kinds
        self._jobs = jobs
        self._end = end
        self._code = Code(root)
        self._due: collections.deque[Shard] = collections.deque()
        self._points: collections.Counter[str] = collections.Counter()
        self._held = self._kept = self._ran = self._bad = 0

    def add(self, kind: str, chosen: range | None = None) -> None:
        """Cut the kind's points, and have those shards run that no verdict of today's code is kept of."""
        every = shards.cut(kind, points_of(self._kinds[kind]))
        shards.drop_others(self._root, kind, every)
        for shard in every:
            if chosen is not None and shard.number not in chosen:
                continue
            found = shards.kept(self._root, shard)
            if found is not None and found.digest == self._code.digest(shard):
                self._kept += 1
                self._count(shard, len(shard.points))
            else:
                self._due.append(shard)
        command.say(f"{kind}: {sum(len(shard.points) for shard in every)} points in {len(every)} shards")

    def all(self) -> int:
        """Run them side by side; 0 when all held."""
        going: list[Going] = []
        try:
            while going or (self._due and self._is_time()):
                while self._due and len(going) < self._jobs and self._is_time():
                    shard = self._due.popleft()
                    going.append(Going(shard, self._kinds[shard.kind], self._code.digest(shard)))
                ended = Going.wait(going)
                going = [each for each in going if each not in ended]
                for each in ended:
                    self._end_of(each)
        finally:
            for each in going:
                each.interrupt()
        command.say(SHARDS.format(self._ran, self._kept, len(self._due) + self._bad))
        points = sum(self._points.values())
        by_kind = ", ".join(f"{name} {self._points[name]}" for name in command.KINDS)
        command.say(command.LAST.format(points, self._held, by_kind))
        return 0 if points == self._held > 0 else 1

    def _is_time(self) -> bool:
        return self._end is None or time.monotonic() < self._end

    def _count(self, shard: Shard, held: int) -> None:
        self._points[shard.kind] += len(shard.points)
        self._held += held

    def _end_of(self, going: Going) -> None:
        shard, ended = going.shard, going.ended()
        held = len(ended.held & set(shard.points))
        trouble = ended.trouble
        if not trouble and held + len(ended.bad) != len(shard.points):
            trouble = f"it told of {held + len(ended.bad)} of its {len(shard.points)} points"
        if not trouble and self._code.digest(shard) != going.digest:
            trouble = "the code was changed while it ran"
        self._ran += 1
        for verdict in ended.bad:
            command.tell(verdict)
        if trouble or ended.bad:
            self._bad += 1
            shards.drop(self._root, shard)
        else:
            shards.keep(self._root, shard, going.digest, ended.seconds)
        self._count(shard, 0 if trouble else held)
        command.say(f"{shard}: {len(shard.points)} points, {held} held in {ended.seconds:.0f} s")
        if trouble:
            again = f"tools/matrix --two --full {shard.kind} --shards {shard.number}"
            command.say(f"  {shard} does not count: {trouble}\n  again:  {again}")


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a process told of its shard."""

    held: frozenset[str]
    bad: tuple[Verdict, ...]
    trouble: str
    """Why it came to no end; "" when it did."""
    seconds: float


class Going:
    """A shard that is being run by a process of its own."""

    def __init__(self, shard: Shard, kind: Kind, digest: str) -> None:
        self.shard = shard
        self.digest = digest
        self._place = _folder(shard.kind)
        self._told = _folder(f"{shard.kind}-told")
        self._began = time.monotonic()
        self._until = self._began + LONGEST
        self.process = _start(lambda: _run(kind, shard, self._place, self._told / "verdicts"), self._told / "said")

    @staticmethod
    def wait(going: Sequence[Going]) -> list[Going]:
        """Those that have ended, once one has; who takes too long is killed."""
        left = max(0.0, min(each._until for each in going) - time.monotonic())
        multiprocessing.connection.wait([each.process.sentinel for each in going], left)
        for each in going:
            if each.process.is_alive() and time.monotonic() >= each._until:
                each.process.kill()
                each.process.join()
        return [each for each in going if not each.process.is_alive()]

    def ended(self) -> Ended:
        """What it told; its folders go."""
        self.process.join()
        seconds = time.monotonic() - self._began
        path, said = self._told / "verdicts", self._told / "said"
        told = [Verdict(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
        trouble = _why(self.process, said.read_text(errors="replace"), told[-1].point if told else "")
        self._remove()
        held = frozenset(verdict.point for verdict in told if not verdict.trouble)
        return Ended(held, tuple(verdict for verdict in told if verdict.trouble), trouble, seconds)

    def interrupt(self) -> None:
        """Have the process clean up and end, as it does at Ctrl-C."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGINT)
        self.process.join(180)
        self.process.kill()
        self.process.join()
        self._remove()

    def _remove(self) -> None:
        for folder in (self._place, self._told):
            shutil.rmtree(folder, ignore_errors=True)


def points_of(kind: Kind) -> list[str]:
    """The points of the kind's full run, found in a process of its own; raises RuntimeError where that fails.

    Some kinds try every operation for them: nothing of that stays in the process that all shards are forked from.
    """
    with tempfile.TemporaryDirectory(prefix="droveway-points-") as folder:
        found, said = Path(folder, "points"), Path(folder, "said")
        every = getattr(kind, "full", kind.points)
        process = _start(lambda: found.write_text(json.dumps(list(every()))), said)
        process.join()
        if why := _why(process, said.read_text(errors="replace")):
            raise RuntimeError(f"the points of {kind.KIND} cannot be told: {why}")
        return [str(point) for point in json.loads(found.read_text())]


def _run(kind: Kind, shard: Shard, place: Path, verdicts: Path) -> None:
    with verdicts.open("w", encoding="utf-8") as file:
        for verdict in kind.run(place, shard.points):
            file.write(json.dumps(dataclasses.astuple(verdict)) + "\n")
            file.flush()


def _folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"droveway-{name}-", dir=scratch.place()))


def _start(work: Callable[[], object], said: Path) -> ForkProcess:
    """Begin the work in a forked process, whose words go to the file ``said``."""
    said.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    process = _FORK.Process(target=_in_child, args=(work, said))
    process.start()
    return process


def _in_child(work: Callable[[], object], said: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with said.open("w", encoding="utf-8") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            try:
                work()
            except BaseException:  # noqa: BLE001 - the parent tells of it
                traceback.print_exc()
                file.flush()
                # Without what the interpreter does at its end: threads of what failed may never come to theirs.
                os._exit(1)
        file.flush()
    os._exit(0)


def _why(process: ForkProcess, said: str, last: str = "") -> str:
    """Why the process, which is over, came to no end; "" when it did."""
    if process.exitcode == 0:
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    behind = f" behind {last}" if last else ""
    return f"its process ended with {process.exitcode}{behind}: {lines[-1] if lines else 'it said nothing'}"


def _parse(known: Mapping[str, Kind], arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/matrix --two --full", description=__doc__)
    parser.add_argument("kind", nargs="*", metavar="KIND", help=f"only these: {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument(
        "--shards", type=_numbers, metavar="A-B", help="only these shards of the one kind that is named"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="after so many no shard is begun any more")
    parser.add_argument("--full", action="store_true", help="as here")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.kind if name not in known]:
        parser.error(f"there is no kind {unknown[0]}, but {', '.join(known)}")
    if options.shards is not None and len(options.kind) != 1:
        parser.error("--shards are of one kind: name it")
    if options.jobs < 1:
        parser.error("--jobs: at least one process runs them")
    return options


def _numbers(text: str) -> range:
    """``A-B`` or ``A``; raises ValueError for anything else."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@contextlib.contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    with _ending_at_sigterm():
        raise SystemExit(main())
