"""Crash points run: a step of a flow killed, made to fail, repeated or met by a request, on one prepared lab.

A kill is a real SIGKILL of a real process, which is conductor, keeper and workers in one, forked from a warm process
without threads and without open databases.  After it a fresh process resumes and judges: the audit has to be clean,
the move to rest where it should, and the server to be usable, or nothing of it left when it was deleted.

Between two steps of a flow all that it goes on from is in the lab.  So a point ends early that has its lab, after all
that was to happen has happened, in a state from which an earlier point of the same expected end went on to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from proofs import leftovers
from proofs.crash import judge as crash_judge
from proofs.crash import points as crash_points
from proofs.crash import process as crash_process
from proofs.crash import purposes as crash_purposes
from proofs.crash import seen as crash_seen
from proofs.crash import state as crash_state
from proofs.crash import warm as crash_warm
from proofs.crash import without as crash_without
from proofs.crash import worlds as crash_worlds
from proofs.crash.checkpoints import Checkpoint, Checkpoints
from proofs.crash.points import Gaps, Point, Spot
from proofs.crash.points import Path as Way
from proofs.crash.script import Script
from proofs.crash.without import Effect
from proofs.crash.workers import WorkerProcesses
from support.labs import snapshot

from droveway.errors import DrovewayError
from droveway.flows import registry
from droveway.lab import books, build, cloud
from droveway.lab.runner import Probes
from droveway.persistence.journal import kinds
from droveway.persistence.journal.states import State

SERVER: Final = "web"

How = Literal["asked", "auto", "healthy", "deleted"]
"""What brings a confirm about: somebody asks for it; a policy of its move; a delete of the server."""

HOWS: Final = get_args(How)
POLICIES: Final = ("auto", "healthy")

BETWEEN: Final = "cross_cell_"
"""How the kinds of flow begin that lead into another cell."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a point; ``trouble`` is empty when it converged."""

    point: Point
    end: str
    trouble: str
    seconds: float
    met: bool = False
    """Whether it was not run to its end, since it met a state from which an earlier point went on to that end."""


class Bench:
    """One prepared lab with one server, put back before each point."""

    def __init__(
        self,
        folder: Path,
        spec: cloud.Cloud,
        how: How = "asked",
        *,
        whole: bool = False,
        keep: int = 0,
        shelved: bool = False,
    ) -> None:
        """``folder`` is empty: the lab and what is kept of it are made there; ``how`` tells of its confirms.

        ``whole``: every point is run to its end, whatever states it meets.  ``keep``: seconds for which confirms keep
        the source.  ``shelved``: what deletes a server finds it shelved.
        """
        self._how = how
        self._deletes_shelved = shelved
        self._whole = whole
        self._ends: dict[str, str] = {}
        """By a state of a flow under way: the end that it went on to from there."""
        self._root = folder / "lab"
        self._kept = folder / "kept"
        self._kept.mkdir()
        self._script: Script | None = None
        self._seen: set[str] = set()
        self._gaps: dict[str, Gaps] = {}
        self._checkpoints: dict[tuple[str, Way], Checkpoints] = {}
        self._answers: dict[str, crash_without.Answers] = {}
        self.without: Effect | None = None
        """The effect that is taken out of the flows of its kind."""
        self._between = len(spec.cells) > 1
        self.alternates = len(list(spec.hosts())) > 2
        crash_process.apart(lambda: _build(self._root, spec, keep))
        self._rest = snapshot.take(self._root, self._kept / "rest")
        self._rest.restore()
        self._before = crash_seen.look(self._root, crash_seen.find(self._root, SERVER))
        self._spoilt = self._before
        """The server of a point in a bad world right before the flow."""
        self._lab = crash_warm.open_lab(self._root, self._on_request)
        self._books = crash_warm.open_lab(self._root)
        self._known = crash_state.ids(self._lab)

    def warm(self) -> None:
        """Run every kind of flow here, so that children find loaded, compiled and cached what they need."""
        try:
            self._warm_undo()
            # A disk that has grown is never moved: by the image service that takes twenty seconds, for zeros alone.
            for kind in ("migrate", "revert", "resize", "confirm"):
                self._go_on(None, functools.partial(crash_judge.submit, self._lab, self._named(kind), SERVER))
            self._put_back()
            again = functools.partial(crash_judge.submit, self._books, self._named("migrate"), SERVER)
            crash_judge.carry(self._books, None, again)
            crash_judge.use(self._books, SERVER)
            crash_state.digest(self._books, self._known)
            crash_state.under_way(self._books, self._known)
            self._put_back()
            self._warm_deletion()
        finally:
            self._give_back()
        crash_warm.freeze()

    def _put_back(self) -> None:
        """Go on with the server as it was at first."""
        self._give_back()
        self._rest.restore()

    def _give_back(self) -> None:
        for lab in (self._lab, self._books):
            crash_warm.rest(lab)

    def _warm_undo(self) -> None:
        """What follows a kill, a pause, and a refusal at the point of no return; its end is for the points to judge."""
        self._rest.restore()
        graph = registry.latest(self._named("resize"))
        first, second, *_ = crash_points.atoms(graph, "revert")
        killed, paused = Spot("execute", first, "kill", "after"), Spot("execute", second, "pause", "after")
        script = Script("revert", (killed, paused), graph.no_return.step_name())
        crash_process.fork(lambda _leave: self._go_on(script, self._submit(graph.kind)))
        self._go_on(script, _nothing)
        crash_judge.lift_hold(self._lab)
        self._go_on(script, _nothing)
        self._put_back()

    def _warm_deletion(self) -> None:
        """What a delete of a server brings about that waits to be confirmed, and how one looks for what is left."""
        self._go_on(None, functools.partial(crash_judge.submit, self._lab, self._named("resize"), SERVER))
        self._go_on(None, functools.partial(crash_judge.submit, self._lab, "delete", SERVER))
        leftovers.of(self._books, crash_judge.latest(self._books).server)
        books.balance(self._books)

    def gaps(self, kind: str) -> Gaps:
        """The phases within each step that undisturbed runs of the flow pass, on every way that it can go."""
        if kind not in self._gaps:
            self._gaps[kind] = self._look_for_gaps(kind)
        return self._gaps[kind]

    def _look_for_gaps(self, kind: str) -> Gaps:
        found: dict[tuple[Way, str], list[str]] = {}
        graph = registry.latest(kind)
        ways: Sequence[Way]
        # A confirm that a policy or a delete asks for is asked for again, and again, where it is turned back.
        ways = crash_points.paths(graph, alternates=self.alternates) if self._how == "asked" else ("execute",)
        for way in ways:
            self._base(kind).restore()
            script = Script(way, (), graph.no_return.step_name())
            ended = crash_process.fork(functools.partial(self._trace, kind, script))
            if ended.trouble or ended.killed:
                raise DrovewayError(f"{kind}:{way} does not run: {ended.trouble}")
            for direction, step, phase in ended.value:
                phases = found.setdefault((way, step), [])
                forward = direction == "execute"
                if forward == (way == "execute") and phase not in (*crash_points.AROUND, *phases):
                    phases.append(phase)
        return found

    def worlds(self, kind: str) -> list[Point]:
        """The points of the kind in a bad world that the server can meet."""
        return list(crash_worlds.points(kind, self._before))

    def prepare(self, kind: str, way: Way) -> None:
        """Make the flow's checkpoints, which its points then begin at: worth it where they are many."""
        found = self._from(kind, way)
        found.make(functools.partial(self._pause, kind, way))

    def run(self, point: Point) -> Outcome:
        """One point, from a fresh lab to its verdict."""
        began = time.monotonic()
        try:
            told = self._carry_out(point)
        except DrovewayError as error:
            return Outcome(point, "", str(error), time.monotonic() - began)
        return Outcome(point, told["end"], "", time.monotonic() - began, met=told["met"])

    def states(self) -> int:
        """How many distinct end states were used: their servers stopped, started and moved again."""
        return len(self._seen)

    def close(self) -> None:
        """Stop the guests that the last point left, and remove the lab."""
        crash_process.apart(lambda: build.destroy(self._root))

    def _base(self, kind: str) -> snapshot.Snapshot:
        if kinds.of(kind).begins_offloaded or (kinds.of(kind).deletes and self._deletes_shelved):
            return self._shelved
        if kinds.of(kind).elsewhere:
            return self._source_lost
        by_policy = kinds.of(kind).ends == kinds.Way.CONFIRM and self._how in POLICIES
        return self._verifying if kinds.of(kind).ends_wait and not by_policy else self._rest

    @functools.cached_property
    def _verifying(self) -> snapshot.Snapshot:
        self._rest.restore()
        crash_process.apart(lambda: crash_judge.carry(self._lab, None, self._submit(self._named("resize"))))
        return snapshot.take(self._root, self._kept / "verifying")

    @functools.cached_property
    def _source_lost(self) -> snapshot.Snapshot:
        self._verifying.restore()
        crash_process.apart(lambda: crash_judge.lose_source(self._lab))
        return snapshot.take(self._root, self._kept / "source-lost")

    @functools.cached_property
    def _shelved(self) -> snapshot.Snapshot:
        self._rest.restore()
        crash_process.apart(lambda: crash_judge.carry(self._lab, None, self._submit("shelve")))
        return snapshot.take(self._root, self._kept / "shelved")

    def _carry_out(self, point: Point) -> dict[str, Any]:
        if self.without is not None and self.without.kind not in self._answers:
            self._answers[self.without.kind] = self._note_answers(self.without.kind)
        checkpoints = self._from(point.kind, point.path)
        start = checkpoints.before(point)
        script = checkpoints.script(point.spots, start)
        start.snapshot.restore()
        self._spoil(point, script)
        begin = self._begin(point.kind, start)
        ended = crash_process.fork(lambda leave: self._run(point, script, begin, leave))
        fired = 0
        while ended.killed:
            if script.fired() == fired or point.spots[script.fired() - 1].effect != "kill":
                raise DrovewayError("the process was killed, and not by the point")
            fired = script.fired()
            ended = crash_process.fork(lambda leave: self._run(point, script, _nothing, leave))
        if ended.trouble:
            raise DrovewayError(ended.trouble)
        self._note(point, script, ended.value)
        return dict(ended.value)

    def _spoil(self, point: Point, script: Script) -> None:
        """Make the world bad where the point wants that, now or when its step is reached."""
        world = crash_worlds.of(point)
        if world is None:
            return
        found = crash_seen.look(self._root, self._before.server)
        if world.late:
            script.spoil = functools.partial(world.make, self._root, found)
        else:
            world.make(self._root, found)
            script.fire()
            found = crash_seen.look(self._root, self._before.server)
        self._spoilt = found

    def _from(self, kind: str, way: Way) -> Checkpoints:
        if (kind, way) not in self._checkpoints:
            self._checkpoints[kind, way] = Checkpoints(registry.latest(kind), way, self._base(kind))
        return self._checkpoints[kind, way]

    def _pause(self, kind: str, way: Way, start: Checkpoint, script: Script) -> snapshot.Snapshot:
        start.snapshot.restore()
        crash_process.apart(lambda: self._run_until_paused(script, self._begin(kind, start)))
        return snapshot.take(self._root, self._kept / f"{kind}-{way}-{start.passed}")

    def _go_on(self, script: Script | None, begin: Callable[[], object]) -> None:
        self._script = script
        probes = None
        if script is not None:
            script.ask = functools.partial(crash_judge.ask, self._lab, server=SERVER)
            probes = Probes(script.conductor, script.worker)
        crash_judge.carry(self._lab, probes, begin)

    def _run_until_paused(self, script: Script, begin: Callable[[], object]) -> None:
        self._go_on(script, begin)
        if not crash_judge.latest(self._lab).hold:
            raise DrovewayError(f"the flow did not pause at {script.spots[0]}")

    def _begin(self, kind: str, start: Checkpoint) -> Callable[[], object]:
        return functools.partial(crash_judge.lift_hold, self._lab) if start.passed else self._submit(kind)

    def _submit(self, kind: str) -> Callable[[], object]:
        submit = functools.partial(crash_judge.submit, self._lab)
        if kinds.of(kind).ends != kinds.Way.CONFIRM or self._how == "asked":
            return functools.partial(submit, kind, SERVER)
        if self._how == "deleted":
            return functools.partial(submit, "delete", SERVER)
        return functools.partial(submit, self._named("resize"), SERVER, policy=self._how)

    def _named(self, kind: str) -> str:
        """Name the kind of flow in this lab: where there are two cells, moves lead from one into the other."""
        return f"{BETWEEN}{kind}" if self._between else kind

    def _note(self, point: Point, script: Script, told: Any) -> None:
        if script.fired() < len(point.spots):
            raise DrovewayError(f"the fault never fired: {point.spots[script.fired()]}")
        if told["digest"]:
            self._seen.add(told["digest"])
        self._ends.update(dict.fromkeys(told["passed"], told["end"]))

    def _run(
        self, point: Point, script: Script, begin: Callable[[], object], leave: crash_process.Leave
    ) -> dict[str, Any]:
        """In a child: carry the flow on, judge, and use the server when this end state is a new one."""
        lab = self._lab
        self._script = script
        script.ask = functools.partial(crash_judge.ask, lab, server=SERVER)
        probes = Probes(script.conductor, script.worker)
        special = WorkerProcesses(lab, probes) if point.first.effect == "worker" else None
        deleted = self._how == "deleted" or crash_judge.is_deleted(point)
        passed: list[str] = []

        def landed() -> None:
            state = self._waypoint(point, script, deleted=deleted)
            if state in self._ends:
                if special is not None:
                    special.kill()
                leave({"end": self._ends[state], "digest": "", "passed": passed, "met": True})
            passed.append(state)

        world = crash_worlds.of(point)
        if not self._whole and world is None:
            script.landed = landed
        with self._defect():
            script.repeat(registry.latest(point.kind))
            crash_judge.carry(lab, probes, begin, special=special)
            if not (world and world.late) and crash_judge.lift_hold(lab):
                crash_judge.carry(lab, probes, _nothing)
            if deleted and State(crash_judge.latest(lab).state) is State.VERIFYING:
                crash_judge.carry(lab, probes, self._submit("delete"))
        self._script = None
        if kinds.of(point.kind).elsewhere:
            crash_judge.carry(lab, None, functools.partial(crash_judge.bring_source_back, lab))
        crash_warm.rest(lab)
        told = {"end": "", "digest": "", "passed": passed, "met": False}
        if world is not None:
            end = crash_judge.rests(self._books, {world.ends[crash_worlds.place(point)]})
            crash_purposes.require(self._root, self._spoilt, world.check)
            return told | {"end": end}
        end = crash_judge.judge(
            self._books, point, accepted=script.accepted(), alternates=self.alternates, deleted=deleted
        )
        crash_purposes.require(self._root, self._before, crash_purposes.of(point, end, deleted=deleted))
        told["end"] = end
        if deleted:
            return told
        found = crash_state.digest(self._books, self._known)
        if found not in self._seen:
            crash_judge.use(self._books, SERVER)
        return told | {"digest": found}

    def _defect(self) -> contextlib.AbstractContextManager[None]:
        """Without the effect that is to be taken out."""
        if self.without is None:
            return contextlib.nullcontext()
        return crash_without.taken_out(self.without, self._answers[self.without.kind])

    def _note_answers(self, kind: str) -> crash_without.Answers:
        """What the steps of an undisturbed flow of the kind return."""
        self._base(kind).restore()
        crash_process.apart(lambda: crash_judge.carry(self._lab, None, self._submit(kind)))
        return crash_seen.answers(self._root, kind)

    def _waypoint(self, point: Point, script: Script, *, deleted: bool) -> str:
        """The state of the flow under way, with all from outside it that decides where it has to end."""
        expected = crash_points.expected_end(point, accepted=script.accepted(), alternates=self.alternates)
        state = crash_state.under_way(self._books, self._known)
        turned = script.turned_back()
        return f"{state} {point.kind} {point.path} {turned=} {deleted=} {sorted(expected)}"

    def _trace(self, kind: str, script: Script, _leave: crash_process.Leave) -> list[tuple[str, str, str]]:
        self._script = script
        crash_judge.carry(self._lab, Probes(script.conductor, script.worker), self._submit(kind))
        return [(passed.direction, passed.step, passed.phase) for passed in script.passed]

    def _on_request(self, method: str, path: str) -> None:
        if self._script is not None:
            self._script.on_request(method, path)


def _build(root: Path, spec: cloud.Cloud, keep: int) -> None:
    lab = build.create(root, spec)
    crash_seen.stamp(root)
    # Nobody has to wait until a guest is old enough to be healthy.
    with lab.layout.configuration.open("a", encoding="utf-8") as file:
        file.write(f"[confirm]\nhealthy_after = 0\nkeep_source = {keep}\n")
    lab.close()


def _nothing() -> None:
    """The flow has been asked for already."""
